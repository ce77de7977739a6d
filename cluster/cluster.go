// Package cluster makes a process a member of a cluster: it announces the process, follows the other members, and
// answers requests on the node where they are cheapest.
//
// The parts are packages below this one, which stand alone: coord (who is there, and small values), member (states of
// nodes), feed (what nodes hold), peer (blocks of KV), mtls. Package route picks nodes. This package connects them to
// each other and to sockets, and owns their goroutines.
//
// Nothing here stops a process from answering requests: without the coordinator the last known members stay, and
// without any other member requests are answered here.
//
// Lock order: Cluster.mu, then fleet.mu.
package cluster

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	clusterv1 "grebe/api/grebe/cluster/v1"
	grebev1 "grebe/api/grebe/v1"
	"grebe/catalog"
	"grebe/cluster/coord"
	"grebe/cluster/feed"
	"grebe/cluster/member"
	"grebe/cluster/mtls"
	"grebe/cluster/peer"
	"grebe/cluster/protocol"
	"grebe/cluster/replica"
	"grebe/generate"
	"grebe/internal/tick"
	"grebe/kv"
	"grebe/route"
	"grebe/schedule"
	"grebe/serve"
	"grebe/serve/tracing"
)

// Config describes a member. Zero values mean the default.
type Config struct {
	Name     string         // of the cluster
	Node     string         // this process's id
	Roles    []string       // of package member; node and router
	Listener net.Listener   // for other members; Close closes it
	Peer     string         // host:port under which others reach Listener
	API      string         // host:port of the public API
	Identity *mtls.Identity // nil: no TLS
	Zone     string

	Limits      Limits            // of clients' keys, that hold over all members; nil: there are no keys
	Coordinator coord.Coordinator // Close closes it
	Lease       time.Duration     // after which a process that vanished is no longer registered; 10 s
	Routing     route.Policy
	NoFetch     bool // requests fetch no KV from other members; those may fetch from this one
	Models      []Model
	Users       int                  // most users in the index of a model: see route.Config; 2^19
	Items       int                  // most other entries there; 2^20. Both together take about 90 MB
	Registry    *prometheus.Registry // metrics; none
	Log         *slog.Logger         // nothing is logged
}

// Model is a model that this process serves.
type Model struct {
	Name     string
	Group    string // name of the first model with the same queue and the same memory
	Numerics string // class of devices that compute the same bits
}

// Local answers requests in this process. *serve.Service does.
type Local interface {
	Rank(context.Context, *grebev1.RankRequest) (*grebev1.RankResponse, error)
	Recommend(context.Context, *grebev1.RecommendRequest) (*grebev1.RecommendResponse, error)
	Score(context.Context, *grebev1.ScoreRequest) (*grebev1.ScoreResponse, error)
	Rerank(context.Context, *grebev1.RerankRequest) (*grebev1.RerankResponse, error)
	Offer(model string) (serve.Offer, bool)
	HotItems() (items []serve.Hot, total int64)
	Tracer() *tracing.Tracer
	Rescue(op string, err *error)
	Checkpoint(model string) (serve.Checkpoint, error)
	ChangeCheckpoint(model string, back bool) error
	Keeper() *generate.Keeper // nil: no model generates items
}

// Cluster is this process's membership.
type Cluster struct {
	cfg     Config
	speaks  member.Protocol // versions of the protocol
	boot    string
	start   time.Time
	metrics *metrics
	local   atomic.Pointer[Local]
	catalog *catalog.Catalog // nil: it is not shared
	wire    *wire
	blocks  *blocks
	fleets  map[string]*fleet // by model; models of a group share one
	groups  []*fleet          // each once
	stopped atomic.Bool       // this process stops: it is drained
	ready   atomic.Bool
	readied chan struct{} // closed when ready
	closed  atomic.Bool

	ctx    context.Context
	cancel context.CancelFunc
	run    sync.WaitGroup
	opened chan struct{} // closed when there is a secret
	met    chan struct{} // closed when the coordinator has listed the members
	mapped chan struct{} // closed when the coordinator has listed the maps of items

	mu      sync.Mutex
	members *member.Set
	listed  bool             // the coordinator has listed the members
	changes []change         // the last ones
	secret  *feed.Secret     // nil until opened
	known   map[string]*node // by id: every member that is not GONE, this process included
	said    []byte           // record as it was announced
	record  *coord.Announcement
	rolls   rollouts
	active  following
	reports map[string]int    // reports of what keys have spent that are wanted, by the id of the member
	refused map[string]string // boot ids of members without a common version, by id; they are not in known
}

// Open returns a member that does nothing yet. The caller MUST Close it.
func Open(cfg Config) (*Cluster, error) {
	cfg.Lease = cmp.Or(cfg.Lease, 10*time.Second)
	cfg.Users, cfg.Items = cmp.Or(cfg.Users, 1<<19), cmp.Or(cfg.Items, 1<<20)
	if len(cfg.Roles) == 0 {
		cfg.Roles = []string{member.Node, member.Router}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Registry == nil {
		cfg.Registry = prometheus.NewRegistry()
	}
	if cfg.Node == "" || cfg.Name == "" || cfg.Listener == nil || cfg.Coordinator == nil {
		return nil, errors.New("cluster: a member needs a cluster, an id, a listener and a coordinator")
	}
	c := &Cluster{
		cfg: cfg, speaks: member.Protocol{Min: protocol.Min, Max: protocol.Max}, boot: newBoot(),
		members: member.New(member.Options{}),
		known:   map[string]*node{}, refused: map[string]string{}, reports: map[string]int{}, fleets: map[string]*fleet{},
		opened: make(chan struct{}), met: make(chan struct{}), mapped: make(chan struct{}), readied: make(chan struct{}),
	}
	c.start = time.Now().Add(tick.Wait(feed.Beat) - feed.Beat) // all members send their heartbeats at the same moments
	c.active.changed = make(chan struct{})
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.metrics = newMetrics(c)
	if err := c.metrics.register(cfg.Registry); err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	for i := range cfg.Models {
		m := &cfg.Models[i]
		if f := c.fleets[m.Group]; f != nil {
			c.fleets[m.Name] = f
			continue
		}
		f, err := newFleet(c, m)
		if err != nil {
			return nil, err
		}
		c.fleets[m.Name], c.groups = f, append(c.groups, f)
	}
	var err error
	if c.blocks, err = newBlocks(c); err != nil {
		return nil, err
	}
	c.wire = newWire(c)
	return c, nil
}

func newBoot() string {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// Share makes a catalog the one of all members: see package replica. It MUST be called before Start. The caller starts
// and closes the result. replaced is called when another member's catalog took the place of this one.
func (c *Cluster) Share(items *catalog.Catalog, replaced func()) (*replica.Node, error) {
	c.catalog = items
	forget := func() {
		c.blocks.barrier()
		replaced()
	}
	n, err := replica.New(replica.Options{
		Node: c.cfg.Node, Boot: c.boot, Catalog: items, Coordinator: c.cfg.Coordinator, Peers: c.peers, Dial: c.dial,
		Replaced: forget, Reachable: c.reachable, Log: c.cfg.Log,
	})
	if err == nil {
		clusterv1.RegisterReplicaServer(c.wire.grpc, n)
	}
	return n, err
}

// reachable reports whether the coordinator answers.
func (c *Cluster) reachable() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.members.Up()
}

// Start announces this process. It gets requests from others once Ready is called. It returns an error if a member and
// this process have no common version of the protocol.
func (c *Cluster) Start(l Local) error {
	if err := c.checkVersions(); err != nil {
		return err
	}
	c.local.Store(&l)
	data, err := c.describe().Encode()
	if err != nil {
		return err
	}
	c.said = data
	if c.record, err = coord.Announce(c.cfg.Coordinator, nodesKey+c.cfg.Node, c.cfg.Lease, data, c.cfg.Log); err != nil {
		return err
	}
	c.wire.serve()
	c.run.Go(c.findSecret)
	c.run.Go(c.follow)
	c.run.Go(c.keepRecord)
	c.startPlacement()
	c.run.Go(c.followRollouts)
	if l.Keeper() != nil {
		c.run.Go(c.followActivations)
	}
	if c.cfg.Limits != nil {
		c.run.Go(c.shareLimits)
	}
	return nil
}

// Await waits until this process knows the cluster: it knows the other members, has applied the maps of items, and can
// serve its feed.
func (c *Cluster) Await(ctx context.Context) error {
	for _, known := range []<-chan struct{}{c.met, c.mapped, c.opened} {
		select {
		case <-known:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Ready lets other members send requests here, and know and fetch the KV of this process. Before it, KV of users who
// were deleted while this process was away MUST be gone.
func (c *Cluster) Ready() {
	if !c.ready.Swap(true) {
		close(c.readied)
	}
	c.announce()
}

// rests reports whether this process gets no requests from others.
func (c *Cluster) rests() bool { return c.stopped.Load() || !c.ready.Load() || c.excluded() }

// peers returns the addresses of all members for other members, by id; nil before the coordinator has listed them.
func (c *Cluster) peers() map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.listed {
		return nil
	}
	out := map[string]string{c.cfg.Node: c.cfg.Peer}
	for _, m := range c.members.Members() {
		out[m.ID] = m.Peer
	}
	return out
}

// Leave tells other members that this process stops: they send it no more requests, which takes them about a heartbeat.
func (c *Cluster) Leave() {
	if c.stopped.Swap(true) || c.record == nil {
		return
	}
	c.announce()
}

// Close leaves the cluster. No request may be in flight. Only the first call does something.
func (c *Cluster) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	c.stopped.Store(true)
	if c.record != nil {
		c.announce() // others see that this process stops in order; Leave may not have been called
	}
	c.cancel()
	var err error
	if c.record != nil {
		err = c.record.Close()
	}
	c.run.Wait()
	c.closeNodes()
	c.blocks.client.Close()
	c.wire.close()
	return errors.Join(err, c.cfg.Coordinator.Close())
}

// describe returns this process's record.
func (c *Cluster) describe() member.Record {
	r := member.Record{
		ID: c.cfg.Node, Boot: c.boot, API: c.cfg.API, Peer: c.cfg.Peer, Protocol: c.speaks, Roles: c.cfg.Roles,
		Zone:     c.cfg.Zone,
		Draining: c.rests(),
	}
	if c.cfg.Limits != nil {
		r.Keys = c.cfg.Limits.KeysDigest()
	}
	l, counted := c.local.Load(), map[*kv.Store]bool{} // models of a group share one
	for i := range c.cfg.Models {
		m := &c.cfg.Models[i]
		o, ok := (*l).Offer(m.Name)
		if !ok {
			continue
		}
		costs, s := schedule.DefaultCosts(schedule.PrefillModel{Row: 1}),
			peer.Space{Model: "-", Format: "-", Numerics: m.Numerics}
		if o.Cache != nil {
			costs, s = o.Cache.Costs(), c.fleets[m.Name].space(o.Cache)
			if store := o.Cache.Store(); !counted[store] {
				counted[store] = true
				device, host := store.Memory()
				r.Capacity.Device, r.Capacity.Host = r.Capacity.Device+device, r.Capacity.Host+host
			}
		}
		costs.Model.Quality = schedule.Quality{}
		r.Models = append(r.Models, member.Model{
			Name: m.Name, Version: o.Version, Digest: s.Model, Format: s.Format, Numerics: s.Numerics, Costs: costs,
		})
	}
	return r
}

// nodesKey begins the keys of members' records, drainKey those of operators' flags, and secretKey is the secret's.
const (
	nodesKey  = "nodes/"
	drainKey  = "drained/"
	secretKey = "secret"
)

// refresh is the time between two looks at what this process announces: costs that are measured, versions of
// checkpoints.
const refresh = 2 * time.Second

// keepRecord announces changes of what this process serves.
func (c *Cluster) keepRecord() {
	every := time.NewTimer(tick.Wait(refresh))
	defer every.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-c.record.Done():
			c.cfg.Log.Error("this process is no longer a member: another one has its id", "node", c.cfg.Node,
				"error", c.record.Err())
			return
		case <-every.C:
			every.Reset(tick.Wait(refresh))
			c.announce()
		}
	}
}

// announce announces this process again if its record changed. Small changes of measured times do not count.
func (c *Cluster) announce() {
	r := c.describe()
	c.mu.Lock()
	defer c.mu.Unlock()
	if old, err := member.Decode(c.said); err == nil && !old.Differs(r) {
		return
	}
	data, err := r.Encode()
	if err == nil {
		err = c.record.Set(data)
	}
	if err != nil {
		c.cfg.Log.Error("cannot announce this process", "error", err)
		return
	}
	c.said = data
}

// findSecret gets the cluster's secret from the coordinator, or makes one for all.
func (c *Cluster) findSecret() {
	var wait coord.Backoff
	for {
		s, err := c.sharedSecret()
		if err == nil {
			c.mu.Lock()
			c.secret = s
			c.mu.Unlock()
			c.wire.open(s)
			close(c.opened)
			return
		}
		if wait.Tell() {
			c.cfg.Log.Warn("cannot join the cluster yet: its secret is at the coordinator", "error", err)
		}
		if !wait.Wait(c.ctx) {
			return
		}
	}
}

func (c *Cluster) sharedSecret() (*feed.Secret, error) {
	var s feed.Secret
	e, err := c.cfg.Coordinator.Get(c.ctx, secretKey)
	if err == nil && e.Version == 0 {
		rand.Read(s[:]) // never fails
		if _, err = c.cfg.Coordinator.Swap(c.ctx, secretKey, s[:], 0, nil); err == nil {
			return &s, nil
		}
		if errors.Is(err, coord.ErrConflict) {
			e, err = c.cfg.Coordinator.Get(c.ctx, secretKey)
		}
	}
	if err == nil && len(e.Data) != len(s) {
		err = fmt.Errorf("cluster: the secret has %d bytes, want %d", len(e.Data), len(s))
	}
	if err != nil {
		return nil, err
	}
	copy(s[:], e.Data)
	return &s, nil
}

// now is the time of routers.
func (c *Cluster) now() time.Duration { return time.Since(c.start) }

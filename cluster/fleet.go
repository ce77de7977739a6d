package cluster

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"grebe/cluster/feed"
	feedwire "grebe/cluster/feed/wire"
	"grebe/cluster/member"
	"grebe/cluster/place"
	"grebe/embed"
	"grebe/placement"
	"grebe/residency"
	"grebe/reuse"
	"grebe/route"
	"grebe/schedule"
	"grebe/serve"
)

const (
	maxNodes   = 64
	maxClasses = 8 // of devices that exchange KV among themselves
)

// fleet is one model on all nodes, as this process sees it.
type fleet struct {
	c     *Cluster
	model *Model

	places atomic.Pointer[placement.Map] // nil: none was published
	hot    atomic.Pointer[place.Hot]     // nil: none was published

	mu      sync.Mutex
	router  *route.Router
	slots   map[string]*slot // by node's id
	used    [maxNodes]bool   // numbers of slots
	classes []class
	req     route.Request // of the request that is being routed
}

// class is a kind of KV: nodes exchange it with nodes of the same class.
type class struct{ digest, format, numerics string }

// slot is a node that serves the model.
type slot struct {
	id     string
	boot   string
	number int // in the router
	costs  route.Node
	trips  trips
	stop   context.CancelFunc
	client *feedwire.Client // nil: of this process
	kv     bool             // it holds KV and does not compute
	done   chan struct{}    // closed when it is no longer followed

	silent context.Context // ends when its connection breaks; another one for each connection
	hush   context.CancelFunc
}

func newFleet(c *Cluster, m *Model) (*fleet, error) {
	f := &fleet{c: c, model: m, slots: map[string]*slot{}}
	nodes := make([]route.Node, maxNodes)
	for i := range nodes {
		nodes[i].Costs = schedule.DefaultCosts(schedule.PrefillModel{Row: 1}) // until the node's record says more
	}
	nodes[0].Class = maxClasses - 1 // makes room for that many
	var err error
	f.router, err = route.New(route.Config{
		Policy: c.cfg.Routing, Orders: schedule.Predicted, Nodes: nodes, Users: c.cfg.Users, Items: c.cfg.Items,
		PeerUsers: !c.cfg.NoFetch, PeerItems: !c.cfg.NoFetch, Silence: feed.Limit,
		Shards: embed.MostShards,
	})
	if err != nil {
		return nil, fmt.Errorf("cluster: model %s: %w", m.Name, err)
	}
	return f, nil
}

// load is what this process's heartbeats say.
func (f *fleet) load() feed.Load {
	l := feed.Load{Draining: f.c.rests()}
	o := f.offer()
	if o.Cache != nil {
		l.Backlog = o.Cache.Backlog()
	}
	if o.Rows != nil {
		l.Shards, l.RowMs = o.Rows.AppendHeld(make([]byte, 0, embed.MostShards/8)), o.Rows.RowMs()
	}
	return l
}

// offer describes the checkpoint that serves.
func (f *fleet) offer() (o serve.Offer) {
	if l := f.c.local.Load(); l != nil {
		o, _ = (*l).Offer(f.model.Name)
	}
	return o
}

// cache returns the cache of the checkpoint that serves, or nil.
func (f *fleet) cache() *reuse.Cache { return f.offer().Cache }

// The methods of feed.Books: those of the store that serves. A reload may replace it; the new one has another boot.

// Position implements feed.Books.
func (f *fleet) Position() (boot, seq uint64) {
	if c := f.cache(); c != nil {
		return c.Store().Position()
	}
	return 1, 0
}

// Since implements feed.Books.
func (f *fleet) Since(dst []residency.Event, boot, seq uint64, most int) ([]residency.Event, bool) {
	if c := f.cache(); c != nil {
		return c.Store().Since(dst, boot, seq, most)
	}
	return dst, boot == 1 && seq == 0
}

// Scan implements feed.Books.
func (f *fleet) Scan(yield func(piece []residency.Event) bool) {
	if c := f.cache(); c != nil {
		c.Store().Scan(yield)
	}
}

// set brings the nodes that serve the model up to date. It returns those that left, which the caller stops.
func (f *fleet) set(members []member.Member, secret *feed.Secret) (left []*slot) {
	f.mu.Lock()
	defer f.mu.Unlock()
	there := map[string]bool{}
	for i := range members {
		m := &members[i]
		for j := range m.Models {
			if m.Models[j].Name == f.model.Name && (m.Has(member.Node) || m.Has(member.KV)) {
				there[m.ID] = true
				if old := f.slots[m.ID]; old != nil && old.boot != m.Boot {
					left = append(left, f.remove(old))
				}
				f.put(m, &m.Models[j], secret)
				break
			}
		}
	}
	for id, s := range f.slots {
		if !there[id] {
			left = append(left, f.remove(s))
		}
	}
	return left
}

// put adds a node, or takes its new record.
func (f *fleet) put(m *member.Member, model *member.Model, secret *feed.Secret) {
	s := f.slots[m.ID]
	if s == nil {
		if s = f.add(m); s == nil {
			return
		}
		f.connect(s, m, secret)
	}
	if costs := model.Costs; costs.Validate() == nil {
		s.costs.Costs = costs
	}
	s.costs.Class = f.class(class{model.Digest, model.Format, model.Numerics})
	s.costs.Name = hash(m.ID)
	s.kv = m.Has(member.KV) && !m.Has(member.Node)
	if err := f.router.SetNode(s.number, s.costs); err != nil {
		f.c.cfg.Log.Warn("the costs of a node are not valid", "node", m.ID, "error", err)
	}
	f.router.Rest(s.number, !m.Usable() || !m.Has(member.Node))
}

// add gives a node a number; nil: there are too many nodes.
func (f *fleet) add(m *member.Member) *slot {
	for i := range f.used {
		if !f.used[i] {
			f.used[i] = true
			s := &slot{id: m.ID, boot: m.Boot, number: i, done: make(chan struct{})}
			s.silent, s.hush = context.WithCancel(context.Background())
			s.costs = route.Node{Costs: schedule.DefaultCosts(schedule.PrefillModel{Row: 1}), RTT: firstTrip}
			f.slots[m.ID] = s
			return s
		}
	}
	f.c.cfg.Log.Error("too many nodes: a node is left out", "node", m.ID, "most", maxNodes)
	return nil
}

// firstTrip is the milliseconds of a round trip to another node until it was measured. This process counts as far away
// as the nearest other node. If it were nearer, it would win all ties, and all KV would lie where requests enter: in
// the memory of one node.
const firstTrip = .3

// connect follows a node's feed.
func (f *fleet) connect(s *slot, m *member.Member, secret *feed.Secret) {
	ctx, stop := context.WithCancel(f.c.ctx)
	s.stop = stop
	if s.id == f.c.cfg.Node {
		f.c.run.Go(func() {
			defer close(s.done)
			f.followSelf(ctx, s, secret)
		})
		return
	}
	s.client = feedwire.NewClient(feedwire.ClientConfig{
		Follower: feed.FollowerConfig{Node: s.number, ID: s.id, Secret: *secret, Sink: f.router},
		Address:  "passthrough:///" + m.Peer,
		Options: append(f.c.wire.options(m.ID), grpc.WithConnectParams(reconnect),
			grpc.WithStreamInterceptor(named(f.model.Name))),
		Lock: &f.mu, Clock: f.c.now,
		Broken: func(err error) { f.broken(s, err) },
	})
	f.c.run.Go(func() {
		defer close(s.done)
		s.client.Run(ctx)
	})
}

// named adds the model's name to a stream.
func named(model string) grpc.StreamClientInterceptor {
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer,
		opts ...grpc.CallOption) (grpc.ClientStream, error) {
		return next(metadata.AppendToOutgoingContext(ctx, modelHeader, model), desc, cc, method, opts...)
	}
}

// broken is called when the connection of a node's feed ended. Requests under way there are asked elsewhere.
func (f *fleet) broken(s *slot, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.router.Lost(s.number)
	s.hush()
	s.silent, s.hush = context.WithCancel(context.Background())
	if !errors.Is(err, context.Canceled) {
		f.c.cfg.Log.Debug("a feed ended", "node", s.id, "model", f.model.Name, "error", err)
	}
}

// remove takes a node out. The caller stops it without the lock.
func (f *fleet) remove(s *slot) *slot {
	delete(f.slots, s.id)
	f.router.Rest(s.number, true)
	f.router.Lost(s.number)
	return s
}

// free lets another node have the number of one that was stopped.
func (f *fleet) free(s *slot) {
	s.stop()
	<-s.done
	f.mu.Lock()
	defer f.mu.Unlock()
	s.hush()
	f.router.Lost(s.number)
	f.router.Rest(s.number, false)
	f.used[s.number] = false
}

// class returns the number of a class. Classes that are too many share the last one, which is wrong for none of them:
// keys of KV differ between digests and formats, and peers refuse blocks of another class.
func (f *fleet) class(c class) uint8 {
	for i := range f.classes {
		if f.classes[i] == c {
			return uint8(i)
		}
	}
	if len(f.classes) == maxClasses {
		return maxClasses - 1
	}
	f.classes = append(f.classes, c)
	return uint8(len(f.classes) - 1)
}

func hash(id string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(id))
	return max(1, h.Sum64())
}

// pick is a decision of the router.
type pick struct {
	slot   *slot
	node   string
	boot   string
	choice route.Choice
	shards int             // embedding shards of the request
	trip   float64         // milliseconds of the round trip that the choice counts
	silent context.Context // ends when nothing is heard of the node any more
}

// pick picks the node for a request, other than those in not. It returns false if there is none.
func (f *fleet) pick(a *serve.Asked, secret *feed.Secret, not string) (p pick, ok bool) {
	backlog := time.Duration(0)
	if c := f.cache(); c != nil {
		backlog = c.Backlog()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.slots[not]; s != nil { // the router must not see it for a moment
		defer f.router.Rest(s.number, f.router.Rests(s.number))
		f.router.Rest(s.number, true)
	}
	q := &f.req
	q.Prompt, q.User, q.Tokens, q.Items = schedule.Request{}, 0, nil, nil
	q.Keys, q.Shards, q.UserRows, q.ItemRows = q.Keys[:0], a.Shards, a.UserRows, a.ItemRows
	if z := a.Sizes; z != nil {
		q.Prompt, q.User, q.Tokens = z.Prompt, secret.Digest(&z.User), z.Tokens
		for i := range z.Items {
			q.Keys = append(q.Keys, secret.Digest(&z.Items[i]))
		}
	}
	q.Prompt.Slack = float64(time.Until(a.Deadline)) / float64(time.Millisecond)
	if s := f.slots[f.c.cfg.Node]; s != nil { // what happens here is known at once
		f.router.Told(s.number, f.c.now(), backlog)
	}
	p.choice = f.router.Pick(q, f.c.now())
	p.shards = len(a.Shards)
	q.Prompt, q.Tokens, q.Shards = schedule.Request{}, nil, nil // keep no reference
	if p.choice.Node < 0 {
		return p, false
	}
	for _, s := range f.slots {
		if s.number == p.choice.Node {
			p.slot, p.node, p.boot, p.silent, p.trip = s, s.id, s.boot, s.silent, s.costs.RTT
			return p, true
		}
	}
	return p, false // cannot be
}

// answered learns from an answer. Trip is the part of the time that was not the node's own.
func (f *fleet) answered(p *pick, took, trip time.Duration, backlog time.Duration, told bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := p.slot
	if f.slots[s.id] != s {
		return
	}
	now := f.c.now()
	// A node that is far away is priced by that. But how much slower than others it is must show, or it is never ejected.
	f.router.Answered(s.number, p.choice.Ms-p.trip+f.nearest(), ms(took), now)
	if told {
		f.router.Told(s.number, now-trip/2, backlog)
	}
	if s.id != f.c.cfg.Node && trip > 0 {
		f.learnTrip(s, trip, now)
	}
}

// lost says that a node does not answer.
func (f *fleet) lost(p *pick) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.slots[p.slot.id] == p.slot {
		f.router.Lost(p.slot.number)
	}
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

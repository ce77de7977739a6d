// Package replica gives all nodes of a cluster the same catalog: items, users, events and deletions.
//
// One node leads, for a term of package leader. It makes each round of writes one record of its log (package catalog).
// The other nodes pull the log and apply it. A write may enter at any node, which forwards it to the leader and answers
// when its own readers see the result. The leader answers when readers of all nodes in sync see it, unless one takes
// longer than seenWithin.
//
// The in-sync set is a fenced object under catalog/insync. The rules, and why no acknowledged write is lost:
//   - A record is committed when all members of the set have it on disk, and at least one of them is not the leader. In
//     a cluster of one node the leader alone is enough. Without a follower in the set writes fail with
//     catalog.ErrUnavailable.
//   - Only members of the set lead. A new leader claims the set first, so an old leader can change it no more. Then it
//     appends an empty record of its term, after which its catalog refuses records of earlier terms. This member had
//     on disk whatever the old leader committed. The old leader can commit nothing more, because this member is
//     missing.
//   - The leader removes a follower that is behind for too long, and adds one that has all committed records. Until the
//     coordinator has confirmed a change, records need the members of both sets.
//   - A follower whose log is not a beginning of the leader's has an uncommitted tail, or was away for too long. It
//     takes a snapshot, which replaces its catalog.
//
// These rules need no clocks. Terms end by the clock only so that another node may lead.
//
// Readers see records when they are committed. One exception: a node that restarts shows all that is on its disk. A
// record of it that was never committed disappears with the next snapshot, before CaughtUp.
//
// Repeated writes: puts and deletions, and events with ids, are sent again after an unknown outcome, for they change
// nothing the second time. Events without ids are not: the caller gets catalog.ErrUncertain.
//
// Lock order: Node.mu, then leading.mu. Neither is held during a call to the catalog or the coordinator.
package replica

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	clusterv1 "grebe/api/grebe/cluster/v1"
	"grebe/catalog"
	"grebe/cluster/coord"
	"grebe/cluster/leader"
)

// Keys in the coordinator.
const (
	electionKey = "leader/catalog"
	inSyncKey   = "catalog/insync"
	headKey     = "catalog/head"
)

// Options of a node.
type Options struct {
	Node        string            // its id, without a slash
	Boot        string            // unique to this start of the process
	Catalog     *catalog.Catalog  // opened with Options.Replicated
	Coordinator coord.Coordinator // of the cluster
	// members with this one, by id: addresses for nodes; nil: not known yet
	Peers func() map[string]string
	// does not wait; the connection MUST try again every second or sooner
	Dial func(node, address string) (*grpc.ClientConn, error)
	// after which another node leads; the same for all; default 3 s
	TTL time.Duration
	// for how long a write waits for a follower in the set; default 2 s
	Lag time.Duration
	// for how long a write waits for a leader and its followers; default 10 s
	Patience time.Duration
	// Replaced is called when a snapshot has replaced a catalog that was not empty, before CaughtUp. Users whom this
	// catalog did not have may have been deleted meanwhile: KV that is kept under such users' ids must go. nil: nobody
	// wants to know.
	Replaced func()
	// Reachable reports whether the coordinator answers, for messages. It does not wait. nil: it is not known.
	Reachable func() bool
	Log       *slog.Logger // nil: none
}

// Validate checks the options and sets defaults.
func (o *Options) Validate() error {
	o.TTL = cmp.Or(o.TTL, 3*time.Second)
	o.Lag = cmp.Or(o.Lag, 2*time.Second)
	o.Patience = cmp.Or(o.Patience, 10*time.Second)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	switch {
	case o.Node == "" || strings.Contains(o.Node, "/"):
		return fmt.Errorf("replica: node %q: an id without a slash is needed", o.Node)
	case o.Boot == "" || o.Catalog == nil || o.Coordinator == nil || o.Peers == nil || o.Dial == nil:
		return errors.New("replica: boot id, catalog, coordinator, peers and dial are needed")
	case o.Lag < 0 || o.Patience < 0:
		return fmt.Errorf("replica: negative lag %v or patience %v", o.Lag, o.Patience)
	}
	return o.election().Validate()
}

func (o *Options) election() leader.Options {
	return leader.Options{Key: electionKey, Self: o.Node + "/" + o.Boot, TTL: o.TTL, Log: o.Log}
}

// inSync is the value of the in-sync set.
type inSync struct {
	Catalog string `json:"catalog"` // its id
	// a term of the log is this plus the leader's term: it grows also if the coordinator loses its data
	Base    uint64   `json:"base"`
	Members []string `json:"members"` // sorted
}

func (s inSync) has(node string) bool { return slices.Contains(s.Members, node) }

func (s inSync) encode() []byte {
	data, _ := json.Marshal(s) // of numbers and strings
	return data
}

// Head is the value of catalog/head: what the leader has committed, at most a second ago.
type Head struct {
	Term    uint64 `json:"term"`
	Index   uint64 `json:"index"`
	Version uint64 `json:"version"`
}

// Node is one node's part in the replication. Register it with clusterv1.RegisterReplicaServer.
type Node struct {
	clusterv1.UnimplementedReplicaServer
	o       Options
	c       *catalog.Catalog
	context context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	holder   string   // the node that leads, as far as the coordinator said; empty: nobody
	set      inSync   // likewise
	known    bool     // set was read; without members there is none
	leading  *leading // nil: another node leads
	changed  chan struct{}
	conns    map[string]*conn // by node
	caughtUp chan struct{}
	problem  error // why the cluster refuses this node
	mute     bool  // the last write got no answer from the leader, which was logged
}

type conn struct {
	address string
	*grpc.ClientConn
}

// New attaches a node to its catalog. It takes part once Start is called. The caller MUST Close it, before the catalog.
func New(o Options) (*Node, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	n := &Node{o: o, c: o.Catalog, changed: make(chan struct{}), conns: map[string]*conn{}, caughtUp: make(chan struct{})}
	n.context, n.cancel = context.WithCancel(context.Background())
	n.c.Attach(n)
	return n, nil
}

// Start takes part in the cluster, unless the node is closed. Subscribe to the catalog before, to hear every change.
func (n *Node) Start() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return
	}
	n.running.Go(func() { n.watch(electionKey, n.sawElection) })
	n.running.Go(func() { n.watch(inSyncKey, n.sawSet) })
	n.running.Go(n.stand)
	n.running.Go(n.follow)
}

// Close ends this node's part, resigns if it leads, and waits.
func (n *Node) Close() {
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	n.cancel()
	n.running.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.conns {
		_ = c.Close()
	}
}

// CaughtUp is closed once this node has shown all that was committed when it started. Deletions that it missed are then
// in the catalog's PendingDeletions or were told to subscribers: before that, KV of users on its disk MUST NOT be
// offered.
func (n *Node) CaughtUp() <-chan struct{} { return n.caughtUp }

// Await waits until CaughtUp is closed. It returns an error if the cluster refuses this node for good, and if ctx ends.
func (n *Node) Await(ctx context.Context) error {
	for {
		n.mu.Lock()
		problem, changed := n.problem, n.changed
		n.mu.Unlock()
		select {
		case <-n.caughtUp:
			return nil
		default:
		}
		if problem != nil {
			return problem
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// State describes a node's part.
type State struct {
	Leader  string   // node; empty: none is known
	InSync  []string // members of the set
	Index   uint64   // of the last record that readers see
	Version uint64   // of the catalog on disk
	Problem error    // why the cluster refuses this node; nil: it does not
}

// State returns what this node knows.
func (n *Node) State() State {
	s, _ := n.c.LogState()
	n.mu.Lock()
	defer n.mu.Unlock()
	return State{Leader: n.holder, InSync: n.set.Members, Index: s.Shown, Version: s.Version, Problem: n.problem}
}

// change applies f and wakes those who wait.
func (n *Node) change(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
	close(n.changed)
	n.changed = make(chan struct{})
}

func (n *Node) caught() {
	n.change(func() {
		n.problem = nil
		select {
		case <-n.caughtUp:
		default:
			close(n.caughtUp)
		}
	})
}

// watch passes on the values of a key. While the coordinator is away, the last one stays.
func (n *Node) watch(key string, saw func(data []byte)) {
	for e := range n.o.Coordinator.Watch(n.context, key) {
		var data []byte
		found := e.Kind == coord.Listing
		for _, entry := range e.Entries {
			if entry.Key == key {
				data, found = entry.Data, true
			}
		}
		if found || slices.Contains(e.Deleted, key) {
			saw(data)
		}
	}
}

func (n *Node) sawElection(data []byte) {
	var r leader.Record
	if len(data) > 0 && json.Unmarshal(data, &r) != nil {
		return // package leader logs it
	}
	holder, _, _ := strings.Cut(r.Holder, "/")
	n.mu.Lock()
	same := n.holder == holder
	n.mu.Unlock()
	if !same {
		n.change(func() { n.holder = holder })
	}
}

func (n *Node) sawSet(data []byte) {
	var set inSync
	if len(data) > 0 {
		f, err := leader.Decode(data)
		if err == nil && len(f.Data) > 0 {
			err = json.Unmarshal(f.Data, &set)
		}
		if err != nil {
			n.o.Log.Error("nobody can lead the catalog", "key", inSyncKey, "error", err)
			return
		}
	}
	n.change(func() { n.set, n.known = set, true })
	n.remember(set.Members)
}

// remember stores the members of the set. If the coordinator loses its data, they are asked who has the newest catalog.
func (n *Node) remember(members []string) {
	old, err := n.remembered()
	if err == nil && (len(members) == 0 || slices.Equal(old, members)) {
		return
	}
	data, _ := json.Marshal(members) // of strings
	if err := errors.Join(err, n.c.SetNote(n.context, data)); err != nil && n.context.Err() == nil {
		n.o.Log.Error("cannot store which nodes have the whole catalog", "error", err)
	}
}

func (n *Node) remembered() (members []string, err error) {
	data, err := n.c.Note()
	if err != nil || data == nil {
		return nil, err
	}
	return members, json.Unmarshal(data, &members)
}

// eligible reports whether this node may lead, and returns what ends with the answer.
func (n *Node) eligible() (bool, <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.known && (len(n.set.Members) == 0 || n.set.has(n.o.Node)), n.changed
}

// stand takes part in the election while this node may lead.
func (n *Node) stand() {
	for n.context.Err() == nil {
		ok, changed := n.eligible()
		if !ok {
			select {
			case <-changed:
			case <-n.context.Done():
			}
			continue
		}
		ctx, cancel := context.WithCancel(n.context)
		var wait sync.WaitGroup
		wait.Go(func() {
			for ok := true; ok; {
				var changed <-chan struct{}
				if ok, changed = n.eligible(); ok {
					select {
					case <-changed:
					case <-ctx.Done():
						return
					}
				}
			}
			cancel()
		})
		if err := leader.Run(ctx, n.o.Coordinator, n.o.election(), n.lead); err != nil {
			n.o.Log.Error("cannot take part in the election", "error", err) // Validate has checked the options
		}
		cancel()
		wait.Wait()
	}
}

// client returns a connection to a node.
func (n *Node) client(node string) (clusterv1.ReplicaClient, error) {
	address := n.o.Peers()[node]
	if address == "" {
		return nil, fmt.Errorf("replica: the address of node %s is not known", node)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, errors.New("replica: closed")
	}
	if c := n.conns[node]; c != nil {
		if c.address == address {
			return clusterv1.NewReplicaClient(c), nil
		}
		_ = c.Close()
	}
	cc, err := n.o.Dial(node, address)
	if err != nil {
		return nil, fmt.Errorf("replica: connect to node %s: %w", node, err)
	}
	n.conns[node] = &conn{address, cc}
	return clusterv1.NewReplicaClient(cc), nil
}

// place returns where this node's log ends.
func (n *Node) place() *clusterv1.LogPlace {
	s, _ := n.c.LogState()
	return &clusterv1.LogPlace{Catalog: s.ID, Term: s.Last.Term, Index: s.Last.Index, Version: s.Version,
		Incomplete: s.Incomplete}
}

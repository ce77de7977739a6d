// Package route picks the node that answers a request.
//
// A Router is one router's view of a fleet: the heartbeats of the nodes, the requests that it sent since, the placement
// map, and an index of what nodes hold, which their feeds keep up to date. The nodes own the truth, and the view is
// late.
//
// The package is pure: no goroutine, no lock, no I/O, no clock. Times are arguments, durations since an epoch that the
// caller chose. The same calls give the same choices, so the server and the simulator use the same code. A Router is
// not safe for concurrent use. Nothing allocates after New, except for a request with more candidates than any before.
//
// A node is up from its first heartbeat until Lost, or until no heartbeat came for Config.Silence. A node that is not
// up is picked only when no node is. The index says nothing about a node whose feed has a gap, until a snapshot was
// taken.
//
// Predicted compares nodes by
//
//	ms(n) = max(backlog, fetch) + compute + staging + rows that come later than the backlog ends
//	        + round trip + smoothed error
//
// and by the work that the request brings, once for each of those that wait for it in a mean queue of the fleet.
// schedule.Decide chooses, with the tiers as node n sees them, what is fetched and what is computed, as the node
// itself will. The backlog is that of the node's last report, with this router's requests since then and with what
// other routers usually send in that time. At most eleven nodes are priced. The other policies are those of RcLLM
// (RCL-4) and HLEM (HLM-5, HLM-6), and baselines.
package route

import (
	"fmt"
	"math/rand/v2"
	"time"

	"grebe/placement"
	"grebe/residency"
)

// Router picks nodes. It is not safe for concurrent use.
type Router struct {
	config  Config
	words   int // of a set of nodes
	classes int // of nodes
	members []member
	index   *residency.Index
	places  *placement.Map // nil: there is none
	view

	resting    []bool    // by node: see Rest
	shards     []uint64  // by node: set of embedding shards that it holds
	shardWords int       // of such a set
	rowCosts   []float64 // what nodes report that a row costs, sorted; those that do not report it are left out
	weights    weights
	misses     misses // costs that the weights are from, unless they are configured
	last       lastNodes
	turn       int // next node of a round, and the first one to win a tie
	random     *rand.Rand

	typical typical // errors of nodes that are not gray
	ejected int     // nodes that are ejected
}

// New returns a router that has heard of no node.
func New(c Config) (*Router, error) {
	c.Nodes = append([]Node(nil), c.Nodes...)
	if err := c.defaults(); err != nil {
		return nil, err
	}
	n := len(c.Nodes)
	classes := 0
	for i := range c.Nodes {
		classes = max(classes, int(c.Nodes[i].Class)+1)
	}
	r := &Router{
		config: c, words: (n + 63) / 64, members: make([]member, n), shardWords: (c.Shards + 63) / 64,
		classes: classes, weights: c.weights(c.MissKV, c.MissEMB, c.MissLoad), last: make(lastNodes, c.Users+1),
		random: rand.New(rand.NewPCG(c.Seed, 0x726f757465)),
	}
	r.turn = r.random.IntN(n) // so that routers do not take turns in step
	r.view = view{
		up: make([]int, 0, n), work: make([]float64, n), peers: make([]uint64, classes*r.words),
		copies: make([]residency.Copy, 0, n), cover: make([]int32, n),
	}
	r.resting = make([]bool, n)
	r.shards = make([]uint64, n*r.shardWords)
	r.typical.sorted, r.rowCosts = make([]float64, 0, n), make([]float64, 0, n)
	var err error
	r.index, err = residency.NewIndex(residency.IndexConfig{Nodes: n, Users: c.Users, Items: c.Items, Skip: r.skip()})
	return r, err
}

// skip returns which items are not indexed, or nil.
func (r *Router) skip() func(node int, hash uint64) bool {
	if r.config.Ordinal == nil {
		return nil
	}
	return func(node int, hash uint64) bool {
		item, ok := r.config.Ordinal(hash)
		if !ok || r.places == nil {
			return false
		}
		owner, _, everywhere := r.places.Place(item)
		return owner == node && !everywhere
	}
}

// SetNode changes the costs of a node, whose class MUST be below the largest one of Config.Nodes or equal to it.
func (r *Router) SetNode(node int, n Node) error {
	if err := n.check(); err != nil {
		return fmt.Errorf("route: node %d: %w", node, err)
	}
	if int(n.Class) >= r.classes {
		return fmt.Errorf("route: node %d is of class %d, the largest is %d", node, n.Class, r.classes-1)
	}
	r.config.Nodes[node] = n
	return nil
}

// Rest says whether a node rests: others can fetch its KV, but it gets no requests. A node that is drained does, and
// one that only holds KV.
func (r *Router) Rest(node int, rests bool) { r.resting[node] = rests }

// Rests reports whether a node rests.
func (r *Router) Rests(node int) bool { return r.resting[node] }

// SetMap sets the placement map. Its nodes have the numbers of Config.Nodes.
func (r *Router) SetMap(m *placement.Map) { r.places = m }

// Heard takes a node's heartbeat. It keeps no reference to it.
func (r *Router) Heard(node int, h *Heartbeat, now time.Duration) {
	old := r.members[node].rowMs
	if !r.members[node].hear(h, now) {
		return
	}
	r.replaceRowMs(old, r.members[node].rowMs)
	held := r.shards[node*r.shardWords : (node+1)*r.shardWords]
	clear(held)
	for _, s := range h.Shards {
		if int(s) < r.config.Shards {
			held[s/64] |= 1 << (s % 64)
		}
	}
	if h.Boot != 0 {
		r.index.Heard(node, h.Boot, h.Seq)
	}
}

// Told takes the backlog that a node reports with an answer, as of the time at. Where there are many requests, answers
// are newer than heartbeats.
func (r *Router) Told(node int, at, backlog time.Duration) {
	if m := &r.members[node]; m.heard {
		m.tell(at, backlog)
	}
}

// Apply takes events of a node's feed, in order. It reports whether the node's part of the index is known. If it is
// not, the caller asks the node for a snapshot.
func (r *Router) Apply(node int, boot uint64, events []residency.Event) (known bool) {
	return r.index.Apply(node, boot, events)
}

// Snapshot takes a piece of a snapshot of what a node holds: see residency.Index.
func (r *Router) Snapshot(node int, boot, seq uint64, piece []residency.Event, last bool) {
	r.index.Snapshot(node, boot, seq, piece, last)
}

// Unknown makes a node's part of the index unknown. It may be resumed.
func (r *Router) Unknown(node int) { r.index.Lose(node) }

// Resume makes a node's part of the index known again without a snapshot: see residency.Index.
func (r *Router) Resume(node int, boot, seq uint64) bool { return r.index.Resume(node, boot, seq) }

// Replace replaces what the index has of a node in a range of keys.
func (r *Router) Replace(node int, keys residency.Range, entries []residency.Event) {
	r.index.Replace(node, keys, entries)
}

// Index returns what the router knows about the nodes' KV, for metrics. The caller MUST NOT change it.
func (r *Router) Index() *residency.Index { return r.index }

// Lost says that a node is gone. It is not picked until it is heard again, and its part of the index is unknown.
func (r *Router) Lost(node int) {
	if r.members[node].ejected {
		r.ejected--
	}
	r.replaceRowMs(r.members[node].rowMs, 0)
	r.members[node] = member{}
	r.index.Lose(node)
}

// Pick picks a node for a request and notes that the request is sent there now.
func (r *Router) Pick(q *Request, now time.Duration) Choice {
	r.look(q, now)
	if len(r.up) == 0 {
		return Choice{Node: -1}
	}
	node, count := r.choose(q, now)
	if count == 0 {
		r.priced, count = r.price(node, q), 1
	}
	m, p := &r.members[node], &r.priced
	m.send(sent{now + duration(r.config.Nodes[node].RTT/2), p.own})
	choice := Choice{Node: node, Ms: p.ms, Error: r.penalty(node, now), Reuse: p.reuse, Priced: count}
	if c := r.copyOn(node); c != nil {
		choice.User = c.Tokens
	}
	choice.Shards = len(q.Shards) - r.missing(node, q.Shards)
	return choice
}

// choose picks a node. It returns how many it priced; then r.priced is the price of the node.
func (r *Router) choose(q *Request, now time.Duration) (node, count int) {
	if n := r.probe(now); n >= 0 {
		return n, 0
	}
	switch r.config.Policy {
	case Predicted:
		return r.predicted(q, now)
	case Affinity:
		node = r.affinity(len(q.Prompt.Items))
	case Joint, KVOnly, EMBOnly:
		node = r.joint(q)
	case LeastLoaded:
		node = r.leastLoaded()
	case RoundRobin:
		node = r.next()
	case UserHash:
		node = r.home(q.User)
	}
	return node, 0
}

// Package route picks the node that answers a request.
//
// A Router is one router's view of a fleet: the heartbeats of the nodes, the requests that it sent since and the
// placement map. The nodes own the truth, and the view is late.
//
// The package is pure: no goroutine, no lock, no I/O, no clock. Times are arguments, durations since an epoch that the
// caller chose. The same calls give the same choices, so the server and the simulator use the same code. A Router is not
// safe for concurrent use. Nothing allocates after New.
//
// A node is up from its first heartbeat until Lost, or until no heartbeat came for Config.Silence. A node that is not up
// is picked only when no node is.
package route

import (
	"fmt"
	"math"
	"time"

	"grebe/schedule"
)

// Node has the costs of a node, which do not change.
type Node struct {
	Costs   schedule.Costs
	Engines int     // engines that share its queue; default 1
	RTT     float64 // milliseconds of a round trip between router and node
}

// Config describes a fleet and a policy.
type Config struct {
	Policy Policy
	Orders schedule.Policy // how nodes choose prefix orders
	// Nodes are all that there may be, by their number in the placement map. Those that are not there are never heard.
	Nodes   []Node
	Silence time.Duration // without heartbeats, after which a node does not count as up; default 300 ms
}

const maxNodes = 4096

func (c *Config) defaults() error {
	if len(c.Nodes) == 0 || len(c.Nodes) > maxNodes {
		return fmt.Errorf("route: %d nodes, want 1 to %d", len(c.Nodes), maxNodes)
	}
	if c.Policy >= numPolicies {
		return fmt.Errorf("route: policy %d", c.Policy)
	}
	if c.Silence == 0 {
		c.Silence = 300 * time.Millisecond
	}
	if c.Silence < 0 {
		return fmt.Errorf("route: silence of %v", c.Silence)
	}
	for i := range c.Nodes {
		n := &c.Nodes[i]
		if n.Engines == 0 {
			n.Engines = 1
		}
		if err := n.Costs.Validate(); err != nil {
			return fmt.Errorf("route: node %d: %w", i, err)
		}
		if n.Engines < 0 || !(n.RTT >= 0) || math.IsInf(n.RTT, 1) {
			return fmt.Errorf("route: node %d has %d engines and a round trip of %v ms", i, n.Engines, n.RTT)
		}
	}
	return nil
}

// Router picks nodes. It is not safe for concurrent use.
type Router struct {
	config  Config
	members []member
	places  Map   // nil: there is none
	up      []int // nodes that may be picked, as of the current Pick
	turn    int   // next node of a round, and the first one to win a tie
}

// New returns a router that has heard of no node.
func New(c Config) (*Router, error) {
	c.Nodes = append([]Node(nil), c.Nodes...)
	if err := c.defaults(); err != nil {
		return nil, err
	}
	return &Router{config: c, members: make([]member, len(c.Nodes)), up: make([]int, 0, len(c.Nodes))}, nil
}

// Map says which node owns an item: see package placement.
type Map interface {
	Place(item int32) (owner, second int, everywhere bool)
}

// SetMap sets the placement map.
func (r *Router) SetMap(m Map) { r.places = m }

// Heard takes a node's heartbeat. It keeps no reference to it.
func (r *Router) Heard(node int, h *Heartbeat, now time.Duration) { r.members[node].hear(h, now) }

// Lost says that a node is gone. It is not picked until it is heard again.
func (r *Router) Lost(node int) { r.members[node] = member{} }

// Pick picks a node for a request and notes that the request is sent there now.
func (r *Router) Pick(q *Request, now time.Duration) Choice {
	r.findUp(now)
	if len(r.up) == 0 {
		return Choice{Node: -1}
	}
	node := 0
	switch r.config.Policy {
	case RoundRobin:
		node = r.next()
	case UserHash:
		node = r.home(q.User)
	case LeastLoaded:
		node = r.best(func(n int) float64 { return -r.members[n].work(now) })
	}
	c := Choice{Node: node, Priced: 1}
	p := r.price(node, q, now)
	c.Ms, c.Reuse = p.ms, p.reuse
	r.members[node].send(sent{now + ms(r.config.Nodes[node].RTT/2), p.own})
	return c
}

func ms(x float64) time.Duration { return time.Duration(x * float64(time.Millisecond)) }

// findUp lists the nodes that are up. If none is, it lists those that were not lost.
func (r *Router) findUp(now time.Duration) {
	r.up = r.up[:0]
	for i := range r.members {
		if m := &r.members[i]; m.heard && now-m.when <= r.config.Silence {
			r.up = append(r.up, i)
		}
	}
	if len(r.up) > 0 {
		return
	}
	for i := range r.members {
		if r.members[i].heard {
			r.up = append(r.up, i)
		}
	}
}

// next returns the next node of a round.
func (r *Router) next() int {
	node := r.up[0]
	for _, n := range r.up {
		if n >= r.turn {
			node = n
			break
		}
	}
	r.turn = node + 1
	return node
}

// best returns the node with the highest score. Ties are won in turn, so that idle nodes share the requests.
func (r *Router) best(score func(n int) float64) int {
	first := 0
	for first < len(r.up) && r.up[first] < r.turn {
		first++
	}
	node, most := -1, math.Inf(-1)
	for i := range r.up {
		n := r.up[(first+i)%len(r.up)]
		if s := score(n); node < 0 || s > most {
			node, most = n, s
		}
	}
	r.turn = node + 1
	return node
}

// home returns a user's node by rendezvous hashing: a node more or less moves only its own users.
func (r *Router) home(user uint64) int {
	node, most := -1, uint64(0)
	for _, n := range r.up {
		if s := mix(user ^ mix(uint64(n)+1)); node < 0 || s > most {
			node, most = n, s
		}
	}
	return node
}

// mix is the finaliser of splitmix64.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// priced is the prediction for a request on a node.
type priced struct {
	ms    float64 // until it is answered
	own   float64 // work that it adds to the node's queue
	reuse int     // tokens that are not computed
}

// price predicts a request on a node, through the decision that the node will make.
func (r *Router) price(node int, q *Request, now time.Duration) priced {
	n := &r.config.Nodes[node]
	in := q.Prompt
	in.Queue = r.members[node].work(now + ms(n.RTT/2))
	d := schedule.Decide(&in, &n.Costs, r.config.Orders)
	o := d.Chosen()
	return priced{
		ms:    o.Ms + n.RTT,
		own:   (o.Ms - max(in.Queue, o.Transfer)) / float64(n.Engines),
		reuse: q.tokens(d.Order) - o.Rows,
	}
}

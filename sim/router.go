package sim

import (
	"bytes"
	"slices"

	"grebe/embed"
	"grebe/plan"
	"grebe/residency"
	"grebe/route"
)

// router is one router with its late view of the fleet.
type router struct {
	f    *fleet
	view *route.Router
	subs []subscription // by node
	req  route.Request
	buf  []residency.Event
}

// subscription is how far a router has read a node's feed.
type subscription struct{ boot, seq uint64 }

// message is a heartbeat on its way to the routers.
type message struct {
	beat route.Heartbeat
	node int32
	left int // routers that have not got it
}

func newRouter(f *fleet) (*router, error) {
	r := &router{f: f, subs: make([]subscription, len(f.nodes))}
	s := f.scenario
	c := route.Config{
		Policy: s.router, Orders: s.policy, Users: s.Route.Users, Items: s.Route.Items, Alpha: s.Route.Alpha,
		Beta:   s.Route.Beta,
		MissKV: s.Route.MissKV, MissEMB: s.Route.MissEMB, MissLoad: s.Route.MissLoad,
		Seed: scramble(s.Seed + uint64(len(f.routers))), FullLoad: 1e3 * s.SLO.Seconds(),
		PeerUsers: f.holders, PeerItems: f.peers || f.holders, Blend: s.Prompt.Blend.blending(),
	}
	if f.shards != nil {
		c.Shards = embed.MostShards
	}
	if f.peers || f.places != nil && s.Placement.Preload {
		c.Owned = plan.Host
		c.Ordinal = func(hash uint64) (int32, bool) {
			id := unscramble(hash)
			return int32(id / 4), id%4 == 2
		}
	}
	for _, n := range f.nodes {
		c.Nodes = append(c.Nodes, route.Node{Costs: n.costs, Engines: len(n.engines), RTT: 2 * f.hop.Seconds() * 1e3})
	}
	var err error
	r.view, err = route.New(c)
	return r, err
}

// pick sends a call to a node. It returns -1 if there is none.
func (r *router) pick(c *call) int32 {
	f, q := r.f, &r.req
	q.Prompt.Preamble, q.Prompt.LeadIn, q.Prompt.Question = int32(f.prompt.preamble), int32(f.prompt.leadIn),
		int32(f.prompt.question)
	q.Prompt.PerItem, q.Prompt.Orders, q.Prompt.SharedCached = f.prompt.perItem, f.scenario.orders, true
	q.Prompt.User, q.Prompt.Items = c.UserTokens, c.ItemTokens
	q.Prompt.Slack = float64(c.deadline-f.now) / 1e6
	q.User, q.Items, q.Shards = residency.Hash(userKey(c.User)), c.Items, c.Shards
	q.UserRows, q.ItemRows = c.UserRows, c.ItemRows
	if b := &f.prompt.blend; b.on() {
		q.Blend, q.Prototypes = route.BlendAlways, int32(float64(c.UserTokens)*(1-b.History)*(1-b.Whole))
	}
	q.Keys = q.Keys[:0]
	for _, item := range c.Items {
		q.Keys = append(q.Keys, residency.Hash(itemKey(item)))
	}
	if f.scenario.Route.Inside { // what happens on its own node is known at once
		if n := f.nodes[c.router]; n.up && !n.drains && r.subs[n.id].boot == n.feed.Boot() {
			r.follow(n, n.feed.Seq())
			r.view.Told(int(n.id), f.now, inMs(n.backlogMs()))
		}
	}
	choice := r.view.Pick(q, f.now)
	c.chosen, c.foreseen = choice.Ms, choice.Reuse
	return int32(choice.Node)
}

// beat sends a node's heartbeat to all routers.
func (n *node) beat() {
	f := n.f
	i := f.newMessage()
	n.report(&f.messages[i])
	for r := range f.routers {
		f.push(event{at: f.now + f.scenario.Route.Delay.Duration, kind: hears, node: int32(r), arg: i})
	}
	f.push(event{at: f.now + f.scenario.Route.Heartbeat.Duration, kind: beats, node: n.id, gen: n.gen})
}

// report fills in a heartbeat.
func (n *node) report(m *message) {
	f := n.f
	m.node, m.left = n.id, len(f.routers)
	m.beat.Boot, m.beat.Seq, m.beat.At = n.feed.Boot(), n.feed.Seq(), f.now
	m.beat.Backlog = inMs(n.backlogMs())
	m.beat.Alpha = n.alpha()
	m.beat.Shards, m.beat.RowMs = n.shards(m.beat.Shards[:0]), n.rowMs()
}

// hear takes a heartbeat and the events that the node's feed had when it was sent.
func (r *router) hear(i int32) {
	f := r.f
	m := &f.messages[i]
	n := f.nodes[m.node]
	if n.up && n.feed.Boot() == m.beat.Boot && !n.drains {
		r.follow(n, m.beat.Seq)
		r.view.Heard(int(m.node), &m.beat, f.now)
	}
	if m.left--; m.left == 0 {
		f.spares = append(f.spares, i)
	}
}

// follow brings the view of a node up to an event. If the view is unknown or too old, it asks for a snapshot, which has
// the state of now.
func (r *router) follow(n *node, seq uint64) {
	sub, id := &r.subs[n.id], int(n.id)
	ok := sub.boot == n.feed.Boot() && seq >= sub.seq
	if ok {
		r.buf, ok = n.feed.Since(r.buf[:0], sub.boot, sub.seq, int(seq-sub.seq))
	}
	if ok && r.view.Apply(id, sub.boot, r.buf) {
		sub.seq = seq
		return
	}
	*sub = subscription{boot: n.feed.Boot(), seq: n.feed.Seq()}
	r.buf = n.snapshot(r.buf[:0])
	r.view.Snapshot(id, sub.boot, sub.seq, r.buf, true)
	r.f.result.snapshots++
}

// snapshot appends all that a node holds, in the order of keys.
func (n *node) snapshot(dst []residency.Event) []residency.Event {
	add := func(key plan.Key, e residency.Entry) { dst = append(dst, residency.Event{Key: key, Entry: e}) }
	n.users.books.Snapshot(add, func() {})
	if n.items != n.users {
		n.items.books.Snapshot(add, func() {})
	}
	slices.SortFunc(dst, func(a, b residency.Event) int { return bytes.Compare(a.Key[:], b.Key[:]) })
	return dst
}

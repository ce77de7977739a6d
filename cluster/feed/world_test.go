package feed

import (
	"container/heap"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	clusterv1 "grebe/api/grebe/cluster/v1"
	"grebe/plan"
	"grebe/residency"
	"grebe/route"
	"grebe/schedule"
)

const ms = time.Millisecond

var everywhere = residency.Range{From: 0, To: math.MaxUint64}

// books are a node's books, in which keys come, go, grow and move at random. They remember what they held.
type books struct {
	*residency.Core[int]
	feed   *residency.Feed
	ring   int
	keys   int
	held   []residency.Entry // by key
	states [][]state         // by key: the last ones, the current one last
	places []uint64          // by key: place in the order of residency.Mix
}

// state is what a key was from a time on.
type state struct {
	residency.Entry
	from time.Duration
}

var secret = Secret{7, 1, 9}

func bookKey(node, k int) (key plan.Key) {
	binary.LittleEndian.PutUint32(key[:], uint32(k))
	key[9] = byte(node) // routers see only the digest of all 32 bytes
	return key
}

func newBooks(t testing.TB, node, keys, ring int, boot uint64) *books {
	b := &books{ring: ring, keys: keys, held: make([]residency.Entry, keys), states: make([][]state, keys),
		places: make([]uint64, keys)}
	for k := range keys {
		key := bookKey(node%2, k) // nodes have keys in common
		b.places[k] = residency.Mix(secret.Digest(&key))
		b.states[k] = []state{{}}
	}
	b.boot(t, boot)
	return b
}

// boot starts a node with empty memory.
func (b *books) boot(t testing.TB, boot uint64) {
	var err error
	b.Core, err = residency.New[int](residency.Config{
		Policy: "lru", Below: true, Levels: []residency.LevelConfig{{Tier: plan.Device, Slots: b.keys, Bytes: int64(b.keys)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	b.feed = residency.NewFeed(boot, b.ring)
	b.SetFeed(b.feed)
}

// wipe notes that everything is gone.
func (b *books) wipe(now time.Duration) {
	for k := range b.keys {
		b.note(k, residency.Entry{}, now)
	}
}

// change changes a key.
func (b *books) change(node, k int, rng *rand.Rand, now time.Duration) {
	key := bookKey(node%2, k)
	e := residency.Entry{Kind: plan.Item, Tokens: 10}
	if k%3 == 0 {
		e = residency.Entry{Kind: plan.User, Tokens: int32(1 + rng.IntN(500)), Digest: rng.Uint64()}
	}
	switch rng.IntN(6) {
	case 0, 1:
		named := e.Kind == plan.User
		b.Publish(&residency.Held[int]{Key: key, Kind: e.Kind, Tokens: int(e.Tokens), Digest: e.Digest, Named: named,
			Bytes: 1}, 0, false)
	case 2:
		b.Delete(key)
	case 3:
		b.Stored(key, e)
	case 4:
		b.Lost(key)
	case 5:
		b.Delete(key)
		b.Lost(key)
	}
	now1, _ := b.Lookup(key)
	b.note(k, now1, now)
}

func (b *books) note(k int, e residency.Entry, now time.Duration) {
	e = visible(e)
	if e == b.held[k] {
		return
	}
	b.held[k] = e
	s := b.states[k]
	for len(s) > 1 && s[1].from < now-2*Limit {
		s = s[1:]
	}
	b.states[k] = append(s, state{e, now})
}

// visible returns what an index has of an entry.
func visible(e residency.Entry) residency.Entry {
	e.Owner = 0
	switch {
	case e.Tier == plan.Missing:
		return residency.Entry{}
	case e.Kind != plan.User:
		e.Tokens, e.Digest = 0, 0
	}
	return e
}

// was reports whether a key was in a state at some time since a time.
func (b *books) was(k int, e residency.Entry, since time.Duration) bool {
	s := b.states[k]
	for i := range s {
		if s[i].Entry == e && (i == len(s)-1 || s[i+1].from >= since) {
			return true
		}
	}
	return false
}

func (b *books) Position() (boot, seq uint64) { return b.feed.Boot(), b.feed.Seq() }

func (b *books) Since(dst []residency.Event, boot, seq uint64, most int) ([]residency.Event, bool) {
	return b.feed.Since(dst, boot, seq, most)
}

func (b *books) Scan(yield func([]residency.Event) bool) {
	var piece []residency.Event
	more := true
	b.Core.Scan(func(key plan.Key, e residency.Entry) {
		piece = append(piece, residency.Event{Key: key, Entry: e})
	}, func() bool {
		more = yield(piece)
		piece = piece[:0]
		return more
	})
	if more && len(piece) > 0 {
		yield(piece)
	}
}

// newRouter returns a router of nodes that it has not heard of.
func newRouter(t testing.TB, nodes, users, items int) *route.Router {
	c := route.Config{Users: users, Items: items, Policy: route.RoundRobin}
	for range nodes {
		c.Nodes = append(c.Nodes, route.Node{Costs: schedule.DefaultCosts(schedule.PrefillModel{Fixed: 1, Row: .01}),
			RTT: .2})
	}
	r, err := route.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// world has nodes, a router and the links between them, in virtual time.
type world struct {
	t     testing.TB
	rng   *rand.Rand
	now   time.Duration
	queue events
	order uint64

	router *route.Router
	nodes  []*node
	boots  uint64

	share   float64 // of messages that something happens to
	changes float64 // per second and node
	faults  map[string]int
	blind   bool // claims are not checked, because changes were not published
	checks  int  // of a node's part
	known   int  // of them, how many parts were known
	entries int  // entries that were claimed
}

// node is a node and the router's link to it.
type node struct {
	w      *world
	number int
	*books
	publisher *Publisher
	up        bool
	paused    time.Duration // until when it does nothing
	offset    time.Duration // of its clock
	rate      float64       // of its clock, less 1

	follower *Follower
	place    map[uint64]int // keys by place
	timer    time.Duration  // when the follower's next Tick is
	conn     *conn          // nil: there is none
}

// conn is a connection. Its ends may disagree on whether it exists.
type conn struct {
	n       *node
	session *Session // nil: the node's end is closed
	comes   bool     // pump will be called
	last    [2]time.Duration
	stalled [2]time.Duration // until when nothing arrives, by direction
}

const (
	toNode = iota
	toRouter
)

// newWorld returns a world with a node for each number of keys.
func newWorld(t testing.TB, seed uint64, ring int, keys ...int) *world {
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 23)), now: time.Second, faults: map[string]int{}, changes: 40}
	w.routes(keys...)
	for i, keys := range keys {
		w.boots++
		n := &node{w: w, number: i, up: true, place: map[uint64]int{}, timer: never,
			books: newBooks(t, i, keys, ring, w.boots)}
		for k, at := range n.places {
			n.place[at] = k
		}
		n.publisher = NewPublisher(fmt.Sprint("node-", i), secret, n.books, func() Load {
			return Load{Backlog: time.Duration(w.rng.IntN(100)) * ms, Shards: []byte{6}}
		})
		n.offset, n.rate = time.Duration(w.rng.Int64N(int64(1000*time.Hour))), (w.rng.Float64()-.5)*2e-4
		w.nodes = append(w.nodes, n)
		n.follows()
		w.after(n.between(), n.changes)
		w.after(time.Duration(w.rng.IntN(100))*ms, n.connect)
	}
	return w
}

// routes starts a new router, which has room for all.
func (w *world) routes(keys ...int) {
	sum := 0
	for _, n := range keys {
		sum += n
	}
	w.router = newRouter(w.t, len(keys), sum, sum)
}

// follows starts a new follower, as a router that was restarted does.
func (n *node) follows() {
	n.follower = NewFollower(FollowerConfig{Node: n.number, ID: n.publisher.node, Secret: secret, Sink: n.w.router})
}

func (n *node) clock() time.Duration {
	return n.offset + n.w.now + time.Duration(float64(n.w.now)*n.rate)
}

// after calls f when some time has passed.
func (w *world) after(d time.Duration, f func()) {
	w.order++
	heap.Push(&w.queue, event{w.now + max(d, 0), w.order, f})
}

// run lets time pass.
func (w *world) run(until time.Duration, more func() bool) {
	for w.queue[0].at <= until && more() {
		e := heap.Pop(&w.queue).(event)
		w.now = max(w.now, e.at)
		e.f()
	}
	if w.queue[0].at > until {
		w.now = until
	}
}

func always() bool { return true }

// tolerance is by how much clocks may run apart between two Asks.
const tolerance = 2 * ms

// check compares what the router knows with what the node held at most three heartbeats ago. It is called before
// anything that can change what the router knows. A claim gets older until then, so no other moment is worse.
func (n *node) check() {
	w := n.w
	w.checks++
	if w.blind || !w.router.Index().Known(n.number) {
		return
	}
	w.known++
	w.router.Index().Visit(n.number, everywhere, func(at uint64, e residency.Entry) {
		w.entries++
		k, ok := n.place[at]
		if !ok || !n.was(k, e, w.now-Limit-tolerance) {
			w.t.Fatalf("%v: the index claims %+v of key %d of node %d, whose states were %+v", w.now, e, k, n.number,
				n.states[k])
		}
	})
}

// compare requires that all is known, and the same as the nodes hold.
func (w *world) compare() {
	w.t.Helper()
	for _, n := range w.nodes {
		if !n.follower.Known() {
			w.t.Fatalf("%v: node %d is unknown: up %v, paused until %v, %+v", w.now, n.number, n.up, n.paused, n.follower.Stats)
		}
		found := 0
		w.router.Index().Visit(n.number, everywhere, func(at uint64, e residency.Entry) {
			k := n.place[at]
			if found++; n.held[k] != e {
				w.t.Fatalf("%v: the index has %+v of key %d of node %d, which has %+v", w.now, e, k, n.number, n.held[k])
			}
		})
		for k, e := range n.held {
			if e.Tier == plan.Missing {
				continue
			}
			if found--; found < 0 {
				w.t.Fatalf("%v: the index has fewer entries than node %d, as key %d", w.now, n.number, k)
			}
		}
	}
}

// between returns the time to the next changes.
func (n *node) between() time.Duration {
	return time.Duration(n.w.rng.ExpFloat64() / n.w.changes * float64(time.Second))
}

// changes changes a few keys, now and then very many.
func (n *node) changes() {
	w := n.w
	if n.up && w.now >= n.paused && w.changes > 1 {
		count := 1
		if w.rng.IntN(100) == 0 {
			count = w.rng.IntN(2 * n.ring)
		}
		for range count {
			n.change(n.number, w.rng.IntN(n.keys), w.rng, w.now)
		}
	}
	w.after(n.between(), n.changes)
}

// connect opens a connection if the node is there.
func (n *node) connect() {
	if !n.up || n.w.now < n.paused {
		n.w.after(100*ms, n.connect)
		return
	}
	c := &conn{n: n, session: n.publisher.Session()}
	n.conn = c
	n.follower.Connected(n.w.now)
	n.asks()
	c.pump()
}

// disconnect ends a connection from the router's side.
func (n *node) disconnect() {
	if n.conn == nil {
		return
	}
	n.conn.close()
	n.conn = nil
	n.follower.Disconnected()
	n.w.after(time.Duration(10+n.w.rng.IntN(200))*ms, n.connect)
}

// close closes the node's end.
func (c *conn) close() {
	if c.session != nil {
		c.session.Close()
		c.session = nil
	}
}

// asks sends what the follower asks for, and sets its timer.
func (n *node) asks() {
	w := n.w
	for {
		a := n.follower.Ask(w.now)
		if a == nil || n.conn == nil {
			break
		}
		c := n.conn
		var arrive func()
		arrive = func() {
			if c.session == nil || !n.up {
				return
			}
			if w.now < n.paused {
				w.after(n.paused-w.now, arrive)
				return
			}
			if err := c.session.Hear(a, n.clock()); err != nil {
				w.t.Fatal(err)
			}
			c.pump()
		}
		w.transmit(c, toNode, arrive)
	}
	if next := n.follower.Next(); next != never && next != n.timer {
		n.timer = next
		w.after(next-w.now, func() {
			if n.timer == next {
				n.timer = never
				n.tick()
			}
		})
	}
}

func (n *node) tick() {
	n.check()
	if err := n.follower.Tick(n.w.now); err != nil {
		n.disconnect()
	}
	n.asks()
}

// pump sends what the session has, and comes back.
func (c *conn) pump() {
	n, w := c.n, c.n.w
	if c.session == nil || !n.up {
		return
	}
	if w.now < n.paused {
		return // resumed calls it
	}
	for {
		m, err := c.session.Next(n.clock())
		if err != nil {
			c.close()
			if n.conn == c {
				n.disconnect()
			}
			return
		}
		if m == nil {
			break
		}
		w.transmit(c, toRouter, func() { n.deliver(m) })
	}
	if want, audit := c.session.Wants(); audit {
		n.audit(want)
	}
	if !c.comes {
		c.comes = true
		w.after(20*ms, func() {
			c.comes = false
			c.pump()
		})
	}
}

// audit has the node add up its books, a piece at a time.
func (n *node) audit(want []uint32) {
	a := n.publisher.Audit(want)
	var step func()
	step = func() {
		if boot, _ := n.Position(); !n.up || boot != a.boot {
			a.Stop()
			return
		}
		if !a.Step() {
			n.w.after(time.Duration(n.w.rng.IntN(3000))*time.Microsecond, step)
			return
		}
		if n.conn != nil && n.conn.session != nil {
			n.conn.session.Audited(a)
		}
	}
	step()
}

// deliver gives a message to the follower, also one of an earlier connection.
func (n *node) deliver(m *clusterv1.Message) {
	n.check()
	if err := n.follower.Take(m, n.w.now); err != nil {
		n.w.t.Fatal(err)
	}
	n.asks()
}

// transmit sends a message over a link, on which it may be lost, doubled, overtaken or held up.
func (w *world) transmit(c *conn, direction int, arrive func()) {
	delay := time.Duration(100+w.rng.IntN(1500)) * time.Microsecond
	at := max(w.now+delay, c.last[direction], c.stalled[direction])
	if w.rng.Float64() < w.share {
		switch fault := w.rng.IntN(4); fault {
		case 0:
			w.faults["drop"]++
			return
		case 1:
			w.faults["duplicate"]++
			w.after(at-w.now+time.Duration(w.rng.IntN(600))*ms, arrive)
		case 2:
			w.faults["reorder"]++
			w.after(at-w.now+time.Duration(w.rng.IntN(600))*ms, arrive)
			return
		case 3:
			if w.rng.IntN(4) == 0 {
				w.faults["stall"]++
				at += time.Duration(w.rng.IntN(3000)) * ms
				c.stalled[direction] = at
			}
		}
	}
	c.last[direction] = at
	w.after(at-w.now, arrive)
}

// strike makes something happen to a node.
func (w *world) strike() {
	n := w.nodes[w.rng.IntN(len(w.nodes))]
	switch {
	case !n.up || w.now < n.paused:
		return
	case w.rng.IntN(3) == 0:
		w.faults["cut"]++
		n.disconnect()
	case w.rng.IntN(2) == 0: // as SIGSTOP does
		w.faults["pause"]++
		d := time.Duration(w.rng.IntN(2000)) * ms
		n.paused = w.now + d
		w.after(d, func() {
			if n.conn != nil {
				n.conn.pump()
			}
		})
	default:
		w.faults["reboot"]++
		n.up = false
		n.wipe(w.now)
		if c := n.conn; c != nil {
			c.close()
			if w.rng.IntN(2) == 0 { // else the router does not notice
				n.disconnect()
			}
		}
		w.after(time.Duration(w.rng.IntN(1000))*ms, func() {
			w.boots++
			n.boot(w.t, w.boots)
			n.up = true
		})
	}
}

func (w *world) total() (sum int) {
	for _, n := range w.faults {
		sum += n
	}
	return sum
}

// stop ends all sessions.
func (w *world) stop() {
	for _, n := range w.nodes {
		if n.conn != nil {
			n.conn.close()
		}
	}
}

type event struct {
	at    time.Duration
	order uint64
	f     func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].order < e[j].order
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	(*e)[last] = event{}
	*e = (*e)[:last]
	return x
}

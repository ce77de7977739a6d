package allocator

import (
	"errors"
	"fmt"
	"math"

	"grebe/alloc"
	"grebe/compute"
	"grebe/evict"
	"grebe/pool"
	"grebe/workload/regime"
)

// node serves a stream in virtual time: one GPU or several, each with its link to the host's memory, one pool with a boundary, and
// the two caches on it. A request goes to the GPU that will be done with it first. It fetches the rows of embeddings that it
// lacks over the link, then computes; each takes one request at a time, in the order of arrival, so that one's fetch overlaps
// another's computing.
type node struct {
	cost        *Cost
	spec        *regime.Spec
	stream      *regime.Stream
	pool        *pool.Pool
	kv          kvCache
	emb         embCache
	governor    alloc.Governor
	naive       bool      // refill at once, before all demand
	links, gpus []float64 // free from then on, in seconds
	now         float64
	rows        []int32
	seen        map[uint64]visits // users of the last minute
	swept       float64
	fresh       bool // every epoch begins with nobody waiting

	glance  func(part *tally, now float64) // told what a part of an epoch was like; nil: nobody
	pending *regime.Request                // read from the stream, of later
	epoch   int
	lat     []float64 // of the epoch, milliseconds
	books   tally
}

// tally counts an epoch.
type tally struct {
	requests, hot, kvHits, late int
	looks, lookHits             int
	events                      int
	linkBusy, gpuBusy           float64 // seconds
	refilled                    int64   // bytes
	gains                       alloc.Gains
}

// since returns what was counted after before was.
func (t *tally) since(before *tally) *tally {
	d := tally{
		requests: t.requests - before.requests, hot: t.hot - before.hot, kvHits: t.kvHits - before.kvHits, events: t.events - before.events,
		looks: t.looks - before.looks, lookHits: t.lookHits - before.lookHits,
		linkBusy: t.linkBusy - before.linkBusy, gpuBusy: t.gpuBusy - before.gpuBusy,
	}
	d.gains = t.gains.Less(&before.gains)
	return &d
}

// visits is what is known of a user.
type visits struct{ last, gap float64 }

// hotWithin is how recently a user must have come before to count as hot, in seconds.
const hotWithin = 60

// run is how many pages a piece of an entry has.
const (
	page  = 2 << 20
	piece = 8 * page
)

func newNode(cost *Cost, spec *regime.Spec, alpha float64) (*node, error) {
	stream, err := regime.NewStream(*spec)
	if err != nil {
		return nil, err
	}
	cost = cost.of(max(spec.GPUs, 1))
	p, err := pool.Over(nowhere{}, cost.Pool, page)
	if err != nil {
		return nil, err
	}
	n := &node{cost: cost, spec: spec, stream: stream, pool: p, seen: map[uint64]visits{}, gpus: make([]float64, cost.GPUs), links: make([]float64, cost.GPUs)}
	n.governor = alloc.Governor{Link: cost.Link * float64(len(n.links)), Share: 0.5}
	n.kv = newKVCache(p, cost, n)
	n.emb = newEmbCache(p.For(pool.Embeddings), cost, spec)
	n.move(0, alpha)
	return n, nil
}

// nowhere is memory that is only counted.
type nowhere struct{ compute.Memory }

func (nowhere) Alloc(n int) (compute.Block, error) { return compute.Block{Addr: 1 << 40, Size: n}, nil }
func (nowhere) Free(compute.Block)                 {}

// move sets the boundary: KV evicts what it has too much and embeddings take the pages, or the other way round.
func (n *node) move(now, alpha float64) {
	before := n.emb.grains()
	n.pool.SetBoundary(alpha)
	for n.pool.Over() > 0 && n.kv.evictOne() {
	}
	n.emb.resize()
	if n.naive && n.emb.grains() > before {
		each := float64(n.emb.refill(math.MaxInt64)) / n.cost.Link / float64(len(n.links))
		for i := range n.links {
			n.links[i] = max(n.links[i], now) + each
		}
	}
}

// serve takes one request.
func (n *node) serve(r *regime.Request) {
	n.now = r.At
	n.background(r.At)
	b := &n.books
	b.requests++
	b.events += r.Events
	back := n.visit(r)

	cached := n.kv.get(r, back)
	if cached > 0 {
		b.kvHits++
	} else if depth, ok := n.kv.ghost.Missed(r.User); ok {
		saved := n.cost.compute(r.Events+n.spec.Candidates, 0) - n.cost.compute(n.spec.NewEvents+n.spec.Candidates, r.Events)
		b.gains.KV.Add(depth, n.cost.Pool, saved)
		b.gains.KVLink.Add(depth, n.cost.Pool, 1e3*float64(int64(r.Events*n.spec.Tables)*n.cost.RowBytes)/n.cost.Link)
	}
	rows := r.Events - cached + n.spec.Candidates
	compute := n.cost.compute(rows, cached) / 1e3
	if !n.spec.LRU || r.Hot {
		n.kv.put(r, back)
	}

	n.rows = n.stream.AppendRows(n.rows[:0], r, cached)
	missed := 0
	grain := n.cost.RowBytes * int64(n.spec.Grain)
	ms := 1e3 * float64(grain) / n.cost.Link
	for _, row := range n.rows {
		if n.emb.use(row, ms, &b.gains.Emb) {
			b.lookHits++
		} else {
			missed++
		}
	}
	b.looks += len(n.rows)
	fetch := float64(int64(missed)*grain) / n.cost.Link
	n.governor.Demand(r.At, int64(missed)*grain)

	done := n.run(r.At, fetch, compute)
	b.linkBusy += fetch / float64(len(n.gpus))
	b.gpuBusy += compute / float64(len(n.gpus))
	n.lat = append(n.lat, 1e3*(done-r.At))
}

// run sends a request to the GPU that will be done with it first, and returns when.
func (n *node) run(at, fetch, compute float64) float64 {
	best, first := 0, math.Inf(1)
	for i := range n.gpus {
		if done := max(n.gpus[i], max(n.links[i], at)+fetch) + compute; done < first {
			best, first = i, done
		}
	}
	n.links[best] = max(n.links[best], at) + fetch
	n.gpus[best] = first
	return first
}

// visit notes who came and returns when they are expected back: who came before, after a time like the last one. A node that
// knows its hot users expects nothing.
func (n *node) visit(r *regime.Request) float64 {
	if n.spec.LRU {
		if r.Hot {
			n.books.hot++
		}
		return r.At
	}
	v, ok := n.seen[r.User]
	if !ok || r.At-v.last > hotWithin {
		n.seen[r.User] = visits{last: r.At}
		return r.At + newcomers
	}
	n.books.hot++
	gap := r.At - v.last
	if v.gap > 0 {
		gap = (gap + v.gap) / 2
	}
	n.seen[r.User] = visits{r.At, gap}
	return r.At + gap
}

// newcomers are expected back after so many seconds: most never are.
const newcomers = 600

// overdue predicts anew for users who did not come when expected: a little later, or not at all.
func (n *node) overdue(slots []evict.Slot, returns []int64) {
	for i, s := range slots {
		v, back := n.seen[n.kv.items[s].user], n.now+newcomers
		if v.gap > 0 && n.now < v.last+patience*v.gap {
			back = max(v.last+v.gap, n.now+v.gap/4)
		}
		returns[i] = int64(back * 1e6)
	}
}

// patience is how many of their gaps users may be away before they are not expected back.
const patience = 2.5

// background refills embeddings with what the governor grants since the last request, while the link is idle.
func (n *node) background(now float64) {
	idle := 0.0 // seconds of links
	for _, free := range n.links {
		idle += max(0, now-free)
	}
	if n.naive || idle == 0 || n.emb.room() == 0 {
		return
	}
	grain := n.cost.RowBytes * int64(n.spec.Grain)
	granted := n.governor.Grant(now, int64(idle*n.cost.Link))
	done := n.emb.refill(granted / grain)
	n.governor.Spend(done)
	n.books.refilled += done
}

// next serves an epoch; false when the workload has ended.
func (n *node) next() bool {
	n.lat, n.books = n.lat[:0], tally{}
	if n.fresh {
		clear(n.links)
		clear(n.gpus)
	}
	if n.epoch >= len(n.spec.Hot) {
		return false
	}
	begin := float64(n.epoch) * regime.EpochSeconds
	var before tally
	for part := 1; part <= alloc.Glances; part++ {
		end := begin + float64(part*regime.EpochSeconds)/alloc.Glances
		n.until(end)
		if n.glance != nil {
			n.glance(n.books.since(&before), end)
			before = n.books
		}
	}
	n.epoch++
	n.forget(begin + regime.EpochSeconds)
	return true
}

// until serves all requests before a time.
func (n *node) until(end float64) {
	for {
		if n.pending == nil {
			r, ok := n.stream.Next()
			if !ok {
				return
			}
			n.pending = &r
		}
		if n.pending.At >= end {
			return
		}
		n.serve(n.pending)
		n.pending = nil
	}
}

// forget drops users who have not come for long.
func (n *node) forget(now float64) {
	if now-n.swept < hotWithin {
		return
	}
	n.swept = now
	for u, v := range n.seen {
		if now-v.last > hotWithin {
			delete(n.seen, u)
		}
	}
}

// kvCache keeps users' KV on pages of the pool.
type kvCache struct {
	pool   *pool.Pool
	cost   *Cost
	policy evict.Policy
	ghost  *alloc.Ghost
	lru    bool // of hot users only
	slot   map[uint64]evict.Slot
	items  []kvItem
	free   []evict.Slot
}

type kvItem struct {
	user   uint64
	events int
	hits   int
	bytes  int64 // as the policy knows them
	runs   []pool.Run
}

// kvPolicy evicts what is expected back last, by the predictions of visit and overdue.
const kvPolicy = "blind"

func newKVCache(p *pool.Pool, cost *Cost, n *node) kvCache {
	slots := int(cost.Pool / piece)
	name := kvPolicy
	if n.spec.LRU {
		name = "lru"
	}
	policy, err := evict.New(name, evict.Config{Slots: slots, Bytes: cost.Pool, Refresh: n.overdue})
	if err != nil {
		panic(err) // a constant
	}
	c := kvCache{pool: p, cost: cost, policy: policy, lru: n.spec.LRU, ghost: alloc.NewGhost(4096 * cost.GPUs), slot: map[uint64]evict.Slot{}, items: make([]kvItem, slots)}
	for i := slots - 1; i >= 0; i-- {
		c.free = append(c.free, evict.Slot(i))
	}
	return c
}

// access describes a request to the policy, in microseconds.
func (c *kvCache) access(r *regime.Request, back float64) evict.Access {
	return evict.Access{Key: r.User, Bytes: int64(r.Events) * c.cost.KVBytes, Now: int64(r.At * 1e6), Return: int64(back * 1e6)}
}

// get returns how many events of the user are cached.
func (c *kvCache) get(r *regime.Request, back float64) int {
	s, ok := c.slot[r.User]
	if !ok {
		return 0
	}
	it := &c.items[s]
	it.hits++
	a := c.access(r, back)
	a.Bytes = it.bytes
	c.policy.Hit(s, a)
	return it.events
}

// put keeps a user's events, if there is room.
func (c *kvCache) put(r *regime.Request, back float64) {
	a := c.access(r, back)
	s, ok := c.slot[r.User]
	if !ok {
		c.policy.Miss(a)
		for len(c.free) == 0 {
			c.evictOther(-1)
		}
		s = c.free[len(c.free)-1]
		c.free = c.free[:len(c.free)-1]
		c.items[s] = kvItem{user: r.User, bytes: a.Bytes, runs: c.items[s].runs[:0]}
	}
	it := &c.items[s]
	fits := c.extend(s, r.Events)
	if fits {
		it.events = r.Events
	}
	switch {
	case ok:
	case fits:
		c.policy.Insert(s, a)
		c.slot[r.User] = s
	default:
		c.drop(s)
	}
}

// extend takes pages until an entry has room for its events.
func (c *kvCache) extend(s evict.Slot, events int) bool {
	it := &c.items[s]
	for int64(len(it.runs))*piece < int64(events)*c.cost.KVBytes {
		r, err := c.pool.Alloc(piece)
		if errors.Is(err, pool.ErrFull) {
			if c.evictOther(s) {
				continue
			}
			return false
		}
		if err != nil {
			panic(fmt.Sprintf("allocator: %v", err)) // Alloc has no other errors
		}
		it.runs = append(it.runs, r)
	}
	return true
}

func (c *kvCache) evictOne() bool { return c.evictOther(-1) }

// evictOther makes one entry go, but not the one in slot keep.
func (c *kvCache) evictOther(keep evict.Slot) bool {
	s, ok := c.policy.Victim(func(s evict.Slot) bool { return s != keep })
	if !ok {
		return false
	}
	it := &c.items[s]
	if it.hits > 0 || c.lru { // the others came once, and are in nobody's way
		c.ghost.Evicted(it.user, int64(len(it.runs))*piece)
	}
	delete(c.slot, it.user)
	c.drop(s)
	return true
}

func (c *kvCache) drop(s evict.Slot) {
	c.pool.FreeRuns(c.items[s].runs)
	c.items[s].runs = c.items[s].runs[:0]
	c.free = append(c.free, s)
}

// embCache keeps grains of rows on pages of the pool, in the order of use.
type embCache struct {
	pool   *pool.Pool
	policy evict.Policy
	ghost  *alloc.Ghost
	runs   []pool.Run // per for each grain that the cache may hold
	per    int
	bytes  int     // of a grain
	total  int64   // of the pool
	slot   []int32 // by grain, −1: not cached
	key    []int32 // by slot
	free   []int32
	used   int
	now    int64
	at     int // next eviction that refill looks at
}

func newEmbCache(p *pool.Pool, cost *Cost, spec *regime.Spec) embCache {
	bytes := int(cost.RowBytes) * spec.Grain
	slots := int(cost.Pool/int64(bytes)) + 1
	policy, err := evict.New("lru", evict.Config{Slots: slots, Bytes: int64(slots)})
	if err != nil {
		panic(err) // a constant
	}
	c := embCache{pool: p, policy: policy, ghost: alloc.NewGhost(slots), per: max(1, bytes/piece), bytes: bytes, total: cost.Pool, slot: make([]int32, spec.Grains), key: make([]int32, slots)}
	for i := range c.slot {
		c.slot[i] = -1
	}
	for i := slots - 1; i >= 0; i-- {
		c.free = append(c.free, int32(i))
	}
	return c
}

func (c *embCache) grains() int { return len(c.runs) / c.per }
func (c *embCache) room() int   { return c.grains() - c.used }

// resize takes pages, or evicts and gives them back, as the boundary says. A grain stands for rows that may lie anywhere, so it needs no
// longer runs of pages than KV does.
func (c *embCache) resize() {
	want := int(c.pool.Stats().Total) / c.bytes
	if more := want*c.per - len(c.runs); more > 0 {
		c.runs = c.pool.AllocRuns(c.runs, c.bytes/c.per, more)
		c.at = 0
		return
	}
	for c.used > want {
		c.evictOne()
	}
	c.pool.FreeRuns(c.runs[want*c.per:])
	c.runs = c.runs[:want*c.per]
}

func (c *embCache) evictOne() {
	s, ok := c.policy.Victim(nil)
	if !ok {
		return
	}
	c.ghost.Evicted(uint64(c.key[s])+1, int64(c.bytes))
	c.slot[c.key[s]] = -1
	c.free = append(c.free, s)
	c.used--
}

// use looks a grain up and caches it. A miss that a larger cache would not have had saves ms there.
func (c *embCache) use(row int32, ms float64, g *alloc.Curve) bool {
	c.now++
	a := evict.Access{Key: uint64(row) + 1, Bytes: 1, Now: c.now}
	if s := c.slot[row]; s >= 0 {
		c.policy.Hit(s, a)
		return true
	}
	if depth, ok := c.ghost.Missed(a.Key); ok {
		g.Add(depth, c.total, ms)
	}
	c.insert(row, a)
	return false
}

func (c *embCache) insert(row int32, a evict.Access) {
	if c.grains() == 0 {
		return
	}
	c.policy.Miss(a)
	if c.used >= c.grains() {
		c.evictOne()
	}
	s := c.free[len(c.free)-1]
	c.free = c.free[:len(c.free)-1]
	c.key[s], c.slot[row] = row, s
	c.policy.Insert(s, a)
	c.used++
}

// refill brings back what was evicted last, at most so many grains, while there is room. It returns the bytes.
func (c *embCache) refill(grains int64) int64 {
	n := int64(0)
	for ; n < grains && c.room() > 0 && c.at < c.ghost.Len(); c.at++ {
		if key, ok := c.ghost.Recent(c.at); ok {
			c.ghost.Missed(key)
			c.now++
			c.insert(int32(key-1), evict.Access{Key: key, Bytes: 1, Now: c.now})
			n++
		}
	}
	return n * int64(c.bytes)
}

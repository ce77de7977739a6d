package allocator

import (
	"math"

	"grebe/alloc"
	"grebe/compute"
	"grebe/plan"
	"grebe/pool"
	"grebe/workload/regime"
)

// node serves a stream in virtual time: one GPU or several, each with its link to the host's memory, one pool with a
// boundary, and the two caches on it. A request goes to the GPU that will be done with it first. It fetches the rows of
// embeddings that it lacks over the link, then computes; each takes one request at a time, in the order of arrival, so
// that one's fetch overlaps another's computing.
type node struct {
	cost        *Cost
	spec        *regime.Spec
	stream      *regime.Stream
	pool        *pool.Pool
	kv          *users
	emb         *rows
	governor    alloc.Governor
	naive       bool      // fill new capacity at once, before all demand
	links, gpus []float64 // free from then on, in seconds
	now         float64
	back        float64           // when the user who is served is expected back
	grains      []int32           // that the request looks up
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
	filled                      int64   // bytes
	gains                       alloc.Gains
}

// since returns what was counted after before was.
func (t *tally) since(before *tally) *tally {
	d := tally{
		requests: t.requests - before.requests, hot: t.hot - before.hot, kvHits: t.kvHits - before.kvHits,
		events: t.events - before.events,
		looks:  t.looks - before.looks, lookHits: t.lookHits - before.lookHits,
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
	n := &node{cost: cost, spec: spec, stream: stream, pool: p, seen: map[uint64]visits{},
		gpus: make([]float64, cost.GPUs), links: make([]float64, cost.GPUs)}
	n.governor = alloc.Governor{Link: cost.Link * float64(len(n.links)), Share: 0.5}
	if n.kv, err = newUsers(p, cost, n); err != nil {
		return nil, err
	}
	n.emb = newRows(p.For(pool.Embeddings), cost, spec)
	n.move(0, alpha)
	return n, nil
}

// nowhere is memory that is only counted.
type nowhere struct{ compute.Memory }

func (nowhere) Alloc(n int) (compute.Block, error) { return compute.Block{Addr: 1 << 40, Size: n}, nil }
func (nowhere) Free(compute.Block)                 {}

// move sets the boundary: KV evicts what it has too much and embeddings take the pages, or the other way round.
func (n *node) move(now, alpha float64) {
	n.pool.SetBoundary(alpha)
	n.kv.trim()
	n.emb.resize()
	if n.naive {
		each := float64(n.emb.Rehome(math.MaxInt64)) / n.cost.Link / float64(len(n.links))
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
	n.back = n.visit(r)

	cached := n.kv.get(r)
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
		n.kv.put(r)
	}

	n.grains = n.stream.AppendRows(n.grains[:0], r, cached)
	missed := 0
	grain := n.cost.RowBytes * int64(n.spec.Grain)
	ms := 1e3 * float64(grain) / n.cost.Link
	for _, g := range n.grains {
		if n.emb.Use(g, ms, &b.gains.Emb) {
			b.lookHits++
		} else {
			missed++
		}
	}
	b.looks += len(n.grains)
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

// visit notes who came and returns when they are expected back: who came before, after a time like the last one. A node
// that knows its hot users expects nothing.
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

// Now, Next and Revise make the node the oracle of its users' KV. Times are in microseconds.
func (n *node) Now() int64 { return int64(n.now * 1e6) }

// Next returns when the user who is served is expected back.
func (n *node) Next(plan.Key) int64 { return int64(n.back * 1e6) }

// Revise predicts anew for users who did not come when expected: a little later, or not at all.
func (n *node) Revise(keys []plan.Key, next []int64) {
	for i, k := range keys {
		v, back := n.seen[userOf(k)], n.now+newcomers
		if v.gap > 0 && n.now < v.last+patience*v.gap {
			back = max(v.last+v.gap, n.now+v.gap/4)
		}
		next[i] = int64(back * 1e6)
	}
}

// patience is how many of their gaps users may be away before they are not expected back.
const patience = 2.5

// background moves rows into new capacity with what the governor grants since the last request, while the link is idle.
func (n *node) background(now float64) {
	idle := 0.0 // seconds of links
	for _, free := range n.links {
		idle += max(0, now-free)
	}
	if n.naive || idle == 0 || n.emb.Settled() {
		return
	}
	granted := n.governor.Grant(now, int64(idle*n.cost.Link))
	done := n.emb.Rehome(granted)
	n.governor.Spend(done)
	n.books.filled += done
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

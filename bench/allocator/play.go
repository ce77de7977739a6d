package allocator

import (
	"runtime"
	"slices"
	"sync"

	"grebe/alloc"
	"grebe/bench/allocator/smart"
	"grebe/bench/report"
	"grebe/workload/regime"
)

// SLO is what a request may take, in milliseconds.
const SLO = 30

// played is a workload as one controller served it. Epochs of warming up are left out.
type played struct {
	alpha  []float64   // by epoch
	p99    []float64   // by epoch, milliseconds
	all    []float64   // of all requests, milliseconds, sorted
	lats   [][]float64 // the same by epoch, where they are kept
	states [][smart.Features]float64
	late   int
	kvHit  float64
	embHit float64
	moved  int64 // bytes moved in the background
}

// within returns the share of requests within the SLO.
func (p *played) within() float64 { return 1 - float64(p.late)/float64(len(p.all)) }

// P99 returns that of all requests.
func (p *played) P99() float64 { return report.Percentile(p.all, 99) }

func newClimb() alloc.Controller { return &alloc.Climb{SLO: SLO} }

// learner is a controller that learns beside the serving path.
type learner interface{ Learn() }

// start is the share that every controller begins with.
const start = 0.5

// how says how a workload is served. Naive fills new capacity at once. Fresh lets every epoch begin with nobody
// waiting. Keep keeps latencies by epoch. From is the share to begin with, if not start.
type how struct {
	naive, fresh, keep bool
	from               float64
}

// play serves a workload. A static share holds from the beginning.
func play(cost *Cost, spec *regime.Spec, c alloc.Controller, h how) (*played, error) {
	alpha := start
	if h.from > 0 {
		alpha = h.from
	}
	if s, ok := c.(alloc.Static); ok {
		alpha = float64(s)
	}
	n, err := newNode(cost, spec, alpha)
	if err != nil {
		return nil, err
	}
	n.naive, n.fresh = h.naive, h.fresh
	p := &played{}
	var sum tally
	var o alloc.Observation
	if w, ok := c.(alloc.Watcher); ok {
		n.glance = func(part *tally, now float64) {
			g := part.observe(alpha, float64(regime.EpochSeconds)/alloc.Glances)
			g.P99, g.Late = o.P99, o.Late
			if d, ok := w.Glance(&g); ok {
				alpha = d.To
				n.move(now, alpha)
			}
		}
	}
	for n.next() {
		o = n.observe(alpha)
		if n.epoch > regime.Warm {
			p.alpha = append(p.alpha, alpha)
			p.p99 = append(p.p99, o.P99)
			p.all = append(p.all, n.lat...)
			if h.keep {
				p.lats = append(p.lats, slices.Clone(n.lat))
			}
			var x [smart.Features]float64
			smart.Vector(&o.State, &x, SLO)
			p.states = append(p.states, x)
			p.late += n.books.late
			sum.requests += n.books.requests
			sum.kvHits += n.books.kvHits
			sum.looks += n.books.looks
			sum.lookHits += n.books.lookHits
			p.moved += n.books.filled
		}
		d := c.Decide(&o)
		if l, ok := c.(learner); ok {
			l.Learn()
		}
		if d.To != alpha {
			alpha = d.To
			n.move(float64(n.epoch)*regime.EpochSeconds, alpha)
		}
	}
	p.kvHit = float64(sum.kvHits) / float64(max(sum.requests, 1))
	p.embHit = float64(sum.lookHits) / float64(max(sum.looks, 1))
	slices.Sort(p.all)
	return p, nil
}

// observe returns what the epoch that has just ended was like.
func (n *node) observe(alpha float64) alloc.Observation {
	b := &n.books
	for _, l := range n.lat {
		if l > SLO {
			b.late++
		}
	}
	slices.Sort(n.lat)
	o := b.observe(alpha, regime.EpochSeconds)
	o.Late, o.P99 = float64(b.late)/float64(max(b.requests, 1)), report.Percentile(n.lat, 99)
	return o
}

// observe returns what so many seconds were like, but for latencies.
func (t *tally) observe(alpha, seconds float64) alloc.Observation {
	r := float64(max(t.requests, 1))
	return alloc.Observation{
		State: alloc.State{
			Hot: float64(t.hot) / r, KVHit: float64(t.kvHits) / r, EmbHit: float64(t.lookHits) / float64(max(t.looks, 1)),
			Events: float64(t.events) / r, Alpha: alpha,
		},
		Requests: t.requests, LinkLoad: t.linkBusy / seconds, GPULoad: t.gpuBusy / seconds, Gains: t.gains,
	}
}

// grid are the shares that are tried.
func grid(step float64) []float64 {
	var g []float64
	for a := alloc.MinShare; a < alloc.MaxShare+step/2; a += step {
		g = append(g, min(a, alloc.MaxShare))
	}
	return g
}

// each runs f for 0 to n−1 on every core and returns the first error.
func each(n int, f func(i int) error) error {
	var wg sync.WaitGroup
	errs := make([]error, n)
	next := make(chan int)
	for range min(runtime.GOMAXPROCS(0), n) {
		wg.Go(func() {
			for i := range next {
				errs[i] = f(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// sweep serves a workload with every static share, for every seed. Results are by share, then seed.
func sweep(cost *Cost, specs []regime.Spec, shares []float64, h how) ([][]*played, error) {
	out := make([][]*played, len(shares))
	for i := range out {
		out[i] = make([]*played, len(specs))
	}
	err := each(len(shares)*len(specs), func(i int) error {
		a, s := i/len(specs), i%len(specs)
		p, err := play(cost, &specs[s], alloc.Static(shares[a]), h)
		out[a][s] = p
		return err
	})
	return out, err
}

// bestShares returns for each epoch the share with the least P99, the mean over the seeds, in caches that always had
// that share. So many epochs before and after count too: two on one GPU, where an epoch's P99 is made of some fifteen
// requests.
func bestShares(shares []float64, runs [][]*played, around int) []float64 {
	epochs := len(runs[0][0].p99)
	at := func(a, e int) float64 {
		sum := 0.0
		for d := -around; d <= around; d++ {
			for _, r := range runs[a] {
				sum += r.p99[min(max(e+d, 0), epochs-1)]
			}
		}
		return sum
	}
	best := make([]float64, epochs)
	for e := range best {
		least := 0.0
		for a := range shares {
			v := at(a, e)
			if a == 0 || v < least {
				least, best[e] = v, shares[a]
			}
		}
	}
	return best
}

// optimum returns the shares by epoch that serve a workload best of those that are tried. On one GPU they are each
// epoch's best (bestShares). On a node it is the schedule of the least P99 of the first seed among three kinds: each
// epoch's best, found with nobody waiting when an epoch begins, since what is best for an epoch does not depend on what
// a wrong share did to those before; straight lines over the hot share, since moving has a price that an epoch by
// itself does not show; and the static ones.
func optimum(cost *Cost, specs []regime.Spec, shares []float64, runs [][]*played) ([]float64, error) {
	spec := &specs[0]
	if spec.GPUs == 0 {
		return bestShares(shares, runs, 2), nil
	}
	alone, err := sweep(cost, specs[:min(2, len(specs))], shares, how{fresh: true})
	if err != nil {
		return nil, err
	}
	tries := [][]float64{bestShares(shares, alone, 0)}
	for _, low := range []float64{0.5, 0.6, 0.7, 0.8} {
		for _, high := range []float64{0.2, 0.3, 0.4, 0.5} {
			tries = append(tries, line(spec, low, high))
		}
	}
	got := make([]*played, len(tries))
	err = each(len(tries), func(i int) error {
		var err error
		got[i], err = play(cost, spec, &oracle{shares: tries[i]}, how{})
		return err
	})
	if err != nil {
		return nil, err
	}
	best, least := tries[0], got[0].P99()
	for i := range tries {
		if p := got[i].P99(); p < least {
			best, least = tries[i], p
		}
	}
	for i, a := range shares {
		if p := runs[i][0].P99(); p < least {
			best, least = line(spec, a, a), p
		}
	}
	return best, nil
}

// line is a schedule by the share of hot users: low where it is 0.2, high where it is 0.5, straight in between.
func line(spec *regime.Spec, low, high float64) []float64 {
	var out []float64
	for _, h := range spec.Hot[regime.Warm:] {
		out = append(out, alloc.Clip(low+(high-low)*(h-0.2)/0.3))
	}
	return out
}

// oracle knows each epoch's best share beforehand.
type oracle struct {
	shares []float64
	epoch  int
}

// Decide moves the boundary before the epoch that it is for.
func (o *oracle) Decide(b *alloc.Observation) alloc.Decision {
	o.epoch++
	at := min(max(o.epoch-regime.Warm, 0), len(o.shares)-1)
	return alloc.Decision{From: b.Alpha, To: o.shares[at]}
}

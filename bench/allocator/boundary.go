package allocator

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"grebe/alloc"
	"grebe/bench/allocator/smart"
	"grebe/bench/report"
	"grebe/pool"
)

// Boundary is what moving it costs on this machine, in microseconds of real time.
type Boundary struct {
	Pages     int `json:"pages"`
	PageBytes int `json:"page_bytes"`
	Workers   int `json:"workers"`
	Moved     int `json:"moved"` // pages at a time

	FourPercent float64 `json:"four_percent"` // median
	FourWorst   float64 `json:"four_worst"`   // 99 %
	PerPage     float64 `json:"per_page"`
	P99Still    float64 `json:"p99_still"`
	P99Moving   float64 `json:"p99_moving"`
	P99Ratio    float64 `json:"p99_ratio"` // median over rounds

	Smart float64 `json:"smart"` // a decision
	Climb float64 `json:"climb"`
}

const (
	boundaryRounds = 15
	boundaryWork   = 300                   // requests of a worker in a round
	boundaryEvery  = 20 * time.Millisecond // between moves: 250 times as often as the server moves it
	hostWork       = 500                   // microseconds of work of a request, besides its pages
	embSlab        = 8 * page              // what embeddings take and give at a time
)

// measureBoundary moves 4 % of a pool of 100 GiB back and forth while workers, one per core, take and give KV as
// requests do. Rounds with and without moves take turns.
func measureBoundary() (*Boundary, error) {
	p, err := pool.Over(nowhere{}, 100<<30, page)
	if err != nil {
		return nil, err
	}
	emb := p.For(pool.Embeddings)
	p.SetBoundary(0.5)
	m := mover{pool: p, emb: emb, held: emb.AllocRuns(nil, embSlab, 1<<20)}
	pages := int(100 << 30 / page)
	b := &Boundary{Pages: pages, PageBytes: page, Workers: runtime.GOMAXPROCS(0), Moved: pages * 4 / 100}
	workers := make([]*worker, b.Workers)
	for i := range workers {
		workers[i] = newWorker(p, uint64(i), 400/b.Workers)
	}
	var ratios, still, moving []float64
	for range boundaryRounds {
		a := serveAll(workers)
		m.begin()
		c := serveAll(workers)
		m.end()
		still, moving, ratios = append(still, a), append(moving, c), append(ratios, c/a)
	}
	emb.FreeRuns(m.held)
	for _, w := range workers {
		w.close()
	}
	slices.Sort(m.times)
	b.FourPercent, b.FourWorst = report.Median(m.times), report.Percentile(m.times, 99)
	b.PerPage = b.FourPercent / float64(b.Moved)
	b.P99Still, b.P99Moving, b.P99Ratio = report.Median(still), report.Median(moving), report.Median(ratios)
	if b.Smart, b.Climb, err = decisionTimes(); err != nil {
		return nil, err
	}
	return b, p.Close()
}

// mover moves the boundary to and fro.
type mover struct {
	pool, emb *pool.Pool
	held      []pool.Run
	times     []float64 // microseconds of each move
	stop      chan struct{}
	wg        sync.WaitGroup
}

func (m *mover) begin() {
	m.stop = make(chan struct{})
	m.wg.Go(func() {
		tick := time.NewTicker(boundaryEvery)
		defer tick.Stop()
		for to := 0.46; ; to = 0.96 - to {
			var us float64
			m.held, us = moveTo(m.pool, m.emb, m.held, to)
			m.times = append(m.times, us)
			select {
			case <-m.stop:
				return
			case <-tick.C:
			}
		}
	})
}

func (m *mover) end() {
	close(m.stop)
	m.wg.Wait()
}

// serveAll has every worker serve a round and returns the P99 of all their requests.
func serveAll(workers []*worker) float64 {
	times := make([][]float64, len(workers))
	var wg sync.WaitGroup
	for i, w := range workers {
		wg.Go(func() { times[i] = w.round() })
	}
	wg.Wait()
	all := slices.Concat(times...)
	slices.Sort(all)
	return report.Percentile(all, 99)
}

// moveTo sets the boundary and has embeddings take or give pages until they own what they may. It returns the
// microseconds.
func moveTo(p, emb *pool.Pool, held []pool.Run, to float64) ([]pool.Run, float64) {
	begin := time.Now()
	want := p.SetBoundary(to) * page / embSlab
	if want < len(held) {
		emb.FreeRuns(held[want:])
		held = held[:want]
	} else {
		held = emb.AllocRuns(held, embSlab, want-len(held))
	}
	return held, float64(time.Since(begin).Nanoseconds()) / 1e3
}

// worker takes and gives the KV of users as requests do, within what KV may always own.
type worker struct {
	pool *pool.Pool
	rng  *rand.Rand
	held [][]pool.Run
}

func newWorker(p *pool.Pool, seed uint64, users int) *worker {
	return &worker{pool: p, rng: rand.New(rand.NewPCG(seed, 2)), held: make([][]pool.Run, users)}
}

// round serves requests and returns their microseconds.
func (w *worker) round() []float64 {
	times := make([]float64, boundaryWork)
	for i := range times {
		k := w.rng.IntN(len(w.held))
		n := 2 + w.rng.IntN(4) // pieces of 16 MiB: 31 to 92 MB
		begin := time.Now()
		w.pool.FreeRuns(w.held[k])
		w.held[k] = w.pool.AllocRuns(w.held[k][:0], piece, n)
		spin(hostWork)
		times[i] = float64(time.Since(begin).Nanoseconds()) / 1e3
	}
	return times
}

// spin is the rest of a request's work on the host: so many microseconds, roughly.
func spin(us int) {
	x := uint64(us)
	for range us * 700 {
		x ^= x << 13
		x ^= x >> 7
	}
	spun.Store(x)
}

var spun atomic.Uint64

func (w *worker) close() {
	for _, r := range w.held {
		w.pool.FreeRuns(r)
	}
}

// decisionTimes returns the microseconds that a decision takes: the median of many.
func decisionTimes() (learned, climb float64, err error) {
	policy, err := smart.TrainedPolicy()
	if err != nil {
		return 0, 0, err
	}
	o := alloc.Observation{State: alloc.State{Hot: 0.3, KVHit: 0.2, EmbHit: 0.6, Events: 9000, Alpha: 0.5, P99: 25},
		LinkLoad: 0.6, GPULoad: 0.5}
	one := func(c alloc.Controller) float64 {
		times := make([]float64, 2001)
		for i := range times {
			o.P99 = 20 + float64(i%10)
			begin := time.Now()
			c.Decide(&o)
			times[i] = float64(time.Since(begin).Nanoseconds()) / 1e3
		}
		return report.Median(times)
	}
	return one(smart.New(policy, smart.Config{SLO: SLO})), one(newClimb()), nil
}

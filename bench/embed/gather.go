package embed

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	table "grebe/embed"
	"grebe/internal/offheap"
)

// Gather compares gathers of rows with plain copies of as many bytes, by as many threads, from memory larger than the
// processor's caches.
type Gather struct {
	MiB   int    `json:"mib"` // of cached rows
	Rates []Rate `json:"rates"`
}

// Rate is one way to bring rows into a batch's place.
type Rate struct {
	What    string  `json:"what"`
	Threads int     `json:"threads"`
	Hits    float64 `json:"hit_rate"`
	Bytes   float64 `json:"bytes"` // per second, median
	Ratio   Ratio   `json:"ratio"` // to the contiguous copy
}

const (
	gatherRows  = 1 << 21 // 1 GiB
	gatherBatch = 4096
	gatherLoops = 4 // batches of a measurement
)

// ways to fill a batch, in the order in which they take turns.
var gatherWays = []string{"contiguous copy", "random rows, places known", "all hit", "90 % hit", "90 % hit, misses from memory"}

// gatherer has what the ways need.
type gatherer struct {
	src, out []byte
	keys     []uint64
	all, few *table.Table // the latter's store has nothing: a miss costs no more than to know it
	wide     *table.Table // a miss is fetched and cached
	known    table.Store
	found    []bool
	r        *rand.Rand
	at       int
	hits     int
}

func (o *Options) gather(ctx context.Context) (*Gather, error) {
	rows := min(gatherRows, max(o.Rows, 1<<12))
	g, end, err := o.newGatherer(ctx, rows)
	if err != nil {
		return nil, err
	}
	defer end()
	report := &Gather{MiB: rows * rowBytes >> 20}
	before := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(before)
	for _, threads := range []int{1, before} {
		if threads == before && len(report.Rates) > 0 && before == 1 {
			break
		}
		runtime.GOMAXPROCS(threads)
		report.Rates = append(report.Rates, o.gatherRates(ctx, g, rows, threads)...)
	}
	return report, ctx.Err()
}

// newGatherer fills a cache with rows keys, from a store that has a ninth more.
func (o *Options) newGatherer(ctx context.Context, rows int) (*gatherer, func(), error) {
	cache, end, err := newCache(rows*3/2, rowBytes, "lru") // sets are not filled evenly: all rows must fit
	if err != nil {
		return nil, nil, err
	}
	src, err := offheap.Alloc(rows * rowBytes)
	if err != nil {
		end()
		return nil, nil, err
	}
	g := &gatherer{src: src.Bytes, out: make([]byte, gatherBatch*rowBytes), keys: make([]uint64, gatherBatch), r: rand.New(rand.NewPCG(o.Seed, 3))}
	wide := table.NewMemory(rows*10/9, rowBytes)
	closeAll := func() { end(); src.Free(); wide.Close() }
	g.known, g.found = wide, make([]bool, gatherBatch)
	for i := 0; i < len(g.src); i += 512 {
		g.src[i] = byte(i)
	}
	if err := (&Options{Rows: rows * 10 / 9}).load(ctx, wide); err != nil {
		closeAll()
		return nil, nil, err
	}
	empty := table.NewMemory(0, rowBytes)
	for _, t := range []struct {
		at    **table.Table
		store table.Store
	}{{&g.all, wide}, {&g.few, empty}, {&g.wide, wide}} {
		if *t.at, err = table.NewTable(t.store, cache, table.TableConfig{}); err != nil {
			closeAll()
			return nil, nil, err
		}
	}
	for first := 0; first < rows; first += gatherBatch {
		for i := range g.keys {
			g.keys[i] = uint64((first + i) % rows)
		}
		g.all.Gather(ctx, g.keys, g.out)
	}
	return g, closeAll, ctx.Err()
}

func (o *Options) gatherRates(ctx context.Context, g *gatherer, rows, threads int) []Rate {
	seconds, hits := make([][]float64, len(gatherWays)), make([]int, len(gatherWays))
	for range 4 * o.Rounds {
		for w := range gatherWays {
			g.hits = 0
			seconds[w] = append(seconds[w], g.measure(ctx, w, rows, threads))
			hits[w] += g.hits
		}
	}
	var out []Rate
	for w, what := range gatherWays {
		ratios := make([]float64, len(seconds[w]))
		for i, s := range seconds[w] {
			ratios[i] = seconds[0][i] / s
		}
		out = append(out, Rate{
			What: what, Threads: threads, Hits: float64(hits[w]) / float64(len(ratios)*gatherLoops*gatherBatch),
			Bytes: float64(gatherLoops*len(g.out)) / median(seconds[w]), Ratio: interval(ratios),
		})
	}
	return out
}

// measure returns the seconds of some batches by one way.
func (g *gatherer) measure(ctx context.Context, way, rows, threads int) float64 {
	var total time.Duration
	for range gatherLoops {
		spread := uint64(rows)
		for i := range g.keys {
			g.keys[i] = g.r.Uint64N(spread)
			if way >= 3 && g.r.IntN(10) == 0 { // not cached, and never looked up again
				g.keys[i] = uint64(rows) + g.r.Uint64N(uint64(rows)/9)
			}
		}
		g.at = (g.at + len(g.out)) % (len(g.src) - len(g.out) + 1)
		begin := time.Now()
		switch way {
		case 0:
			g.copies(threads)
		case 1:
			g.gatherKnown(ctx, threads)
		case 2:
			g.hits += g.all.Gather(ctx, g.keys, g.out).Hits
		case 3:
			g.hits += g.few.Gather(ctx, g.keys, g.out).Hits
		case 4:
			g.hits += g.wide.Gather(ctx, g.keys, g.out).Hits
		}
		total += time.Since(begin)
	}
	return total.Seconds()
}

// copies fills the batch from one place.
func (g *gatherer) copies(threads int) {
	divided(threads, func(first, last int) {
		copy(g.out[first*rowBytes:last*rowBytes], g.src[g.at+first*rowBytes:])
	})
}

// gatherKnown fills it with rows of a table in memory, whose places are known from the keys, asked for ahead as the cache does: what a
// look-up in no time would reach.
func (g *gatherer) gatherKnown(ctx context.Context, threads int) {
	divided(threads, func(first, last int) {
		g.known.Gather(ctx, g.keys[first:last], g.out[first*rowBytes:last*rowBytes], g.found[first:last])
	})
}

// divided gives each thread its part of a batch.
func divided(threads int, part func(first, last int)) {
	var wg sync.WaitGroup
	for p := 1; p < threads; p++ {
		wg.Go(func() { part(gatherBatch*p/threads, gatherBatch*(p+1)/threads) })
	}
	part(0, gatherBatch/threads)
	wg.Wait()
}

func (p *printer) gather(g *Gather) {
	p.printf("batches of %d rows of %d bytes from %d MiB of cached rows, beside copies of as many bytes by as many threads\n\n", gatherBatch, rowBytes, g.MiB)
	for _, r := range g.Rates {
		hits := ""
		if r.Hits > 0 {
			hits = fmt.Sprintf("%.1f %% hits", 100*r.Hits)
		}
		p.printf("threads %d  %-30s %6.2f GB/s  %.2f of the contiguous copy (%.2f to %.2f)  %s\n",
			r.Threads, r.What, r.Bytes/1e9, r.Ratio.Median, r.Ratio.Low, r.Ratio.High, hits)
	}
	p.printf("\n")
}

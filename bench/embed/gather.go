package embed

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"

	"grebe/bench/report"
	table "grebe/embed"
	"grebe/internal/offheap"
)

// Gather compares gathers of rows with plain copies of as many bytes, by as many threads, from memory larger than the
// processor's caches to the same place.
type Gather struct {
	MiB   int    `json:"mib"` // of the table, and of what the copies are made from
	Rates []Rate `json:"rates"`
}

// Rate is one way to bring rows into a batch's place.
type Rate struct {
	What    string  `json:"what"`
	Threads int     `json:"threads"`
	Batch   int     `json:"batch"` // rows
	Hits    float64 `json:"hit_rate"`
	Placed  float64 `json:"placed"` // of the rows that were missed, those that replaced another
	Bytes   float64 `json:"bytes"`  // per second, median
	Ratio   Ratio   `json:"ratio"`  // to the contiguous copy
}

const (
	gatherRows  = 1 << 21 // 1 GiB
	gatherLeast = 16384   // rows of a measurement
	gatherSplit = 2048    // rows of a batch from which on the table takes two threads
)

var gatherBatches = []int{256, 1024, 4096, 8192}

// gatherCases are caches before one table in memory, whose rows are looked up evenly. A cache of nine tenths of
// them hits nine times in ten; what it misses is fetched, and cached or declined: the default finds that no row is
// worth more than another and leaves most out, LRU caches all.
var gatherCases = []struct {
	what, policy string
	tenths       int  // of the table's rows, that the cache has room for
	filled       int  // tenths of the table's rows that it is filled with in order
	nothing      bool // is fetched: a miss is a default row, the cache alone is measured
}{
	{"all hit", "lru", 15, 10, false}, // sets are not filled evenly: all rows must fit
	{"90 % hit, nothing fetched", "lru", 15, 9, true},
	{"90 % hit, fetched, default", "default", 9, 10, false},
	{"90 % hit, fetched, lru", "lru", 9, 10, false},
}

// gatherer fills batches.
type gatherer struct {
	src, out []byte
	store    *table.Memory
	cached   *table.Table
	rows     int // of the table
	keys     []uint64
	found    []bool
	r        *rand.Rand
	at       int
	hits     int
}

func (o *Options) gather(ctx context.Context) (*Gather, error) {
	g, end, err := o.newGatherer(ctx, min(gatherRows, max(o.Rows, 1<<14)))
	if err != nil {
		return nil, err
	}
	defer end()
	report := &Gather{MiB: g.rows * rowBytes >> 20}
	for _, c := range gatherCases {
		cache, end, err := newCache(g.rows*c.tenths/10, rowBytes, c.policy)
		if err != nil {
			return nil, err
		}
		if g.cached, err = table.NewTable(g.store, cache, table.TableConfig{}); err == nil {
			g.warm(ctx, g.rows*c.filled/10)
		}
		if c.nothing {
			g.cached, err = table.NewTable(table.NewMemory(0, rowBytes), cache, table.TableConfig{})
		}
		if err == nil {
			g.steady(ctx)
			report.Rates = append(report.Rates, o.gatherCase(ctx, g, c.what)...)
		}
		end()
		if err != nil {
			return nil, err
		}
	}
	return report, ctx.Err()
}

// newGatherer loads the table.
func (o *Options) newGatherer(ctx context.Context, rows int) (*gatherer, func(), error) {
	most := slices.Max(gatherBatches)
	memory, err := offheap.Alloc((rows + most) * rowBytes)
	if err != nil {
		return nil, nil, err
	}
	g := &gatherer{
		src: memory.Bytes[:rows*rowBytes], out: memory.Bytes[rows*rowBytes:], store: table.NewMemory(rows, rowBytes),
		rows: rows,
		keys: make([]uint64, most), found: make([]bool, most), r: rand.New(rand.NewPCG(o.Seed, 3)),
	}
	end := func() { memory.Free(); g.store.Close() }
	for i := range memory.Bytes {
		memory.Bytes[i] = byte(i)
	}
	if err := (&Options{Rows: rows}).load(ctx, g.store); err != nil {
		end()
		return nil, nil, err
	}
	return g, end, nil
}

// warm fills the cache with rows in order.
func (g *gatherer) warm(ctx context.Context, rows int) {
	for first := 0; first < rows; first += len(g.keys) {
		for i := range g.keys {
			g.keys[i] = uint64((first + i) % rows)
		}
		g.cached.Gather(ctx, g.keys, g.out)
	}
}

// steady looks rows up as the measurement does, until what is cached is what is cached when that goes on for ever.
func (g *gatherer) steady(ctx context.Context) {
	for n := 0; n < g.rows; n += len(g.keys) {
		g.draw(g.keys)
		g.cached.Gather(ctx, g.keys, g.out)
	}
}

func (g *gatherer) draw(keys []uint64) {
	for i := range keys {
		keys[i] = g.r.Uint64N(uint64(g.rows))
	}
}

// gatherCase measures one cache at all sizes of batches.
func (o *Options) gatherCase(ctx context.Context, g *gatherer, what string) []Rate {
	before := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(before)
	var out []Rate
	for _, threads := range slices.Compact([]int{1, before}) {
		runtime.GOMAXPROCS(threads)
		for _, batch := range gatherBatches {
			if threads == 1 || batch >= gatherSplit {
				out = append(out, o.gatherRates(ctx, g, what, batch, threads)...)
			}
		}
	}
	return out
}

// gatherRates lets the ways take turns.
func (o *Options) gatherRates(ctx context.Context, g *gatherer, what string, batch, threads int) []Rate {
	ways := []struct {
		what string
		fill func(keys []uint64)
	}{
		{"contiguous copy", func(keys []uint64) { g.copies(len(keys), threads) }},
		{"random rows, places known", func(keys []uint64) { g.gatherKnown(ctx, keys, threads) }},
		{what, func(keys []uint64) { g.hits += g.cached.Gather(ctx, keys, g.out).Hits }},
	}
	seconds := make([][]float64, len(ways))
	loops := max(1, gatherLeast/batch)
	g.hits = 0
	before := g.cached.Stats().Cache
	for range 4 * o.Rounds {
		for w := range ways {
			seconds[w] = append(seconds[w], g.measure(batch, loops, ways[w].fill))
		}
	}
	var out []Rate
	for w := range ways {
		ratios := make([]float64, len(seconds[w]))
		for i, s := range seconds[w] {
			ratios[i] = seconds[0][i] / s
		}
		out = append(out, Rate{
			What: ways[w].what, Threads: threads, Batch: batch,
			Bytes: float64(loops*batch*rowBytes) / report.Median(seconds[w]), Ratio: ratioOf(ratios),
		})
	}
	after, last := g.cached.Stats().Cache, &out[len(out)-1]
	last.Hits = float64(g.hits) / float64(4*o.Rounds*loops*batch)
	last.Placed = float64(after.Evictions-before.Evictions) / float64(max(1, after.Misses-before.Misses))
	return out
}

// measure returns the seconds of some batches.
func (g *gatherer) measure(batch, loops int, fill func(keys []uint64)) float64 {
	var total time.Duration
	keys := g.keys[:batch]
	for range loops {
		g.draw(keys)
		g.at = (g.at + batch*rowBytes) % (len(g.src) - batch*rowBytes + 1)
		begin := time.Now()
		fill(keys)
		total += time.Since(begin)
	}
	return total.Seconds()
}

// copies fills the batch from one place.
func (g *gatherer) copies(batch, threads int) {
	divided(batch, threads, func(first, last int) {
		copy(g.out[first*rowBytes:last*rowBytes], g.src[g.at+first*rowBytes:])
	})
}

// gatherKnown fills it with rows of the table, whose places are known from the keys, asked for ahead as the cache does:
// what a look-up in no time would reach.
func (g *gatherer) gatherKnown(ctx context.Context, keys []uint64, threads int) {
	divided(len(keys), threads, func(first, last int) {
		_ = g.store.Gather(ctx, keys[first:last], g.out[first*rowBytes:last*rowBytes], g.found[first:last])
	})
}

// divided gives each thread its part of a batch.
func divided(batch, threads int, part func(first, last int)) {
	var wg sync.WaitGroup
	for p := 1; p < threads; p++ {
		wg.Go(func() { part(batch*p/threads, batch*(p+1)/threads) })
	}
	part(0, batch/threads)
	wg.Wait()
}

func (p *printer) gather(g *Gather) {
	p.printf("batches of rows of %d bytes of a table of %d MiB in memory, beside copies of as many bytes by as many "+
		"threads\n\n", rowBytes, g.MiB)
	for _, r := range g.Rates {
		hits := ""
		if r.Hits > 0 {
			hits = fmt.Sprintf("%.1f %% hits, %.0f %% of the others placed", 100*r.Hits, 100*r.Placed)
		}
		p.printf("threads %d  batch %4d  %-28s %6.2f GB/s  %.2f of the contiguous copy (%.2f to %.2f)  %s\n",
			r.Threads, r.Batch, r.What, r.Bytes/1e9, r.Ratio.Median, r.Ratio.Low, r.Ratio.High, hits)
	}
	p.printf("\n")
}

package embed

import (
	"context"
	"math/rand/v2"
	"time"

	table "grebe/embed"
)

// Gather compares gathers of rows, single-threaded, with one copy of as many bytes in a row; both from memory far larger than
// caches of the processor.
type Gather struct {
	CopyBytes float64 `json:"copy_bytes"` // per second
	Rates     []Rate  `json:"rates"`
}

// Rate is the gather at one hit rate; misses come from memory and are put into the cache.
type Rate struct {
	Hits  float64 `json:"hit_rate"`
	Bytes float64 `json:"bytes"` // per second
	Ratio Ratio   `json:"ratio"` // to the copy
}

const (
	gatherRows  = 1 << 18 // 128 MiB
	gatherBatch = 4096
)

func (o *Options) gather(ctx context.Context) (*Gather, error) {
	cache, end, err := newCache(gatherRows, rowBytes, "lru")
	if err != nil {
		return nil, err
	}
	defer end()
	wide := Options{Rows: gatherRows * 10 / 9}
	store := table.NewMemory(wide.Rows, rowBytes)
	if err := wide.load(ctx, store); err != nil {
		return nil, err
	}
	t, err := table.NewTable(store, cache, table.TableConfig{})
	if err != nil {
		return nil, err
	}
	out := make([]byte, gatherBatch*rowBytes)
	src := make([]byte, gatherRows*rowBytes)
	for i := range src {
		src[i] = byte(i)
	}
	g := &Gather{}
	r := rand.New(rand.NewPCG(o.Seed, 3))
	keys := make([]uint64, gatherBatch)
	for _, spread := range []int{wide.Rows, gatherRows * 3 / 4} { // the latter fits: all hits
		draw := func() {
			for i := range keys {
				keys[i] = r.Uint64N(uint64(spread))
			}
		}
		for range 4 * gatherRows / gatherBatch {
			draw()
			t.Gather(ctx, keys, out)
		}
		var copies, gathers, ratios []float64
		hits := 0
		for round := range 4 * o.Rounds {
			var a, b time.Duration
			for n := range 8 {
				draw()
				begin := time.Now()
				hits += t.Gather(ctx, keys, out).Hits
				a += time.Since(begin)
				at := (round*8 + n) * len(out) % len(src)
				begin = time.Now()
				copy(out, src[at:])
				b += time.Since(begin)
			}
			gathers, copies = append(gathers, a.Seconds()), append(copies, b.Seconds())
			ratios = append(ratios, b.Seconds()/a.Seconds())
		}
		bytes := float64(8 * len(out))
		g.CopyBytes = bytes / median(copies)
		g.Rates = append(g.Rates, Rate{
			Hits: float64(hits) / float64(4*o.Rounds*8*gatherBatch), Bytes: bytes / median(gathers), Ratio: interval(ratios),
		})
	}
	return g, ctx.Err()
}

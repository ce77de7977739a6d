package embed

import (
	"context"
	"errors"
	"io/fs"
	"slices"

	"grebe/evict"
)

// Hits are hit rates on one trace at one cache size, of lookups one by one after the warm-up. Policies have the same
// memory, as in the sums; the optimum (Belady's, any row in any place) has as many rows as LRU.
type Hits struct {
	Trace   string             `json:"trace"`
	Percent float64            `json:"percent"`
	Rates   map[string]float64 `json:"rates"`
	Optimum float64            `json:"optimum"`
	Popular float64            `json:"popular"` // share of the lookups that are for the rows most looked up in all of them
}

// hits replays the traces; rows have eight bytes, because only hits are counted.
func (o *Options) hits(ctx context.Context, r *Report, p *printer) error {
	p.hitsHead(o)
	for _, name := range o.Traces {
		for _, percent := range o.Percents {
			h, err := o.hitsOf(ctx, name, percent)
			if errors.Is(err, fs.ErrNotExist) {
				p.printf("%-6s left out: %v\n", name, err)
				break
			}
			if err != nil {
				return err
			}
			r.Hits = append(r.Hits, *h)
			p.hits(o, h)
		}
	}
	p.printf("\n")
	return nil
}

func (o *Options) hitsOf(ctx context.Context, name string, percent float64) (*Hits, error) {
	from, distinct, err := o.stream(name)
	if err != nil {
		return nil, err
	}
	warm, all := o.Warm, 2*o.Warm
	if r, ok := from.(*recorded); ok {
		warm, all = len(r.keys)*2/5, len(r.keys)
	}
	keys := make([]uint64, all)
	from.next(keys)
	h := &Hits{Trace: name, Percent: percent, Rates: map[string]float64{}}
	rows := int(float64(distinct) * percent / 100)
	most := 0
	for _, policy := range o.Policies {
		if policy == "none" {
			continue
		}
		n := rows
		if policy == "lru" {
			n = o.lruRows(rows)
			most = n
		}
		if h.Rates[policy], err = replay(ctx, keys, warm, n, policy); err != nil {
			return nil, err
		}
	}
	h.Optimum = float64(evict.Optimal(keys, most)-evict.Optimal(keys[:warm], most)) / float64(all-warm)
	h.Popular = popularShare(keys[warm:], most, distinct)
	return h, ctx.Err()
}

// replay returns the hit rate after the warm-up.
func replay(ctx context.Context, keys []uint64, warm, rows int, policy string) (float64, error) {
	cache, end, err := newCache(rows, 8, policy)
	if err != nil {
		return 0, err
	}
	defer end()
	var row [8]byte
	hits := 0
	for i, k := range keys {
		if cache.Get(k, row[:]) {
			if i >= warm {
				hits++
			}
			continue
		}
		cache.Put(k, row[:], cache.Epoch(k))
		if i%(1<<16) == 0 && ctx.Err() != nil {
			return 0, ctx.Err()
		}
	}
	return float64(hits) / float64(len(keys)-warm), nil
}

// popularShare is what a cache that always had the same rows would find, had it known which.
func popularShare(keys []uint64, rows, distinct int) float64 {
	counts := make([]int, distinct)
	for _, k := range keys {
		counts[k]++
	}
	slices.Sort(counts)
	slices.Reverse(counts)
	sum := 0
	for _, n := range counts[:min(rows, distinct)] {
		sum += n
	}
	return float64(sum) / float64(len(keys))
}

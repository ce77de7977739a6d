package allocator

import (
	"grebe/pool"
	"grebe/sim/grains"
	"grebe/workload/regime"
)

// rows is the cache of embedding rows, on pages of the pool.
type rows struct {
	*grains.Cache
	pool *pool.Pool
	runs []pool.Run // per of them a set
	per  int
}

func newRows(p *pool.Pool, cost *Cost, spec *regime.Spec) *rows {
	bytes := int(cost.RowBytes) * spec.Grain
	c := &rows{pool: p, Cache: grains.New(spec.Grains, bytes, grains.MostSets(bytes, cost.Pool), cost.Pool)}
	c.per = max(1, c.SetBytes()/piece)
	return c
}

// resize takes pages for more sets, or gives sets back with what is in them, as the boundary says. A set stands for
// many, so it needs no longer runs of pages than KV does.
func (c *rows) resize() {
	are, most := c.Sets()
	want := min(int(c.pool.Stats().Total)/c.SetBytes(), most)
	if want > are {
		c.runs = c.pool.AllocRuns(c.runs, c.SetBytes()/c.per, want*c.per-len(c.runs))
		want = len(c.runs) / c.per
	}
	c.Resize(want)
	c.pool.FreeRuns(c.runs[want*c.per:])
	c.runs = c.runs[:want*c.per]
}

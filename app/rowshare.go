package app

import (
	"context"
	"hash/maphash"
	"sync"
	"time"

	"grebe/alloc"
	"grebe/app/divide"
	"grebe/compute"
	"grebe/embed"
	"grebe/engine"
	"grebe/internal/config"
	"grebe/internal/human"
	"grebe/model/hstu"
	"grebe/pool"
	"grebe/serve"
)

// watch has f called after every batch of a table, until the memory is closed.
func (m *Memory) watch(t *embed.Table, f func(embed.Batch)) {
	stop := t.Watch(f)
	m.closers.add(func() error { stop(); return nil })
}

// drive runs a divider and reports it as metrics, until the memory is closed.
func (m *Memory) drive(d *divide.Divider) {
	remove := m.app.divided.Add(d)
	m.closers.add(func() error { remove(); return nil })
	m.closers.run(d.Run)
}

// rowPages are the pages of a cache of rows in a device's memory, which come from a pool and go back to it. The cache's
// rows stay where they are when it grows, so there is nothing to rehome. It is safe for concurrent use.
type rowPages struct {
	cache    compute.RowCache
	pool     *pool.Pool // as embeddings see it
	rowBytes int
	most     int

	mu    sync.Mutex
	runs  []pool.Run // in the order of the cache's pages
	stuck []pool.Run // that the device may still use, because it failed
}

// pagesAtOnce are added or taken away at a time: batches wait for the cache's lock meanwhile.
const pagesAtOnce = 8

// RowBytes implements divide.Rows, as the other methods do.
func (p *rowPages) RowBytes() int { return p.rowBytes }

func (p *rowPages) SlabBytes() int {
	page := p.pool.Stats().Page
	return (p.cache.PageBytes() + page - 1) / page * page
}

func (p *rowPages) Slabs() (now, least, most int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.runs), 1, p.most
}

func (p *rowPages) Grow(pages int) (grown int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pages = min(pages, p.most-len(p.runs))
	for grown < pages && err == nil {
		runs := p.pool.AllocRuns(nil, p.cache.PageBytes(), min(pages-grown, pagesAtOnce))
		if len(runs) == 0 {
			return grown, pool.ErrFull
		}
		var n int
		n, err = p.cache.Grow(blocksOf(runs))
		p.runs = append(p.runs, runs[:n]...)
		p.pool.FreeRuns(runs[n:])
		if grown += n; n < len(runs) {
			break
		}
	}
	return grown, err
}

func blocksOf(runs []pool.Run) []compute.Block {
	blocks := make([]compute.Block, len(runs))
	for i := range runs {
		blocks[i] = runs[i].Block
	}
	return blocks
}

func (p *rowPages) Shrink(pages int) (gone int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pages = min(pages, len(p.runs)-1)
	for gone < pages {
		blocks, err := p.cache.Shrink(min(pages-gone, pagesAtOnce))
		keep := len(p.runs) - len(blocks)
		if err != nil {
			p.stuck = append(p.stuck, p.runs[keep:]...)
		} else {
			p.pool.FreeRuns(p.runs[keep:])
		}
		p.runs = p.runs[:keep]
		if gone += len(blocks); err != nil || len(blocks) == 0 {
			break
		}
	}
	return gone
}

func (p *rowPages) Rehome(int) (moved int, done bool) { return 0, true }

// free gives all pages back, once the cache is closed.
func (p *rowPages) free() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pool.FreeRuns(append(p.runs, p.stuck...))
	p.runs, p.stuck = nil, nil
}

// largestRows returns the bytes that cached rows on a device may get: what device_rows gives them, or, if the boundary
// moves, as much as it may give them, and no more than the table needs.
func (m *Memory) largestRows(cfg *config.Config, own *pool.Pool, items, rowBytes int) int64 {
	most := own.Stats().Total
	if m.pages == nil || cfg.Cache.DeviceBoundary != "climb" {
		return most
	}
	whole := most + m.pages.Stats().Total
	table := int64(items+items/2) * int64(rowBytes) // sets of slots fill unevenly
	return max(most, min(int64(alloc.MaxShare*float64(whole)), table))
}

// divideDevice has a controller divide a device's memory between KV and cached rows, if both share it and not all rows
// have room already.
func (m *Memory) divideDevice(cfg *config.Config, mc *config.Model) error {
	if m.rows == nil || m.pages == nil || m.deviceDivider != nil || cfg.Cache.DeviceBoundary != "climb" {
		return nil
	}
	held := m.rows.held
	now, _, most := held.Slabs()
	if now >= most {
		return nil
	}
	slo := time.Duration(cfg.SLOMillis) * time.Millisecond
	share := m.pages.Boundary()
	var err error
	m.deviceDivider, err = divide.New(divide.Config{
		Pool: m.pages, Rows: held, KV: m.store, Controller: &alloc.Climb{SLO: float64(slo) / float64(time.Millisecond)},
		SLO: slo, Log: m.app.log, Name: mc.Name, Memory: "device", Found: foundIn(m.rows),
	}, share)
	if err != nil {
		return err
	}
	m.app.log.Info("KV and rows share the device's memory", "model", mc.Name, "rows", human.Round(m.pages.Boundary(), 3),
		"boundary", cfg.Cache.DeviceBoundary)
	m.drive(m.deviceDivider)
	return nil
}

// foundIn returns a function that returns how many rows batches looked up in a cache since its last call, and how many
// were cached. Stats may wait for a batch, so this is nothing for the path of an answer.
func foundIn(c compute.RowCache) func() (lookups, hits int) {
	last := c.Stats()
	return func() (lookups, hits int) {
		now := c.Stats()
		hits = int(now.Hits - last.Hits)
		lookups = hits + int(now.Misses-last.Misses)
		last = now
		return lookups, hits
	}
}

// rowCounter runs jobs of a model of events and tells the divider of the device's memory which rows they need.
type rowCounter struct {
	serve.Runner
	model   *hstu.Model
	divider *divide.Divider
	seed    maphash.Seed
	scratch *sync.Pool // of *[]uint64
}

func newRowCounter(r serve.Runner, m *hstu.Model, d *divide.Divider) rowCounter {
	return rowCounter{Runner: r, model: m, divider: d, seed: maphash.MakeSeed(),
		scratch: &sync.Pool{New: func() any { return new([]uint64) }}}
}

// Do is that of serve.Runner.
func (c rowCounter) Do(ctx context.Context, j *engine.Job) (*engine.Result, error) {
	keys := c.scratch.Get().(*[]uint64)
	*keys = c.needs((*keys)[:0], j)
	c.divider.Looked(*keys)
	c.scratch.Put(keys)
	return c.Runner.Do(ctx, j)
}

// needs appends hashes of the rows of items that a job computes with.
func (c rowCounter) needs(keys []uint64, j *engine.Job) []uint64 {
	for i := range j.Plan.Segments {
		s := &j.Plan.Segments[i]
		if c.model.Featured() && len(s.Content) != c.model.Width()*len(s.Tokens) {
			continue // not described
		}
		cached, _ := j.Cached(i)
		for at := cached; at < len(s.Tokens); at++ {
			if item := c.model.ItemAt(s.Tokens, s.Content, at); item >= 0 {
				keys = append(keys, maphash.Comparable(c.seed, item))
			}
		}
	}
	return keys
}

// reports returns a callback that reports requests to all dividers of a model's memory; nil if there are none.
func (m *Memory) reports(shape compute.Shape, load predictor) func(serve.Served) {
	var all []func(serve.Served)
	if m.shared != nil && m.shared.divider != nil {
		all = append(all, served(m.shared.divider, shape, load, 0))
	}
	if m.deviceDivider != nil {
		lowered := 0.0
		if m.lowers {
			lowered = hostLink
		}
		all = append(all, served(m.deviceDivider, shape, load, lowered))
	}
	if len(all) == 0 {
		return nil
	}
	return func(r serve.Served) {
		for _, f := range all {
			f(r)
		}
	}
}

// hostLink is the speed at which KV comes back from the host's memory, in bytes per second: that is what KV in the
// device's memory saves where the host has memory for KV too.
const hostLink = 20e9

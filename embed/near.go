package embed

import (
	"context"
	"time"
	"unsafe"

	"grebe/evict"
)

// What a cache misses of a table in memory is not fetched in one trip for all: its rows take the same way as those that
// are cached, each by the thread that looks it up, and are offered to the cache meanwhile. An offer goes through
// stages, one for each step of look-ups, so that memory was asked for a step before it is needed: what decides about
// the place, in two stages; the place itself; the row is written there, or chooses a place that was not asked for and
// is written a step later.

// near is what one thread does for a table in memory.
type near struct {
	table  *Table  // nil: the store is not in memory
	known  []bool  // of the thread's keys, set to false where the row is the default; nil: nobody asks
	offers []claim // of all steps
	stages [4]int  // how many of them are past each stage
	got    Gathered

	declined, evicted int
}

func (n *near) reset(t *Table) { *n = near{table: t, offers: n.offers[:0]} }

// add takes what another thread did.
func (n *near) add(o *near) {
	n.got.Fetched += o.got.Fetched
	n.got.Default += o.got.Default
	n.declined += o.declined
	n.evicted += o.evicted
}

// misses is how many rows were not cached.
func (n *near) misses() int { return n.got.Fetched + n.got.Default }

// memory is the table's store, nil where that is not in memory.
func (n *near) memory() *Memory {
	if n.table == nil {
		return nil
	}
	return n.table.memory
}

// near reports whether rows are read straight from the store. A mapped file may be cut off, so its rows are read by the
// store. Where the caller does not wait any more the store says so.
func (t *Table) near(ctx context.Context) bool {
	return t.memory != nil && !t.memory.mapped && t.cache != nil && ctx.Err() == nil
}

func (t *Table) gatherNear(keys []uint64, out []byte, known []bool, s *scratch) Gathered {
	s.near.reset(t)
	s.near.known = known
	t.memory.mu.RLock()
	t.cache.gather(keys, out, s)
	t.memory.mu.RUnlock()
	g := s.near.got
	g.Asked = s.near.misses()
	g.Hits = len(keys) - g.Asked
	t.count(&g)
	if !s.began.IsZero() && len(keys) > 0 { // the store's part of the time is that of its rows
		t.told(keys, &g, s, time.Since(s.began)*time.Duration(g.Asked)/time.Duration(len(keys)))
	}
	return g
}

// missed is told of a key that is not cached. Its row is in dst already if it was seen to be in the store.
func (n *near) missed(c *Cache, i int, key, h, now uint64, s *set, dst []byte, there bool) {
	m := n.table.memory
	if !there && m.has(key) {
		copyBytes(dst, m.row(key))
		there = true
	}
	if !there {
		copyBytes(dst, n.table.def)
		n.got.Default++
		if n.known != nil {
			n.known[i] = false
		}
		return
	}
	n.got.Fetched++
	if c.spares(s, h, now) {
		n.declined++
		return
	}
	home := int(uintptr(unsafe.Pointer(s))-uintptr(unsafe.Pointer(unsafe.SliceData(c.sets)))) / setBytes
	n.offers = append(n.offers, claim{h: h, home: home, slot: -1, likely: -1, i: i, now: now, updates: s.updates.Load()})
	c.chosen.ask(home, s, h)
}

// spares reports whether a missed row is left out: reading it from memory once more costs less than placing it, where
// rows that are placed do not make hits.
func (c *Cache) spares(s *set, h, now uint64) bool {
	v, ok := c.chosen.(*valued)
	return ok && v.tuner.spare.Load() && evict.Spared(h, now) && s.empty() < 0
}

// advance takes all offers through their next stage; the rows are those of the thread's keys.
func (n *near) advance(c *Cache, rows []byte, sets int) {
	to := [...]int{len(n.offers), n.stages[0], n.stages[1], n.stages[2]}
	for stage := len(to) - 1; stage >= 0; stage-- { // locks are taken before there is more that is to be written
		for u := n.stages[stage]; u < to[stage]; u++ {
			n.step(c, stage, &n.offers[u], rows, sets)
		}
	}
	n.stages = to
}

func (n *near) step(c *Cache, stage int, f *claim, rows []byte, sets int) {
	row, e := rows[f.i*c.rowBytes:][:c.rowBytes], Epoch{sets, f.updates}
	switch stage {
	case 0:
		c.chosen.hint(f.home, &c.sets[f.home])
	case 1:
		c.askPlace(f)
	case 2:
		switch c.place(f, f.now, row, e) {
		case isDeclined:
			n.declined++
		case hasEvicted:
			n.evicted++
		}
	case 3:
		if f.slot >= 0 && c.replace(f, row, e) {
			n.evicted++
		}
	}
}

// done reports whether all offers are past all stages.
func (n *near) done() bool { return n.stages[len(n.stages)-1] == len(n.offers) }

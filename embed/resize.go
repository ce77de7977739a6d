package embed

import (
	"errors"
	"unsafe"
)

// The cache's memory is slabs: each is one run of the pool's pages with one or more whole sets. Growing and shrinking
// changes books and pointers and moves no row; readers go on meanwhile.

// SlabBytes is what one slab takes of the pool.
func (c *Cache) SlabBytes() int {
	page, rows := c.pool.Stats().Page, c.perSlab*setSlots*c.rowBytes
	return (rows + page - 1) / page * page
}

// Slabs returns how many slabs the cache has, and between how many that may be.
func (c *Cache) Slabs() (now, least, most int) {
	return int(c.n.Load()) / c.perSlab, c.least, len(c.sets) / c.perSlab
}

// Grow takes up to so many slabs from the pool and returns how many it got: less when the pool is full, with its
// error, or when the cache is as large as it may be. Rows whose home the new sets are stay where they were
// and miss until they are fetched again or Rehome moves them.
func (c *Cache) Grow(slabs int) (int, error) {
	c.resizing.Lock()
	defer c.resizing.Unlock()
	n := int(c.n.Load())
	for got := range slabs {
		if n == len(c.sets) {
			return got, nil
		}
		r, err := c.pool.Alloc(c.perSlab * setSlots * c.rowBytes)
		if err == nil && r.Bytes == nil {
			c.pool.Free(r)
			err = errors.New("embed: memory that the host cannot see")
		}
		if err != nil {
			return got, err
		}
		c.slabs = append(c.slabs, r)
		if c.origin == nil {
			c.origin = unsafe.Pointer(unsafe.SliceData(r.Bytes))
		}
		begin := int64(uintptr(unsafe.Pointer(unsafe.SliceData(r.Bytes))) - uintptr(c.origin))
		for i := range c.perSlab {
			s := &c.sets[n+i]
			s.mu.Lock() // a writer who knew it before it left may still look
			s.rows.Store(begin + int64(i*setSlots*c.rowBytes))
			c.chosen.opened(n + i)
			s.mu.Unlock()
		}
		n += c.perSlab
		c.n.Store(int64(n))
		c.moving = 0
	}
	return slabs, nil
}

// Shrink evicts what is in the last slabs, as many as it may, and returns how many. Their pages are the pool's again as
// soon as no reader is in them: usually before it returns, at the latest when the last of those readers is done.
func (c *Cache) Shrink(slabs int) int {
	c.resizing.Lock()
	defer c.resizing.Unlock()
	n := int(c.n.Load())
	slabs = max(0, min(slabs, n/c.perSlab-c.least))
	if slabs == 0 {
		return 0
	}
	to := n - slabs*c.perSlab
	if int64(to) < c.fewest.Load() {
		c.fewest.Store(int64(to)) // before a row can be put into a home of fewer sets
	}
	c.n.Store(int64(to))
	for i := to; i < n; i++ { // after each lock no writer is, or will be, in the set
		s := &c.sets[i]
		s.mu.Lock()
		s.clearAll()
		s.mu.Unlock()
	}
	keep := len(c.slabs) - slabs
	c.gate.retire(c.slabs[keep:], c.pool)
	c.slabs = c.slabs[:keep]
	return slabs
}

// Rehome moves rows that were cached before the cache grew to their new homes, until it has moved so many rows. It
// returns how many, and true when none is left. Call it in the background, a few rows at a time: each costs
// a copy.
func (c *Cache) Rehome(rows int) (moved int, done bool) {
	c.resizing.Lock()
	defer c.resizing.Unlock()
	n := int(c.n.Load())
	row := make([]byte, c.rowBytes)
	for ; c.moving < n; c.moving++ {
		s := &c.sets[c.moving]
		for slot := range setSlots {
			if moved == rows {
				return moved, false
			}
			h := s.slots[slot].key.Load()
			home := c.home(h, n)
			if s.tag(slot) == 0 || home == c.moving {
				continue
			}
			e := Epoch{n, c.sets[home].updates.Load()}
			if word, ok := c.takeOut(c.moving, slot, h, row); ok {
				c.expect(home, h, word)
				c.put(h, home, c.clock.Load()-1, row, e)
				moved++
			}
		}
	}
	return moved, true
}

// takeOut removes a row from a set, if it is still there.
func (c *Cache) takeOut(home, slot int, h uint64, row []byte) (uint64, bool) {
	s := &c.sets[home]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tag(slot) == 0 || s.slots[slot].key.Load() != h {
		return 0, false
	}
	copyRow(row, c.row(s, slot))
	word := s.slots[slot].meta.Load()
	c.chosen.removed(home, s, slot)
	s.begin()
	s.clear(slot)
	s.end()
	return word, true
}

func (c *Cache) expect(home int, h, word uint64) {
	s := &c.sets[home]
	s.mu.Lock()
	defer s.mu.Unlock()
	c.chosen.expect(home, h, word, c.clock.Load())
}

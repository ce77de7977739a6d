package embed

import "unsafe"

// Rows that were fetched go to the cache in stages, as lookups do: what decides about a row's place is asked for; some rows
// later the place is chosen and asked for; some rows later the row is written. Between the last two the row that leaves is still
// found, and should the set change meanwhile the new one is dropped.
const (
	askAhead   = 16
	placeAhead = 8
)

// claim is a fetched row on its way to a place that another row has.
type claim struct {
	h      uint64
	home   int
	slot   int // −1: nothing is left to do
	victim uint64
}

// fill offers the rows of a batch that were fetched.
func (c *Cache) fill(s *scratch) {
	var fly [askAhead]claim
	declined, evicted := 0, 0
	for i := range len(s.keys) + askAhead {
		if u := i - askAhead; u >= 0 {
			if f := &fly[u%askAhead]; f.slot >= 0 && c.replace(f, s.row(u, c.rowBytes), s.epoch(u)) {
				evicted++
			}
		}
		if i < len(s.keys) {
			f := &fly[i%askAhead]
			f.h, f.slot = mix(s.keys[i]), -1
			f.home = c.home(f.h, s.sets)
			c.chosen.ask(f.home, &c.sets[f.home], f.h)
		}
		if u := i - placeAhead; u >= 0 && u < len(s.keys) && s.found[u] {
			if f := &fly[u%askAhead]; !c.place(f, s.times[u], s.row(u, c.rowBytes), s.epoch(u)) {
				declined++
			}
		}
	}
	c.declined.Add(int64(declined))
	c.evictions.Add(int64(evicted))
}

func (s *scratch) row(u, rowBytes int) []byte { return s.rows[u*rowBytes:][:rowBytes] }
func (s *scratch) epoch(u int) Epoch          { return Epoch{s.sets, s.epochs[u]} }

// place chooses a row's place and asks for it; a free one is filled at once. False: the row was declined.
func (c *Cache) place(f *claim, now uint64, row []byte, e Epoch) bool {
	s := &c.sets[f.home]
	s.mu.Lock()
	defer s.mu.Unlock()
	if !c.lacks(s, f.h, e) {
		return true
	}
	slot, ok := c.chosen.place(f.home, s, f.h, now)
	switch {
	case !ok:
		return false
	case s.tag(slot) == 0:
		c.write(s, slot, f.h, row)
	default:
		f.slot, f.victim = slot, s.slots[slot].key.Load()
		prefetchWrite(unsafe.Pointer(unsafe.SliceData(c.row(s, slot))), c.rowBytes)
	}
	return true
}

// replace writes a row to its place, if what it was to replace is still there.
func (c *Cache) replace(f *claim, row []byte, e Epoch) bool {
	s := &c.sets[f.home]
	s.mu.Lock()
	defer s.mu.Unlock()
	if !c.lacks(s, f.h, e) || s.tag(f.slot) == 0 || s.slots[f.slot].key.Load() != f.victim {
		return false
	}
	c.write(s, f.slot, f.h, row)
	return true
}

// lacks reports whether a row that was fetched at e may be put into a set: nothing says that it is old, and the set has it
// not. The caller holds the set's lock.
func (c *Cache) lacks(s *set, h uint64, e Epoch) bool {
	return int(c.n.Load()) == e.sets && s.updates.Load() == e.updates && s.find(h) < 0
}

// write puts a row into a slot. The caller holds the set's lock.
func (c *Cache) write(s *set, slot int, h uint64, row []byte) {
	s.begin()
	s.set(slot, h)
	writeRow(c.row(s, slot), row[:c.rowBytes])
	s.end()
}

package embed

import "unsafe"

// Rows that were fetched go to the cache in stages, as lookups do: what decides about a row's place is asked for; some
// rows later the place is chosen and asked for; some rows later the row is written. Between the last two the row that
// leaves is still found, and should the set change meanwhile the new one is dropped.
const (
	askAhead   = 32
	hintAhead  = 24
	nextAhead  = 16
	placeAhead = 8
)

// claim is a fetched row on its way to a place that another row has.
type claim struct {
	h      uint64
	home   int
	slot   int // −1: nothing is left to do
	likely int // slot that was asked for, −1: none
	victim uint64

	// of rows of a table in memory:
	i       int // the thread's key
	now     uint64
	updates uint32
}

// fill offers the rows of a batch that were fetched.
func (c *Cache) fill(s *scratch) {
	var fly [askAhead]claim
	declined, evicted := 0, 0
	stage := func(i, ahead int) (*claim, int) { // of the key that is so far from the end of its way
		if u := i - (askAhead - ahead); u >= 0 && u < len(s.keys) && s.found[u] {
			return &fly[u%askAhead], u
		}
		return nil, 0
	}
	for i := range len(s.keys) + askAhead {
		if f, u := stage(i, 0); f != nil && f.slot >= 0 && c.replace(f, s.row(u, c.rowBytes), s.epoch(u)) {
			evicted++
		}
		if f, u := stage(i, askAhead); f != nil {
			h := mix(s.keys[u])
			*f = claim{h: h, home: c.home(h, s.sets), slot: -1, likely: -1}
			prefetch(unsafe.Pointer(&c.sets[f.home]), setHead)
			c.chosen.ask(f.home, &c.sets[f.home], f.h)
		}
		if f, _ := stage(i, hintAhead); f != nil {
			c.chosen.hint(f.home, &c.sets[f.home])
		}
		if f, _ := stage(i, nextAhead); f != nil {
			c.askPlace(f)
		}
		if f, u := stage(i, placeAhead); f != nil {
			switch c.place(f, s.times[u], s.row(u, c.rowBytes), s.epoch(u)) {
			case isDeclined:
				declined++
			case hasEvicted:
				evicted++
			}
		}
	}
	c.offered(declined, evicted)
}

// offered counts.
func (c *Cache) offered(declined, evicted int) {
	if declined > 0 {
		c.declined.Add(int64(declined))
	}
	if evicted > 0 {
		c.evictions.Add(int64(evicted))
	}
}

// askPlace asks for the memory of the place that a row will likely get.
func (c *Cache) askPlace(f *claim) {
	s := &c.sets[f.home]
	if f.likely = c.chosen.next(f.home, s); f.likely >= 0 {
		prefetchWrite(unsafe.Pointer(unsafe.SliceData(c.row(s, f.likely))), c.rowBytes)
	}
}

func (s *scratch) row(u, rowBytes int) []byte { return s.rows[u*rowBytes:][:rowBytes] }
func (s *scratch) epoch(u int) Epoch          { return Epoch{s.sets, s.epochs[u]} }

// placed says what became of a row that was offered.
type placed uint8

const (
	isPlaced placed = iota // or will be, or may not be
	isDeclined
	hasEvicted
)

// place chooses a row's place; it is filled at once where it is free or was asked for, and asked for where not.
func (c *Cache) place(f *claim, now uint64, row []byte, e Epoch) placed {
	s := &c.sets[f.home]
	s.mu.Lock()
	defer s.mu.Unlock()
	if !c.lacks(s, f.h, e) {
		return isPlaced
	}
	slot, ok := c.chosen.place(f.home, s, f.h, now)
	switch {
	case !ok:
		return isDeclined
	case s.tag(slot) == 0:
		c.write(s, slot, f.h, row)
	case slot == f.likely:
		c.write(s, slot, f.h, row)
		return hasEvicted
	default:
		f.slot, f.victim = slot, s.slots[slot].key.Load()
		prefetchWrite(unsafe.Pointer(unsafe.SliceData(c.row(s, slot))), c.rowBytes)
	}
	return isPlaced
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

// lacks reports whether a row that was fetched at e may be put into a set: nothing says that it is old, and the set has
// it not. The caller holds the set's lock.
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

package evict

import "math/bits"

// Tuner finds the mode that misses least, by caches in miniature: of a share of the keys it simulates every mode side by
// side, with as large a share of the sets. It is fed off the path and may miss accesses. LRU is one of the modes, so a
// choice among them loses to LRU only for as long as it takes to see that, and by what the share misleads.
type Tuner struct {
	slab Slab
	tiny [modes]tiny
	seen int
	best Mode
}

// tiny is a cache in miniature.
type tiny struct {
	sets   []tinySet
	misses float64 // decayed
}

type tinySet struct {
	n      int
	keys   [SlabSlots]uint64
	stamps [SlabSlots]Stamp
	queue  Queue
	ghost  Ghost
}

// NewTuner simulates sets sets of a cache for whose size slab is made.
func NewTuner(slab Slab, sets int) *Tuner {
	t := &Tuner{slab: slab, best: startMode}
	for i := range t.tiny {
		t.tiny[i].sets = make([]tinySet, max(1, sets))
	}
	return t
}

const (
	startMode = 2    // until something is known
	epoch     = 4096 // accesses between two looks at the misses
	memory    = 0.9  // of the misses before, what counts of them after each
	margin    = 0.99 // another mode must miss this much less
)

// Best returns the mode to use.
func (t *Tuner) Best() Mode { return t.best }

// Access tells of a use of a key of the share, by its hash.
func (t *Tuner) Access(h, now uint64) {
	for m := range t.tiny {
		if !t.tiny[m].access(t.slab, h, now, Mode(m)) {
			t.tiny[m].misses++
		}
	}
	if t.seen++; t.seen%epoch != 0 {
		return
	}
	best := t.best
	for m := range t.tiny {
		if t.tiny[m].misses < t.tiny[best].misses {
			best = Mode(m)
		}
	}
	if t.tiny[best].misses < margin*t.tiny[t.best].misses {
		t.best = best
	}
	for m := range t.tiny {
		t.tiny[m].misses *= memory
	}
}

func (c *tiny) access(slab Slab, h, now uint64, mode Mode) bool {
	// The bits that chose the share, and the tags, are not those that choose the set.
	hi, _ := bits.Mul64(h*0x9E3779B97F4A7C15, uint64(len(c.sets)))
	s := &c.sets[hi]
	for i, k := range s.keys[:s.n] {
		if k == h {
			s.stamps[i] = slab.Use(s.stamps[i], now)
			return true
		}
	}
	m := s.ghost.Take(slab, h, now)
	at := s.n
	if at < SlabSlots {
		s.n++
	} else {
		slot, ok := slab.Place(&s.queue, m, now, mode, func(slot int) Stamp { return s.stamps[slot] })
		if !ok {
			s.ghost.Put(slab, h, m, now, mode)
			return false
		}
		at = slot
		s.ghost.Put(slab, s.keys[at], s.stamps[at], now, mode)
	}
	s.keys[at], s.stamps[at] = h, m
	return false
}

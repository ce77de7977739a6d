package evict

import "math/bits"

// Tuner finds the mode that misses least, by caches in miniature: of a share of the keys it simulates every mode side by
// side, with as large a share of the sets. It is fed off the path and may miss accesses. LRU is one of the modes, so a
// choice among them loses to LRU only for as long as it takes to see that, and by what the share misleads.
//
// One more cache in miniature is offered only some of the missed rows, those that [Spared] does not name. Where it misses hardly
// more, as where all rows are looked up alike, placing rows is work for nothing.
type Tuner struct {
	slab  Slab
	tiny  [modes]tiny
	fewer tiny
	full  float64 // misses of the best mode, decayed as those of fewer are
	seen  int
	best  Mode
	spare bool
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

type tinyStamps [SlabSlots]Stamp

func (s *tinyStamps) Stamp(slot int) Stamp     { return s[slot] }
func (s *tinyStamps) Stamps() [SlabSlots]Stamp { return *s }

// NewTuner simulates sets sets of a cache for whose size slab is made.
func NewTuner(slab Slab, sets int) *Tuner {
	t := &Tuner{slab: slab, best: startMode}
	for i := range t.tiny {
		t.tiny[i].sets = make([]tinySet, max(1, sets))
	}
	t.fewer.sets = make([]tinySet, max(1, sets))
	return t
}

const (
	startMode = 2    // until something is known
	epoch     = 4096 // accesses between two looks at the misses
	memory    = 0.9  // of the misses before, what counts of them after each
	margin    = 0.99 // another mode must miss this much less

	longMemory = 0.97 // for what must not change for the sake of a little

	mayLose = 1.02 // rows are spared when that misses at most so much more
	lost    = 1.04 // and no longer when it misses so much more
)

// Best returns the mode to use.
func (t *Tuner) Best() Mode { return t.best }

// Spare reports whether rows that [Spared] names may be left out, for a cache whose misses cost little.
func (t *Tuner) Spare() bool { return t.spare }

// spared is how many missed rows there are for one that is offered.
const spared = 128

// Spared reports whether a missed row is one of those that may be left out. It names all but one in 128, others at
// another time.
func Spared(h, now uint64) bool { return (h^now)*0x9E3779B97F4A7C15>>32%spared != 0 }

// Access tells of a use of a key of the share, by its hash.
func (t *Tuner) Access(h, now uint64) {
	for m := range t.tiny {
		if !t.tiny[m].access(t.slab, h, now, Mode(m), false) {
			t.tiny[m].misses++
			if Mode(m) == t.best {
				t.full++
			}
		}
	}
	if !t.fewer.access(t.slab, h, now, t.best, Spared(h, now)) {
		t.fewer.misses++
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
	limit := mayLose
	if t.spare {
		limit = lost
	}
	t.spare = t.fewer.misses <= limit*t.full
	for m := range t.tiny {
		t.tiny[m].misses *= memory
	}
	t.fewer.misses *= longMemory
	t.full *= longMemory
}

// access reports a hit. A row that is left out takes a free slot only.
func (c *tiny) access(slab Slab, h, now uint64, mode Mode, leaveOut bool) bool {
	// The bits that chose the share, and the tags, are not those that choose the set.
	hi, _ := bits.Mul64(h*0x9E3779B97F4A7C15, uint64(len(c.sets)))
	s := &c.sets[hi]
	for i, k := range s.keys[:s.n] {
		if k == h {
			s.stamps[i] = slab.Use(s.stamps[i], now)
			return true
		}
	}
	if leaveOut && s.n == SlabSlots {
		return false
	}
	m := s.ghost.Take(slab, h, now)
	at := s.n
	if at < SlabSlots {
		s.n++
	} else {
		slot, ok := slab.Place(&s.queue, m, now, mode, (*tinyStamps)(&s.stamps))
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

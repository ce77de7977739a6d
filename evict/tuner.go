package evict

import "math/bits"

// Tuner finds the mode with the fewest misses. It simulates small caches, one per mode, on a share of the keys, each
// with the same share of the sets. It is fed off the request path and may miss accesses. LRU is one of the modes. So
// the choice loses to LRU only for as long as it takes to notice, and by as much as the share misleads.
//
// One more small cache is offered only the missed rows that [Spared] does not name. If it misses hardly more, as with
// rows that are all looked up equally often, inserting rows is not worth the work.
type Tuner struct {
	slab  Slab
	tiny  [modes]tiny
	fewer tiny
	full  float64 // misses of the best mode, with the same decay as those of fewer
	seen  int
	best  Mode
	spare bool
}

// tiny is a small simulated cache.
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

// NewTuner makes a tuner that simulates that many sets of a cache whose size slab is made for.
func NewTuner(slab Slab, sets int) *Tuner {
	t := &Tuner{slab: slab, best: startMode}
	for i := range t.tiny {
		t.tiny[i].sets = make([]tinySet, max(1, sets))
	}
	t.fewer.sets = make([]tinySet, max(1, sets))
	return t
}

const (
	startMode = 2    // before any evidence
	epoch     = 4096 // accesses between two comparisons
	memory    = 0.9  // factor by which earlier misses decay at each comparison
	margin    = 0.99 // another mode replaces the best if it has fewer misses than margin times the best's

	longMemory = 0.97 // a slower decay, for the decision to spare rows

	mayLose = 1.02 // rows are spared while that multiplies misses by at most mayLose
	lost    = 1.04 // and again offered once it multiplies them by lost
)

// Best returns the mode to use.
func (t *Tuner) Best() Mode { return t.best }

// Spare reports whether rows that [Spared] names may be skipped, for a cache whose misses cost little.
func (t *Tuner) Spare() bool { return t.spare }

// spared is the number of missed rows per row that is offered.
const spared = 128

// Spared reports whether a missed row may be skipped: all but one in 128, and others at another time.
func Spared(h, now uint64) bool { return (h^now)*0x9E3779B97F4A7C15>>32%spared != 0 }

// Access records a use of a key of the share, by its hash.
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

// access reports a hit. With leaveOut, a missed row takes only a free slot.
func (c *tiny) access(slab Slab, h, now uint64, mode Mode, leaveOut bool) bool {
	// Set and share (and tags) are chosen by different bits.
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

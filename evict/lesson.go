package evict

// Lesson is the training data of one model: copies of a window's samples, and the outcome of each. Gather fills it in
// small steps, so that no other goroutine waits long for the lock it is called under. Everything else needs no lock.
// Reset makes its memory available for the next lesson.
type Lesson struct {
	samples  []Sample
	seen     []seen
	outcomes []Outcome
	entries  int // entries in the cache
	next     int // sample of the window to copy next
	seed     uint64
}

// seen is a sample's outcome at the time it was copied.
type seen struct {
	age      int64
	watched  int64
	returned bool
}

// gathered is the number of samples that one Gather copies.
const gathered = 16

// NewLesson makes a lesson with room for f's whole window.
func NewLesson(f *Forecaster) *Lesson {
	n := f.Tracker.cfg.Window
	return &Lesson{samples: make([]Sample, 0, n), seen: make([]seen, 0, n), outcomes: make([]Outcome, 0, n)}
}

// Gather copies the next few samples of f's window and reports whether there are more. f may be used between two calls;
// each sample has its state at the time it was copied.
func (l *Lesson) Gather(f *Forecaster, now int64) bool { return l.gather(f.Tracker, now, gathered) }

func (l *Lesson) gather(t *Tracker, now int64, n int) bool {
	l.entries, l.seed = t.cfg.Entries, t.accesses
	end := min(l.next+n, len(t.window))
	for i := l.next; i < end; i++ {
		s := &t.window[i]
		w := seen{age: now - s.at, watched: s.watched, returned: s.returned}
		if w.watched < 0 {
			w.watched = w.age
		}
		l.samples, l.seen = append(l.samples, s.x), append(l.seen, w)
	}
	l.next = end
	return end < len(t.window)
}

// Reset empties the lesson for the next use.
func (l *Lesson) Reset() {
	l.samples, l.seen, l.outcomes, l.next = l.samples[:0], l.seen[:0], l.outcomes[:0], 0
}

// Train makes a model of the rate of returns within a horizon. Later returns decide no eviction. It returns nil if
// there are too few samples. Without a seed it uses one of the lesson's own, so that models differ. The lesson MUST be
// Reset before it is used again.
func (l *Lesson) Train(p TrainParams) *Model {
	l.conclude()
	if len(l.samples) < minSamples {
		return nil
	}
	if p.Seed == 0 {
		p.Seed = l.seed
	}
	return TrainReturns(l.samples, l.outcomes, p)
}

// conclude computes the outcome of each sample within the horizon, and drops samples that were not watched at all.
func (l *Lesson) conclude() {
	horizon, n := l.horizon(), 0
	for i, w := range l.seen {
		if w.watched == 0 {
			continue
		}
		l.samples[n] = l.samples[i]
		l.outcomes = append(l.outcomes, Outcome{Time: float32(min(w.watched, horizon)), Returned: w.returned &&
			w.watched <= horizon})
		n++
	}
	l.samples = l.samples[:n]
}

const (
	returning   = 0.2 // share of the samples that should return within the horizon
	mostDoubled = 6
)

// horizon returns how long to watch samples. It is as many requests as the cache has entries, doubled until a fifth of
// the samples that are old enough have returned within it. Later returns decide no eviction. But where almost nothing
// returns that soon, as in loops larger than the cache, there would be nothing to learn from.
func (l *Lesson) horizon() int64 {
	h := int64(l.entries)
	for range mostDoubled {
		old, back := 0, 0
		for _, w := range l.seen {
			if w.age <= h {
				continue
			}
			old++
			if w.returned && w.watched <= h {
				back++
			}
		}
		if old < minSamples/4 || float64(back) >= returning*float64(old) {
			break
		}
		h *= 2
	}
	return h
}

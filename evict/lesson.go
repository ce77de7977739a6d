package evict

// Lesson is what a model is trained on: copies of a window's samples and what became of each. Gather fills it in small steps, so that
// nobody waits long for whoever holds the lock; all else is done without one. Its memory serves one lesson after the other.
type Lesson struct {
	samples  []Sample
	seen     []seen
	outcomes []Outcome
	entries  int // cached
	next     int // of the window
	seed     uint64
}

// seen is what had become of a sample when it was copied.
type seen struct {
	age      int64
	watched  int64
	returned bool
}

// gathered is how many samples one Gather copies.
const gathered = 16

// NewLesson makes one with room for all that f learns from.
func NewLesson(f *Forecaster) *Lesson {
	n := f.Tracker.cfg.Window
	return &Lesson{samples: make([]Sample, 0, n), seen: make([]seen, 0, n), outcomes: make([]Outcome, 0, n)}
}

// Gather copies the next few samples of f's window; false when there are no more. Between two calls f may be used: a
// sample is what it was when it was copied.
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

// Reset empties it for the next.
func (l *Lesson) Reset() {
	l.samples, l.seen, l.outcomes, l.next = l.samples[:0], l.seen[:0], l.outcomes[:0], 0
}

// Train makes a model of a lesson: of the rate of returns within a horizon of about what an entry's place in the cache is worth.
// Nil when there is too little to learn from. Without a seed it takes one of the lesson's own, so that models differ. The lesson MUST be Reset before it is used again.
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

// conclude says of each sample what became of it, or within the horizon, and drops those that nobody watched.
func (l *Lesson) conclude() {
	horizon, n := l.horizon(), 0
	for i, w := range l.seen {
		if w.watched == 0 {
			continue
		}
		l.samples[n] = l.samples[i]
		l.outcomes = append(l.outcomes, Outcome{Time: float32(min(w.watched, horizon)), Returned: w.returned && w.watched <= horizon})
		n++
	}
	l.samples = l.samples[:n]
}

const (
	returning   = 0.2 // share of the samples that return within the horizon
	mostDoubled = 6
)

// horizon is how long samples are watched: as many requests as the cache has entries, doubled until a fifth of the samples
// that are old enough returned within it. What happens later decides no eviction, but where next to
// nothing returns in time, as in loops larger than the cache, there would be nothing to learn.
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

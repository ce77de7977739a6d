package evict

import "math"

const (
	gaps     = 10
	counters = 10
)

// Context describes a request beyond its time. Unknown fields are 0.
type Context struct {
	Turn   float32 // turn of the session, from 1
	Prompt float32 // prompt length, tokens
	Bytes  float32 // size of the entry, any unit
	Cost   float32 // time to compute the entry again, any unit
	Before float32 // part of the prompt before the entry, any unit
	After  float32 // part of the prompt after the entry, any unit
	Known  float32 // share of the prompt that was cached
	// tokens after the last cached part in its previous prompt; 0: this prompt continues that one; −1: nothing cached
	Behind float32
	New    float32 // growth of the prompt over that previous one, tokens
	Since  float32 // log2(1 + time since that previous one)
}

// TrackerConfig sizes a Tracker. Times are in the unit of Access.Now.
type TrackerConfig struct {
	Keys     int     // keys remembered, the most recently requested; about 190 bytes each
	Most     int     // keys to reserve room for, if the tracker grows; at least Keys
	Window   int     // samples kept for training; about 180 bytes each
	Every    float64 // accesses per sample; see Tracker
	Entries  int     // entries in the cache
	HalfLife int64   // of the fastest counter; each next counter has twice the half-life
	Horizon  int64   // how long Labelled watches a sample
}

// Tracker turns accesses into Samples. The features of a key are, in order:
//
//   - ten gaps as log2(1+gap): the time since its last request, then those between its latest requests, latest first;
//     64 if unknown
//   - ten exponentially decayed counts of its requests, as of the time of the description
//   - the number of its requests
//   - the difference of the first gap from the latest other gap, from their mean and from the largest; −64 if unknown
//   - the share of the other gaps that are longer than the first; −1 if unknown
//   - the time since its first request, as log2(1+time)
//   - the fields of its last Context
//
// Some descriptions are kept as samples. They wait in a sliding window for their outcome. A description at an access
// counts as one. A description at a later time counts by the time since the key was last described: twice its share of
// the cache's time. So two thirds of the samples describe what a random moment finds in the cache, and victims are
// chosen from that.
//
// Memory is bounded: a new key replaces the least recently requested one.
type Tracker struct {
	cfg      TrackerConfig
	byKey    table
	recent   list
	entries  []history
	used     int
	latest   int32 // entry of the last Access
	window   []pendingSample
	accesses uint64
	kept     uint64
	worth    float64 // sum over the descriptions since the last sample
	errors   errorMean
	random   uint64
}

type history struct {
	key    uint64
	since  int64 // time of the first request
	last   int64
	seen   int64             // when it was last described
	gap    [gaps - 1]float32 // closed gaps
	count  [counters]float32
	sample int32 // its latest unlabelled sample in the window; −1 for none
	guess  float32
	uses   float32
	mean   float32 // of the closed gaps
	most   float32
	ctx    Context
}

type pendingSample struct {
	x        Sample
	at       int64
	watched  int64 // time until the next request, or until the key was forgotten; −1 while it is still watched
	returned bool
	owner    int32 // −1: no longer watched
	older    int32 // the owner's previous sample, unless the window has overwritten it
}

const (
	unknownGap = 64
	timeWorth  = 2 // weight of descriptions between accesses, relative to those at accesses
)

// NewTracker makes a tracker; zero fields of the config are raised to 1.
func NewTracker(c TrackerConfig) *Tracker {
	c.Keys, c.Window, c.Every, c.Entries = max(c.Keys, 1), max(c.Window, 1), max(c.Every, 1), max(c.Entries, 1)
	c.HalfLife, c.Horizon = max(c.HalfLife, 1), max(c.Horizon, 1)
	c.Most = max(c.Most, c.Keys)
	return &Tracker{cfg: c, byKey: newTable(c.Keys), recent: newList(c.Most), entries: make([]history, c.Most),
		window: make([]pendingSample, 0, c.Window)}
}

// resize adapts a tracker to a larger cache. It keeps what it remembers, and the window does not change.
func (t *Tracker) resize(c TrackerConfig) {
	c.Keys, c.Most, c.Window = min(max(c.Keys, t.cfg.Keys), t.cfg.Most), t.cfg.Most, t.cfg.Window
	c.Every, c.HalfLife, c.Horizon = max(c.Every, 1), max(c.HalfLife, 1), max(c.Horizon, 1)
	t.cfg = c
}

// Remembers returns the most keys that are remembered.
func (t *Tracker) Remembers() int { return t.cfg.Keys }

// Access records a request and writes its features into x.
func (t *Tracker) Access(key uint64, now int64, c Context, x *Sample) {
	i, known := t.byKey.get(key)
	if known {
		t.recent.remove(i)
		t.settle(i, now, true)
		t.entries[i].again(now, t)
	} else {
		i = t.take(now)
		t.entries[i] = history{key: key, since: now, sample: -1, guess: -1}
		t.entries[i].first()
		t.byKey.put(key, i)
	}
	t.latest = i
	t.recent.pushNewest(i)
	h := &t.entries[i]
	h.last, h.seen, h.ctx = now, now, c
	h.uses++
	t.accesses++
	t.worth++
	t.describe(i, now, x)
}

// Describe writes a key's features as of now, later than its last request, into x. It returns false if the key is not
// remembered.
func (t *Tracker) Describe(key uint64, now int64, x *Sample) bool {
	i, ok := t.byKey.get(key)
	if ok {
		t.describe(i, now, x)
	}
	return ok
}

// describeAny describes a random key, as long as no more keys are remembered than the cache has entries.
func (t *Tracker) describeAny(now int64, x *Sample) {
	if t.used == 0 || t.used > t.cfg.Entries {
		return
	}
	t.random = t.random*6364136223846793005 + 1442695040888963407
	t.describe(int32(t.random>>32*uint64(t.used)>>32), now, x)
}

// describeAll describes those of up to 64 keys that are remembered. It writes them to xs without gaps, and their
// indexes in keys to at. Entries are far apart in memory, so it prefetches all before it reads the first.
func (t *Tracker) describeAll(keys []uint64, now int64, xs *[maxRefresh]Sample, at *[maxRefresh]int) (n int) {
	var entries [maxRefresh]int32
	for _, key := range keys {
		t.byKey.prefetch(key)
	}
	for i, key := range keys {
		e, ok := t.byKey.get(key)
		if !ok {
			continue
		}
		prefetchHistory(&t.entries[e])
		entries[n], at[n] = e, i
		n++
	}
	for i, e := range entries[:n] {
		t.describe(e, now, &xs[i])
	}
	return n
}

// describe writes an entry's features into x and keeps some as samples, so that training sees the same as prediction.
func (t *Tracker) describe(i int32, now int64, x *Sample) {
	h := &t.entries[i]
	x[0] = 0
	copy(x[1:gaps], h.gap[:])
	copy(x[gaps:gaps+counters], h.count[:])
	if now != h.last {
		x[0] = float32(log2(1 + float64(now-h.last)))
		decay := t.decay(now - h.last)
		for c := counters - 1; c >= 0; c-- {
			x[gaps+c] *= decay
			decay *= decay
		}
	}
	over := [...]float32{-unknownGap, -unknownGap, -unknownGap, -1}
	if h.gap[0] != unknownGap {
		over = [...]float32{x[0] - h.gap[0], x[0] - h.mean, x[0] - h.most, h.longer(x[0])}
	}
	c := &h.ctx
	*(*[Features - gaps - counters]float32)(x[gaps+counters:]) = [...]float32{
		h.uses, over[0], over[1], over[2], over[3], float32(log2(1 + float64(now-h.since))), c.Turn, c.Prompt, c.Bytes,
		c.Cost, c.Before, c.After, c.Known, c.Behind, c.New, c.Since,
	}
	t.worth += timeWorth * float64(now-h.seen) / float64(t.cfg.Entries)
	h.seen = now
	if every := t.every(); t.worth >= every {
		t.worth = min(t.worth-every, every)
		t.keep(i, now, x)
	}
}

// every returns how many descriptions count for one sample: fewer at the beginning, when samples are scarce.
func (t *Tracker) every() float64 {
	begun := (1 + timeWorth) * float64(t.accesses) / float64(t.cfg.Window)
	return min(t.cfg.Every, max(1, begun))
}

// take returns an entry for a new key.
func (t *Tracker) take(now int64) int32 {
	if t.used < t.cfg.Keys {
		t.used++
		return int32(t.used - 1)
	}
	i := t.recent.oldest()
	t.recent.remove(i)
	h := &t.entries[i]
	t.byKey.remove(h.key)
	t.settle(i, now, false)
	return i
}

// settle records the outcome of an entry's samples, which are then no longer watched.
func (t *Tracker) settle(i int32, now int64, returned bool) {
	w, at := t.entries[i].sample, int64(math.MaxInt64)
	for w >= 0 && t.window[w].owner == i && t.window[w].at <= at {
		s := &t.window[w]
		s.watched, s.returned = now-s.at, returned
		s.owner, at, w = -1, s.at, s.older
	}
	t.entries[i].sample = -1
}

func (h *history) first() {
	for g := range h.gap {
		h.gap[g] = unknownGap
	}
	for c := range h.count {
		h.count[c] = 1
	}
}

// again updates the history of a key that is requested again.
func (h *history) again(now int64, t *Tracker) {
	y := float32(log2(1 + float64(now-h.last)))
	if h.guess >= 0 {
		t.errors.add(float64(h.guess - y))
		h.guess = -1
	}
	copy(h.gap[1:], h.gap[:])
	h.gap[0] = y
	h.mean, h.most = h.sumUp()
	decay := t.decay(now - h.last)
	for c := counters - 1; c >= 0; c-- {
		h.count[c] = 1 + h.count[c]*decay
		decay *= decay
	}
}

// decay returns the decay of the slowest counter. Its square is that of the next faster one.
func (t *Tracker) decay(gap int64) float32 {
	return float32(exp2(-float64(gap) / float64(t.cfg.HalfLife<<(counters-1))))
}

// sumUp returns the mean and the largest of the closed gaps. There is at least one.
func (h *history) sumUp() (mean, most float32) {
	n := float32(0)
	for _, g := range h.gap {
		if g == unknownGap {
			break
		}
		n++
		mean, most = mean+g, max(most, g)
	}
	return mean / n, most
}

// longer returns the share of the closed gaps that are longer than gap. There is at least one.
func (h *history) longer(gap float32) float32 {
	n, longer := float32(0), float32(0)
	for _, g := range h.gap {
		if g == unknownGap {
			break
		}
		n++
		if g > gap {
			longer++
		}
	}
	return longer / n
}

// keep puts a sample into the window in place of the oldest one.
func (t *Tracker) keep(owner int32, now int64, x *Sample) {
	t.kept++
	w := int32(t.kept % uint64(t.cfg.Window))
	if len(t.window) < t.cfg.Window {
		w = int32(len(t.window))
		t.window = append(t.window, pendingSample{})
	} else if o := t.window[w].owner; o >= 0 && t.entries[o].sample == w {
		t.entries[o].sample = -1
	}
	t.window[w] = pendingSample{x: *x, at: now, watched: -1, owner: owner, older: t.entries[owner].sample}
	t.entries[owner].sample = w
}

// Guess records the prediction for a key's next return, as log2(1 + time), for Error.
func (t *Tracker) Guess(key uint64, log2 float32) {
	if i, ok := t.byKey.get(key); ok {
		t.entries[i].guess = log2
	}
}

// guessLatest does the same for the key of the last Access.
func (t *Tracker) guessLatest(log2 float32) { t.entries[t.latest].guess = log2 }

// Error returns the recent root mean squared error of guesses whose key returned, in doublings of time, and their
// number. Keys that never return do not count.
func (t *Tracker) Error() (rms float64, n int64) { return math.Sqrt(t.errors.mean), t.errors.n }

// Wrong returns how many guesses were off by more than a factor of two. Keys that never return do not count.
func (t *Tracker) Wrong() int64 { return t.errors.wrong }

type errorMean struct {
	mean  float64
	n     int64
	wrong int64
}

// add updates the mean over about the last thousand guesses.
func (e *errorMean) add(d float64) {
	e.n++
	if d > 1 || d < -1 {
		e.wrong++
	}
	e.mean += (d*d - e.mean) / float64(min(e.n, 1024))
}

// Labelled returns copies of the window's samples whose label is known at a time: those older than the horizon, whether
// they returned or not. Younger ones are left out even if they returned, so that quick returns are not overcounted. The
// horizon is at most half of the window's span, so that there are labels soon after the start. A sample that did not
// return within the horizon is labelled with twice its length.
func (t *Tracker) Labelled(now int64) ([]Sample, []float32) {
	oldest := now
	for i := range t.window {
		oldest = min(oldest, t.window[i].at)
	}
	horizon := min(t.cfg.Horizon, (now-oldest)/2)
	xs, ys := make([]Sample, 0, len(t.window)), make([]float32, 0, len(t.window))
	for i := range t.window {
		s := &t.window[i]
		if now-s.at <= horizon {
			continue
		}
		wait := s.watched
		if !s.returned || wait > horizon {
			wait = 2 * horizon
		}
		xs, ys = append(xs, s.x), append(ys, float32(math.Log2(1+float64(wait))))
	}
	return xs, ys
}

// Outcomes returns copies of the window's samples and the outcome of each until now, within the horizon.
func (t *Tracker) Outcomes(now int64) ([]Sample, []Outcome) {
	var l Lesson
	l.gather(t, now, len(t.window))
	l.conclude()
	return l.samples, l.outcomes
}

// Return converts a prediction, log2(1 + time), to the absolute time of Access.Return.
func Return(now int64, y float32) int64 {
	if y >= 61 {
		return Never
	}
	return now + int64(exp2(float64(max(y, 0)))-1)
}

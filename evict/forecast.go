package evict

// minSamples is how many labelled samples are worth a model.
const minSamples = 1000

// Forecaster predicts returns with the latest model that it was given. It keeps the parts of the
// loop that are pure: when Due the caller calls Learn, or gathers a Lesson, trains on it elsewhere and hands the model to Use between two accesses.
//
// Synchronous: Access predicts. Asynchronous: Note records and queues, and whoever has time takes the Queries, predicts with
// Model without any lock, and gives the answers to Policy.Predict for keys that are still cached.
type Forecaster struct {
	Tracker *Tracker
	model   *Model // the mean of the latest
	latest  []*Model
	since   []uint64 // accesses when the latest came into use
	every   uint64
	trained uint64
	x       Sample
	batch   [maxRefresh]Sample
	out     [maxRefresh]float32
	at      [maxRefresh]int
	queue   []Query
	asked   bool // by Refresh, whose descriptions are of all that is cached
	most    int  // entries that it can be made for
}

// Query is a request that wants a prediction.
type Query struct {
	Key uint64
	At  int64
	X   Sample
}

// maxQueries is how many wait at most; what comes beyond is not predicted.
const maxQueries = 1024

// averaged is how many models predict together.
const averaged = 3

// NewForecaster makes one for a cache of about so many entries, whose clock advances by about one per access. It
// remembers eight times as many keys and 100,000 samples.
func NewForecaster(entries int) *Forecaster { return NewGrowingForecaster(entries, entries) }

// NewGrowingForecaster makes one for a cache that holds more entries with time, from least to most: see Hold. Memory for most is
// reserved, but what is not used yet is not touched.
func NewGrowingForecaster(least, most int) *Forecaster {
	least = max(least, 1)
	f := &Forecaster{most: max(least, most)}
	c := sizeOf(least)
	c.Most = keysOf(f.most)
	f.Tracker = NewTracker(c)
	f.size(least)
	return f
}

// Hold says how many entries the cache holds. Where that is more than the forecaster is made for, it remembers more keys from then on, at
// least twice as many entries' and at most those of most entries.
func (f *Forecaster) Hold(entries int) {
	now := f.Tracker.cfg.Entries
	if entries <= now || now >= f.most {
		return
	}
	f.size(min(max(entries, 2*now), f.most))
}

func (f *Forecaster) size(entries int) {
	f.Tracker.resize(sizeOf(entries))
	f.every = uint64(min(max(entries, 5000), 20000))
}

const (
	manyKeys = 1 << 17 // remembered: beyond, twice as many keys as entries are
	window   = 100000  // samples
	spanned  = 32      // the samples' accesses, in entries
)

// keysOf is how many keys are remembered for a cache of so many entries.
func keysOf(entries int) int { return min(8*entries, max(manyKeys, 2*entries)) }

func sizeOf(entries int) TrackerConfig {
	return TrackerConfig{
		Keys: keysOf(entries), Window: window, Every: (1 + timeWorth) * spanned * float64(entries) / window, Entries: entries,
		HalfLife: int64(entries / 32), Horizon: int64(4 * entries),
	}
}

// Access records a request and predicts when the key returns; without a model, now, which says nothing.
func (f *Forecaster) Access(key uint64, now int64, c Context) int64 {
	f.lookBack(now)
	f.Tracker.Access(key, now, c, &f.x)
	if f.model == nil {
		return now
	}
	y := f.model.one(&f.x)
	f.Tracker.guessLatest(y)
	return Return(now, y)
}

// lookBack has an entry described by chance until the cache is full and asks for that itself. Else the first victims were chosen by models
// that never saw an entry which is not just used.
func (f *Forecaster) lookBack(now int64) {
	if !f.asked {
		f.Tracker.describeAny(now, &f.x)
	}
}

// Note records a request and queues it for a prediction, in place of Access.
func (f *Forecaster) Note(key uint64, now int64, c Context) {
	f.lookBack(now)
	f.Tracker.Access(key, now, c, &f.x)
	if f.model != nil && len(f.queue) < maxQueries {
		f.queue = append(f.queue, Query{key, now, f.x})
	}
}

// Queries moves what waits for predictions to dst.
func (f *Forecaster) Queries(dst []Query) []Query {
	dst = append(dst, f.queue...)
	f.queue = f.queue[:0]
	return dst
}

// Model returns the model in use; nil before the first.
func (f *Forecaster) Model() *Model { return f.model }

// Due says once per interval that it is time to train.
func (f *Forecaster) Due() bool {
	if f.Tracker.accesses-f.trained < min(f.every, max(minSamples, f.Tracker.accesses/8)) {
		return false
	}
	f.trained = f.Tracker.accesses
	return true
}

// Learn trains on what is known now and uses the model, for callers that can wait for it. It does nothing
// while there is too little to learn from.
func (f *Forecaster) Learn(now int64, p TrainParams) {
	var l Lesson
	l.gather(f.Tracker, now, len(f.Tracker.window))
	if m := l.Train(p); m != nil {
		f.Use(m)
	}
}

// Use predicts with a model from the next access on: with the mean of it and the two before, but for those that knew less than
// half of what is known now. Single models differ by their draws of samples.
func (f *Forecaster) Use(m *Model) {
	now := f.Tracker.accesses
	f.latest, f.since = append(f.latest, m), append(f.since, now)
	for len(f.latest) > averaged || 2*f.since[0] < now {
		f.latest, f.since = f.latest[1:], f.since[1:]
	}
	f.model = average(f.latest)
}

// Refresh predicts again for keys that did not return when predicted: returns[i] of keys[i], at most 64.
func (f *Forecaster) Refresh(keys []uint64, now int64, returns []int64) {
	f.asked = true
	n := f.Tracker.describeAll(keys, now, &f.batch, &f.at)
	if f.model == nil {
		return
	}
	f.model.Predict(f.batch[:n], f.out[:n])
	for i, at := range f.at[:n] {
		returns[at] = Return(now, f.out[i])
	}
}

package evict

// minSamples is the least number of labelled samples to train a model on.
const minSamples = 1000

// Forecaster predicts returns with the latest models it was given. It is pure. When Due reports true, the caller either
// calls Learn, or gathers a Lesson, trains on it elsewhere and passes the model to Use between two accesses.
//
// A synchronous caller gets its predictions from Access. An asynchronous caller uses Note, which records the request
// and queues it. Another goroutine takes the Queries, predicts with Model without a lock, and passes the answers to
// Policy.Predict for keys that are still cached.
type Forecaster struct {
	Tracker *Tracker
	model   *Model // mean of latest
	latest  []*Model
	since   []uint64 // number of accesses when each of latest came into use
	every   uint64
	trained uint64
	x       Sample
	batch   [maxRefresh]Sample
	out     [maxRefresh]float32
	at      [maxRefresh]int
	queue   []Query
	asked   bool // Refresh has been called: it describes all cached entries from then on
	most    int  // the largest number of entries it can grow to
}

// Query is a request that waits for a prediction.
type Query struct {
	Key uint64
	At  int64
	X   Sample
}

// maxQueries bounds the queue. Requests beyond it get no prediction.
const maxQueries = 1024

// averaged is the number of models whose mean predicts.
const averaged = 3

// NewForecaster makes a forecaster for a cache of about that many entries, whose clock advances by about one per
// access. It remembers up to eight times as many keys, and 100,000 samples.
func NewForecaster(entries int) *Forecaster { return NewGrowingForecaster(entries, entries) }

// NewGrowingForecaster makes a forecaster for a cache that grows from least to most entries; see Hold. It reserves
// memory for most, but does not touch it before it is used.
func NewGrowingForecaster(least, most int) *Forecaster {
	least = max(least, 1)
	f := &Forecaster{most: max(least, most)}
	c := sizeOf(least)
	c.Most = keysOf(f.most)
	f.Tracker = NewTracker(c)
	f.size(least)
	return f
}

// Hold says how many entries the cache holds. If that exceeds the forecaster's size, it grows to at least twice the
// size, up to most, and remembers more keys.
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
	manyKeys = 1 << 17 // keys; larger caches remember two keys per entry
	window   = 100000  // samples
	spanned  = 32      // accesses that the samples span, as a multiple of entries
)

// keysOf returns how many keys to remember for a cache of that many entries.
func keysOf(entries int) int { return min(8*entries, max(manyKeys, 2*entries)) }

func sizeOf(entries int) TrackerConfig {
	return TrackerConfig{
		Keys: keysOf(entries), Window: window, Every: (1 + timeWorth) * spanned * float64(entries) / window, Entries: entries,
		HalfLife: int64(entries / 32), Horizon: int64(4 * entries),
	}
}

// Access records a request and predicts when the key returns. Without a model it returns now, which means unknown.
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

// lookBack describes a random key, until the full cache calls Refresh. Otherwise the first victims would be chosen by
// models that have seen only entries in the moment of their use.
func (f *Forecaster) lookBack(now int64) {
	if !f.asked {
		f.Tracker.describeAny(now, &f.x)
	}
}

// Note is Access for asynchronous callers: it records a request and queues it for a prediction.
func (f *Forecaster) Note(key uint64, now int64, c Context) {
	f.lookBack(now)
	f.Tracker.Access(key, now, c, &f.x)
	if f.model != nil && len(f.queue) < maxQueries {
		f.queue = append(f.queue, Query{key, now, f.x})
	}
}

// Queries moves the queue to dst.
func (f *Forecaster) Queries(dst []Query) []Query {
	dst = append(dst, f.queue...)
	f.queue = f.queue[:0]
	return dst
}

// Model returns the model in use, or nil before the first.
func (f *Forecaster) Model() *Model { return f.model }

// Due reports, once per interval, that it is time to train.
func (f *Forecaster) Due() bool {
	if f.Tracker.accesses-f.trained < min(f.every, max(minSamples, f.Tracker.accesses/8)) {
		return false
	}
	f.trained = f.Tracker.accesses
	return true
}

// Learn trains a model on the current samples and uses it, for callers that can wait for it. It does nothing while
// there are too few samples.
func (f *Forecaster) Learn(now int64, p TrainParams) {
	var l Lesson
	l.gather(f.Tracker, now, len(f.Tracker.window))
	if m := l.Train(p); m != nil {
		f.Use(m)
	}
}

// Use adds a model. From the next access on, predictions come from the mean of it and the two before: single models
// differ by the samples they happened to draw. Models that are older than half of all accesses are dropped.
func (f *Forecaster) Use(m *Model) {
	now := f.Tracker.accesses
	f.latest, f.since = append(f.latest, m), append(f.since, now)
	for len(f.latest) > averaged || 2*f.since[0] < now {
		f.latest, f.since = f.latest[1:], f.since[1:]
	}
	f.model = average(f.latest)
}

// Refresh predicts again for cached keys: it sets returns[i] for keys[i], at most 64.
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

package evict

// Forecaster predicts returns with the latest model that it was given. It keeps the parts of the
// loop that are pure: the caller asks Due, trains on Labelled (elsewhere, if it likes: the copies are its own),
// and hands the model to Use between two accesses.
type Forecaster struct {
	Tracker *Tracker
	model   *Model
	every   uint64
	trained uint64
	x       [1]Sample
	y       [1]float32
	batch   [maxRefresh]Sample
	out     [maxRefresh]float32
	at      [maxRefresh]int
}

// NewForecaster makes one that is due for training after every so many accesses.
func NewForecaster(c TrackerConfig, every int) *Forecaster {
	return &Forecaster{Tracker: NewTracker(c), every: uint64(max(every, 1))}
}

// Access records a request and predicts when the key returns; without a model, now, which says nothing.
func (f *Forecaster) Access(key uint64, now int64, c Context) int64 {
	f.Tracker.Access(key, now, c, &f.x[0])
	if f.model == nil {
		return now
	}
	f.model.Predict(f.x[:], f.y[:])
	f.Tracker.Guess(key, f.y[0])
	return Return(now, f.y[0])
}

// Due says once per interval that it is time to train.
func (f *Forecaster) Due() bool {
	if f.Tracker.accesses-f.trained < f.every {
		return false
	}
	f.trained = f.Tracker.accesses
	return true
}

// Use predicts with a model from the next access on.
func (f *Forecaster) Use(m *Model) { f.model = m }

// Refresh predicts again for keys that did not return when predicted: returns[i] of keys[i], at most 64.
func (f *Forecaster) Refresh(keys []uint64, now int64, returns []int64) {
	n := 0
	for i, key := range keys {
		if f.Tracker.Describe(key, now, &f.batch[n]) {
			f.at[n] = i
			n++
		}
	}
	if f.model == nil {
		return
	}
	f.model.Predict(f.batch[:n], f.out[:n])
	for i, at := range f.at[:n] {
		returns[at] = Return(now, f.out[i])
	}
}

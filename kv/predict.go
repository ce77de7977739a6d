package kv

import (
	"sync"

	"grebe/evict"
)

// forecast predicts when the entries of one level are used again.
type forecast struct {
	*evict.Forecaster
	keys   [64]uint64 // of slots that want another prediction
	models int64
}

const (
	leastRemembered = 1 << 10 // entries
	mostRemembered  = 1 << 18 // entries: half a million keys, about 100 MB
)

// newForecast remembers keys of eight times the entries that a level of so many slots holds, and of large levels of twice as many.
func newForecast(slots int) *forecast {
	return &forecast{Forecaster: evict.NewGrowingForecaster(leastRemembered, min(max(slots, leastRemembered), mostRemembered))}
}

// trainer trains models in the background, one at a time. What it trains on is gathered by the uses themselves, a few samples
// each: so none waits for a window to be copied, and nobody but users of the store takes its lock often.
type trainer struct {
	lesson  *evict.Lesson // guarded by Store.mu, but while it is in lessons or trained on
	of      *level        // whose samples are being gathered; guarded by Store.mu
	busy    bool          // the lesson is taken; guarded by Store.mu
	lessons chan *level
	wg      sync.WaitGroup
}

// Predict has the returns of entries predicted, for policies that use that: by models that are trained in the background on
// what was used lately, and swapped between two uses. It MUST be called after SetHost and SetPolicy and before
// the store is used. Close stops it.
func (s *Store) Predict() error {
	if !evict.Predicts(s.policy) {
		return nil
	}
	for _, l := range s.levels {
		l.forecast = newForecast(len(l.bySlot))
	}
	if err := s.SetPolicy(s.policy); err != nil { // again, with predictions
		return err
	}
	t := &trainer{lesson: evict.NewLesson(s.top.forecast.Forecaster), lessons: make(chan *level, 1)}
	s.trainer = t
	for _, l := range s.levels {
		l.teach = t.gather
	}
	t.wg.Go(func() {
		for l := range t.lessons {
			m := t.lesson.Train(evict.TrainParams{})
			s.mu.Lock()
			t.done(l, m)
			s.mu.Unlock()
		}
	})
	return nil
}

// gather goes on with the lesson of a level, or begins one when it is due and no other is under way. The caller holds Store.mu.
func (t *trainer) gather(l *level) {
	if !t.busy && l.forecast.Due() {
		t.busy, t.of = true, l
		t.lesson.Reset()
	}
	if t.of != l || t.lesson.Gather(l.forecast.Forecaster, l.now) {
		return
	}
	t.of = nil
	t.lessons <- l // never waits: there is one lesson
}

// done puts a model into use; nil: there was too little to learn from. The caller holds Store.mu.
func (t *trainer) done(l *level, m *evict.Model) {
	t.busy = false
	if l.rec.On() {
		l.rec.In("model", l.place, m != nil)
	}
	if m != nil {
		l.forecast.Use(m)
		l.forecast.models++
	}
}

// stop ends the training. Nobody uses the store any more.
func (t *trainer) stop() {
	if t != nil {
		close(t.lessons)
		t.wg.Wait()
	}
}

// predict returns when an entry that is used now will be used next, as far as it is known.
func (l *level) predict(p *published) int64 {
	f := l.forecast
	if f == nil {
		return 0
	}
	ret := f.Access(p.key.hash(), l.now, p.context())
	l.teach(l)
	return ret
}

// request is the last request that an entry was part of. Of what has no prompt, such as an item, it is zero.
type request struct {
	prompt evict.Prompt
	before int32 // of the prompt, the entry's first token
}

// asked describes a request of so many tokens, of which the first known ones end within an entry that was last part of another.
func (l *level) asked(tokens, known int, last *evict.Prompt) evict.Prompt {
	return evict.NextPrompt(tokens, known, ChainTokens, last.Last(), l.now)
}

// context describes an entry to the predictor.
func (p *published) context() evict.Context {
	tokens, bytes := float32(p.entry.len), float32(p.entry.bytes) // tokens are what it takes to compute it again, about
	if r := &p.request; r.prompt.Tokens() > 0 {
		return r.prompt.Context(int(r.before), p.entry.len, bytes, tokens)
	}
	return evict.Single(int(p.kind), tokens, bytes, tokens)
}

// refresh predicts again for entries that were not used when predicted.
func (l *level) refresh(slots []evict.Slot, returns []int64) {
	keys := l.forecast.keys[:len(slots)]
	for i, s := range slots {
		keys[i] = l.bySlot[s].key.hash()
	}
	l.forecast.Refresh(keys, l.now, returns)
}

// Floor says where the policy of the level where the device computes stands against LRU; false when the policy has no floor.
func (s *Store) Floor() (evict.FloorStats, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, ok := s.top.policy.(*evict.Floor)
	if !ok {
		return evict.FloorStats{}, false
	}
	return f.Stats(), true
}

// Forecasts says how predictions did.
type Forecasts struct {
	Models   int64   // trained so far
	Answered int64   // predictions whose entry was used again
	Wrong    int64   // of those, off by more than a factor of two
	RMS      float64 // recent error of those, in doublings of time
}

// Forecasts returns how predictions did, at the level where the device computes; zero without predictions.
func (s *Store) Forecasts() Forecasts {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.top.forecast
	if f == nil {
		return Forecasts{}
	}
	rms, n := f.Tracker.Error()
	return Forecasts{Models: f.models, Answered: n, Wrong: f.Tracker.Wrong(), RMS: rms}
}

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

// typicalTokens is how long an entry is taken to be, to size what is remembered of past ones.
const typicalTokens = 64

const (
	leastRemembered = 1 << 10
	mostRemembered  = 1 << 14
)

// newForecast remembers keys of about eight times the entries of a level of so many slots, each of which could
// hold one of one token.
func newForecast(slots int) *forecast {
	n := min(max(slots/typicalTokens, leastRemembered), mostRemembered)
	return &forecast{Forecaster: evict.NewForecaster(n)}
}

// lesson is what a model of a level is trained on.
type lesson struct {
	level *level
	*evict.Lesson
}

// trainer trains models in the background, one at a time.
type trainer struct {
	lessons chan lesson
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
	t := &trainer{lessons: make(chan lesson, 1)}
	s.trainer = t
	for _, l := range s.levels {
		l.teach = t.offer
	}
	t.wg.Go(func() {
		for lesson := range t.lessons {
			m := lesson.Train(evict.TrainParams{})
			s.mu.Lock()
			lesson.level.forecast.Use(m)
			lesson.level.forecast.models++
			s.mu.Unlock()
		}
	})
	return nil
}

// offer passes what a level has learnt from to the trainer, unless it is busy. The caller holds Store.mu.
func (t *trainer) offer(l *level) {
	if len(t.lessons) == cap(t.lessons) {
		return
	}
	if what := l.forecast.Lesson(l.now); what != nil {
		t.lessons <- lesson{l, what} // never waits: only holders of Store.mu send
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
	if f.Due() {
		l.teach(l)
	}
	return ret
}

// request is what is known of the last request that an entry was part of, in tokens.
type request struct {
	prompt, known int32
	before        int32 // of the prompt, the entry's first token
	turn          int32 // of a run: how many were put behind each other, up to it
}

// context describes an entry to the predictor. Entries of no session have a turn of 0, and their kind where runs have
// what stood behind them.
func (p *published) context() evict.Context {
	tokens := float32(p.entry.len) // which is what it takes to compute it again, about
	c := evict.Context{Prompt: tokens, Bytes: float32(p.entry.bytes), Cost: tokens, Behind: -1 - float32(p.kind)}
	if r := &p.request; r.prompt > 0 {
		c.Prompt, c.Before = float32(r.prompt), float32(r.before)
		c.After = max(c.Prompt-c.Before-tokens, 0)
		c.Known = float32(r.known) / c.Prompt
		c.New = c.Prompt - float32(r.known)
	}
	if p.node != nil {
		c.Turn, c.Behind = float32(p.request.turn), float32(p.node.Children())
	}
	return c
}

// refresh predicts again for entries that were not used when predicted.
func (l *level) refresh(slots []evict.Slot, returns []int64) {
	keys := l.forecast.keys[:len(slots)]
	for i, s := range slots {
		keys[i] = l.bySlot[s].key.hash()
	}
	l.forecast.Refresh(keys, l.now, returns)
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

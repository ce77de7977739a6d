package kv

import (
	"sync"

	"grebe/evict"
)

// trainer trains models in the background, one at a time. What it trains on is gathered by the books with each use, a few samples
// at a time: so nobody waits for a window to be copied.
type trainer struct {
	lessons chan lesson
	wg      sync.WaitGroup
}

// lesson is what a model of a level is trained on.
type lesson struct {
	*evict.Lesson
	level int
}

// Predict has the returns of entries predicted, for policies that use that: by models that are trained in the background on
// what was used lately, and swapped between two uses. It MUST be called after SetHost and SetPolicy and before
// the store is used. Close stops it.
func (s *Store) Predict() error {
	if !evict.Predicts(s.config.Policy) {
		return nil
	}
	s.config.Predict = true
	if err := s.open(); err != nil {
		return err
	}
	t := &trainer{lessons: make(chan lesson, 1)}
	s.trainer = t
	t.wg.Go(func() {
		for l := range t.lessons {
			m := l.Train(evict.TrainParams{})
			s.mu.Lock()
			if s.rec.On() {
				s.rec.In("model", s.levels[l.level].place, m != nil)
			}
			s.books.Trained(l.level, m)
			s.mu.Unlock()
		}
	})
	return nil
}

// learn has a model trained when there is enough to learn from. Called with mu held, after uses.
func (s *Store) learn() {
	if s.trainer == nil {
		return
	}
	if l, level := s.books.Lesson(); l != nil {
		s.trainer.lessons <- lesson{l, level} // never waits: there is one lesson
	}
}

// stop ends the training. Nobody uses the store any more.
func (t *trainer) stop() {
	if t != nil {
		close(t.lessons)
		t.wg.Wait()
	}
}

// Floor says where the policy of the level where the device computes stands against LRU; false when the policy has no floor.
func (s *Store) Floor() (evict.FloorStats, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.books.Floor()
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
	t, models := s.books.Forecasts()
	if t == nil {
		return Forecasts{}
	}
	rms, n := t.Error()
	return Forecasts{Models: models, Answered: n, Wrong: t.Wrong(), RMS: rms}
}

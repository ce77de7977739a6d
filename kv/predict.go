package kv

import (
	"sync"

	"grebe/evict"
)

// trainer trains models in the background, one at a time. The books gather its samples, a few with each use, so that no
// request waits while a whole window is copied.
type trainer struct {
	lessons chan lesson
	wg      sync.WaitGroup
}

// lesson is the training data of a model, and its level.
type lesson struct {
	*evict.Lesson
	level int
}

// Predict turns on predictions of the next use of entries, if the policy uses them. Models are trained in the
// background on recent uses and replaced between two uses. Predict MUST be called after SetHost and SetPolicy and
// before the store is used. Close stops the training.
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

// learn starts the training of a model when a lesson is complete. It is called with mu held, after uses.
func (s *Store) learn() {
	if s.trainer == nil {
		return
	}
	if l, level := s.books.Lesson(); l != nil {
		s.trainer.lessons <- lesson{l, level} // never blocks: there is only one lesson
	}
}

// stop ends the training. The store is no longer in use.
func (t *trainer) stop() {
	if t != nil {
		close(t.lessons)
		t.wg.Wait()
	}
}

// Floor compares the top level's policy with LRU. It returns false when the policy has no floor.
func (s *Store) Floor() (evict.FloorStats, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.books.Floor()
}

// Forecasts describe how good predictions were.
type Forecasts struct {
	Models   int64   // trained so far
	Answered int64   // predictions for entries that were used again
	Wrong    int64   // of these, wrong by more than a factor of two
	RMS      float64 // recent error of these, in doublings of time
}

// Forecasts describes the predictions on the top level. It is zero without predictions.
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

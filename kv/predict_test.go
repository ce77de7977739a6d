package kv

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"

	"grebe/compute/computetest"
	"grebe/compute/ref"
	"grebe/evict"
	"grebe/plan"
	"grebe/pool"
)

// Models are trained in the background while the store is used, are swapped in, and end with the store; their accuracy
// is counted. Entries are always what was published.
func TestPredictionsAreLearntInTheBackground(t *testing.T) {
	for _, policy := range []string{"default", "laru"} {
		w := newTiered(t, true, policy, 64, 256)
		if err := w.Predict(); err != nil {
			t.Fatal(err)
		}
		r := rand.New(rand.NewPCG(3, 3))
		hits := 0
		for i := 0; i < 10_000_000; i++ { // a training takes as long as it takes
			if i%1000 == 0 {
				if f := w.Forecasts(); f.Models > 0 && f.Answered > 1000 {
					break
				}
			}
			n := r.IntN(8)
			if r.IntN(4) == 0 {
				n = 8 + r.IntN(200)
			}
			var key plan.Key
			binary.LittleEndian.PutUint64(key[:], uint64(n)*0x9E3779B97F4A7C15)
			if e, _ := w.Get(key); e != nil {
				hits++
				if i%97 == 0 {
					check(t, e, 8, byte(n))
				}
				e.Release()
				continue
			}
			add(t, w.Store, plan.Item, key, nil, 8, byte(n))
		}
		f := w.Forecasts()
		if f.Models == 0 || f.Answered == 0 || f.Wrong > f.Answered {
			t.Errorf("%s: %+v after %d hits: want models and answers", policy, f, hits)
		}
		w.close(t)
	}
}

// A policy without use for predictions gets none.
func TestLRUPredictsNothing(t *testing.T) {
	s := New(shape, newPool(t, computetest.Far(ref.New(), true).Memory(), 64))
	defer s.Close()
	if err := s.Predict(); err != nil {
		t.Fatal(err)
	}
	if known, _ := s.books.Forecasts(); s.trainer != nil || known != nil {
		t.Error("LRU has a predictor")
	}
}

// A hit allocates nothing, with a model in use and while samples are gathered for the next one.
func TestPredictedHitAllocatesNothing(t *testing.T) {
	s, hit := predicting(t, "default")
	s.rest()
	const hits = 20000
	i := 0
	if n := testing.AllocsPerRun(1, func() {
		for range hits {
			hit(i)
			i++
		}
	}); n != 0 {
		t.Errorf("%d hits allocate %v times, want 0", hits, n)
	}
	if l, _ := s.books.Lesson(); l == nil {
		t.Errorf("no lesson was gathered by %d hits", i)
	}
}

const predictedEntries = 20000

// predicting returns a store whose first three models are in use, if its policy predicts, and what makes a hit in it.
func predicting(b testing.TB, policy string) (*Store, func(int)) {
	p, err := pool.New(1<<26, 256)
	if err != nil {
		b.Fatal(err)
	}
	s := New(shape, p)
	b.Cleanup(func() { s.Close(); p.Close() })
	if err := errors.Join(s.SetPolicy(policy), s.Predict()); err != nil {
		b.Fatal(err)
	}
	keys := make([]plan.Key, predictedEntries)
	for i := range keys {
		e, err := s.Reserve(Exact, 10, nil)
		if err != nil {
			b.Fatal(err)
		}
		keys[i] = KeyOf(plan.Key{}, []int32{int32(i)}, "")
		s.Publish(plan.Item, keys[i], nil, e)
		e.Release()
	}
	hit := func(i int) {
		e, _ := s.Get(keys[i*7919%predictedEntries])
		e.Release()
	}
	for i := 0; evict.Predicts(policy) && s.Forecasts().Models < 3; i++ {
		hit(i)
	}
	return s, hit
}

// rest ends the training; the last model stays in use.
func (s *Store) rest() {
	s.trainer.stop()
	s.trainer = nil
}

// Where the default policy stands against LRU can be asked of a store; a policy without a floor has nothing to say.
func TestFloorOfAStore(t *testing.T) {
	if _, ok := newTiered(t, true, "lru", 64, 256).Floor(); ok {
		t.Error("LRU has a floor")
	}
	w := newTiered(t, true, "default", 64, 256)
	var key plan.Key
	add(t, w.Store, plan.Item, key, nil, 8, 1)
	e, _ := w.Get(key)
	e.Release()
	if s, ok := w.Floor(); !ok || s.Hits == 0 || s.Hits != s.LRUHits {
		t.Errorf("a store with one use stands at %+v, %v", s, ok)
	}
}

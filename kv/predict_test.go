package kv

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"runtime"
	"testing"

	"grebe/compute/computetest"
	"grebe/compute/ref"
	"grebe/evict"
	"grebe/plan"
	"grebe/pool"
)

// Models are trained in the background while the store is used, are swapped in, and end with the store; their accuracy is
// counted. Entries are always what was published.
func TestPredictionsAreLearntInTheBackground(t *testing.T) {
	for _, policy := range []string{"default", "laru", "laru-cost"} {
		w := newTiered(t, true, policy, 64, 256)
		if err := w.Predict(); err != nil {
			t.Fatal(err)
		}
		r := rand.New(rand.NewPCG(3, 3))
		hits := 0
		for i := 0; i < 100_000; i++ {
			n := r.IntN(8)
			if r.IntN(4) == 0 {
				n = 8 + r.IntN(200)
			}
			var key Key
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
			if i%1000 == 0 {
				if f := w.Forecasts(); f.Models > 0 && f.Answered > 1000 {
					break
				}
			}
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
	if s.trainer != nil || s.top.forecast != nil {
		t.Error("LRU has a predictor")
	}
}

// BenchmarkPredictedHit is a hit with predictions by a model, beside one without; heap is what the books, the policy and
// the predictor take per entry.
func BenchmarkPredictedHit(b *testing.B) {
	for _, policy := range []string{"lru", "default"} {
		b.Run(policy, func(b *testing.B) {
			p, err := pool.New(1<<26, 256)
			if err != nil {
				b.Fatal(err)
			}
			defer p.Close()
			before := heap()
			s := New(shape, p)
			defer s.Close()
			if err := errors.Join(s.SetPolicy(policy), s.Predict()); err != nil {
				b.Fatal(err)
			}
			const entries = 20000
			keys := make([]Key, entries)
			for i := range keys {
				e, err := s.Reserve(Exact, 10, nil)
				if err != nil {
					b.Fatal(err)
				}
				keys[i] = KeyOf(Key{}, []int32{int32(i)}, "")
				s.Publish(plan.Item, keys[i], nil, e)
				e.Release()
			}
			hit := func(i int) {
				e, _ := s.Get(keys[i*7919%entries])
				e.Release()
			}
			for i := 0; evict.Predicts(policy) && s.Forecasts().Models == 0; i++ {
				hit(i)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				hit(i)
			}
			b.ReportMetric(float64(heap()-before)/entries, "heap-bytes/entry")
		})
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

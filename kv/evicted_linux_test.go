package kv

import (
	"runtime"
	"testing"

	"grebe/plan"
)

// BenchmarkPredictedEviction is taking room for a small entry in a full cache, which evicts one about as large, with
// predictions by a model and without.
func BenchmarkPredictedEviction(b *testing.B) {
	for _, policy := range []string{"lru", "default"} {
		b.Run(policy, func(b *testing.B) {
			s, _ := predicting(b, policy)
			if policy == "default" {
				s.rest()
			}
			next := predictedEntries
			add := func() {
				e, err := s.Reserve(Exact, 10, nil)
				if err != nil {
					b.Fatal(err)
				}
				s.Publish(plan.Item, KeyOf(plan.Key{}, []int32{int32(next)}, ""), nil, e)
				e.Release()
				next++
			}
			for s.Stats(plan.Item).Evicted == 0 {
				add()
			}
			b.ReportAllocs()
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			busy := threadTime(b)
			for b.Loop() {
				add()
			}
			b.ReportMetric(float64(threadTime(b)-busy)/float64(b.N), "cpu-ns/op")
		})
	}
}

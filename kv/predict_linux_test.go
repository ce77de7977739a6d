package kv

import (
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkPredictedHit is a hit with predictions by a model, beside one without: while no model is trained, and while
// one is all the time. It also prints the processor's time alone, which a crowded machine changes less, how long the
// slowest one of a thousand takes and the slowest of all; heap is what the books, the policy and the predictor take per
// entry.
func BenchmarkPredictedHit(b *testing.B) {
	for _, c := range []struct{ name, policy string }{{"lru", "lru"}, {"still", "default"}, {"training", "default"}} {
		b.Run(c.name, func(b *testing.B) {
			before := heap()
			s, hit := predicting(b, c.policy)
			if c.name == "still" {
				s.rest()
			}
			for i := range 500_000 { // so that nothing grows any more
				hit(i)
			}
			times := make([]time.Duration, 0, 1<<22)
			b.ReportAllocs()
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			busy := threadTime(b)
			for i := 0; b.Loop(); i++ {
				if i%16 > 0 {
					hit(i)
					continue
				}
				start := time.Now()
				hit(i)
				times = append(times, time.Since(start))
			}
			b.ReportMetric(float64(threadTime(b)-busy)/float64(b.N), "cpu-ns/op")
			b.ReportMetric(slowest(times, 0.001), "p99.9-us")
			b.ReportMetric(slowest(times, 0), "max-us")
			b.ReportMetric(float64(heap()-before)/predictedEntries, "heap-bytes/entry")
		})
	}
}

// threadTime is how long the thread has run.
func threadTime(b *testing.B) time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		b.Fatal(err)
	}
	return time.Duration(t.Nano())
}

// slowest returns the time that no more than a share of all is longer than, in µs.
func slowest(times []time.Duration, share float64) float64 {
	slices.Sort(times)
	return float64(times[int(float64(len(times)-1)*(1-share))].Nanoseconds()) / 1000
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

package evict

import (
	"math/rand/v2"
	"testing"
)

// tinyOptimum returns the fewest misses of a cache of k entries from request i on, by trying all choices.
func tinyOptimum(keys []uint64, i int, cached uint32, k int, memo map[[2]uint32]int) int {
	if i == len(keys) {
		return 0
	}
	at := [2]uint32{uint32(i), cached}
	if m, ok := memo[at]; ok {
		return m
	}
	bit, best := uint32(1)<<keys[i], 1<<30
	switch {
	case cached&bit != 0:
		best = tinyOptimum(keys, i+1, cached, k, memo)
	case popcount(cached) < k:
		best = 1 + tinyOptimum(keys, i+1, cached|bit, k, memo)
	default:
		for v := range 32 {
			if cached&(1<<v) != 0 {
				best = min(best, 1+tinyOptimum(keys, i+1, cached&^(1<<v)|bit, k, memo))
			}
		}
	}
	memo[at] = best
	return best
}

func popcount(x uint32) (n int) {
	for ; x != 0; x &= x - 1 {
		n++
	}
	return n
}

func randomTrace(r *rand.Rand, n, keys int) []uint64 {
	out := make([]uint64, n)
	shape := r.IntN(4)
	for i := range out {
		switch shape {
		case 0:
			out[i] = uint64(r.IntN(keys))
		case 1: // skewed
			out[i] = uint64(min(r.IntN(keys), r.IntN(keys), r.IntN(keys)))
		case 2: // loop with noise
			out[i] = uint64(i % keys)
			if r.IntN(5) == 0 {
				out[i] = uint64(r.IntN(keys))
			}
		default: // drift
			out[i] = uint64((i/20 + r.IntN(1+keys/3)) % keys)
		}
	}
	return out
}

func TestOptimalIsOptimal(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 300 {
		keys, k := randomTrace(r, 5+r.IntN(15), 2+r.IntN(6)), 1+r.IntN(4)
		want := tinyOptimum(keys, 0, 0, k, map[[2]uint32]int{})
		if got := len(keys) - Optimal(keys, k); got != want {
			t.Fatalf("%v with %d entries: %d misses, exhaustive search finds %d", keys, k, got, want)
		}
	}
}

// Without predictions the default is LRU.
func TestDefaultWithoutPredictionsIsLRU(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	for range 200 {
		keys, k := randomTrace(r, 600, 5+r.IntN(40)), 1+r.IntN(12)
		want := replay(t, make1(t, "lru", k), keys, k, nil)
		if got := replay(t, make1(t, "default", k), keys, k, nil); got != want {
			t.Fatalf("default hits %d of %d without predictions, LRU %d", got, len(keys), want)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for _, c := range []Config{{}, {Slots: 1}, {Slots: -1, Bytes: 1}, {Bytes: 1}} {
		if _, err := New("lru", c); err == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
	if _, err := New("fifo", Config{Slots: 1, Bytes: 1}); err == nil {
		t.Error("an unknown policy was accepted")
	}
}

func BenchmarkRequest(b *testing.B) {
	for _, name := range Names() {
		b.Run(name, func(b *testing.B) {
			r := rand.New(rand.NewPCG(4, 4))
			keys := make([]uint64, 1<<17)
			z := rand.NewZipf(r, 1.1, 10, 1<<16)
			for i := range keys {
				keys[i] = z.Uint64()
			}
			const k = 4096
			for b.Loop() {
				replay(b, make1(b, name, k), keys, k, func(i int) int64 { return int64(i) + int64(keys[i]) })
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(keys)), "ns/request")
		})
	}
}

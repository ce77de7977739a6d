package proto

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// synthetic is an index of n prototypes with random contexts, of tokens that are as frequent as words are.
func synthetic(n, tokens int) (*Index, [][]int32) {
	cfg := Config{}.withDefaults()
	s := newSpace(cfg)
	r := rand.New(rand.NewPCG(1, 1))
	embedding := make([]float32, Width)
	for t := range tokens {
		for i := range embedding {
			embedding[i] = float32(r.NormFloat64())
		}
		s.learn([]int32{int32(t)}, func(int32) []float32 { return embedding })
	}
	x := &Index{space: s, thresholds: make([][Planes]float32, len(s.rows)), dead: make([]bool, n/Page+1)}
	word := func() int32 { return int32(math.Pow(float64(tokens), r.Float64())) - 1 }
	for len(x.prototypes) < n {
		var before sums
		for i := range 200 {
			t := word()
			var v [Width]int8
			sketch := express(&before, &s.frame, place(i), &x.thresholds[s.row(t)], &v)
			x.advance(&before, t)
			if i > 20 && len(x.prototypes) < n {
				x.prototypes = append(x.prototypes, Prototype{
					Token: t, Place: int32(i), Count: 1, Source: uint64(len(x.prototypes))})
				x.sketches, x.vectors = append(x.sketches, sketch), append(x.vectors, v)
			}
		}
	}
	x.fill()
	histories := make([][]int32, 64)
	for h := range histories {
		for range 500 {
			histories[h] = append(histories[h], word())
		}
	}
	return x, histories
}

// processorTime is what the process used: on a shared machine it says more than the time that went by.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// recall is the share of tokens whose match is the nearest.
func recall(x *Index, histories [][]int32) float64 {
	var s Scratch
	nearest, all := 0, 0
	for _, h := range histories[:16] {
		out := make([]Match, len(h))
		x.Match(&s, h, 0, 2, out)
		for i := 30; i < len(h); i += 40 {
			if best := x.Exhaustive(h, i); best.Prototype >= 0 {
				all++
				if out[i].Prototype >= 0 && out[i].Drift == best.Drift {
					nearest++
				}
			}
		}
	}
	return float64(nearest) / float64(max(all, 1))
}

func BenchmarkMatch(b *testing.B) {
	for _, n := range []int{1 << 14, 1_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			x, histories := synthetic(n, 2000)
			b.SetBytes(500)
			runtime.GC()
			before := processorTime()
			b.ResetTimer()
			b.RunParallel(func(p *testing.PB) {
				var s Scratch
				out := make([]Match, 500)
				for i := 0; p.Next(); i++ {
					x.Match(&s, histories[i%len(histories)], 0, 1, out)
				}
			})
			used := processorTime() - before
			b.ReportMetric(float64(b.N)*500/b.Elapsed().Seconds()/1e6, "Mtokens/s")
			b.ReportMetric(float64(used)/float64(b.N*500), "cpu-ns/token")
			b.ReportMetric(recall(x, histories), "recall@1")
		})
	}
}

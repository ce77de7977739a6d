package proto

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
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
				x.prototypes = append(x.prototypes, Prototype{Token: t, Place: int32(i), Count: 1, Source: uint64(len(x.prototypes))})
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

func BenchmarkMatch(b *testing.B) {
	for _, n := range []int{1 << 14, 1_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			x, histories := synthetic(n, 2000)
			b.SetBytes(500)
			b.ResetTimer()
			b.RunParallel(func(p *testing.PB) {
				var s Scratch
				out := make([]Match, 500)
				for i := 0; p.Next(); i++ {
					x.Match(&s, histories[i%len(histories)], 0, 1, out)
				}
			})
			b.ReportMetric(float64(b.N)*500/b.Elapsed().Seconds()/1e6, "Mtokens/s")
		})
	}
}

package beam

import (
	"fmt"
	"math"
	"slices"
	"testing"
)

func TestSumExpAgainstFloat64(t *testing.T) {
	for k, kern := range supported() {
		for seed := range uint64(200) {
			r := rng(seed)
			x := make([]float32, blockLen*(1+r.IntN(9)))
			spread := math.Pow(10, float64(r.IntN(5)-2))
			for i := range x {
				x[i] = float32(r.NormFloat64()*spread + float64(r.IntN(3))*50)
				if r.IntN(10) == 0 {
					x[i] = float32(negInf)
				}
			}
			x[r.IntN(len(x))] = 3
			top, want := slices.Max(x), 0.0
			for _, v := range x {
				want += math.Exp(float64(v) - float64(top))
			}
			got := kern.sumExp(&x[0], len(x)/blockLen, top)
			if math.Abs(got-want) > 1e-6*want {
				t.Fatalf("kernel %d, seed %d: sum %.9g, want %.9g", k, seed, got, want)
			}
		}
	}
}

func TestBlockMaxes(t *testing.T) {
	for k, kern := range supported() {
		r := rng(uint64(k))
		x := make([]float32, 3*blockLen)
		for at := range x {
			for i := range x {
				x[i] = float32(r.NormFloat64())
			}
			x[at] = float32(at%3) * 9
			x[r.IntN(len(x))] = float32(negInf)
			got := make([]float32, 3)
			ok := kern.maxes(&x[0], &got[0], 3)
			for b, m := range got {
				if want := slices.Max(x[b*blockLen:][:blockLen]); !ok || m != want {
					t.Fatalf("kernel %d: block %d has %v, want %v", k, b, m, want)
				}
			}
			x[at] = float32(math.NaN())
			if kern.maxes(&x[0], &got[0], 3) {
				t.Fatalf("kernel %d: the NaN at %d was not seen", k, at)
			}
		}
	}
}

func BenchmarkKernels(b *testing.B) {
	r := rng(1)
	x, out := make([]float32, 8192), make([]float32, 128)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	for k, kern := range supported() {
		b.Run(fmt.Sprintf("maxes/%d", k), func(b *testing.B) {
			for b.Loop() {
				kern.maxes(&x[0], &out[0], 128)
			}
		})
		b.Run(fmt.Sprintf("sumExp/%d", k), func(b *testing.B) {
			for b.Loop() {
				kern.sumExp(&x[0], 128, 4)
			}
		})
	}
}

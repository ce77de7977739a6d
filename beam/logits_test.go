package beam

import (
	"math"
	"slices"
	"testing"
)

// eachKernel runs a test with every kernel that this CPU has.
func eachKernel(t *testing.T, test func(t *testing.T)) {
	fastest := kernel
	defer func() { kernel = fastest }()
	for k, kern := range supported() {
		kernel = kern
		t.Run([]string{"plain", "avx2"}[k], test)
	}
}

func TestLogSumAgainstFloat64(t *testing.T) {
	eachKernel(t, func(t *testing.T) {
		for seed := range uint64(300) {
			r := rng(seed)
			x := make([]float32, 1+r.IntN(blockLen*30))
			spread := math.Pow(10, float64(r.IntN(5)-2))
			for i := range x {
				x[i] = float32(r.NormFloat64()*spread + float64(r.IntN(3))*50)
				if r.IntN(10) == 0 || seed%3 == 0 && i < 200 {
					x[i] = float32(negInf)
				}
			}
			x[r.IntN(len(x))] = 3
			top, want := slices.Max(x), 0.0
			for _, v := range x {
				want += math.Exp(float64(v) - float64(top))
			}
			want = float64(top) + math.Log(want)
			full := padded(nil, x)
			blocks := len(full) / blockLen
			maxes, sums := make([]float32, blocks, blocks+groupLen), make([]float32, blocks, blocks+groupLen)
			if !scan(full, maxes, sums) {
				t.Fatalf("seed %d: refused", seed)
			}
			for b, m := range maxes {
				if want := slices.Max(full[b*blockLen:][:blockLen]); m != want {
					t.Fatalf("seed %d: block %d has %v, want %v", seed, b, m, want)
				}
			}
			if got := logSum(maxes, sums, top); !(math.Abs(got-want) <= 1e-6) {
				t.Fatalf("seed %d: log of sum %.9g, want %.9g", seed, got, want)
			}
		}
	})
}

func TestNaNIsSeenAnywhere(t *testing.T) {
	eachKernel(t, func(t *testing.T) {
		var maxes, sums [3]float32
		for at := range 3 * blockLen {
			x := make([]float32, 3*blockLen)
			x[at] = float32(math.NaN())
			if scan(x, maxes[:], sums[:]) {
				t.Fatalf("the NaN at %d was not seen", at)
			}
		}
	})
}

package vec

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"grebe/compute/cpu/internal/feature"
)

// Rows of every length around the kernels' units agree with float64.
func TestPointwise(t *testing.T) {
	for level := feature.Plain; level <= feature.Best(); level++ {
		o := For(level)
		for _, n := range []int{1, 2, 15, 16, 17, 40, 64, 65, 130, 512} {
			t.Run(fmt.Sprintf("%v/%d", level, n), func(t *testing.T) {
				r := rand.New(rand.NewPCG(uint64(n), 7))
				draw := func(mean, deviation float64) []float32 {
					out := make([]float32, n)
					for i := range out {
						out[i] = float32(mean + deviation*r.NormFloat64())
					}
					return out
				}
				near := func(op string, got []float32, want func(i int) float64) {
					t.Helper()
					for i, g := range got {
						if w := want(i); !(math.Abs(float64(g)-w) <= 2e-5*(1+math.Abs(w))) {
							t.Fatalf("%s: value %d is %v, want %v", op, i, g, w)
						}
					}
				}
				x, y, gain, shift := draw(3, 2), draw(0, 1), draw(1, 0.3), draw(0, 1)
				sum := append([]float32(nil), x...)
				o.AddScaled(sum, y, 1.5)
				near("add scaled", sum, func(i int) float64 { return float64(x[i]) + 1.5*float64(y[i]) })
				product := append([]float32(nil), x...)
				o.Multiply(product, y)
				near("multiply", product, func(i int) float64 { return float64(x[i]) * float64(y[i]) })
				mean, square := 0.0, 0.0
				for _, v := range x {
					mean += float64(v) / float64(n)
				}
				for _, v := range x {
					square += (float64(v) - mean) * (float64(v) - mean) / float64(n)
				}
				normed := make([]float32, n)
				o.LayerNorm(normed, x, gain, shift, 1e-2)
				near("layer norm", normed, func(i int) float64 {
					return (float64(x[i])-mean)/math.Sqrt(square+1e-2)*float64(gain[i]) + float64(shift[i])
				})
				wide := draw(0, 40)
				got := append([]float32(nil), wide...)
				o.SiLU(got)
				near("silu", got, func(i int) float64 { return float64(wide[i]) / (1 + math.Exp(-float64(wide[i]))) })
			})
		}
	}
}

func TestSiLUOfExtremes(t *testing.T) {
	for level := feature.Plain; level <= feature.Best(); level++ {
		x := make([]float32, 16)
		copy(x, []float32{0, -1e-30, 1e-30, -87, -88, -89, -200, -1e30, 87, 200, 1e30, -3e38, 3e38})
		got := append([]float32(nil), x...)
		For(level).SiLU(got)
		for i, v := range got {
			want := float64(x[i]) / (1 + math.Exp(-float64(x[i])))
			if math.Abs(float64(v)-want) > 1e-6*math.Abs(want)+1e-30 {
				t.Errorf("%v: SiLU(%v) is %v, want %v", level, x[i], v, want)
			}
		}
	}
}

package vec

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"grebe/compute/cpu/internal/feature"
)

var lengths = []int{0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 80, 127, 128, 130, 896, 1537}

// each runs f on every level of this machine and every length, with slices that start at odd places.
func each(t *testing.T, f func(t *testing.T, o Ops, rnd func(n int) []float32, n int)) {
	for l := feature.Plain; l <= feature.Best(); l++ {
		for _, n := range lengths {
			t.Run(fmt.Sprintf("%v/%d", l, n), func(t *testing.T) {
				r := rand.New(rand.NewPCG(1, uint64(n)))
				rnd := func(n int) []float32 {
					x := make([]float32, n+3)
					for i := range x {
						x[i] = float32(r.NormFloat64())
					}
					return x[3:]
				}
				f(t, For(l), rnd, n)
			})
		}
	}
}

func near(t *testing.T, what string, got, want, size float64) {
	t.Helper()
	if !(math.Abs(got-want) <= 1e-6*size+1e-30) {
		t.Fatalf("%s is %v, want %v (off by %.2g of %.2g)", what, got, want, math.Abs(got-want), size)
	}
}

func TestAddScaleMax(t *testing.T) {
	each(t, func(t *testing.T, o Ops, rnd func(int) []float32, n int) {
		x, y := rnd(n), rnd(n)
		top := float32(math.Inf(-1))
		want := make([]float32, n)
		for i := range x {
			want[i] = (x[i] + y[i]) * 3
			top = max(top, want[i])
		}
		o.Add(x, y)
		o.Scale(x, 3)
		for i := range x {
			near(t, fmt.Sprintf("value %d", i), float64(x[i]), float64(want[i]), math.Abs(float64(want[i])))
		}
		if got := o.Max(x); got != top {
			t.Fatalf("max is %v, want %v", got, top)
		}
	})
}

func TestRMSNorm(t *testing.T) {
	each(t, func(t *testing.T, o Ops, rnd func(int) []float32, n int) {
		x, gain, dst := rnd(n), rnd(n), rnd(n)
		var sum float64
		for _, v := range x {
			sum += float64(v) * float64(v)
		}
		s := 1 / math.Sqrt(sum/float64(n)+1e-6)
		o.RMSNorm(dst, x, gain, 1e-6)
		for i := range x {
			want := float64(x[i]) * s * float64(gain[i])
			near(t, fmt.Sprintf("value %d", i), float64(dst[i]), want, math.Abs(want))
		}
	})
}

func TestRotate(t *testing.T) {
	each(t, func(t *testing.T, o Ops, rnd func(int) []float32, n int) {
		v, cos, sin := rnd(2*n), rnd(n), rnd(n)
		old := append([]float32(nil), v...)
		o.Rotate(v, cos, sin)
		for i := range n {
			a, b, c, s := float64(old[i]), float64(old[n+i]), float64(cos[i]), float64(sin[i])
			size := math.Hypot(a, b) * math.Hypot(c, s)
			near(t, fmt.Sprintf("low value %d", i), float64(v[i]), a*c-b*s, size)
			near(t, fmt.Sprintf("high value %d", i), float64(v[n+i]), b*c+a*s, size)
		}
	})
}

func TestDots(t *testing.T) {
	each(t, func(t *testing.T, o Ops, rnd func(int) []float32, n int) {
		x, row, wide := rnd(n), rnd(n), rnd(n)
		check := func(what string, got float32, row []float32) {
			t.Helper()
			var want, size float64
			for i := range x {
				want += float64(x[i]) * float64(row[i])
				size += math.Abs(float64(x[i]) * float64(row[i]))
			}
			near(t, what, float64(got), want, size)
		}
		check("dot", o.Dot(x, row), row)
		check("sum of squares", o.SumSquares(x), x)
		half := make([]uint16, n+1)[1:]
		o.ToBF16(half, row)
		o.FromBF16(wide, half)
		check("bf16 dot", o.DotBF16(x, half), wide)
		for i := range half {
			half[i] = uint16(rand.New(rand.NewPCG(2, uint64(i))).IntN(0x7c00)) | uint16(i&1)<<15
		}
		o.FromF16(wide, half)
		check("f16 dot", o.DotF16(x, half), wide)
	})
}

// TestHalfFormats goes through all 16-bit patterns, and through roundings around each of them.
func TestHalfFormats(t *testing.T) {
	all := make([]uint16, 1<<16)
	for i := range all {
		all[i] = uint16(i)
	}
	for l := feature.Plain; l <= feature.Best(); l++ {
		o := For(l)
		f, back := make([]float32, len(all)), make([]uint16, len(all))
		o.FromF16(f, all)
		for i := range all {
			if want := exactF16(uint16(i)); !same(float64(f[i]), want) {
				t.Fatalf("%v: f16 %#04x is %v, want %v", l, i, f[i], want)
			}
		}
		o.FromBF16(f, all)
		for i := range all {
			if math.Float32bits(f[i]) != uint32(i)<<16 {
				t.Fatalf("%v: bf16 %#04x is %#08x", l, i, math.Float32bits(f[i]))
			}
		}
		for _, low := range []uint32{0, 1, 0x7fff, 0x8000, 0x8001, 0xffff} {
			for i := range all {
				f[i] = math.Float32frombits(uint32(i)<<16 | low)
			}
			o.ToBF16(back, f)
			for i := range all {
				if want := nearestBF16(f[i]); back[i] != want {
					t.Fatalf("%v: %#08x rounds to %#04x, want %#04x", l, math.Float32bits(f[i]), back[i], want)
				}
			}
		}
	}
}

func same(a, b float64) bool { return a == b || a != a && b != b }

func exactF16(h uint16) float64 {
	sign, exp, frac := 1.0, int(h>>10&31), float64(h&1023)
	if h>>15 == 1 {
		sign = -1
	}
	switch {
	case exp == 0:
		return sign * math.Ldexp(frac, -24)
	case exp == 31 && frac == 0:
		return sign * math.Inf(1)
	case exp == 31:
		return math.NaN()
	}
	return sign * math.Ldexp(1024+frac, exp-25)
}

// nearestBF16 picks the closer neighbour in float64; patterns of one sign are ordered as values.
func nearestBF16(f float32) uint16 {
	lo := uint16(math.Float32bits(f) >> 16)
	if f != f {
		return lo | 0x40
	}
	if math.IsInf(float64(f), 0) {
		return lo
	}
	value := func(h uint16) float64 {
		if h&0x7fff == 0x7f80 { // rounding treats infinity as the next power of two
			return math.Copysign(math.Ldexp(1, 128), float64(math.Float32frombits(uint32(h)<<16)))
		}
		return float64(math.Float32frombits(uint32(h) << 16))
	}
	a, b := math.Abs(float64(f)-value(lo)), math.Abs(float64(f)-value(lo+1))
	if a < b || a == b && lo&1 == 0 {
		return lo
	}
	return lo + 1
}

func TestNoAllocations(t *testing.T) {
	for l := feature.Plain; l <= feature.Best(); l++ {
		o, x, h := For(l), make([]float32, 100), make([]uint16, 100)
		n := testing.AllocsPerRun(10, func() {
			o.RMSNorm(x, x, x, 1)
			o.ToBF16(h, x)
			o.DotBF16(x, h)
			o.DotF16(x, h)
		})
		if n != 0 {
			t.Errorf("%v allocates %v times", l, n)
		}
	}
}

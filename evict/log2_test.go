package evict

import (
	"math"
	"math/rand/v2"
	"testing"
)

// log2 and exp2 agree with package math to their stated precision.
func TestShortLogarithms(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for i := range 200_000 {
		x := 1 + r.Float64()*math.Exp2(float64(i%60))
		if got, want := log2(x), math.Log2(x); math.Abs(got-want) > 2e-8 {
			t.Fatalf("log2(%v) = %v, want %v", x, got, want)
		}
		y := r.Float64()*80 - 15
		if got, want := exp2(y), math.Exp2(y); math.Abs(got-want) > 1e-10*want {
			t.Fatalf("exp2(%v) = %v, want %v", y, got, want)
		}
	}
	for e := range 62 {
		if got := log2(math.Exp2(float64(e))); got != float64(e) {
			t.Errorf("log2(2^%d) = %v", e, got)
		}
		if got := exp2(float64(-e)); got != math.Exp2(float64(-e)) {
			t.Errorf("exp2(%d) = %v", -e, got)
		}
	}
	if exp2(-1e300) != 0 || exp2(math.Inf(-1)) != 0 {
		t.Error("the power of what is far below is not 0")
	}
}

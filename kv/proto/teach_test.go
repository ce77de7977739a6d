package proto

import (
	"math"
	"math/rand/v2"
	"testing"
)

// What goroutines add up together is what one adds up, in the same order: to the bit.
func TestProducts(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	list := make([]lesson, 40) // more than one goroutine takes at once
	for k := range list {
		for d := range list[k].context {
			list[k].context[d] = r.Float32() - 0.5
		}
		for d := range list[k].target {
			list[k].target[d] = r.Float32() - 0.5
		}
	}
	got := products(list)
	for _, i := range []int{0, 1, 2, 3, 4, features / 2, features - 2, features - 1} {
		want := make([]float64, columns)
		for _, l := range list {
			x := float64(l.context[i])
			for j := range i + 1 {
				want[j] += float64(x * float64(l.context[j]))
			}
			for j, y := range l.target {
				want[features+j] += float64(x * float64(y))
			}
		}
		for j, w := range want {
			if g := got[i*columns+j]; math.Float64bits(g) != math.Float64bits(w) {
				t.Fatalf("row %d, column %d: %v, want %v", i, j, g, w)
			}
		}
	}
}

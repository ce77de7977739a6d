package net

import (
	"math"
	"math/rand/v2"
	"testing"
)

// Gradients by hand equal differences of the loss.
func TestGradients(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	n := New(r, 1, 5, 16, 8, 3)
	x, g := make([]float64, 5), []float64{0.5, -1, 2}
	for i := range x {
		x[i] = r.NormFloat64()
	}
	loss := func() float64 {
		sum := 0.0
		for i, y := range n.Forward(x) {
			sum += g[i] * y
		}
		return sum
	}
	loss()
	n.Backward(g)
	const h = 1e-6
	for l := range n.w {
		for i := 0; i < len(n.w[l]); i += 3 {
			w := n.w[l][i]
			n.w[l][i] = w + h
			up := loss()
			n.w[l][i] = w - h
			down := loss()
			n.w[l][i] = w
			if want := (up - down) / (2 * h); math.Abs(want-n.grad[l][i]) > 1e-6*(1+math.Abs(want)) {
				t.Fatalf("layer %d, weight %d: gradient %v, difference %v", l, i, n.grad[l][i], want)
			}
		}
	}
}

func TestLearnsAFunction(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	n := New(r, 1, 2, 32, 1)
	for range 8000 {
		for range 16 {
			a, b := r.Float64(), r.Float64()
			n.Backward([]float64{(n.Forward([]float64{a, b})[0] - a*b) / 8})
		}
		n.Step(3e-3, 10)
	}
	sum := 0.0
	for range 1000 {
		a, b := r.Float64(), r.Float64()
		d := n.Forward([]float64{a, b})[0] - a*b
		sum += d * d / 1000
	}
	if rms := math.Sqrt(sum); rms > 0.02 {
		t.Errorf("off by %.3f after training, root of the mean square", rms)
	}
}

func TestReadGivesTheSameNumbers(t *testing.T) {
	n := New(rand.New(rand.NewPCG(3, 3)), 1, 7, 8, 2)
	b := n.AppendBinary(nil)
	m, err := Read(b, 7, 8, 2)
	if err != nil {
		t.Fatal(err)
	}
	x := []float64{1, 2, 3, 4, 5, 6, 7}
	for i, y := range n.Forward(x) {
		if z := m.Forward(x)[i]; math.Abs(y-z) > 1e-5*math.Abs(y) {
			t.Errorf("output %d is %v after reading, %v before", i, z, y)
		}
	}
	for _, bad := range [][]byte{nil, b[:20], b[:len(b)-1], append(b, 0)} {
		if _, err := Read(bad, 7, 8, 2); err == nil {
			t.Errorf("%d bytes were read as a network of %d", len(bad), len(b))
		}
	}
	if _, err := Read(b, 7, 8, 3); err == nil {
		t.Error("a network of other sizes was read")
	}
}

func TestForwardAllocatesNothing(t *testing.T) {
	n := New(rand.New(rand.NewPCG(3, 3)), 1, 7, 64, 128, 7)
	x := make([]float64, 7)
	if a := testing.AllocsPerRun(100, func() { n.Forward(x) }); a != 0 {
		t.Errorf("%v allocations", a)
	}
}

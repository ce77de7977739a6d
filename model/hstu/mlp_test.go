package hstu

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// quickSigmoid is within its error of sigmoid, and keeps NaN.
func TestQuickSigmoid(t *testing.T) {
	worst := 0.0
	for x := float32(-86); x < 120; x += 1.0 / 512 {
		want := 1 / (1 + math.Exp(-float64(x)))
		worst = max(worst, math.Abs(float64(quickSigmoid(x))-want)/want/(1+math.Abs(float64(x))))
	}
	if worst > 2e-7 { // rounding to float32 alone takes 6e-8, of the result and of what is exponentiated
		t.Errorf("off by %g·(1+|x|)", worst)
	}
	inf := float32(math.Inf(1))
	for x, want := range map[float32]float32{-inf: 0, -1000: 0, 0: 0.5, 1000: 1, inf: 1} {
		if got := quickSigmoid(x); math.Abs(float64(got-want)) > 1e-37 {
			t.Errorf("of %v it is %v, want %v", x, got, want)
		}
	}
	if x := quickSigmoid(float32(math.NaN())); x == x {
		t.Errorf("of NaN it is %v", x)
	}
}

// swish is x·sigmoid(LayerNorm(x)) for rows of any width.
func TestSwish(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for width := 1; width < 12; width++ {
		n := &norm{make([]float32, width), make([]float32, width)}
		rows := make([]float32, 3*width)
		for i := range width {
			n.gain[i], n.shift[i] = float32(r.NormFloat64()), float32(r.NormFloat64())
		}
		for i := range rows {
			rows[i] = float32(3 * r.NormFloat64())
		}
		want := make([]float64, len(rows))
		for i := range rows {
			row, mean, square := rows[i/width*width:][:width], 0.0, 0.0
			for _, v := range row {
				mean += float64(v) / float64(width)
			}
			for _, v := range row {
				square += (float64(v) - mean) * (float64(v) - mean) / float64(width)
			}
			x := float64(rows[i])
			y := (x-mean)/math.Sqrt(square+epsMLP)*float64(n.gain[i%width]) + float64(n.shift[i%width])
			want[i] = x / (1 + math.Exp(-y))
		}
		n.swish(rows)
		for i, w := range want {
			if math.Abs(float64(rows[i])-w) > 2e-6*max(1, math.Abs(w)) {
				t.Errorf("width %d: value %d is %v, want %v", width, i, rows[i], w)
			}
		}
	}
}

func BenchmarkSwish(b *testing.B) {
	n := &norm{make([]float32, 512), make([]float32, 512)}
	rows := make([]float32, 100*512)
	for i := range rows {
		rows[i], n.gain[i%512] = float32(i%7)-3, 1
	}
	was := slices.Clone(rows)
	for b.Loop() {
		copy(rows, was)
		n.swish(rows)
	}
}

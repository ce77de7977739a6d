package hstu

import (
	"fmt"
	"math"
	"runtime"

	"grebe/compute"
	"grebe/internal/contain"
)

// epsMLP is of the norms outside the layers.
const epsMLP = 1e-5

// linear is a matrix [out][in] with a bias, for rows in the host's memory. It computes in float32: on the
// device where that multiplies for the host, else here.
type linear struct {
	out, in int
	packed  compute.Linear // nil: weights
	mul     compute.Multiplier
	weights []float32
	bias    []float32 // nil: none
}

func newLinear(dev compute.Device, weights []float32, out, in int, bias []float32) (*linear, error) {
	l := &linear{out: out, in: in, weights: weights, bias: bias}
	mul, ok := dev.(compute.Multiplier)
	if !ok {
		return l, nil
	}
	packed, err := dev.Linear(compute.F32, tensorF32(weights, out, in))
	if err != nil {
		return nil, err
	}
	l.packed, l.mul, l.weights = packed, mul, nil
	return l, nil
}

// apply returns rows·weightsᵀ + bias.
func (l *linear) apply(rows []float32) ([]float32, error) {
	n := len(rows) / l.in
	out := make([]float32, n*l.out)
	if l.packed != nil {
		if err := l.mul.Multiply(l.packed, rows, out); err != nil {
			return nil, fmt.Errorf("hstu: %w", err)
		}
	} else {
		l.multiply(rows, out)
	}
	for i := 0; i < len(out) && l.bias != nil; i += l.out {
		row := out[i : i+l.out]
		for j, b := range l.bias {
			row[j] += b
		}
	}
	return out, nil
}

// ownWork is how many products are worth a goroutine.
const ownWork = 1 << 18

// multiply sets out = rows·weightsᵀ, on as many cores as are worth it.
func (l *linear) multiply(rows, out []float32) {
	parts := max(1, min(runtime.GOMAXPROCS(0), len(out)*l.in/ownWork))
	var wg contain.Group
	for p := range parts {
		wg.Go(func() {
			for at := len(out) * p / parts; at < len(out)*(p+1)/parts; at++ {
				i, j := at/l.out, at%l.out
				out[at] = dot(rows[i*l.in:][:l.in], l.weights[j*l.in:][:l.in])
			}
		})
	}
	wg.Wait()
}

func dot(a, b []float32) float32 {
	var s [4]float32
	b = b[:len(a)]
	i := 0
	for ; i+4 <= len(a); i += 4 {
		s[0] += a[i] * b[i]
		s[1] += a[i+1] * b[i+1]
		s[2] += a[i+2] * b[i+2]
		s[3] += a[i+3] * b[i+3]
	}
	for ; i < len(a); i++ {
		s[0] += a[i] * b[i]
	}
	return s[0] + s[1] + s[2] + s[3]
}

// norm is a LayerNorm.
type norm struct{ gain, shift []float32 }

// apply norms rows in place.
func (n *norm) apply(rows []float32) {
	width := len(n.gain)
	for i := 0; i < len(rows); i += width {
		normRow(rows[i:i+width], n.gain, n.shift)
	}
}

// swish replaces rows by x·sigmoid(LayerNorm(x)).
func (n *norm) swish(rows []float32) {
	width := len(n.gain)
	gain, shift := n.gain, n.shift[:width]
	for i := 0; i < len(rows); i += width {
		row := rows[i : i+width]
		mean, scale := moments(row)
		for j, v := range row {
			row[j] = v * quickSigmoid(float32((float64(v)-mean)*scale)*gain[j]+shift[j])
		}
	}
}

func normRow(x, gain, shift []float32) {
	mean, scale := moments(x)
	for i, v := range x {
		x[i] = float32((float64(v)-mean)*scale)*gain[i] + shift[i]
	}
}

// moments returns the mean, and one over the standard deviation. Four sums each run side by side.
func moments(x []float32) (mean, scale float64) {
	var sum, square [4]float64
	whole := len(x) &^ 3
	for i := 0; i < whole; i += 4 {
		v := x[i : i+4 : i+4]
		sum[0] += float64(v[0])
		sum[1] += float64(v[1])
		sum[2] += float64(v[2])
		sum[3] += float64(v[3])
	}
	for _, v := range x[whole:] {
		sum[0] += float64(v)
	}
	mean = (sum[0] + sum[1] + sum[2] + sum[3]) / float64(len(x))
	for i := 0; i < whole; i += 4 {
		v := x[i : i+4 : i+4]
		a, b, c, d := float64(v[0])-mean, float64(v[1])-mean, float64(v[2])-mean, float64(v[3])-mean
		square[0] += a * a
		square[1] += b * b
		square[2] += c * c
		square[3] += d * d
	}
	for _, v := range x[whole:] {
		square[0] += (float64(v) - mean) * (float64(v) - mean)
	}
	return mean, 1 / math.Sqrt((square[0]+square[1]+square[2]+square[3])/float64(len(x))+epsMLP)
}

// quickSigmoid is sigmoid in float32: to a relative error of 2e-7·(1+|x|), and 1e-38 or so for what is less.
func quickSigmoid(x float32) float32 {
	const (
		log2e = -math.Log2E
		round = 3 << 22 // a sum with it has no fraction
	)
	switch { // branches that are foreseen; max and min take longer
	case x != x:
		return x
	case x < -87:
		x = -87
	case x > 87:
		x = 87
	}
	t := log2e * x
	whole := t + round
	n := int32(math.Float32bits(whole)) - int32(math.Float32bits(round))
	f := t - (whole - round) // −0.5 to 0.5
	// 2^f: its Taylor series.
	p := float32(1.5403530e-4)
	p = p*f + 1.3333558e-3
	p = p*f + 9.6181291e-3
	p = p*f + 5.5504109e-2
	p = p*f + 2.4022651e-1
	p = p*f + 6.9314718e-1
	p = p*f + 1
	return 1 / (1 + math.Float32frombits(uint32(int32(math.Float32bits(p))+n<<23)))
}

func sigmoid(x float32) float32 { return float32(1 / (1 + math.Exp(-float64(x)))) }

// mlp is Linear, SwishLayerNorm, Linear and maybe LayerNorm.
type mlp struct {
	first, second *linear
	swish         *norm
	last          *norm // nil: none
}

func (m *mlp) apply(rows []float32) ([]float32, error) {
	h, err := m.first.apply(rows)
	if err != nil {
		return nil, err
	}
	m.swish.swish(h)
	out, err := m.second.apply(h)
	if err != nil {
		return nil, err
	}
	if m.last != nil {
		m.last.apply(out)
	}
	return out, nil
}

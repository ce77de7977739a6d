// Package net has the small networks of package alloc: layers of weights with rectified units, forward without
// allocation, gradients by hand, Adam. All sums are made in one order, so that training is a function of its seed. It
// is pure. A Net is not safe for concurrent use, since it keeps the activations of its last input.
package net

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
)

// Net is a chain of dense layers with rectified units between them. The last layer is linear.
type Net struct {
	sizes  []int
	w      [][]float64 // of layer i: [in][out], then a bias per out
	grad   [][]float64
	m, v   [][]float64 // of Adam
	steps  int
	values [][]float64 // activations of the last input, by layer; 0 is the input
	back   [][]float64 // gradients of values
}

// New returns a network with sizes[0] inputs and sizes[len−1] outputs. Weights are drawn from r with He's deviation;
// the last layer's times last, so that 0 makes all outputs 0.
func New(r *rand.Rand, last float64, sizes ...int) *Net {
	n := &Net{sizes: sizes}
	for i := range sizes[:len(sizes)-1] {
		in, out := sizes[i], sizes[i+1]
		w := make([]float64, (in+1)*out)
		scale := math.Sqrt(2 / float64(in))
		if i == len(sizes)-2 {
			scale *= last
		}
		for j := range in * out {
			w[j] = scale * r.NormFloat64()
		}
		n.w = append(n.w, w)
		n.grad = append(n.grad, make([]float64, len(w)))
		n.m = append(n.m, make([]float64, len(w)))
		n.v = append(n.v, make([]float64, len(w)))
	}
	for _, s := range sizes {
		n.values = append(n.values, make([]float64, s))
		n.back = append(n.back, make([]float64, s))
	}
	return n
}

// Parameters returns how many weights and biases there are.
func (n *Net) Parameters() int {
	sum := 0
	for _, w := range n.w {
		sum += len(w)
	}
	return sum
}

// Forward returns the outputs for x. They are valid until the next call.
func (n *Net) Forward(x []float64) []float64 {
	copy(n.values[0], x)
	for l, w := range n.w {
		out := n.values[l+1]
		multiply(out, n.values[l], w)
		if l == len(n.w)-1 {
			break
		}
		for j, a := range out {
			out[j] = max(a, 0)
		}
	}
	return n.values[len(n.w)]
}

// multiply sets out to the bias and the products of in with the rows of w. Rows of inputs that are 0 are left out, the
// others taken four at a time, each sum in the order of the inputs.
func multiply(out, in, w []float64) {
	width := len(out)
	copy(out, w[len(in)*width:])
	var a [4]float64
	var rows [4][]float64
	held := 0
	for i, x := range in {
		if x == 0 {
			continue
		}
		a[held], rows[held] = x, w[i*width:(i+1)*width]
		if held++; held < 4 {
			continue
		}
		held = 0
		r0, r1, r2, r3 := rows[0][:width], rows[1][:width], rows[2][:width], rows[3][:width]
		for j := range out {
			out[j] = out[j] + a[0]*r0[j] + a[1]*r1[j] + a[2]*r2[j] + a[3]*r3[j]
		}
	}
	for k := range held {
		row := rows[k][:width]
		for j := range out {
			out[j] += a[k] * row[j]
		}
	}
}

// Backward adds to the gradients those of a loss whose gradient by the outputs of the last Forward is g.
func (n *Net) Backward(g []float64) {
	copy(n.back[len(n.w)], g)
	for l := len(n.w) - 1; l >= 0; l-- {
		in, w, grad, back, down := n.values[l], n.w[l], n.grad[l], n.back[l+1], n.back[l]
		width := len(back)
		for i, a := range in {
			if a == 0 && l > 0 { // a rectified unit that is off passes nothing on
				down[i] = 0
				continue
			}
			row, gr := w[i*width:(i+1)*width], grad[i*width:(i+1)*width]
			sum := 0.0
			for j, b := range back {
				gr[j] += a * b
				sum += row[j] * b
			}
			down[i] = sum
		}
		bias := grad[len(in)*width:]
		for j, b := range back {
			bias[j] += b
		}
	}
}

// Step moves the weights against the gradients by Adam, with the gradients' norm cut to clip, and clears them.
func (n *Net) Step(rate, clip float64) {
	norm := 0.0
	for _, g := range n.grad {
		for _, x := range g {
			norm += x * x
		}
	}
	scale := 1.0
	if norm = math.Sqrt(norm); norm > clip {
		scale = clip / norm
	}
	n.steps++
	const b1, b2 = 0.9, 0.999
	c1, c2 := 1-math.Pow(b1, float64(n.steps)), 1-math.Pow(b2, float64(n.steps))
	for l, g := range n.grad {
		w, m, v := n.w[l], n.m[l], n.v[l]
		for i := range g {
			x := g[i] * scale
			m[i] = b1*m[i] + (1-b1)*x
			v[i] = b2*v[i] + (1-b2)*x*x
			w[i] -= rate * (m[i] / c1) / (math.Sqrt(v[i]/c2) + 1e-8)
		}
		clear(g)
	}
}

// Descend moves the weights against the gradients, plainly, and clears them.
func (n *Net) Descend(rate float64) {
	for l, g := range n.grad {
		w := n.w[l]
		for i := range g {
			w[i] -= rate * g[i]
		}
		clear(g)
	}
}

const magic = "grebe net 1\n"

// AppendBinary appends the network: its sizes and weights as 32-bit floats.
func (n *Net) AppendBinary(b []byte) []byte {
	b = append(b, magic...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(n.sizes)))
	for _, s := range n.sizes {
		b = binary.LittleEndian.AppendUint32(b, uint32(s))
	}
	for _, w := range n.w {
		for _, x := range w {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(x)))
		}
	}
	return b
}

// Read reads a network of the given sizes.
func Read(b []byte, sizes ...int) (*Net, error) {
	n := New(rand.New(rand.NewPCG(0, 0)), 0, sizes...)
	head := len(n.AppendBinary(nil)) - 4*n.Parameters()
	if len(b) != head+4*n.Parameters() || string(b[:head]) != string(n.AppendBinary(nil)[:head]) {
		return nil, fmt.Errorf("net: %d bytes are no network of sizes %v", len(b), sizes)
	}
	b = b[head:]
	for _, w := range n.w {
		for i := range w {
			w[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(b)))
			if math.IsNaN(w[i]) || math.IsInf(w[i], 0) {
				return nil, fmt.Errorf("net: a weight is %v", w[i])
			}
			b = b[4:]
		}
	}
	return n, nil
}

// Clone returns a network with the same weights, for another goroutine to run forward.
func (n *Net) Clone() *Net {
	c := New(rand.New(rand.NewPCG(0, 0)), 0, n.sizes...)
	for l := range n.w {
		copy(c.w[l], n.w[l])
	}
	return c
}

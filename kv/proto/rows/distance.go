package rows

import (
	"math"

	"grebe/compute"
)

// Turn is by how much keys are turned so that they stand at another position.
type Turn struct{ cos, sin []float32 }

// NewTurn turns by so many positions.
func NewTurn(s *compute.Shape, by int) Turn {
	t := Turn{make([]float32, len(s.Rope.InvFreq)), make([]float32, len(s.Rope.InvFreq))}
	for i, f := range s.Rope.InvFreq {
		sin, cos := math.Sincos(float64(by) * float64(f))
		t.sin[i], t.cos[i] = float32(sin), float32(cos)
	}
	return t
}

// Distance compares tokens' keys and values of a layer.
type Distance struct{ a, b []float32 }

// Of returns the square of how far those of a token are from those of another, whose keys are turned to where it
// stands.
func (d *Distance) Of(s *compute.Shape, layer int, a *Chunk, at int, b *Chunk, there int, turn Turn) float64 {
	n := s.HeadDim
	if len(d.a) < n {
		d.a, d.b = make([]float32, n), make([]float32, n)
	}
	sum := 0.0
	for i := range 2 * s.KVHeads {
		x, y := d.a[:n], d.b[:n]
		floats(x, a.Bytes[s.TokenAt(layer, i, at, a.Tokens):], s.KV)
		floats(y, b.Bytes[s.TokenAt(layer, i, there, b.Tokens):], s.KV)
		if i < s.KVHeads {
			for k, sin := range turn.sin {
				u, v, cos := y[k], y[k+n/2], turn.cos[k]
				y[k], y[k+n/2] = u*cos-v*sin, v*cos+u*sin
			}
		}
		for k := range x {
			off := float64(x[k] - y[k])
			sum += off * off
		}
	}
	return sum
}

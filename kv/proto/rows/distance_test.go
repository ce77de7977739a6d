package rows

import (
	"math"
	"math/rand/v2"
	"testing"

	"grebe/compute"
)

// A distance is that of keys turned back to where both stand at 0, and of values.
func TestDistance(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, format := range []compute.DType{compute.F32, compute.BF16} {
		s := &compute.Shape{Layers: 2, KVHeads: 2, HeadDim: 8, KV: format}
		for i := range 4 {
			s.Rope.InvFreq = append(s.Rope.InvFreq, float32(math.Pow(100, -float64(i)/4)))
		}
		chunk := func(room int) *Chunk {
			c := &Chunk{Bytes: make([]byte, s.ChunkBytes(room, false)), Tokens: room, Len: room}
			for i := 0; i < len(c.Bytes); i += format.Size() {
				bits := math.Float32bits(float32(r.NormFloat64()))
				for b := range format.Size() {
					c.Bytes[i+b] = byte(bits >> (32 - 8*format.Size() + 8*b))
				}
			}
			return c
		}
		a, b := chunk(5), chunk(3)
		var d Distance
		for range 20 {
			layer, at, there, one, two := r.IntN(2), r.IntN(5), r.IntN(3), r.IntN(100), r.IntN(100)
			x, y := make([]float32, 2*Width(s)), make([]float32, 2*Width(s))
			a.Keys(x[:Width(s)], s, layer, at, one)
			a.Values(x[Width(s):], s, layer, at)
			b.Keys(y[:Width(s)], s, layer, there, two)
			b.Values(y[Width(s):], s, layer, there)
			want := 0.0
			for i := range x {
				want += float64(x[i]-y[i]) * float64(x[i]-y[i])
			}
			if got := d.Of(s, layer, a, at, b, there, NewTurn(s, one-two)); math.Abs(got-want) > 1e-4*want {
				t.Errorf("%v: %v, want %v", format, got, want)
			}
		}
	}
}

package blend

import (
	"math"
	"unsafe"

	"grebe/blend"
	"grebe/compute"
	"grebe/engine"
)

// rule returns a way to choose; nil for the engine's own.
func (s *system) rule(name string, parts []engine.Part) *engine.Rule {
	switch name {
	case "cacheblend":
		d := &deviation{shape: s.model.Shape(), parts: parts}
		return &engine.Rule{Layer: 1, Score: d.score}
	case "epic":
		return &engine.Rule{Score: func(score, _ []float32, from []blend.Source, segments []compute.Segment) {
			begins := make([]bool, len(score))
			for i := range parts {
				begins[segments[parts[i].Segment].First-segments[0].First+parts[i].At] = true
			}
			blend.ByPlace(score, from, begins)
		}}
	}
	return nil
}

// deviation is CacheBlend's score: how far K and V of the second layer are from what stands in for them.
type deviation struct {
	shape compute.Shape
	parts []engine.Part
}

func (d *deviation) score(score, _ []float32, from []blend.Source, segments []compute.Segment) {
	clear(score)
	for i := range d.parts {
		p := &d.parts[i]
		g := &segments[p.Segment]
		chunks := p.Entry.AppendChunks(nil)
		for t := range p.Tokens {
			own, at := find(g.Chunks, p.At+t)
			other, there := find(chunks, p.First+t)
			score[g.First-segments[0].First+p.At+t] = float32(d.distance(own, at, other, there, p.Turn))
		}
	}
}

// find returns the chunk of a token and its place there.
func find(chunks []compute.Chunk, token int) (*compute.Chunk, int) {
	i := 0
	for token >= chunks[i].Tokens {
		token -= chunks[i].Tokens
		i++
	}
	return &chunks[i], token
}

// distance is that of a token's K and V in layer 1, K turned.
func (d *deviation) distance(own *compute.Chunk, at int, other *compute.Chunk, there, turn int) float64 {
	sum, n := 0.0, d.shape.HeadDim
	for i := range 2 * d.shape.KVHeads {
		a, b := d.vector(own, i, at), d.vector(other, i, there)
		if i < d.shape.KVHeads {
			for k, f := range d.shape.Rope.InvFreq {
				sin, cos := math.Sincos(float64(turn) * float64(f))
				x, y := b[k], b[k+n/2]
				b[k], b[k+n/2] = x*cos-y*sin, y*cos+x*sin
			}
		}
		for k := range a {
			sum += (a[k] - b[k]) * (a[k] - b[k])
		}
	}
	return sum
}

func (d *deviation) vector(c *compute.Chunk, i, token int) []float64 {
	b := c.Bytes[d.shape.TokenAt(1, i, token, c.Tokens):]
	out := make([]float64, d.shape.HeadDim)
	for k := range out {
		if d.shape.KV == compute.BF16 {
			out[k] = float64(math.Float32frombits(uint32(b[2*k])<<16 | uint32(b[2*k+1])<<24))
			continue
		}
		out[k] = float64(*(*float32)(unsafe.Pointer(&b[4*k])))
	}
	return out
}

package blend

import (
	"fmt"
	"math"
	"unsafe"

	"grebe/blend"
	"grebe/compute"
	"grebe/engine"
)

// rule returns a way to choose; nil for the engine's own.
func (s *system) rule(name string, parts []engine.Part) *engine.Rule {
	d := &deviation{shape: s.model.Shape(), memory: s.device.Memory(), parts: parts}
	switch name {
	case "cacheblend":
		return &engine.Rule{Layer: 1, Received: s.onGPU(), Score: func(score, _ []float32, _ []blend.Source, segments []compute.Segment) {
			d.score(score, segments)
		}}
	case "both":
		return &engine.Rule{Layer: 1, Received: true, Score: func(score, received []float32, from []blend.Source, segments []compute.Segment) {
			blend.ByAttention(score, received, drifts(len(score), parts, segments), blend.DriftWeight)
			deviated := make([]float32, len(score))
			d.score(deviated, segments)
			blend.AddDeviation(score, deviated, from)
		}}
	case "epic":
		return &engine.Rule{Score: func(score, _ []float32, from []blend.Source, segments []compute.Segment) {
			blend.ByPlace(score, from, begins(len(score), parts, segments))
		}}
	case "rcllm":
		return &engine.Rule{Received: true, Score: func(score, received []float32, _ []blend.Source, segments []compute.Segment) {
			const weight = 4 // which was best for this rule
			blend.ByAttention(score, received, drifts(len(score), parts, segments), weight)
		}}
	}
	return nil
}

// onGPU reports whether K and V are where the host does not see them. Rules that read them wait for the layer there, which
// asking for the attention received does.
func (s *system) onGPU() bool { return s.device.Memory().Host() != s.device.Memory() }

// begins says which rows are the first of a part.
func begins(rows int, parts []engine.Part, segments []compute.Segment) []bool {
	out := make([]bool, rows)
	for i := range parts {
		out[row(&parts[i], segments)] = true
	}
	return out
}

// drifts are those of the parts' rows.
func drifts(rows int, parts []engine.Part, segments []compute.Segment) []float32 {
	out := make([]float32, rows)
	for i := range parts {
		copy(out[row(&parts[i], segments):], parts[i].Drift)
	}
	return out
}

// row is the first of a part.
func row(p *engine.Part, segments []compute.Segment) int {
	return segments[p.Segment].First - segments[0].First + p.At
}

// deviation is CacheBlend's score: how far K and V of the second layer are from what stands in for them.
type deviation struct {
	shape  compute.Shape
	memory compute.Memory
	parts  []engine.Part
	turn   [2][]float64 // sines and cosines of a part's turn
	pair   [2][]float64 // a token's own vector, and what stands in for it
}

func (d *deviation) score(score []float32, segments []compute.Segment) {
	clear(score)
	host := map[int][]compute.Chunk{} // by segment
	for i := range d.parts {
		p := &d.parts[i]
		if host[p.Segment] == nil {
			host[p.Segment] = d.seen(segments[p.Segment].Chunks)
		}
		chunks := d.seen(p.Entry.AppendChunks(nil))
		d.turns(p.Turn)
		for t := range p.Tokens {
			own, at := find(host[p.Segment], p.At+t)
			other, there := find(chunks, p.First+t)
			score[row(p, segments)+t] = float32(d.distance(own, at, other, there))
		}
	}
}

// seen returns chunks whose bytes the host sees.
func (d *deviation) seen(chunks []compute.Chunk) []compute.Chunk {
	out := make([]compute.Chunk, len(chunks))
	copy(out, chunks)
	for i := range out {
		if c := &out[i]; c.Bytes == nil {
			c.Bytes = make([]byte, c.Size)
			if err := d.memory.Read(c.Bytes, compute.Block{Addr: c.Addr, Size: c.Size}); err != nil {
				panic(fmt.Sprintf("bench blend: read K and V: %v", err)) // a benchmark: nothing is served
			}
		}
	}
	return out
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

// turns sets how K of a part is turned.
func (d *deviation) turns(by int) {
	d.turn[0], d.turn[1] = d.turn[0][:0], d.turn[1][:0]
	for _, f := range d.shape.Rope.InvFreq {
		sin, cos := math.Sincos(float64(by) * float64(f))
		d.turn[0], d.turn[1] = append(d.turn[0], sin), append(d.turn[1], cos)
	}
}

// distance is that of a token's K and V in layer 1, K turned.
func (d *deviation) distance(own *compute.Chunk, at int, other *compute.Chunk, there int) float64 {
	sum, n := 0.0, d.shape.HeadDim
	for i := range 2 * d.shape.KVHeads {
		d.pair[0], d.pair[1] = d.vector(d.pair[0], own, i, at), d.vector(d.pair[1], other, i, there)
		a, b := d.pair[0], d.pair[1]
		if i < d.shape.KVHeads {
			for k, sin := range d.turn[0] {
				x, y, cos := b[k], b[k+n/2], d.turn[1][k]
				b[k], b[k+n/2] = x*cos-y*sin, y*cos+x*sin
			}
		}
		for k := range a {
			sum += (a[k] - b[k]) * (a[k] - b[k])
		}
	}
	return sum
}

// vector reads a head's K or V of a token in layer 1 into out, which it returns.
func (d *deviation) vector(out []float64, c *compute.Chunk, i, token int) []float64 {
	b := c.Bytes[d.shape.TokenAt(1, i, token, c.Tokens):]
	out = out[:0]
	for k := range d.shape.HeadDim {
		if d.shape.KV == compute.BF16 {
			out = append(out, float64(math.Float32frombits(uint32(b[2*k])<<16|uint32(b[2*k+1])<<24)))
			continue
		}
		out = append(out, float64(*(*float32)(unsafe.Pointer(&b[4*k]))))
	}
	return out
}

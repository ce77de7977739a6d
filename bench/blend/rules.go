package blend

import (
	"fmt"

	"grebe/blend"
	"grebe/compute"
	"grebe/engine"
	"grebe/kv/proto/rows"
	"grebe/plan"
)

// rule returns a way to choose; nil for the engine's own.
func (s *system) rule(name string, parts []engine.Part) *engine.Rule {
	d := &deviation{shape: s.model.Shape(), memory: s.device.Memory(), parts: parts}
	switch name {
	case "cacheblend":
		return &engine.Rule{Layer: 1, Received: s.onGPU(),
			Score: func(score, _ []float32, _ []plan.Source, segments []compute.Segment) {
				d.score(score, segments)
			}}
	case "both":
		return &engine.Rule{Layer: 1, Received: true, Score: func(score, received []float32, from []plan.Source,
			segments []compute.Segment) {
			blend.ByAttention(score, received, drifts(len(score), parts, segments), blend.DriftWeight)
			deviated := make([]float32, len(score))
			d.score(deviated, segments)
			blend.AddDeviation(score, deviated, from)
		}}
	case "epic":
		return &engine.Rule{Score: func(score, _ []float32, from []plan.Source, segments []compute.Segment) {
			blend.ByPlace(score, from, begins(len(score), parts, segments))
		}}
	case "rcllm":
		return &engine.Rule{Received: true, Score: func(score, received []float32, _ []plan.Source,
			segments []compute.Segment) {
			const weight = 4 // which was best for this rule
			blend.ByAttention(score, received, drifts(len(score), parts, segments), weight)
		}}
	}
	return nil
}

// onGPU reports whether K and V are where the host does not see them. Rules that read them wait for the layer there,
// which asking for the attention received does.
func (s *system) onGPU() bool { return s.device.Memory().Host() != s.device.Memory() }

// begins says which rows are the first of a part.
func begins(n int, parts []engine.Part, segments []compute.Segment) []bool {
	out := make([]bool, n)
	for i := range parts {
		out[row(&parts[i], segments)] = true
	}
	return out
}

// drifts are those of the parts' rows.
func drifts(n int, parts []engine.Part, segments []compute.Segment) []float32 {
	out := make([]float32, n)
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
	by     rows.Distance
}

func (d *deviation) score(score []float32, segments []compute.Segment) {
	clear(score)
	host := map[int][]rows.Chunk{} // by segment
	for i := range d.parts {
		p := &d.parts[i]
		if host[p.Segment] == nil {
			host[p.Segment] = d.seen(segments[p.Segment].Chunks)
		}
		chunks, turn := d.seen(p.Entry.AppendChunks(nil)), rows.NewTurn(&d.shape, p.Turn)
		for t := range p.Tokens {
			own, at := rows.Find(host[p.Segment], p.At+t)
			other, there := rows.Find(chunks, p.First+t)
			score[row(p, segments)+t] = float32(d.by.Of(&d.shape, 1, own, at, other, there, turn))
		}
	}
}

// seen returns chunks whose bytes the host sees.
func (d *deviation) seen(chunks []compute.Chunk) []rows.Chunk {
	out := make([]rows.Chunk, len(chunks))
	first := 0
	for i := range chunks {
		c := &chunks[i]
		out[i] = rows.Chunk{Bytes: c.Bytes, Tokens: c.Tokens, First: first, Len: c.Tokens}
		if first += c.Tokens; c.Bytes == nil {
			out[i].Bytes = make([]byte, c.Size)
			if err := d.memory.Read(out[i].Bytes, compute.Block{Addr: c.Addr, Size: c.Size}); err != nil {
				panic(fmt.Sprintf("bench blend: read K and V: %v", err)) // a benchmark: nothing is served
			}
		}
	}
	return out
}

package cpu

import (
	"math"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"grebe/compute"
)

// BenchmarkBlend times a blended pass against the plain one of the same prompt, in turns: Qwen3-0.6B's shape in
// bf16, 2,600 tokens of which the first 207 are cached, 40 % of the others' rows going on. It reports medians of
// the passes' milliseconds, of their ratio, of its share of what the ratio of computed tokens allows, and what
// placing and weighing take; and the ratio in processor time, which says more on a shared machine.
func BenchmarkBlend(b *testing.B) {
	s := compute.Shape{Layers: 28, Hidden: 1024, Heads: 16, KVHeads: 8, HeadDim: 128, Inter: 3072, Eps: 1e-6,
		KV:   compute.BF16,
		Rope: compute.Rope{Scale: 1}}
	for i := range s.HeadDim / 2 {
		s.Rope.InvFreq = append(s.Rope.InvFreq, float32(math.Pow(1e6, -2*float64(i)/float64(s.HeadDim))))
	}
	x := newBlendBench(b, s)
	var plain, blended, place, weigh, ratio, cpuRatio []float64
	for b.Loop() {
		start := cpuTime(b)
		p := x.pass(b, false)
		between := cpuTime(b)
		full := x.pass(b, true)
		cpuRatio = append(cpuRatio, (between-start)/(cpuTime(b)-between))
		plain, blended, ratio = append(plain, p), append(blended, full), append(ratio, p/full)
		weigh, place = append(weigh, x.received), append(place, x.place(b))
	}
	middle := func(v []float64) float64 { slices.Sort(v); return v[len(v)/2] }
	allowed := float64(len(x.batch.Tokens)) / float64(len(x.rows))
	b.ReportMetric(middle(plain), "plain-ms")
	b.ReportMetric(middle(blended), "blend-ms")
	b.ReportMetric(middle(ratio), "ratio")
	b.ReportMetric(100*middle(ratio)/allowed, "%-of-allowed")
	b.ReportMetric(100*middle(cpuRatio)/allowed, "%-of-allowed-cpu")
	b.ReportMetric(middle(place), "place-ms")
	b.ReportMetric(middle(weigh), "received-ms")
}

// cpuTime returns the processor time of the process in seconds.
func cpuTime(b *testing.B) float64 {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return float64(r.Utime.Nano()+r.Stime.Nano()) / 1e9
}

type blendBench struct {
	shape    compute.Shape
	runner   compute.Runner
	table    compute.Table
	norm     compute.Vector
	att      []compute.AttentionWeights
	ffn      []compute.FFNWeights
	batch    *compute.Batch
	parts    []compute.Part
	rows     []int32
	weights  []float32
	received float64 // milliseconds of the last pass's Received
}

func newBlendBench(b *testing.B, s compute.Shape) *blendBench {
	dev, err := New(Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { dev.Close() })
	x := &blendBench{shape: s}
	rng := rand.New(rand.NewPCG(1, 2))
	must := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	tensor := func(rows, cols int) compute.Tensor {
		t := compute.Tensor{DType: compute.BF16, Rows: rows, Cols: cols, Data: make([]byte, 2*rows*cols)}
		scale := float32(1 / math.Sqrt(float64(cols)))
		for i, v := 0, view[uint16](t.Data); i < len(v); i++ {
			v[i] = uint16(math.Float32bits(scale*float32(rng.Float64()*3.4-1.7)) >> 16)
		}
		return t
	}
	one := compute.Tensor{DType: compute.BF16, Rows: 1, Cols: s.Hidden, Data: make([]byte, 2*s.Hidden)}
	for i, v := 0, view[uint16](one.Data); i < len(v); i++ {
		v[i] = 0x3f80
	}
	x.norm, err = dev.Vector(one)
	must(err)
	one.Data, one.Cols = one.Data[:2*s.HeadDim], s.HeadDim
	head, err := dev.Vector(one)
	must(err)
	x.table, err = dev.Table(tensor(1000, s.Hidden))
	must(err)
	qkv, out := tensor((s.Heads+2*s.KVHeads)*s.HeadDim, s.Hidden), tensor(s.Hidden, s.Heads*s.HeadDim)
	gate, down := tensor(s.Inter, s.Hidden), tensor(s.Hidden, s.Inter)
	for range s.Layers { // each with its own memory
		a, f := compute.AttentionWeights{Norm: x.norm, QNorm: head, KNorm: head}, compute.FFNWeights{Norm: x.norm}
		a.QKV, err = dev.Linear(compute.BF16, qkv)
		must(err)
		a.Out, err = dev.Linear(compute.BF16, out)
		must(err)
		f.GateUp, err = dev.GateUp(compute.BF16, gate, gate)
		must(err)
		f.Down, err = dev.Linear(compute.BF16, down)
		must(err)
		x.att, x.ffn = append(x.att, a), append(x.ffn, f)
	}
	x.prompt(b, dev, rng)
	x.runner, err = dev.Open(s, len(x.batch.Tokens))
	must(err)
	b.Cleanup(func() { x.runner.Close() })
	return x
}

// prompt is a preamble, which is cached, a user, items of 20 tokens and an instruction.
func (x *blendBench) prompt(b *testing.B, dev compute.Device, rng *rand.Rand) {
	const preamble, user, items, instruction, item = 207, 473, 1860, 60, 20
	x.batch = &compute.Batch{}
	chunk := func(tokens int) compute.Chunk {
		block, err := dev.Memory().Alloc(x.shape.ChunkBytes(tokens, false))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { dev.Memory().Free(block) })
		for i, v := 0, view[uint16](block.Bytes); i < len(v); i++ {
			v[i] = 0x3c00 | uint16(rng.Uint32()&0x83ff)
		}
		return block.Chunk(tokens, false)
	}
	at := 0
	for i, n := range []int{preamble, user, items, instruction} {
		g := compute.Segment{First: len(x.batch.Tokens), Len: n}
		for j := range i {
			g.Sees = append(g.Sees, int32(j))
		}
		for room := 0; room < n; room += 64 {
			g.Chunks = append(g.Chunks, chunk(64))
		}
		if i == 0 {
			g.Cached = n
		}
		for t := range n {
			if i > 0 {
				x.batch.Tokens = append(x.batch.Tokens, rng.Int32N(1000))
				x.batch.Positions = append(x.batch.Positions, int32(at+t))
			}
			if row := int32(len(x.batch.Tokens)) - 1; i == 3 || i > 0 && rng.Float64() < 0.3845 {
				x.rows = append(x.rows, row)
			}
		}
		at += n
		x.batch.Segments = append(x.batch.Segments, g)
	}
	for t := 0; t < items; t += item {
		x.parts = append(x.parts, compute.Part{Segment: 2, At: t, Tokens: item, From: chunk(item), Turn: 700 + t})
	}
	page := compute.Chunk{}
	for t := range user {
		if t%64 == 0 {
			page = chunk(64)
		}
		x.parts = append(x.parts, compute.Part{Segment: 1, At: t, Tokens: 1, From: page, First: (t * 37) % 64, Turn: t - 300})
	}
	x.weights = make([]float32, len(x.batch.Tokens))
}

// pass returns the milliseconds of a pass.
func (x *blendBench) pass(b *testing.B, blend bool) float64 {
	r := x.runner
	start := time.Now()
	if err := r.Begin(x.batch); err != nil {
		b.Fatal(err)
	}
	r.Embed(x.table)
	last := int32(len(x.batch.Tokens) - 1)
	for l := range x.att {
		r.QKV(l, &x.att[l])
		r.Attend(l)
		if blend && l == 0 {
			r.(compute.Blender).Place(1, x.parts)
			t := time.Now()
			if err := r.(compute.Blender).Received(x.weights); err != nil {
				b.Fatal(err)
			}
			x.received = time.Since(t).Seconds() * 1e3
			r.Keep(x.rows)
		}
		if l == len(x.att)-1 {
			r.Keep([]int32{last})
		}
		r.Output(&x.att[l])
		r.FFN(&x.ffn[l])
	}
	if err := r.Hidden(x.norm, []int32{last}, make([]float32, x.shape.Hidden)); err != nil {
		b.Fatal(err)
	}
	return time.Since(start).Seconds() * 1e3
}

// place returns the milliseconds of placing what stands in for rows in all layers but the first.
func (x *blendBench) place(b *testing.B) float64 {
	r := x.runner
	if err := r.Begin(x.batch); err != nil {
		b.Fatal(err)
	}
	r.Embed(x.table)
	start := time.Now()
	r.(compute.Blender).Place(1, x.parts)
	r.Keep(x.rows)
	if err := r.Hidden(x.norm, x.rows[:1], make([]float32, x.shape.Hidden)); err != nil {
		b.Fatal(err)
	}
	return time.Since(start).Seconds() * 1e3
}

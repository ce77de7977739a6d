package cuda

import (
	"math"
	"testing"

	"grebe/compute"
	"grebe/compute/cuda/drivertest"
)

// BenchmarkSTUHost is what the host does for a batch of 16 rankings by a model of events, each with 15,000 cached
// events, 20 new ones and 100 candidates: the GPU is simulated and computes nothing.
func BenchmarkSTUHost(b *testing.B) {
	b.Setenv("GREBE_KERNEL_CACHE", b.TempDir())
	g := drivertest.New()
	defer g.Close()
	g.Kernels = nil
	dev, err := New(Options{FixedSplit: true})
	if err != nil {
		b.Fatal(err)
	}
	d := dev.(*device)
	defer d.Close()
	s := compute.Shape{Layers: 6, Hidden: 512, Heads: 8, KVHeads: 8, HeadDim: 64, Eps: 1e-6, KV: compute.BF16,
		Pointwise: &compute.Pointwise{Alpha: float32(1 / math.Sqrt(64)), Scale: 1.0 / 16384}}
	w := stuWeights(b, d, &s)
	table, err := d.Table(noise(100, s.Hidden, 1))
	if err != nil {
		b.Fatal(err)
	}
	const requests, stored, fresh, candidates = 16, 15_000, 20, 100
	const chunk = 64
	r, err := d.Open(s, 2048)
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	kv, err := d.Memory().Alloc(s.ChunkBytes(chunk, false))
	if err != nil {
		b.Fatal(err)
	}
	defer d.Memory().Free(kv)
	own, err := d.Memory().Alloc(s.ChunkBytes(1, true))
	if err != nil {
		b.Fatal(err)
	}
	defer d.Memory().Free(own)
	batch := &compute.Batch{}
	var keep []int32
	add := func(seg compute.Segment) {
		seg.First = len(batch.Tokens)
		for i := seg.Cached; i < seg.Len; i++ {
			batch.Tokens, batch.Positions = append(batch.Tokens, 1), append(batch.Positions, int32(seg.Start+i))
		}
		batch.Segments = append(batch.Segments, seg)
	}
	for range requests {
		user := compute.Segment{Cached: stored, Len: stored + fresh}
		for at := 0; at < user.Len; at += chunk {
			user.Chunks = append(user.Chunks, kv.Chunk(chunk, false))
		}
		at := int32(len(batch.Segments))
		add(user)
		for range candidates {
			keep = append(keep, int32(len(batch.Tokens)))
			add(compute.Segment{Len: 1, Start: user.Len, Sees: []int32{at}, Chunks: []compute.Chunk{own.Chunk(1, true)}})
		}
	}
	rows := make([]int32, len(batch.Tokens))
	out := make([]float32, len(keep)*s.Hidden)
	stu := r.(compute.STU)
	pass := func() {
		if err := stu.Begin(batch); err != nil {
			b.Fatal(err)
		}
		stu.Sum([]compute.SumPart{{Table: table, Rows: rows, Scale: 1}, {Table: table, Rows: rows, Scale: 1},
			{Table: table, Rows: rows, Scale: 1}})
		for l := range w {
			stu.UVQK(l, &w[l])
			stu.Attend(l)
			if l == len(w)-1 {
				stu.Keep(keep)
			}
			stu.Mix(&w[l])
		}
		if err := stu.Hidden(nil, keep, out); err != nil {
			b.Fatal(err)
		}
		g.Launched = g.Launched[:0]
	}
	for range 3 {
		pass()
	}
	for b.Loop() {
		pass()
	}
}

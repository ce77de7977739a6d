package cuda

import (
	"math"
	"math/rand/v2"
	"testing"

	"grebe/compute"
	"grebe/compute/cuda/drivertest"
)

// stuRig is a model of events on a simulated GPU, which computes nothing.
type stuRig struct {
	tb      testing.TB
	d       *device
	s       compute.Shape
	w       []compute.STUWeights
	table   compute.Table
	r       compute.STU
	kv, own compute.Block
}

const stuChunk = 64 // tokens

func newSTURig(tb testing.TB, opt Options) (*drivertest.GPU, *stuRig) {
	tb.Helper()
	tb.Setenv("GREBE_KERNEL_CACHE", tb.TempDir())
	g := drivertest.New()
	tb.Cleanup(g.Close)
	g.Kernels = nil
	opt.FixedSplit = true
	dev, err := New(opt)
	if err != nil {
		tb.Fatal(err)
	}
	x := &stuRig{tb: tb, d: dev.(*device)}
	tb.Cleanup(func() { _ = x.d.Close() })
	x.s = compute.Shape{Layers: 6, Hidden: 512, Heads: 8, KVHeads: 8, HeadDim: 64, Eps: 1e-6, KV: compute.BF16,
		Pointwise: &compute.Pointwise{Alpha: float32(1 / math.Sqrt(64)), Scale: 1.0 / 16384}}
	x.w = stuWeights(tb, x.d, &x.s)
	if x.table, err = x.d.Table(noise(100, x.s.Hidden, 1)); err != nil {
		tb.Fatal(err)
	}
	r, err := x.d.Open(x.s, 2048)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = r.Close() })
	x.r = r.(compute.STU)
	for to, n := range map[*compute.Block]int{&x.kv: x.s.ChunkBytes(stuChunk, false), &x.own: x.s.ChunkBytes(1, true)} {
		if *to, err = x.d.Memory().Alloc(n); err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { x.d.Memory().Free(*to) })
	}
	return g, x
}

// stuBatch is rankings, and the rows whose states they want.
type stuBatch struct {
	batch compute.Batch
	keep  []int32
	rows  []int32
	out   []float32
}

func (b *stuBatch) add(seg compute.Segment) {
	seg.First = len(b.batch.Tokens)
	for i := seg.Cached; i < seg.Len; i++ {
		b.batch.Tokens = append(b.batch.Tokens, 1)
		b.batch.Positions = append(b.batch.Positions, int32(seg.Start+i))
	}
	b.batch.Segments = append(b.batch.Segments, seg)
}

// rank adds a ranking to a batch, for a user with stored events and new ones.
func (x *stuRig) rank(b *stuBatch, stored, fresh, candidates int) {
	user := compute.Segment{Cached: stored, Len: stored + fresh}
	for at := 0; at < user.Len; at += stuChunk {
		user.Chunks = append(user.Chunks, x.kv.Chunk(stuChunk, false))
	}
	at := int32(len(b.batch.Segments))
	b.add(user)
	for range candidates {
		b.keep = append(b.keep, int32(len(b.batch.Tokens)))
		b.add(compute.Segment{Len: 1, Start: user.Len, Sees: []int32{at}, Chunks: []compute.Chunk{x.own.Chunk(1, true)}})
	}
	b.rows = make([]int32, len(b.batch.Tokens))
	b.out = make([]float32, len(b.keep)*x.s.Hidden)
}

func (x *stuRig) pass(b *stuBatch) {
	x.tb.Helper()
	if err := x.r.Begin(&b.batch); err != nil {
		x.tb.Fatal(err)
	}
	part := compute.SumPart{Table: x.table, Rows: b.rows, Scale: 1}
	x.r.Sum([]compute.SumPart{part, part, part})
	for l := range x.w {
		x.r.UVQK(l, &x.w[l])
		x.r.Attend(l)
		if l == len(x.w)-1 {
			x.r.Keep(b.keep)
		}
		x.r.Mix(&x.w[l])
	}
	if err := x.r.Hidden(nil, b.keep, b.out); err != nil {
		x.tb.Fatal(err)
	}
}

// TestEventsRunAsGraphs: whatever users, events and candidates batches have, those whose rows have the same buckets run
// one graph, which is captured when the second one is seen. A runner keeps a bounded number.
func TestEventsRunAsGraphs(t *testing.T) {
	calls := map[string]int{}
	g, x := newSTURig(t, Options{})
	g.Fail = func(call string) int32 {
		calls[call]++
		return 0
	}
	defer func() { g.Fail = nil }()
	largest := &stuBatch{}
	for range 10 {
		x.rank(largest, 3000, 20, 30)
	}
	x.pass(largest) // memory that graphs use does not grow any more
	random := rand.New(rand.NewPCG(1, 2))
	seen := map[[2]int]int{}
	for range 400 {
		b := &stuBatch{}
		for range 1 + random.IntN(8) {
			x.rank(b, 1+random.IntN(3000), 1+random.IntN(20), 20+random.IntN(5))
		}
		clear(calls)
		x.pass(b)
		kind := [2]int{bucket(len(b.rows)), bucket(len(b.keep))}
		seen[kind]++
		switch graphs, launches := calls["cuGraphLaunch"], calls["cuLaunchKernelEx"]; {
		case seen[kind] == 1: // products of this size are timed, as graphs of their own
		case seen[kind] == 2 && (graphs != 1 || calls["cuGraphInstantiateWithFlags"] != 1):
			t.Fatalf("rows %v: seen again, %d graphs run and %d were captured, want one", kind, graphs,
				calls["cuGraphInstantiateWithFlags"])
		case seen[kind] > 2 && (graphs != 1 || launches > 2 || calls["cuGraphInstantiateWithFlags"] != 0):
			t.Fatalf("rows %v: seen %d times, %d graphs run, %d were captured and %d kernels launched; want one graph, and "+
				"kernels of the result only", kind, seen[kind], graphs, calls["cuGraphInstantiateWithFlags"], launches)
		}
		g.Launched = g.Launched[:0]
	}
	if n := len(x.r.(*runner).graphs.list); n != 1+len(seen) || n > maxGraphs {
		t.Errorf("%d graphs for %d kinds of batches", n, len(seen))
	}
}

// BenchmarkSTUHost is what the host does for a batch of 16 rankings by a model of events, each with 15,000 cached
// events, 20 new ones and 100 candidates: the GPU is simulated and computes nothing.
func BenchmarkSTUHost(b *testing.B) {
	g, x := newSTURig(b, Options{})
	batch := &stuBatch{}
	for range 16 {
		x.rank(batch, 15_000, 20, 100)
	}
	pass := func() {
		x.pass(batch)
		g.Launched = g.Launched[:0]
	}
	for range 3 {
		pass()
	}
	for b.Loop() {
		pass()
	}
}

package cuda

import (
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"grebe/compute"
)

// timedModel is a decoder with the widths of Qwen2-1.5B and random weights.
type timedModel struct {
	shape compute.Shape
	table compute.Table
	attn  []compute.AttentionWeights
	ffn   []compute.FFNWeights
}

const (
	timedLayers = 6
	timedRuns   = 25
)

// noise is a matrix of bf16 between −scale and scale.
func noise(rows, cols int, scale float32) compute.Tensor {
	t := compute.Tensor{DType: compute.BF16, Rows: rows, Cols: cols, Data: make([]byte, 2*rows*cols)}
	state := uint32(rows*7919 + cols)
	values := unsafe.Slice((*uint16)(unsafe.Pointer(&t.Data[0])), rows*cols)
	for i := range values {
		state = state*1664525 + 1013904223
		values[i] = toBF16(scale * (float32(state>>8)/(1<<23) - 1))
	}
	return t
}

func newTimed(t *testing.T, d compute.Device, kv compute.DType) *timedModel {
	t.Helper()
	m := &timedModel{shape: compute.Shape{Layers: timedLayers, Hidden: 1536, Heads: 12, KVHeads: 2, HeadDim: 128,
		Inter: 8960, Eps: 1e-6, KV: kv, Rope: compute.Rope{Scale: 1}}}
	s := &m.shape
	for i := range s.HeadDim / 2 {
		s.Rope.InvFreq = append(s.Rope.InvFreq, float32(math.Pow(1e6, -2*float64(i)/float64(s.HeadDim))))
	}
	check := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	linear := func(rows, cols int) compute.Linear {
		l, err := d.Linear(compute.BF16, noise(rows, cols, float32(math.Sqrt(3/float64(cols)))))
		check(err)
		return l
	}
	var err error
	m.table, err = d.Table(noise(1000, s.Hidden, 1))
	check(err)
	norm, err := d.Vector(noise(1, s.Hidden, 1))
	check(err)
	bias, err := d.Vector(noise(1, (s.Heads+2*s.KVHeads)*s.HeadDim, 0.5))
	check(err)
	for range s.Layers {
		gateUp, err := d.GateUp(compute.BF16, noise(s.Inter, s.Hidden, 0.04), noise(s.Inter, s.Hidden, 0.04))
		check(err)
		m.attn = append(m.attn, compute.AttentionWeights{
			Norm: norm, QKV: linear((s.Heads+2*s.KVHeads)*s.HeadDim, s.Hidden), QKVBias: bias,
			Out: linear(s.Hidden, s.Heads*s.HeadDim)})
		m.ffn = append(m.ffn, compute.FFNWeights{Norm: norm, GateUp: gateUp, Down: linear(s.Hidden, s.Inter)})
	}
	return m
}

// pass runs all layers of a batch.
func (m *timedModel) pass(r compute.Runner, b *compute.Batch, out []float32) error {
	if err := r.Begin(b); err != nil {
		return err
	}
	r.Embed(m.table)
	for l := range m.attn {
		r.QKV(l, &m.attn[l])
		r.Attend(l)
		r.Output(&m.attn[l])
		r.FFN(&m.ffn[l])
	}
	return r.Hidden(nil, []int32{0}, out)
}

// TestTimes prints how long a pass of some layers takes, by the format of KV. It is for people: GREBE_TIMES=1.
func TestTimes(t *testing.T) {
	only := os.Getenv("GREBE_TIMES")
	if only == "" {
		t.Skip("GREBE_TIMES is not set")
	}
	d := open(t, Options{})
	defer d.Close()
	for _, kv := range []compute.DType{compute.BF16, compute.FP8} {
		if only != "1" && !strings.Contains(only, kv.String()) {
			continue
		}
		m := newTimed(t, d, kv)
		for _, c := range []struct{ cached, rows, items int }{
			{0, 256, 0}, {0, 1024, 0}, {0, 4096, 0}, {1000, 1500, 100}, {8000, 128, 1}} {
			took := timePasses(t, d, m, c.cached, c.rows, c.items)
			t.Logf("%v: %d rows, %d cached in %d segments: %.1f µs a layer", kv, c.rows, c.cached, c.items,
				float64(took.Nanoseconds())/1e3/timedLayers)
		}
	}
}

// timePasses returns the median time of passes over rows that see cached tokens in so many segments.
func timePasses(t *testing.T, d compute.Device, m *timedModel, cached, rows, segments int) time.Duration {
	t.Helper()
	r, err := d.Open(m.shape, cached+rows)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b, free := timedBatch(t, d, m, cached, rows, segments, false)
	defer free()
	out := make([]float32, m.shape.Hidden)
	if err := m.pass(r, b, out); err != nil { // which fills what is cached
		t.Fatal(err)
	}
	chunks := b.Segments
	b, _ = timedBatch(t, nil, m, cached, rows, segments, true)
	for i := range b.Segments {
		b.Segments[i].Chunks = chunks[i].Chunks
	}
	var times []time.Duration
	for i := range timedRuns + 5 {
		begin := time.Now()
		if err := m.pass(r, b, out); err != nil {
			t.Fatal(err)
		}
		if i >= 5 {
			times = append(times, time.Since(begin))
		}
	}
	slices.Sort(times)
	return times[len(times)/2]
}

// timedBatch is segments that the last one sees; the others are cached, or not yet. Without a device it has no memory.
func timedBatch(t *testing.T, d compute.Device, m *timedModel, cached, rows, segments int,
	filled bool) (*compute.Batch, func()) {
	t.Helper()
	b := &compute.Batch{}
	var blocks []compute.Block
	add := func(n, have int, sees []int32) {
		g := compute.Segment{First: len(b.Tokens), Len: n, Cached: have, Sees: sees}
		if d != nil {
			block, err := d.Memory().Alloc(m.shape.ChunkBytes(n, false))
			if err != nil {
				t.Fatal(err)
			}
			blocks = append(blocks, block)
			g.Chunks = []compute.Chunk{block.Chunk(n, false)}
		}
		b.Segments = append(b.Segments, g)
		for i := have; i < n; i++ {
			b.Tokens, b.Positions = append(b.Tokens, int32(len(b.Tokens)%1000)), append(b.Positions, int32(i))
		}
	}
	var sees []int32
	for i := range segments {
		have := 0
		if filled {
			have = cached / segments
		}
		add(cached/segments, have, nil)
		sees = append(sees, int32(i))
	}
	add(rows, 0, sees)
	return b, func() {
		for _, block := range blocks {
			d.Memory().Free(block)
		}
	}
}

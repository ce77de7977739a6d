package null

import (
	"testing"
	"time"

	"grebe/compute"
)

var shape = compute.Shape{Layers: 2, Hidden: 8, Heads: 2, KVHeads: 1, HeadDim: 4, Inter: 16, KV: compute.F32,
	Rope: compute.Rope{InvFreq: make([]float32, 2), Scale: 1}}

// batch has a segment of four tokens of which one is cached, and one of two that sees it.
func batch(t *testing.T, m compute.Memory) *compute.Batch {
	t.Helper()
	chunk := func(n int) []compute.Chunk {
		b, err := m.Alloc(shape.ChunkBytes(n, false))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Free(b) })
		return []compute.Chunk{b.Chunk(n, false)}
	}
	return &compute.Batch{
		Tokens: []int32{1, 2, 3, 4, 5}, Positions: []int32{1, 2, 3, 4, 5},
		Segments: []compute.Segment{{Cached: 1, Len: 4, Chunks: chunk(4)},
			{First: 3, Len: 2, Sees: []int32{0}, Chunks: chunk(2)}},
	}
}

// A batch takes the time of its rows and keys, once, and its answers are the same whatever else is in it.
func TestTakesItsTime(t *testing.T) {
	var slept time.Duration
	d := New(Options{Fixed: time.Hour, Row: time.Minute, Key: time.Second, Sleep: func(d time.Duration) { slept += d }})
	r, err := d.Open(shape, 10)
	if err != nil {
		t.Fatal(err)
	}
	head, err := d.Table(compute.Tensor{Rows: 100, Cols: 8})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Begin(batch(t, d.Memory())); err != nil {
		t.Fatal(err)
	}
	out := make([]float32, 2)
	for range 2 {
		if err := r.Logits(nil, head, []compute.Pair{{Row: 2, ID: 7}, {Row: 4, ID: 7}}, out); err != nil {
			t.Fatal(err)
		}
	}
	const keys = 3*1 + 6 + 2*4 + 3
	if want := time.Hour + 5*time.Minute + keys*time.Second; slept > want || slept < want-time.Minute {
		t.Errorf("took %v, want %v", slept, want)
	}
	if out[0] != number(3, 3, 7) || out[0] == out[1] || out[0] < -1 || out[0] >= 1 {
		t.Errorf("answers %v", out)
	}
	hidden := make([]float32, 16)
	if err := r.Hidden(nil, []int32{0, 4}, hidden); err != nil || hidden[8] != number(5, 5, 0) {
		t.Errorf("hidden %v: %v", hidden, err)
	}
}

// What no device could compute is refused here too.
func TestRefuses(t *testing.T) {
	d := New(Options{})
	r, err := d.Open(shape, 10)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Hidden(nil, nil, nil); err == nil {
		t.Error("a result without a batch")
	}
	b := batch(t, d.Memory())
	b.Segments[1].First = 9
	if err := r.Begin(b); err == nil {
		t.Error("a batch that makes no sense is begun")
	}
	head, _ := d.Table(compute.Tensor{Rows: 100, Cols: 8})
	b.Segments[1].First = 3
	if err := r.Begin(b); err != nil {
		t.Fatal(err)
	}
	for _, p := range []compute.Pair{{Row: 5, ID: 0}, {Row: 0, ID: 100}, {Row: -1, ID: 0}} {
		if err := r.Logits(nil, head, []compute.Pair{p}, make([]float32, 1)); err == nil {
			t.Errorf("the logit %+v", p)
		}
	}
	if err := r.Hidden(nil, []int32{0}, make([]float32, 7)); err == nil {
		t.Error("a row of eight values fits in seven")
	}
	if _, err := d.Open(shape, 0); err == nil {
		t.Error("a runner for no rows")
	}
	if _, err := d.Linear(compute.F32); err == nil {
		t.Error("a matrix of nothing")
	}
}

// A batch that may pause takes its time in parts, and a pause takes none of it.
func TestPauses(t *testing.T) {
	var slept, longest time.Duration
	d := New(Options{Fixed: time.Hour, Sleep: func(d time.Duration) { slept, longest = slept+d, max(longest, d) }})
	r, err := d.Open(shape, 10)
	if err != nil {
		t.Fatal(err)
	}
	b := batch(t, d.Memory())
	b.Pause = func() {}
	if err := r.Begin(b); err != nil {
		t.Fatal(err)
	}
	for layer := range shape.Layers {
		r.QKV(layer, nil)
		r.Attend(layer)
		r.Output(nil)
		r.FFN(nil)
	}
	if want := time.Hour; slept < want-time.Minute || slept > want || longest > want/5 {
		t.Errorf("slept for %v, up to %v at a time; want an hour in six parts", slept, longest)
	}
	if err := r.Hidden(nil, nil, nil); err != nil || slept > time.Hour {
		t.Errorf("slept for %v: %v", slept, err)
	}
}

package decoder_test

import (
	"math"
	"strings"
	"testing"

	"grebe/compute"
	"grebe/compute/ref"
	"grebe/model"
	_ "grebe/model/llama"
	"grebe/model/modeltest"
	_ "grebe/model/qwen"
)

func small(architecture string) modeltest.Spec {
	return modeltest.Spec{
		Architecture: architecture, Hidden: 24, Layers: 3, Heads: 6, KVHeads: 2, HeadDim: 8, Inter: 40,
		Vocab: 50, MaxPositions: 256, Seed: 7,
	}
}

var specs = map[string]func() modeltest.Spec{
	"qwen2": func() modeltest.Spec {
		s := small(modeltest.Qwen2)
		s.Tied, s.DType, s.RopeTheta = true, compute.BF16, 1e6
		return s
	},
	"qwen3": func() modeltest.Spec {
		s := small(modeltest.Qwen3)
		s.V5, s.ShardBytes, s.RopeTheta = true, 8000, 1e6
		return s
	},
	"qwen3 biased, tied, one kv head": func() modeltest.Spec {
		s := small(modeltest.Qwen3)
		s.Bias, s.Tied, s.KVHeads, s.HeadDim = true, true, 1, 10
		return s
	},
	"llama3": func() modeltest.Spec {
		s := small(modeltest.Llama)
		s.DType, s.RopeTheta = compute.F16, 500000
		s.RopeScaling = map[string]any{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
			"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
		return s
	},
	"llama biased, bare names, no groups": func() modeltest.Spec {
		s := small(modeltest.Llama)
		s.Bias, s.Bare, s.KVHeads, s.V5 = true, true, 6, true
		s.RopeScaling = map[string]any{"rope_type": "linear", "factor": 2.0}
		return s
	},
}

// segments is a user, two items that see it and share positions, and an instruction that sees all.
var segments = []struct {
	tokens []int
	start  int
	sees   []int32
}{
	{[]int{3, 17, 42, 8, 0}, 0, nil},
	{[]int{11, 12}, 5, []int32{0}},
	{[]int{30, 49, 11}, 5, []int32{0}},
	{[]int{1, 2}, 8, []int32{0, 1, 2}},
}

// dense writes the plan of segments out: tokens, positions and mask of all rows.
func dense() (tokens, positions []int, mask [][]bool) {
	var owner []int
	for s, g := range segments {
		for i, id := range g.tokens {
			tokens, positions, owner = append(tokens, id), append(positions, g.start+i), append(owner, s)
		}
	}
	for q := range tokens {
		row := make([]bool, len(tokens))
		for k := range tokens {
			row[k] = owner[q] == owner[k] && k <= q
			for _, s := range segments[owner[q]].sees {
				row[k] = row[k] || int(s) == owner[k]
			}
		}
		mask = append(mask, row)
	}
	return tokens, positions, mask
}

func batch(s compute.Shape) *compute.Batch {
	b := &compute.Batch{}
	for _, g := range segments {
		n := len(g.tokens)
		b.Segments = append(b.Segments, compute.Segment{
			First: len(b.Tokens), Len: n, Sees: g.sees,
			Chunks: []compute.Chunk{{Bytes: make([]byte, s.ChunkBytes(n, false)), Tokens: n}},
		})
		for i, id := range g.tokens {
			b.Tokens = append(b.Tokens, int32(id))
			b.Positions = append(b.Positions, int32(g.start+i))
		}
	}
	return b
}

func open(t *testing.T, dir, dtype string) (model.Model, compute.Runner) {
	t.Helper()
	return openKV(t, dir, dtype, "")
}

func openKV(t *testing.T, dir, dtype, kv string) (model.Model, compute.Runner) {
	t.Helper()
	dev := ref.New()
	m, err := model.Open(dir, dev, model.Options{DType: dtype, KV: kv})
	if err != nil {
		t.Fatal(err)
	}
	r, err := dev.Open(m.Shape(), 64)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.Close()
		m.Close()
		dev.Close()
	})
	return m, r
}

func near(t *testing.T, what string, got []float32, want []float64) {
	t.Helper()
	for i := range want {
		if math.Abs(float64(got[i])-want[i]) > 1e-5*(1+math.Abs(want[i])) {
			t.Fatalf("%s: value %d is %v, want %v", what, i, got[i], want[i])
		}
	}
}

func TestAgainstDefinition(t *testing.T) {
	for name, spec := range specs {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := modeltest.Write(dir, spec()); err != nil {
				t.Fatal(err)
			}
			tokens, positions, mask := dense()
			hidden, logits := newOracle(t, dir, spec()).forward(tokens, positions, mask)
			m, r := open(t, dir, "f32")
			for _, keep := range [][]int32{nil, {4, 9, 11}} {
				if err := m.Forward(r, batch(m.Shape()), keep); err != nil {
					t.Fatal(err)
				}
				rows := keep
				if keep == nil {
					rows = []int32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}
				}
				checkRows(t, m, r, rows, hidden, logits)
			}
		})
	}
}

func checkRows(t *testing.T, m model.Model, r compute.Runner, rows []int32, hidden, logits [][]float64) {
	t.Helper()
	width := m.Shape().Hidden
	states := make([]float32, len(rows)*width)
	if err := m.Hidden(r, rows, states); err != nil {
		t.Fatal(err)
	}
	for i, row := range rows {
		near(t, "hidden", states[i*width:], hidden[row])
		var pairs []compute.Pair
		for id := range m.Vocab() {
			pairs = append(pairs, compute.Pair{Row: row, ID: int32(id)})
		}
		out := make([]float32, len(pairs))
		if err := m.Logits(r, pairs, out); err != nil {
			t.Fatal(err)
		}
		near(t, "logits", out, logits[row])
	}
}

// With no rows to keep the pass still writes every layer's KV.
func TestKeepNothing(t *testing.T) {
	dir := t.TempDir()
	if err := modeltest.Write(dir, small(modeltest.Qwen2)); err != nil {
		t.Fatal(err)
	}
	m, r := open(t, dir, "auto")
	all, none := batch(m.Shape()), batch(m.Shape())
	if err := m.Forward(r, all, nil); err != nil {
		t.Fatal(err)
	}
	if err := m.Forward(r, none, []int32{}); err != nil {
		t.Fatal(err)
	}
	for i := range all.Segments {
		if string(all.Segments[i].Chunks[0].Bytes) != string(none.Segments[i].Chunks[0].Bytes) {
			t.Errorf("segment %d: other KV", i)
		}
	}
}

func TestForwardRefuses(t *testing.T) {
	dir := t.TempDir()
	if err := modeltest.Write(dir, small(modeltest.Llama)); err != nil {
		t.Fatal(err)
	}
	m, r := open(t, dir, "")
	for want, change := range map[string]func(b *compute.Batch) []int32{
		"token 50":        func(b *compute.Batch) []int32 { b.Tokens[3] = 50; return nil },
		"token -1":        func(b *compute.Batch) []int32 { b.Tokens[0] = -1; return nil },
		"position -5":     func(b *compute.Batch) []int32 { b.Positions[0] = -5; return nil },
		"keep row 12":     func(b *compute.Batch) []int32 { return []int32{12} },
		"keep row 3":      func(b *compute.Batch) []int32 { return []int32{4, 3} },
		"compute: 12 tok": func(b *compute.Batch) []int32 { b.Positions = b.Positions[1:]; return nil },
	} {
		b := batch(m.Shape())
		keep := change(b)
		if err := m.Forward(r, b, keep); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
	if err := m.Logits(r, []compute.Pair{{Row: 0, ID: 50}}, make([]float32, 1)); err == nil {
		t.Error("a logit outside the vocabulary")
	}
}

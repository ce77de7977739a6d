package ref

import (
	"encoding/binary"
	"math"
	"strings"
	"testing"

	"grebe/compute"
)

func tensor(rows, cols int, values ...float32) compute.Tensor {
	t := compute.Tensor{Rows: rows, Cols: cols}
	for _, v := range values {
		t.Data = binary.LittleEndian.AppendUint32(t.Data, math.Float32bits(v))
	}
	return t
}

func must[T any](t *testing.T) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func near(t *testing.T, what string, got []float32, want ...float64) {
	t.Helper()
	for i := range want {
		if !(math.Abs(float64(got[i])-want[i]) < 1e-6) {
			t.Errorf("%s: got %v, want %v", what, got, want)
			return
		}
	}
}

// twoDims is one head of two dimensions over a hidden state of two.
func twoDims(kv compute.DType) compute.Shape {
	return compute.Shape{Layers: 1, Hidden: 2, Heads: 1, KVHeads: 1, HeadDim: 2, Inter: 1, KV: kv,
		Rope: compute.Rope{InvFreq: []float32{1}, Scale: 1}}
}

func begin(t *testing.T, s compute.Shape, rows compute.Tensor,
	positions ...int32) (compute.Device, compute.Runner, *compute.Batch) {
	t.Helper()
	d := New()
	r := must[compute.Runner](t)(d.Open(s, 8))
	b := &compute.Batch{Positions: positions}
	for i := range positions {
		b.Tokens = append(b.Tokens, int32(i))
	}
	n := len(positions)
	b.Segments = []compute.Segment{{Len: n, Chunks: []compute.Chunk{
		{Bytes: make([]byte, s.ChunkBytes(n, false)), Tokens: n}}}}
	if err := r.Begin(b); err != nil {
		t.Fatal(err)
	}
	r.Embed(must[compute.Table](t)(d.Table(rows)))
	return d, r, b
}

// x₀ = (1, 0), x₁ = (0, 1); q = k = x; v = (2·x[0], 4·x[1]). Token 1 scores 0 and 1/√2, so its
// probabilities are 1 and e^0.70710678 = 2.02811498 over 3.02811498: 0.33023845 and 0.66976155.
func TestTwoTokensByHand(t *testing.T) {
	d, r, b := begin(t, twoDims(compute.F32), tensor(2, 2, 1, 0, 0, 1), 0, 0)
	one := tensor(2, 2, 1, 0, 0, 1)
	w := &compute.AttentionWeights{
		QKV: must[compute.Linear](t)(d.Linear(compute.F32, one, one, tensor(2, 2, 2, 0, 0, 4))),
		Out: must[compute.Linear](t)(d.Linear(compute.F32, one)),
	}
	r.QKV(0, w)
	r.Attend(0)
	r.Output(w)
	out := make([]float32, 4)
	if err := r.Hidden(nil, []int32{0, 1}, out); err != nil {
		t.Fatal(err)
	}
	near(t, "x + attention", out, 1+2, 0, 0.6604769, 1+2.6790462)
	var kv []float32
	for i := range 8 {
		kv = append(kv, float32(load(compute.F32, b.Segments[0].Chunks[0].Bytes, i)))
	}
	near(t, "K, then V", kv, 1, 0, 0, 1, 2, 0, 0, 4)
}

// The key (1, 0) turned by 1 is (cos 1, sin 1), by 2 with a scale of 3 three times (cos 2, sin 2).
func TestRotationByHand(t *testing.T) {
	s := twoDims(compute.F32)
	for _, c := range []struct {
		position int32
		scale    float32
		want     []float64
	}{{1, 1, []float64{0.54030231, 0.84147098}}, {2, 3, []float64{-1.24844051, 2.72789228}}} {
		s.Rope.Scale = c.scale
		d, r, b := begin(t, s, tensor(1, 2, 1, 0), c.position)
		one := tensor(2, 2, 1, 0, 0, 1)
		r.QKV(0, &compute.AttentionWeights{QKV: must[compute.Linear](t)(d.Linear(compute.F32, one, one, one))})
		bytes := b.Segments[0].Chunks[0].Bytes
		near(t, "turned key", []float32{float32(load(compute.F32, bytes, 0)), float32(load(compute.F32, bytes, 1))},
			c.want...)
		near(t, "value", []float32{float32(load(compute.F32, bytes, 2)), float32(load(compute.F32, bytes, 3))}, 1, 0)
	}
}

// (3, 4) has the RMS √12.5, so it norms to (0.84852814, 1.13137085). silu(0.84852814)·1.13137085 is
// 0.84852814/(1 + e^−0.84852814)·1.13137085 = 0.67224796.
func TestNormAndFFNByHand(t *testing.T) {
	d, r, _ := begin(t, twoDims(compute.F32), tensor(1, 2, 3, 4), 0)
	gain := must[compute.Vector](t)(d.Vector(tensor(1, 2, 2, 0.5)))
	out := make([]float32, 2)
	if err := r.Hidden(gain, []int32{0}, out); err != nil {
		t.Fatal(err)
	}
	near(t, "normed", out, 1.69705627, 0.56568542)
	head := must[compute.Table](t)(d.Table(tensor(2, 2, 0, 0, 1, 10)))
	if err := r.Logits(gain, head, []compute.Pair{{Row: 0, ID: 1}, {Row: 0, ID: 0}}, out); err != nil {
		t.Fatal(err)
	}
	near(t, "logits", out, 7.35391050, 0)
	r.FFN(&compute.FFNWeights{
		Norm:     must[compute.Vector](t)(d.Vector(tensor(1, 2, 1, 1))),
		GateUp:   must[compute.Linear](t)(d.GateUp(compute.F32, tensor(1, 2, 1, 0), tensor(1, 2, 0, 1))),
		Down:     must[compute.Linear](t)(d.Linear(compute.F32, tensor(2, 1, 1, 2))),
		DownBias: must[compute.Vector](t)(d.Vector(tensor(1, 2, 0, -1))),
	})
	if err := r.Hidden(nil, []int32{0}, out); err != nil {
		t.Fatal(err)
	}
	near(t, "x + ffn", out, 3+0.67224796, 4+2*0.67224796-1)
}

// A lead-in of two tokens, one of them cached, an item that sees it, an item that sees nothing, and
// an instruction that sees lead-in and first item. The last token sees the lead-in twice.
func TestMask(t *testing.T) {
	b := &compute.Batch{Segments: []compute.Segment{
		{Len: 2, Cached: 1},
		{Len: 2, Sees: []int32{0}},
		{Len: 1},
		{Len: 2, Sees: []int32{0, 1}},
		{Len: 1, Sees: []int32{0, 1, 0}},
	}}
	want := []string{
		"11 00 0 00 0",
		"11 10 0 00 0",
		"11 11 0 00 0",
		"00 00 1 00 0",
		"11 11 0 10 0",
		"11 11 0 11 0",
		"22 11 0 00 1",
	}
	got := mask(b)
	if len(got) != len(want) {
		t.Fatalf("%d rows, want %d", len(got), len(want))
	}
	for row := range want {
		for key, c := range strings.ReplaceAll(want[row], " ", "") {
			if got[row][key] != int(c-'0') {
				t.Errorf("row %d key %d: sees it %d times, want %c", row, key, got[row][key], c)
			}
		}
	}
}

func TestNumbers(t *testing.T) {
	for _, c := range []struct{ v, want float64 }{
		{1, 1}, {-3.140625, -3.140625}, {0, 0},
		{1 + 0x1p-8, 1},              // a tie goes to the even 1
		{1 + 3*0x1p-8, 1 + 0x1p-6},   // and to the even 1 + 2·2⁻⁷
		{1 + 0x1.01p-8, 1 + 0x1p-7},  // just above a tie
		{-(2 - 0x1p-8), -2},          // into the next binade
		{0x1.ffp127, math.Inf(1)},    // beyond the largest
		{math.Inf(-1), math.Inf(-1)}, // stays
	} {
		if got := toBF16(c.v); got != c.want {
			t.Errorf("bf16 of %v: got %v, want %v", c.v, got, c.want)
		}
	}
	if !math.IsNaN(toBF16(math.NaN())) {
		t.Error("bf16 of NaN is a number")
	}
	for bits, want := range map[uint16]float64{
		0x3c00: 1, 0x3c01: 1.0009765625, 0xc000: -2, 0x7bff: 65504, 0xfbff: -65504, 0x0400: 0x1p-14,
		0x0001: 0x1p-24, 0x83ff: -1023 * 0x1p-24, 0x7c00: math.Inf(1), 0xfc00: math.Inf(-1), 0: 0,
	} {
		if got := fromF16(bits); got != want {
			t.Errorf("f16 %#x: got %v, want %v", bits, got, want)
		}
	}
	if !math.IsNaN(fromF16(0x7e00)) {
		t.Error("f16 0x7e00 is a number")
	}
}

// K and V of (1 + 2⁻⁸, 1 + 3·2⁻⁸) round to (1, 1 + 2⁻⁶) in bf16 chunks.
func TestChunksRound(t *testing.T) {
	d, r, b := begin(t, twoDims(compute.BF16), tensor(1, 2, 1+0x1p-8, 1+3*0x1p-8), 0)
	one := tensor(2, 2, 1, 0, 0, 1)
	r.QKV(0, &compute.AttentionWeights{QKV: must[compute.Linear](t)(d.Linear(compute.F32, one, one, one))})
	for i, want := range []uint16{0x3f80, 0x3f82, 0x3f80, 0x3f82} {
		if got := binary.LittleEndian.Uint16(b.Segments[0].Chunks[0].Bytes[2*i:]); got != want {
			t.Errorf("value %d: got %#x, want %#x", i, got, want)
		}
	}
}

func TestOutOfOrder(t *testing.T) {
	s := twoDims(compute.F32)
	d, r, b := begin(t, s, tensor(2, 2, 1, 0, 0, 1), 0, 1)
	one := tensor(2, 2, 1, 0, 0, 1)
	w := &compute.AttentionWeights{
		QKV: must[compute.Linear](t)(d.Linear(compute.F32, one, one, one)),
		Out: must[compute.Linear](t)(d.Linear(compute.F32, one)),
	}
	table := must[compute.Table](t)(d.Table(one))
	b.Segments[0].Chunks[0].Transient = true
	for name, ops := range map[string]func(){
		"nothing embedded":         func() { r.QKV(0, w) },
		"attend without queries":   func() { r.Embed(table); r.Attend(0) },
		"output without attention": func() { r.Embed(table); r.QKV(0, w); r.Output(w) },
		"qkv without a row":        func() { r.Embed(table); r.Keep([]int32{1}); r.QKV(0, w) },
		"no matrix":                func() { r.Embed(table); r.QKV(0, &compute.AttentionWeights{}) },
		"no table":                 func() { r.Embed(nil) },
	} {
		if err := r.Begin(b); err != nil {
			t.Fatal(err)
		}
		ops()
		if r.Hidden(nil, nil, nil) == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if r := must[compute.Runner](t)(d.Open(s, 1)); r.Hidden(nil, nil, nil) == nil {
		t.Error("hidden before begin: no error")
	}
}

func TestOpenRefuses(t *testing.T) {
	for name, spoil := range map[string]func(s *compute.Shape){
		"no layers":           func(s *compute.Shape) { s.Layers = 0 },
		"odd head dimension":  func(s *compute.Shape) { s.HeadDim = 3 },
		"heads not divisible": func(s *compute.Shape) { s.Heads, s.KVHeads = 3, 2 },
		"f16 chunks":          func(s *compute.Shape) { s.KV = compute.F16 },
		"frequencies":         func(s *compute.Shape) { s.Rope.InvFreq = nil },
	} {
		s := twoDims(compute.F32)
		spoil(&s)
		if _, err := New().Open(s, 1); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// K and V of (3, −1.1) have the scale 2: 1.5 and −0.55, whose nearest e4m3 is −0.5625. The second token,
// (2000, 0.003), is 1,000 and 0.0015 in the same scales, which saturates at 448, and 0.77 steps of 2⁻⁹.
func TestChunksScale(t *testing.T) {
	s := twoDims(compute.FP8)
	d, r, b := begin(t, s, tensor(2, 2, 3, -1.1, 2000, 0.003), 0, 0)
	one := tensor(2, 2, 1, 0, 0, 1)
	r.QKV(0, &compute.AttentionWeights{QKV: must[compute.Linear](t)(d.Linear(compute.F32, one, one, one))})
	bytes := b.Segments[0].Chunks[0].Bytes
	for kv := range 2 {
		head := bytes[kv*s.HeadBytes(2):]
		if got := load(compute.F32, head, 0); got != 2 {
			t.Errorf("the scale is %v, want 2", got)
		}
		for i, want := range []float64{1.5, -0.5625, 448, 0x1p-9} {
			if got := fromFP8(head[16+i]); got != want {
				t.Errorf("value %d of %d: got %v, want %v", i, kv, got, want)
			}
		}
	}
}

// toFP8 is the nearest of all numbers, the even one of two.
func TestFP8IsNearest(t *testing.T) {
	for i := range 60000 {
		v := math.Ldexp(1+float64(i%1000)/1000, i/1000*24/60-13)
		if i%3 == 0 { // a tie
			v = (numbersFP8[i%126] + numbersFP8[i%126+1]) / 2
		}
		v = float64(float32(v))
		best, distance := byte(0), math.Inf(1)
		for b, w := range numbersFP8 {
			if d := math.Abs(v - w); d < distance || d == distance && b%2 == 0 {
				best, distance = byte(b), d
			}
		}
		if got := toFP8(v); got != best {
			t.Fatalf("%v became %#x, want %#x", v, got, best)
		}
	}
}

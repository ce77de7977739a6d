package computetest

import (
	"math"
	"slices"
	"strings"
	"testing"

	"grebe/compute"
	"grebe/compute/ref"
)

// mutant is ref with a fault: the hooks change what passes between the suite and ref.
type mutant struct {
	compute.Device
	open   func(s *compute.Shape)
	gateUp func(gate, up *compute.Tensor)
	begin  func(b *compute.Batch)
	qkv    func(b *compute.Batch, w *compute.AttentionWeights)
	wrote  func(s *compute.Shape, b *compute.Batch)
	output func(w *compute.AttentionWeights)
	ffn    func(w *compute.FFNWeights)
	keep   func(rows []int32) []int32
	result func(b *compute.Batch, out []float32)
	failed func(err error) error

	received func(out []float32)
	place    func(parts []compute.Part)
}

type mutantRunner struct {
	compute.Runner
	m     *mutant
	shape compute.Shape
	b     *compute.Batch
}

func (m *mutant) Open(s compute.Shape, maxRows int) (compute.Runner, error) {
	own := s
	if m.open != nil {
		m.open(&s)
	}
	r, err := m.Device.Open(s, maxRows)
	return &mutantRunner{Runner: r, m: m, shape: own}, err
}

func (m *mutant) GateUp(dt compute.DType, gate, up compute.Tensor) (compute.Linear, error) {
	if m.gateUp != nil {
		m.gateUp(&gate, &up)
	}
	return m.Device.GateUp(dt, gate, up)
}

func (r *mutantRunner) Begin(b *compute.Batch) error {
	if r.m.begin != nil && b.Validate(&r.shape) == nil {
		own := *b
		own.Positions = slices.Clone(b.Positions)
		own.Segments = slices.Clone(b.Segments)
		r.m.begin(&own)
		b = &own
	}
	r.b = b
	return r.Runner.Begin(b)
}

func (r *mutantRunner) QKV(layer int, w *compute.AttentionWeights) {
	own := *w
	if r.m.qkv != nil {
		r.m.qkv(r.b, &own)
	}
	r.Runner.QKV(layer, &own)
	if r.m.wrote != nil && r.b.Validate(&r.shape) == nil {
		r.m.wrote(&r.shape, r.b)
	}
}

func (r *mutantRunner) Output(w *compute.AttentionWeights) {
	own := *w
	if r.m.output != nil {
		r.m.output(&own)
	}
	r.Runner.Output(&own)
}

func (r *mutantRunner) FFN(w *compute.FFNWeights) {
	own := *w
	if r.m.ffn != nil {
		r.m.ffn(&own)
	}
	r.Runner.FFN(&own)
}

func (r *mutantRunner) Keep(rows []int32) {
	if r.m.keep != nil {
		rows = r.m.keep(rows)
	}
	r.Runner.Keep(rows)
}

func (r *mutantRunner) Received(out []float32) error {
	err := r.Runner.(compute.Blender).Received(out)
	if err == nil && r.m.received != nil {
		r.m.received(out)
	}
	return err
}

func (r *mutantRunner) Place(from int, parts []compute.Part) {
	if r.m.place != nil {
		parts = slices.Clone(parts)
		r.m.place(parts)
	}
	r.Runner.(compute.Blender).Place(from, parts)
}

func (r *mutantRunner) Hidden(norm compute.Vector, rows []int32, out []float32) error {
	return r.finish(r.Runner.Hidden(norm, rows, out), out)
}

func (r *mutantRunner) Logits(norm compute.Vector, head compute.Table, pairs []compute.Pair, out []float32) error {
	return r.finish(r.Runner.Logits(norm, head, pairs, out), out)
}

func (r *mutantRunner) finish(err error, out []float32) error {
	if r.m.failed != nil {
		return r.m.failed(err)
	}
	if err == nil && r.m.result != nil {
		r.m.result(r.b, out)
	}
	return err
}

// lastSegment returns the last segment with rows, or nil.
func lastSegment(b *compute.Batch) *compute.Segment {
	for i := len(b.Segments) - 1; i >= 0; i-- {
		if b.Segments[i].Rows() > 0 {
			return &b.Segments[i]
		}
	}
	return nil
}

// TestFaultsAreFound: every fault must fail a case of the group that is there for it.
func TestFaultsAreFound(t *testing.T) {
	nudge := func(b *compute.Batch, out []float32) {
		if len(b.Tokens) > 110 && len(out) > 0 {
			out[0] = math.Nextafter32(out[0], 9)
		}
	}
	for name, c := range map[string]struct {
		group string
		m     mutant
	}{
		"a seen segment is forgotten": {"attend/", mutant{begin: func(b *compute.Batch) {
			if g := lastSegment(b); g != nil && len(g.Sees) > 1 {
				g.Sees = g.Sees[1:]
			}
		}}},
		"one position is off by one": {"qkv/", mutant{begin: func(b *compute.Batch) {
			if len(b.Positions) > 30 {
				b.Positions[30]++
			}
		}}},
		"gate and up are swapped":    {"ffn/", mutant{gateUp: func(g, u *compute.Tensor) { *g, *u = *u, *g }}},
		"epsilon is another":         {"qkv/", mutant{open: func(s *compute.Shape) { s.Eps *= 1.1 }}},
		"the rotation is not scaled": {"qkv/", mutant{open: func(s *compute.Shape) { s.Rope.Scale = 1 }}},
		"the QKV bias is forgotten": {"qkv/", mutant{
			qkv: func(_ *compute.Batch, w *compute.AttentionWeights) { w.QKVBias = nil }}},
		"the query norm is forgotten": {"attend/", mutant{
			qkv: func(_ *compute.Batch, w *compute.AttentionWeights) { w.QNorm = nil }}},
		"the output bias is forgotten": {"layers/", mutant{output: func(w *compute.AttentionWeights) { w.OutBias = nil }}},
		"the down bias is forgotten":   {"ffn/", mutant{ffn: func(w *compute.FFNWeights) { w.DownBias = nil }}},
		"one value of V is off by a twentieth": {"attend/", mutant{wrote: func(s *compute.Shape, b *compute.Batch) {
			if g := lastSegment(b); g != nil && s.KV == compute.F32 {
				v := vectorAt(s, g.Chunks, 0, s.KVHeads, g.Len-1)
				copy(v, appendValue(nil, compute.F32, 1.05*float64(value(s.KV, v, 0))))
			}
		}}},
		"a cached token is overwritten": {"attend/", mutant{wrote: func(s *compute.Shape, b *compute.Batch) {
			for i := range b.Segments {
				if g := &b.Segments[i]; g.Cached > 0 {
					vectorAt(s, g.Chunks, 0, 0, 0)[0] ^= 1
				}
			}
		}}},
		"spare room is written to": {"attend/", mutant{wrote: func(s *compute.Shape, b *compute.Batch) {
			for i := range b.Segments {
				if g := &b.Segments[i]; g.Len == 1 && g.Chunks[0].Tokens > 1 {
					vectorAt(s, g.Chunks, 0, 0, 1)[0] = 0
				}
			}
		}}},
		"one more row is kept than asked": {"misuse/results", mutant{keep: func(rows []int32) []int32 {
			if slices.Equal(rows, []int32{3, 7, 17}) {
				return []int32{3, 4, 7, 17}
			}
			return rows
		}}},
		"one value is off by 2 %": {"layers/", mutant{result: func(_ *compute.Batch, out []float32) {
			if len(out) > 100 {
				out[100] *= 1.02
			}
		}}},
		"a row received 5 % more": {"blend/pass", mutant{received: func(out []float32) { out[len(out)/2] *= 1.05 }}},
		"a part is turned by one more": {"blend/pass", mutant{place: func(parts []compute.Part) {
			if len(parts) > 1 {
				parts[1].Turn++
			}
		}}},
		"a part is turned back": {"blend/turn", mutant{place: func(parts []compute.Part) { parts[0].Turn *= -1 }}},
		"a part that stays is turned": {"blend/turn", mutant{
			place: func(parts []compute.Part) { parts[0].Turn += 300 }}},
		"a row that goes on is forgotten": {"blend/pass", mutant{
			keep: func(rows []int32) []int32 { return rows[min(len(rows), 1):] }}},
		"what a batch blends is in others": {"blend/same bits",
			mutant{received: func(out []float32) { out[0] += float32(len(out)) * 1e-6 }}},
		"large batches differ in a bit": {"same bits/", mutant{result: nudge}},
		"failures are forgotten":        {"misuse/", mutant{failed: func(error) error { return nil }}},
		"a pass allocates":              {"no allocation/", mutant{}},
	} {
		c.m.Device = ref.New()
		if !found(&c.m, c.group) {
			t.Errorf("%s: no case of %s fails", name, c.group)
		}
	}
}

// found reports whether a case of the group fails.
func found(d compute.Device, group string) bool {
	for _, c := range checks(Options{SameBits: true, NoAlloc: true}) {
		if strings.HasPrefix(c.name, group) && c.on(d) != nil {
			return true
		}
	}
	return false
}

// A device that the host cannot see refuses the host's chunks, and what was freed.
func TestFarRefuses(t *testing.T) {
	d := Far(ref.New(), false)
	r, err := d.Open(geometries[3].shape(1, compute.F32), 8)
	if err != nil {
		t.Fatal(err)
	}
	s := geometries[3].shape(1, compute.F32)
	b := newBatch(d.Memory(), &s, newRandom(1).causal(0, 3))
	if err := b.begin(r); err != nil {
		t.Fatal(err)
	}
	if b.Segments[0].Chunks[0].Bytes != nil {
		t.Error("a far chunk has bytes")
	}
	if err := newBatch(d.Memory().Host(), &s, newRandom(1).causal(0, 3)).begin(r); err == nil {
		t.Error("a chunk of the host's was taken")
	}
	if d.Close() == nil {
		t.Error("closed with memory in use")
	}
	d.Memory().Free(b.block)
	if err := b.begin(r); err == nil {
		t.Error("a freed chunk was taken")
	}
	if err := d.Memory().Read(make([]byte, 1), b.block); err == nil {
		t.Error("a freed block was read")
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

func TestCompareRow(t *testing.T) {
	nan := float32(math.NaN())
	want := make([]float32, 64)
	for i := range want {
		want[i] = float32(i%7) - 3
	}
	l := limit{rms: 1e-3, max: 5e-3}
	for name, c := range map[string]struct {
		change func(v []float32)
		ok     bool
	}{
		"equal":            {func([]float32) {}, true},
		"one value little": {func(v []float32) { v[9] += 4e-3 }, true},
		"one value":        {func(v []float32) { v[9] += 4e-2 }, false},
		"all values": {func(v []float32) {
			for i := range v {
				v[i] += 4e-3
			}
		}, false},
		"NaN": {func(v []float32) { v[63] = nan }, false},
	} {
		got := slices.Clone(want)
		c.change(got)
		if err := l.compareRow(got, want, 0); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestF16(t *testing.T) {
	for v, want := range map[float64]uint16{0: 0, 1: 0x3c00, -2: 0xc000, 65504: 0x7bff, 0x1p-24: 1, 1.99999: 0x4000,
		0x1p-14: 0x400, 0x1.fffp-15: 0x400} {
		if got := toF16(v); got != want {
			t.Errorf("%v: got %#x, want %#x", v, got, want)
		}
	}
}

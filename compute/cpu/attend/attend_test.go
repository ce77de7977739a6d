package attend

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"
	"unsafe"

	"grebe/compute"
	"grebe/compute/cpu/internal/feature"
	"grebe/compute/cpu/internal/team"
)

// testSegment describes a segment of a test's plan.
type testSegment struct {
	len, cached int
	sees        []int
}

// layout says how K and V of a plan's segments are stored.
type layout struct {
	chunk     int // tokens of a chunk; 0: one chunk of the exact length
	transient bool
}

// series is a sequence of numbers in (−1, 1) that depends on its name only.
type series uint64

func newSeries(name ...int) series {
	h := series(1)
	for _, n := range name {
		h = (h.mix(n)) ^ 0x5bf03635
	}
	return h
}

// mix is splitmix64.
func (s series) mix(i int) series {
	h := s + series(i+1)*0x9e3779b97f4a7c15
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

func (s series) at(i int) float32 { return float32(int64(s.mix(i))>>40) / (1 << 23) }

// queryValue distinguishes queries from keys, 0, and values, 1.
const queryValue = 2

func roundBF16(f float32) float32 {
	b := math.Float32bits(f)
	return math.Float32frombits((b + 0x7fff + b>>16&1) &^ 0xffff)
}

// newKV makes K and V of a segment, [head][token][dim], as the cache's format holds them.
func newKV(s *compute.Shape, layer, plan, segment, tokens int) (kv [2][]float32) {
	for kind := range kv {
		kv[kind] = make([]float32, s.KVHeads*tokens*s.HeadDim)
		x := newSeries(kind, plan, segment, layer)
		for i := range kv[kind] {
			v := 1.5 * x.at(i)
			if s.KV == compute.BF16 {
				v = roundBF16(v)
			}
			kv[kind][i] = v
		}
	}
	return kv
}

// testBatch is a batch of plans with its queries.
type testBatch struct {
	compute.Batch
	origin [][2]int // per segment its plan and its number there
	q      []float32
	kv     [][2][]float32 // per segment K and V of the layer as [head][token][dim]
}

// newBatch puts plans, whose values depend on ids, into a batch for layer.
func newBatch(t testing.TB, s *compute.Shape, layer int, l layout, ids []int, plans ...[]testSegment) *testBatch {
	b := &testBatch{}
	for p, plan := range plans {
		base := len(b.Segments)
		for i, g := range plan {
			seg := compute.Segment{First: len(b.Tokens), Cached: g.cached, Len: g.len}
			for _, j := range g.sees {
				seg.Sees = append(seg.Sees, int32(base+j))
			}
			kv := newKV(s, layer, ids[p], i, g.len)
			for from := 0; from < g.len; {
				n := g.len - from
				if l.chunk > 0 {
					n = l.chunk
				}
				seg.Chunks = append(seg.Chunks, newChunk(s, layer, l.transient && g.cached == 0, &kv, from, n, g.len))
				from += n
			}
			b.kv = append(b.kv, kv)
			x, width := newSeries(queryValue, ids[p], i, layer), s.Heads*s.HeadDim
			for token := g.cached; token < g.len; token++ {
				b.Tokens, b.Positions = append(b.Tokens, 0), append(b.Positions, 0)
				for d := range width {
					b.q = append(b.q, 4*x.at(token*width+d))
				}
			}
			b.Segments = append(b.Segments, seg)
			b.origin = append(b.origin, [2]int{p, i})
		}
	}
	if err := b.Validate(s); err != nil {
		t.Fatal(err)
	}
	return b
}

// newChunk holds tokens from … from+n−1; what is not a token of layer is NaN.
func newChunk(s *compute.Shape, layer int, transient bool, kv *[2][]float32, from, n, end int) compute.Chunk {
	c := compute.Chunk{Bytes: make([]byte, s.ChunkBytes(n, transient)), Tokens: n, Transient: transient}
	for i := range c.Bytes {
		c.Bytes[i] = 0xff
	}
	at := layer
	if transient {
		at = 0
	}
	for kind := range 2 {
		for h := range s.KVHeads {
			for token := from; token < min(end, from+n); token++ {
				for d := range s.HeadDim {
					v := math.Float32bits(kv[kind][(h*end+token)*s.HeadDim+d])
					o := ((at*2+kind)*s.KVHeads+h)*n + token - from
					o = (o*s.HeadDim + d) * s.KV.Size()
					if s.KV == compute.BF16 {
						binary.LittleEndian.PutUint16(c.Bytes[o:], uint16(v>>16))
						continue
					}
					binary.LittleEndian.PutUint32(c.Bytes[o:], v)
				}
			}
		}
	}
	return c
}

// dense computes the attention of head h of a row in float64, over an explicit list of keys.
func (b *testBatch) dense(s *compute.Shape, segment, token, h int, q []float32) []float64 {
	var keys, values [][]float32
	add := func(segment, tokens int) {
		n, kv := b.Segments[segment].Len, &b.kv[segment]
		for t := range tokens {
			at := (h/(s.Heads/s.KVHeads)*n + t) * s.HeadDim
			keys, values = append(keys, kv[0][at:at+s.HeadDim]), append(values, kv[1][at:at+s.HeadDim])
		}
	}
	for _, j := range b.Segments[segment].Sees {
		add(int(j), b.Segments[j].Len)
	}
	add(segment, token+1)
	scores, top := make([]float64, len(keys)), math.Inf(-1)
	for i, k := range keys {
		for d := range k {
			scores[i] += float64(q[d]) * float64(k[d])
		}
		scores[i] /= math.Sqrt(float64(s.HeadDim))
		top = max(top, scores[i])
	}
	out, sum := make([]float64, s.HeadDim), 0.0
	for i, v := range values {
		e := math.Exp(scores[i] - top)
		sum += e
		for d := range out {
			out[d] += e * float64(v[d])
		}
	}
	for d := range out {
		out[d] /= sum
	}
	return out
}

func run1(t testing.TB, s *compute.Shape, l feature.Level, threads, layer int, b *testBatch) []float32 {
	tm := team.New(threads)
	defer tm.Close()
	a, err := New(*s, l, tm)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if err := a.Plan(&b.Batch); err != nil {
		t.Fatal(err)
	}
	out := make([]float32, len(b.q))
	for i := range out {
		out[i] = float32(math.NaN())
	}
	a.Run(layer, b.q, out)
	return out
}

func shape(kv compute.DType, heads, kvHeads, dim int) *compute.Shape {
	return &compute.Shape{Layers: 2, Heads: heads, KVHeads: kvHeads, HeadDim: dim, KV: kv}
}

func segments(n, tokens int, sees ...int) []testSegment {
	var g []testSegment
	for i := range n {
		g = append(g, testSegment{len: tokens + i%4, sees: sees})
	}
	return g
}

func upTo(from, to int) []int {
	var l []int
	for i := from; i < to; i++ {
		l = append(l, i)
	}
	return l
}

// userFirst: a user, items that see it, an instruction that sees all.
func userFirst(user, items, itemLen, instruction int) []testSegment {
	p := append([]testSegment{{len: user}}, segments(items, itemLen, 0)...)
	return append(p, testSegment{len: instruction, sees: upTo(0, items+1)})
}

// itemFirst: items, a user that sees them, an instruction that sees all.
func itemFirst(user, items, itemLen, instruction int) []testSegment {
	p := append(segments(items, itemLen), testSegment{len: user, sees: upTo(0, items)})
	return append(p, testSegment{len: instruction, sees: upTo(0, items+1)})
}

// pointwise: a user, items alone, and for each item a discriminant that sees the user and it.
func pointwise(user, items, itemLen, last int) []testSegment {
	p := append([]testSegment{{len: user}}, segments(items, itemLen)...)
	for i := range items {
		p = append(p, testSegment{len: last, sees: []int{0, 1 + i}})
	}
	return p
}

var plans = map[string][]testSegment{
	"user first": userFirst(150, 12, 8, 5),
	"item first": itemFirst(70, 12, 8, 5),
	"short user": itemFirst(20, 9, 11, 3),
	"pointwise":  pointwise(130, 5, 9, 2),
	"one token":  {{len: 1}},
	"one item":   userFirst(40, 1, 6, 4),
	"empty user": userFirst(0, 3, 7, 5),
	"nothing":    {{len: 0}},
	"cached": {{len: 90, cached: 90}, {len: 100, cached: 37, sees: []int{0}},
		{len: 3, cached: 3, sees: []int{0, 1}}},
	"around tiles": {{len: 16}, {len: 32}, {len: 63}, {len: 64}, {len: 65}, {len: 128}, {len: 5, sees: upTo(0, 6)},
		{len: 129, sees: []int{5, 2, 1, 4}}},
	"long":  {{len: 300}, {len: 150, sees: []int{0}}},
	"beams": beams(150, 40, 3),
}

// beams: a prompt that is cached, and beams behind it that compute their last token.
func beams(prompt, width, depth int) []testSegment {
	p := append([]testSegment{{len: prompt, cached: prompt}}, segments(width, depth, 0)...)
	for i := range p[1:] {
		p[1+i].len, p[1+i].cached = depth, depth-1
	}
	return p
}

// Small segments that see the same go through it in one tile.
func TestSiblingsShareTiles(t *testing.T) {
	var p plan
	s := shape(compute.F32, 4, 2, 8)
	for name, c := range map[string]struct {
		plan  []testSegment
		units int
	}{
		// 16 of them, of 2 lanes each, in a tile
		"beams": {beams(150, 40, 3), 3},
		// six of 2 lanes; then the tiles of 40 tokens
		"items": {append(beams(70, 6, 1), testSegment{len: 40, sees: upTo(0, 7)}), 1 + 3},
		// that see nothing in common stay apart
		"items of one token": {itemFirst(5, 6, 1, 1), 6 + 2},
	} {
		b := newBatch(t, s, 1, layout{}, []int{1}, c.plan)
		p.all(&b.Batch)
		if p.build(2, 8); len(p.units) != c.units {
			t.Errorf("%s are cut into %d units, want %d: %v", name, len(p.units), c.units, p.units)
		}
	}
}

// tolerance is relative to the largest value, 1.5.
func tolerance(s *compute.Shape, l feature.Level) float64 {
	if s.KV == compute.BF16 && l == feature.AMX {
		return 1.5 * 6e-3 // queries and probabilities are rounded to bf16
	}
	return 1.5 * 2e-6
}

func TestAgainstDense(t *testing.T) {
	shapes := [][3]int{{14, 2, 64}, {4, 2, 80}, {3, 1, 128}, {7, 7, 16}, {2, 1, 8}, {2, 1, 20}}
	for name, plan := range plans {
		for i, sh := range shapes {
			if i > 0 && name != "user first" && name != "around tiles" && name != "cached" {
				continue
			}
			for _, kv := range []compute.DType{compute.F32, compute.BF16} {
				s := shape(kv, sh[0], sh[1], sh[2])
				l := []layout{{}, {chunk: 64}, {transient: true}, {chunk: 10}}[i%4]
				b := newBatch(t, s, 1, l, []int{1}, plan)
				for level := feature.Plain; level <= feature.Best(); level++ {
					t.Run(fmt.Sprintf("%s/%d-%dx%d/%v/%v", name, sh[0], sh[1], sh[2], kv, level), func(t *testing.T) {
						compare(t, s, level, b, run1(t, s, level, 1+i%2, 1, b))
					})
				}
			}
		}
	}
}

// TestSteepScores has scores up to about 100, so that maxima rise by much and many probabilities vanish.
func TestSteepScores(t *testing.T) {
	for _, kv := range []compute.DType{compute.F32, compute.BF16} {
		for _, name := range []string{"long", "user first"} {
			s := shape(kv, 6, 2, 64)
			b := newBatch(t, s, 1, layout{}, []int{1}, plans[name])
			for i := range b.q {
				b.q[i] = roundBF16(15 * b.q[i]) // what AMX rounds queries to
			}
			for level := feature.Plain; level <= feature.Best(); level++ {
				// A score of 100 in float32 is off by several 1e-6, and so is its exponential.
				compareWithin(t, s, max(4e-5, tolerance(s, level)), b, run1(t, s, level, 1, 1, b))
			}
		}
	}
}

// compare checks some of the rows: all of short segments, every seventh of long ones.
func compare(t *testing.T, s *compute.Shape, level feature.Level, b *testBatch, out []float32) {
	t.Helper()
	compareWithin(t, s, tolerance(s, level), b, out)
}

func compareWithin(t *testing.T, s *compute.Shape, tolerance float64, b *testBatch, out []float32) {
	t.Helper()
	worst := 0.0
	for i := range b.Segments {
		g := &b.Segments[i]
		for token := g.Cached; token < g.Len; token++ {
			if g.Len > 20 && token%11 != 0 && token < g.Len-2 {
				continue
			}
			for h := token % 3; h < s.Heads; h += 3 {
				at := ((g.First+token-g.Cached)*s.Heads + h) * s.HeadDim
				want := b.dense(s, i, token, h, b.q[at:])
				for d, w := range want {
					diff := math.Abs(float64(out[at+d]) - w)
					if !(diff <= tolerance) {
						t.Fatalf("segment %d token %d head %d dim %d is %v, want %v (off by %.2g)", i, token, h, d, out[at+d], w, diff)
					}
					worst = max(worst, diff)
				}
			}
		}
	}
	t.Logf("largest difference %.2g", worst)
}

// sameRows checks that the rows of plan p of b, a batch in which more may be cached, equal those of
// plan 0 of want to the bit.
func sameRows(t *testing.T, what string, s *compute.Shape, want *testBatch, wantOut []float32, b *testBatch,
	out []float32, p int) {
	t.Helper()
	for i := range b.Segments {
		if b.origin[i][0] != p {
			continue
		}
		g, r := &b.Segments[i], &want.Segments[b.origin[i][1]]
		width := s.Heads * s.HeadDim
		for token := g.Cached; token < g.Len; token++ {
			x := out[(g.First+token-g.Cached)*width:][:width]
			y := wantOut[(r.First+token-r.Cached)*width:][:width]
			for d := range x {
				if math.Float32bits(x[d]) != math.Float32bits(y[d]) {
					t.Fatalf("%s: segment %d token %d value %d is %v, was %v", what, b.origin[i][1], token, d, x[d], y[d])
				}
			}
		}
	}
}

func withCached(plan []testSegment, cached func(i, n int) int) []testSegment {
	c := append([]testSegment(nil), plan...)
	for i := range c {
		c[i].cached = cached(i, c[i].len)
	}
	return c
}

func TestSameBits(t *testing.T) {
	for _, kv := range []compute.DType{compute.F32, compute.BF16} {
		for level := feature.Plain; level <= feature.Best(); level++ {
			t.Run(fmt.Sprintf("%v/%v", kv, level), func(t *testing.T) {
				s := shape(kv, 6, 2, 16)
				if level == feature.AMX && kv == compute.BF16 {
					s.HeadDim = 64 // has a kernel of its own for two columns
				}
				for name, plan := range plans {
					if level == feature.Plain && name != "short user" && name != "one item" && name != "long" {
						continue // slow
					}
					plan = withCached(plan, func(i, n int) int { return 0 })
					base := newBatch(t, s, 1, layout{}, []int{1}, plan)
					want := run1(t, s, level, 1, 1, base)
					check := func(what string, threads int, b *testBatch, p int) {
						t.Helper()
						sameRows(t, name+", "+what, s, base, want, b, run1(t, s, level, threads, 1, b), p)
					}
					check("3 threads", 3, base, 0)
					check("chunks of 64", 1, newBatch(t, s, 1, layout{chunk: 64}, []int{1}, plan), 0)
					check("chunks of 7", 2, newBatch(t, s, 1, layout{chunk: 7}, []int{1}, plan), 0)
					check("transient", 1, newBatch(t, s, 1, layout{transient: true}, []int{1}, plan), 0)
					check("partly cached", 2, newBatch(t, s, 1, layout{}, []int{1},
						withCached(plan, func(i, n int) int { return n * (i % 4) / 3 })), 0)
					check("last token computed", 1, newBatch(t, s, 1, layout{}, []int{1},
						withCached(plan, func(_, n int) int { return max(0, n-1) })), 0)
					check("among others", 3, newBatch(t, s, 1, layout{}, []int{7, 1, 1, 8}, plans["item first"], plan, plan,
						plans["pointwise"]), 1)
				}
			})
		}
	}
}

// TestJoinedTiles has more keys than the cache holds, so that tiles share units when there are many.
func TestJoinedTiles(t *testing.T) {
	const n = 2200
	for _, kv := range []compute.DType{compute.F32, compute.BF16} {
		s := shape(kv, 7, 1, 128)
		many := newBatch(t, s, 1, layout{chunk: 64}, []int{1}, []testSegment{{len: n, cached: n - 310}})
		few := newBatch(t, s, 1, layout{}, []int{1}, []testSegment{{len: n, cached: n - 9}})
		var p plan
		p.all(&many.Batch)
		if p.build(7, s.HeadDim*kv.Size()); p.units[0].tiles != unitTiles {
			t.Fatalf("units have %d tiles, want %d", p.units[0].tiles, unitTiles)
		}
		p.all(&few.Batch)
		if p.build(7, s.HeadDim*kv.Size()); p.units[0].tiles != 1 {
			t.Fatalf("units have %d tiles, want 1", p.units[0].tiles)
		}
		for level := feature.AVX2; level <= feature.Best(); level++ {
			want := run1(t, s, level, 2, 1, many)
			sameRows(t, fmt.Sprintf("%v %v, few rows", kv, level), s, many, want, few, run1(t, s, level, 1, 1, few), 0)
			compare(t, s, level, few, want[len(want)-len(few.q):])
		}
	}
}

// TestHeadsInTurns forces the scratch to hold one head at a time.
func TestHeadsInTurns(t *testing.T) {
	s := shape(compute.F32, 8, 4, 32)
	b := newBatch(t, s, 1, layout{}, []int{1}, plans["user first"])
	want := run1(t, s, feature.Best(), 1, 1, b)
	tm := team.New(2)
	defer tm.Close()
	a, err := New(*s, feature.Best(), tm)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if err := a.Plan(&b.Batch); err != nil {
		t.Fatal(err)
	}
	a.plan.heads = 3
	got := make([]float32, len(want))
	a.Run(1, b.q, got)
	sameRows(t, "three heads at a time", s, b, want, b, got, 0)
}

func TestRunsAreShared(t *testing.T) {
	var p plan
	s := shape(compute.F32, 2, 1, 8)
	b := newBatch(t, s, 1, layout{}, []int{1}, pointwise(130, 50, 9, 2))
	p.all(&b.Batch)
	p.build(2, 8)
	if want := 1 + 50 + 50; len(p.runs) != want { // the user, each item, each discriminant itself
		t.Errorf("pointwise has %d runs, want %d", len(p.runs), want)
	}
	b = newBatch(t, s, 1, layout{}, []int{1}, itemFirst(100, 50, 9, 4))
	p.all(&b.Batch)
	p.build(2, 8)
	if want := 50 + 3; len(p.runs) != want { // items alone, all items gathered, the user, the instruction
		t.Errorf("item first has %d runs, want %d", len(p.runs), want)
	}
}

func TestNoAllocations(t *testing.T) {
	s := shape(compute.BF16, 4, 2, 32)
	b := newBatch(t, s, 1, layout{}, []int{1}, plans["short user"])
	tm := team.New(2)
	defer tm.Close()
	for level := feature.Plain; level <= feature.Best(); level++ {
		a, err := New(*s, level, tm)
		if err != nil {
			t.Fatal(err)
		}
		out := make([]float32, len(b.q))
		n := testing.AllocsPerRun(5, func() {
			if err := a.Plan(&b.Batch); err != nil {
				t.Fatal(err)
			}
			a.Run(0, b.q, out)
			a.Run(1, b.q, out)
		})
		if n != 0 {
			t.Errorf("%v: Plan and Run allocate %v times", level, n)
		}
		a.Close()
	}
}

func TestRefusesShapes(t *testing.T) {
	tm := team.New(1)
	defer tm.Close()
	for _, s := range []*compute.Shape{shape(compute.F16, 2, 1, 8), shape(compute.F32, 3, 2, 8),
		shape(compute.F32, 0, 0, 8)} {
		if _, err := New(*s, feature.Plain, tm); err == nil {
			t.Errorf("New takes %d heads on %d KV heads in %v", s.Heads, s.KVHeads, s.KV)
		}
	}
}

// TestLayouts checks the offsets that the assembly relies on.
func TestLayouts(t *testing.T) {
	var w walk
	var s state
	got := []uintptr{
		unsafe.Offsetof(w.q), unsafe.Offsetof(w.s), unsafe.Offsetof(w.p), unsafe.Offsetof(w.o), unsafe.Offsetof(w.state),
		unsafe.Offsetof(w.k), unsafe.Offsetof(w.v), unsafe.Offsetof(w.keys), unsafe.Offsetof(w.first),
		unsafe.Offsetof(w.open),
		unsafe.Offsetof(w.started), unsafe.Offsetof(w.dims), unsafe.Offsetof(w.block), unsafe.Offsetof(w.scale),
	}
	for i, o := range got {
		if o != uintptr(8*i) {
			t.Errorf("field %d of walk is at byte %d, want %d", i, o, 8*i)
		}
	}
	got = []uintptr{unsafe.Offsetof(s.maxes), unsafe.Offsetof(s.sums), unsafe.Offsetof(s.factors),
		unsafe.Offsetof(s.limits), unsafe.Offsetof(s.changed)}
	for i, o := range got {
		if o != uintptr(4*lanes*i) {
			t.Errorf("field %d of state is at byte %d, want %d", i, o, 4*lanes*i)
		}
	}
}

// A key that is no number leaves none to the rows that see it, though its value is one: nothing looks
// right that was computed from it. Rows that do not see it are as they were.
func TestKeyThatIsNoNumber(t *testing.T) {
	const layer, tokens = 1, 150
	for _, kv := range []compute.DType{compute.F32, compute.BF16} {
		for _, bad := range []int{0, 5, 63, 130} {
			s := shape(kv, 4, 2, 16)
			b := newBatch(t, s, layer, layout{}, []int{1}, []testSegment{{len: tokens}})
			good := newBatch(t, s, layer, layout{}, []int{1}, []testSegment{{len: tokens}})
			for h := range s.KVHeads {
				row := (layer*2*s.KVHeads+h)*tokens + bad
				for i := range s.KV.Size() { // all ones
					b.Segments[0].Chunks[0].Bytes[row*s.HeadDim*s.KV.Size()+i] = 0xff
				}
			}
			for level := feature.Plain; level <= feature.Best(); level++ {
				want, got := run1(t, s, level, 1, layer, good), run1(t, s, level, 1, layer, b)
				for i := range got {
					token := i / (s.Heads * s.HeadDim)
					if isNaN := got[i] != got[i]; isNaN != (token >= bad) || !isNaN && got[i] != want[i] {
						t.Fatalf("%v %v: key %d is no number, and value %d of row %d is %v", kv, level, bad, i, token, got[i])
					}
				}
			}
		}
	}
}

func TestExp2(t *testing.T) {
	if exp2(0) != 1 {
		t.Errorf("2^0 is %v", exp2(0))
	}
	for x := float32(-126); x < 0; x += 0.0371 {
		want := math.Exp2(float64(x))
		if e := math.Abs(float64(exp2(x))-want) / want; e > 3e-7 {
			t.Errorf("2^%v is off by %.2g", x, e)
		}
	}
	if exp2(-1e30) != 0 {
		t.Errorf("2^-1e30 is %v", exp2(-1e30))
	}
}

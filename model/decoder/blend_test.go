package decoder_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"grebe/compute"
	"grebe/model"
	"grebe/model/modeltest"
)

// prompt is a plain causal one: a user, items one after the other, an instruction.
type prompt struct {
	user        []int32
	items       [][]int32
	starts      []int // the position at which each item was computed alone
	instruction []int32
}

func (p *prompt) tokens() []int32 {
	return slices.Concat(p.user, slices.Concat(p.items...), p.instruction)
}

// first is the row of the first item's first token, as is its position.
func (p *prompt) first() int { return len(p.user) }

// causal is a batch of segments that see all before them.
func causal(s compute.Shape, start int, segments ...[]int32) *compute.Batch {
	b := &compute.Batch{}
	for _, tokens := range segments {
		g := compute.Segment{First: len(b.Tokens), Len: len(tokens)}
		for i := range b.Segments {
			g.Sees = append(g.Sees, int32(i))
		}
		for n := len(tokens); n > 0; n -= 4 { // chunks of four
			g.Chunks = append(g.Chunks, compute.Chunk{Bytes: make([]byte, s.ChunkBytes(4, false)), Tokens: 4})
		}
		for _, id := range tokens {
			b.Positions = append(b.Positions, int32(start+len(b.Tokens)))
			b.Tokens = append(b.Tokens, id)
		}
		b.Segments = append(b.Segments, g)
	}
	return b
}

func (p *prompt) batch(s compute.Shape) *compute.Batch {
	return causal(s, 0, p.user, slices.Concat(p.items...), p.instruction)
}

// parts computes the items alone, and returns their KV as what stands in for theirs in the prompt.
func (p *prompt) parts(t fataler, m model.Model, r compute.Runner) []compute.Part {
	t.Helper()
	s := m.Shape()
	var out []compute.Part
	at := 0
	for i, item := range p.items {
		b := causal(s, p.starts[i], item)
		b.Segments[0].Chunks = []compute.Chunk{{Bytes: make([]byte, s.ChunkBytes(len(item)+1, false)), Tokens: len(item) + 1}}
		if err := m.Forward(r, b, []int32{}); err != nil {
			t.Fatalf("item %d alone: %v", i, err)
		}
		out = append(out, compute.Part{Segment: 1, At: at, Tokens: len(item), From: b.Segments[0].Chunks[0],
			Turn: p.first() + at - p.starts[i]})
		at += len(item)
	}
	return out
}

type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// drawPrompt draws a prompt of up to 40 tokens.
func drawPrompt(t *rapid.T, vocab int) *prompt {
	run := func(name string, least, most int) []int32 {
		return rapid.SliceOfN(rapid.Int32Range(0, int32(vocab-1)), least, most).Draw(t, name)
	}
	p := &prompt{user: run("user", 0, 9), instruction: run("instruction", 1, 3)}
	for range rapid.IntRange(1, 5).Draw(t, "items") {
		p.items = append(p.items, run("item", 1, 6))
		p.starts = append(p.starts, rapid.IntRange(0, 200).Draw(t, "start"))
	}
	return p
}

func repairWith(layer int, parts []compute.Part, rows []int32) *model.Repair {
	return &model.Repair{Layer: layer, Received: true,
		Load:   func() ([]compute.Part, error) { return parts, nil },
		Choose: func([]float32) []int32 { return rows }}
}

func all(n int) []int32 {
	rows := make([]int32, n)
	for i := range rows {
		rows[i] = int32(i)
	}
	return rows
}

func hiddenOf(t fataler, m model.Model, r compute.Runner, rows []int32) []float32 {
	t.Helper()
	out := make([]float32, len(rows)*m.Shape().Hidden)
	if err := m.Hidden(r, rows, out); err != nil {
		t.Fatalf("hidden: %v", err)
	}
	return out
}

// written reads the K and V of all of a batch's tokens.
func written(s compute.Shape, b *compute.Batch) string {
	var out strings.Builder
	for _, g := range b.Segments {
		for token := range g.Len {
			c := &g.Chunks[token/4]
			for layer := range s.Layers {
				for i := range 2 * s.KVHeads {
					at := s.TokenAt(layer, i, token%4, c.Tokens)
					out.Write(c.Bytes[at : at+s.HeadDim*s.KV.Size()])
				}
			}
		}
	}
	return out.String()
}

// With all rows computed, it does not matter what stood in for them: any items, in any order, from
// anywhere, leave the plain prompt's results and KV, to the bit.
func TestBlendOfAllRowsIsThePlainPrompt(t *testing.T) {
	for name, spec := range specs {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := modeltest.Write(dir, spec()); err != nil {
				t.Fatal(err)
			}
			m, r := open(t, dir, "f32")
			s := m.Shape()
			rapid.Check(t, func(t *rapid.T) {
				p := drawPrompt(t, m.Vocab())
				rows := all(len(p.tokens()))
				plain, blended := p.batch(s), p.batch(s)
				if err := m.Forward(r, plain, nil); err != nil {
					t.Fatal(err)
				}
				want := hiddenOf(t, m, r, rows)
				repair := repairWith(rapid.IntRange(0, s.Layers-2).Draw(t, "layer"), p.parts(t, m, r), rows)
				if err := m.(model.Blender).Blend(r, blended, repair, nil); err != nil {
					t.Fatal(err)
				}
				if got := hiddenOf(t, m, r, rows); !slices.Equal(got, want) {
					t.Fatal("other hidden states than the plain prompt's")
				}
				if written(s, plain) != written(s, blended) {
					t.Fatal("other KV than the plain prompt's")
				}
			})
		})
	}
}

// Some rows are computed; for the others stands what the definition computes for their item alone, its keys
// rotated to where it is.
func TestBlendAgainstDefinition(t *testing.T) {
	for name, spec := range specs {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := modeltest.Write(dir, spec()); err != nil {
				t.Fatal(err)
			}
			m, r := open(t, dir, "f32")
			rng := rand.New(rand.NewPCG(3, 4))
			for range 4 {
				blendAgainstDefinition(t, m, r, newOracle(t, dir, spec()), rng)
			}
		})
	}
}

func blendAgainstDefinition(t *testing.T, m model.Model, r compute.Runner, o *oracle, rng *rand.Rand) {
	t.Helper()
	p := &prompt{user: randomTokens(rng, rng.IntN(6)), instruction: randomTokens(rng, 2)}
	for range 3 {
		p.items, p.starts = append(p.items, randomTokens(rng, 1+rng.IntN(5))), append(p.starts, rng.IntN(60))
	}
	layer, tokens := rng.IntN(m.Shape().Layers-1), p.tokens()
	first, end := p.first(), len(tokens)-len(p.instruction)
	var rows []int32
	for row := range tokens {
		if row < first || row >= end || rng.IntN(3) == 0 {
			rows = append(rows, int32(row))
		}
	}
	hidden, logits := o.blend(p, layer, rows)
	if err := m.(model.Blender).Blend(r, p.batch(m.Shape()), repairWith(layer, p.parts(t, m, r), rows), nil); err != nil {
		t.Fatal(err)
	}
	checkRows(t, m, r, rows, hidden, logits)
	keep := []int32{int32(end), int32(end + 1)}
	if err := m.(model.Blender).Blend(r, p.batch(m.Shape()), repairWith(layer, p.parts(t, m, r), rows), keep); err != nil {
		t.Fatal(err)
	}
	checkRows(t, m, r, keep, hidden, logits)
}

func randomTokens(rng *rand.Rand, n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = rng.Int32N(50)
	}
	return out
}

// blend computes the prompt with the items' own K and V, in the layers after layer, for rows that are not given.
func (o *oracle) blend(p *prompt, layer int, rows []int32) (hidden, logits [][]float64) {
	stand := make([][2][][]float64, o.cfg.Layers) // [layer][k|v][item's token]
	for i, item := range p.items {
		o.project = func(l int, k, v [][]float64) {
			stand[l][0], stand[l][1] = append(stand[l][0], k...), append(stand[l][1], v...)
		}
		o.causal(item, p.starts[i])
	}
	o.project = func(l int, k, v [][]float64) {
		for i := range stand[l][0] {
			row := p.first() + i
			if _, chosen := slices.BinarySearch(rows, int32(row)); l > layer && !chosen {
				k[row], v[row] = stand[l][0][i], stand[l][1][i]
			}
		}
	}
	return o.causal(p.tokens(), 0)
}

// causal is forward of a plain prompt.
func (o *oracle) causal(tokens []int32, start int) (hidden, logits [][]float64) {
	var ids, positions []int
	var mask [][]bool
	for i, id := range tokens {
		ids, positions = append(ids, int(id)), append(positions, start+i)
		row := make([]bool, len(tokens))
		for j := range i + 1 {
			row[j] = true
		}
		mask = append(mask, row)
	}
	return o.forward(ids, positions, mask)
}

// A block that was computed where it stands, with nothing before it, is what the prompt computes: dropping
// all of its rows changes no bit.
func TestBlendInPlaceIsExact(t *testing.T) {
	for name, spec := range specs {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := modeltest.Write(dir, spec()); err != nil {
				t.Fatal(err)
			}
			m, r := open(t, dir, "")
			p := &prompt{items: [][]int32{{5, 9, 1, 1, 30, 7, 2}}, starts: []int{0}, instruction: []int32{3, 4}}
			keep := []int32{7, 8}
			plain, blended := p.batch(m.Shape()), p.batch(m.Shape())
			if err := m.Forward(r, plain, keep); err != nil {
				t.Fatal(err)
			}
			want := hiddenOf(t, m, r, keep)
			if err := m.(model.Blender).Blend(r, blended, repairWith(0, p.parts(t, m, r), keep), keep); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(hiddenOf(t, m, r, keep), want) {
				t.Error("other hidden states than the plain prompt's")
			}
			if written(m.Shape(), plain) != written(m.Shape(), blended) {
				t.Error("other KV than the plain prompt's")
			}
		})
	}
}

// Choose sees how much attention each row received: as many units as there are rows, less than what cached
// tokens take.
func TestBlendReceives(t *testing.T) {
	dir := t.TempDir()
	if err := modeltest.Write(dir, small(modeltest.Qwen3)); err != nil {
		t.Fatal(err)
	}
	m, r := open(t, dir, "f32")
	p := &prompt{user: []int32{1, 2, 3}, items: [][]int32{{4, 5}, {6}}, starts: []int{0, 9}, instruction: []int32{7}}
	repair := repairWith(1, p.parts(t, m, r), []int32{0, 1, 2, 6})
	choose := repair.Choose
	repair.Choose = func(received []float32) []int32 {
		sum := float32(0)
		for _, v := range received {
			sum += v
		}
		if len(received) != 7 || math.Abs(float64(sum)-7) > 1e-5 {
			t.Errorf("7 rows received %v: %v in all", received, sum)
		}
		return choose(received)
	}
	if err := m.(model.Blender).Blend(r, p.batch(m.Shape()), repair, []int32{6}); err != nil {
		t.Fatal(err)
	}
	repair.Received = false
	repair.Choose = func(received []float32) []int32 {
		if received != nil {
			t.Errorf("received %v, which nobody asked for", received)
		}
		return choose(received)
	}
	if err := m.(model.Blender).Blend(r, p.batch(m.Shape()), repair, []int32{}); err != nil {
		t.Fatal(err)
	}
}

// plainRunner hides that a runner blends.
type plainRunner struct{ compute.Runner }

func TestBlendRefuses(t *testing.T) {
	dir := t.TempDir()
	if err := modeltest.Write(dir, small(modeltest.Llama)); err != nil {
		t.Fatal(err)
	}
	m, r := open(t, dir, "f32")
	p := &prompt{user: []int32{1, 2, 3}, items: [][]int32{{4, 5}, {6}}, starts: []int{0, 9}, instruction: []int32{7}}
	parts := p.parts(t, m, r)
	lost := errors.New("the disk is gone")
	for want, change := range map[string]func(x *model.Repair, b *compute.Batch){
		"layer 2 of 3": func(x *model.Repair, b *compute.Batch) { x.Layer = 2 },
		"layer -1":     func(x *model.Repair, b *compute.Batch) { x.Layer = -1 },
		"without Load": func(x *model.Repair, b *compute.Batch) { x.Load = nil },
		lost.Error(): func(x *model.Repair, b *compute.Batch) {
			x.Load = func() ([]compute.Part, error) { return nil, lost }
		},
		"row 6 is to be kept": func(x *model.Repair, b *compute.Batch) {
			x.Choose = func([]float32) []int32 { return []int32{0, 5} }
		},
		"row 7 was chosen": func(x *model.Repair, b *compute.Batch) {
			x.Choose = func([]float32) []int32 { return []int32{6, 7} }
		},
		"row 3 was chosen after": func(x *model.Repair, b *compute.Batch) {
			x.Choose = func([]float32) []int32 { return []int32{4, 3} }
		},
		"part 0 writes tokens 2": func(x *model.Repair, b *compute.Batch) {
			wrong := slices.Clone(parts)
			wrong[0].At = 2
			x.Load = func() ([]compute.Part, error) { return wrong, nil }
		},
		"rows of segment 1 were kept, whose KV is transient": func(x *model.Repair, b *compute.Batch) {
			x.Load = func() ([]compute.Part, error) { return nil, nil }
			b.Segments[1].Chunks[0].Transient = true
		},
		"token 50": func(x *model.Repair, b *compute.Batch) { b.Tokens[0] = 50 },
	} {
		b, repair := p.batch(m.Shape()), repairWith(0, parts, []int32{0, 1, 2, 6})
		change(repair, b)
		if err := m.(model.Blender).Blend(r, b, repair, []int32{6}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
	if err := m.(model.Blender).Blend(plainRunner{r}, p.batch(m.Shape()), repairWith(0, nil, nil), nil); err == nil {
		t.Error("a runner that does not blend was taken")
	}
}

func TestBlendRefusesFP8(t *testing.T) {
	dir := t.TempDir()
	if err := modeltest.Write(dir, small(modeltest.Llama)); err != nil {
		t.Fatal(err)
	}
	m, r := openKV(t, dir, "f32", "fp8")
	b := causal(m.Shape(), 0, []int32{1}, []int32{2}, []int32{3})
	err := m.(model.Blender).Blend(r, b, repairWith(0, nil, []int32{0, 1, 2}), nil)
	if err == nil || !strings.Contains(err.Error(), "fp8") {
		t.Errorf("error %v, want one that names fp8", err)
	}
}

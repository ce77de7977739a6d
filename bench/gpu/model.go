package gpu

import (
	"math"
	"math/rand/v2"

	"grebe/bench/weights"
	"grebe/compute"
)

// spec is a model's shape.
type spec struct {
	name  string
	shape compute.Shape
	vocab int
	bias  bool // of QKV
	norms bool // of queries' and keys' heads

	weights compute.DType // of the layers' products; BF16 or FP8
	same    bool          // all layers have equal weights, each its own copy: it saves time where they are large
}

func decoder(name string, layers, hidden, heads, kvHeads, headDim, inter, vocab int) spec {
	s := spec{name: name, vocab: vocab, bias: true, weights: compute.BF16,
		shape: compute.Shape{Layers: layers, Hidden: hidden, Heads: heads,
			KVHeads: kvHeads, HeadDim: headDim, Inter: inter, Eps: 1e-6, KV: compute.BF16, Rope: compute.Rope{Scale: 1}}}
	for i := range headDim / 2 {
		s.shape.Rope.InvFreq = append(s.shape.Rope.InvFreq, float32(math.Pow(1e6, -2*float64(i)/float64(headDim))))
	}
	return s
}

var (
	qwen2 = decoder("Qwen2-1.5B", 28, 1536, 12, 2, 128, 8960, 151936)
	qwen3 = func() spec {
		s := decoder("Qwen3-1.7B", 28, 2048, 16, 8, 128, 6144, 151936)
		s.bias, s.norms = false, true
		return s
	}()
	small = decoder("small", 2, 256, 4, 2, 64, 512, 500)
)

// model is random weights on a device.
type model struct {
	spec      spec
	embedding compute.Table
	norm      compute.Vector
	attention []compute.AttentionWeights
	ffn       []compute.FFNWeights
	bytes     int64 // of the layers' products
}

// newModel packs random weights.
func newModel(d compute.Device, s spec, seed uint64) (*model, error) {
	m := &model{spec: s}
	sh := &s.shape
	next, first := seed, seed // seeds: the last one that was used, and the last one before the layer
	var failed error
	keep := func(err error) {
		if failed == nil {
			failed = err
		}
	}
	drawn := map[uint64]compute.Tensor{}
	tensor := func(rows, cols int) compute.Tensor {
		next++
		if s.same {
			id := next - first
			if t, ok := drawn[id]; ok {
				return t
			}
			drawn[id] = weights.Matrix(next, rows, cols)
			return drawn[id]
		}
		return weights.Matrix(next, rows, cols)
	}
	linear := func(parts ...compute.Tensor) compute.Linear {
		l, err := d.Linear(s.weights, parts...)
		keep(err)
		if err == nil {
			m.bytes += l.Bytes()
		}
		return l
	}
	vector := func(n int, mean, scale float32) compute.Vector {
		next++
		v, err := d.Vector(weights.Tensor(next, 1, n, mean, scale))
		keep(err)
		return v
	}
	q, kv := sh.Heads*sh.HeadDim, sh.KVHeads*sh.HeadDim
	var err error
	m.embedding, err = d.Table(weights.Tensor(seed, s.vocab, sh.Hidden, 0, 1))
	keep(err)
	m.norm = vector(sh.Hidden, 1, 0.2)
	for range sh.Layers {
		first = next
		a := compute.AttentionWeights{Norm: vector(sh.Hidden, 1, 0.2), QKV: linear(tensor(q+2*kv, sh.Hidden)),
			Out: linear(tensor(sh.Hidden, q))}
		if s.bias {
			a.QKVBias = vector(q+2*kv, 0, 0.2)
		}
		if s.norms {
			a.QNorm, a.KNorm = vector(sh.HeadDim, 1, 0.2), vector(sh.HeadDim, 1, 0.2)
		}
		gateUp, err := d.GateUp(s.weights, tensor(sh.Inter, sh.Hidden), tensor(sh.Inter, sh.Hidden))
		keep(err)
		if err == nil {
			m.bytes += gateUp.Bytes()
		}
		m.attention = append(m.attention, a)
		m.ffn = append(m.ffn, compute.FFNWeights{Norm: vector(sh.Hidden, 1, 0.2), GateUp: gateUp,
			Down: linear(tensor(sh.Hidden, sh.Inter))})
		if failed != nil {
			return nil, failed
		}
	}
	return m, failed
}

// subject is a model with a runner and room for KV.
type subject struct {
	*model
	mem    compute.Memory
	runner compute.Runner
	blocks []compute.Block
	seed   uint64
}

func (m *model) open(d compute.Device, rows int) (*subject, error) {
	r, err := d.Open(m.spec.shape, rows)
	return &subject{model: m, mem: d.Memory(), runner: r, seed: 1}, err
}

func (s *subject) close() {
	_ = s.runner.Close() // nothing is left to measure
	for _, b := range s.blocks {
		s.mem.Free(b)
	}
}

// workCase is a batch and what is wanted of it.
type workCase struct {
	name   string
	batch  compute.Batch
	wanted []int32 // rows
}

// segment is a part of a plan.
type segment struct {
	tokens, cached int
	start          int32
	sees           []int32
	chunk          int // tokens of a chunk; 0: all
}

// plan makes a batch of segments with fresh random tokens and, where they are cached, random KV.
func (s *subject) plan(name string, segments ...segment) (*workCase, error) {
	c := &workCase{name: name}
	s.seed++
	r := rand.New(rand.NewPCG(s.seed, 9))
	for _, g := range segments {
		seg := compute.Segment{First: len(c.batch.Tokens), Cached: g.cached, Len: g.tokens, Sees: g.sees}
		size := g.chunk
		if size == 0 {
			size = g.tokens
		}
		for at := 0; at < g.tokens; at += size {
			n := min(size, g.tokens-at)
			ch, err := s.chunk(n, at < g.cached)
			if err != nil {
				return nil, err
			}
			seg.Chunks = append(seg.Chunks, ch)
		}
		for t := g.cached; t < g.tokens; t++ {
			c.batch.Tokens = append(c.batch.Tokens, int32(r.IntN(s.spec.vocab)))
			c.batch.Positions = append(c.batch.Positions, g.start+int32(t))
		}
		c.batch.Segments = append(c.batch.Segments, seg)
	}
	c.wanted = []int32{int32(len(c.batch.Tokens)) - 1}
	return c, nil
}

func (s *subject) chunk(tokens int, filled bool) (compute.Chunk, error) {
	n := s.spec.shape.ChunkBytes(tokens, false)
	b, err := s.mem.Alloc((n + 255) &^ 255)
	if err != nil {
		return compute.Chunk{}, err
	}
	s.blocks = append(s.blocks, b)
	if filled {
		s.seed++
		err = s.mem.Write(b, weights.Tensor(s.seed, 1, n/2, 0, 1).Data)
	}
	return b.Slice(0, n).Chunk(tokens, false), err
}

const userChunk = 64 // tokens, as the cache cuts users

func (s *subject) prompt(name string, tokens int) (*workCase, error) {
	return s.plan(name, segment{tokens: tokens, chunk: userChunk})
}

// Cases of ranking.
const (
	rankAlone = iota
	rankScattered
	rankWhole
	rankAll
)

// Sizes of ranking's prompt, and the most rows of its cases.
const (
	rankUser, rankItems, rankItem, rankInstruction = 1500, 100, 10, 16

	rankRows = rankUser + rankItems*rankItem + rankInstruction
)

// ranking is a user of 1,500 tokens and 100 cached items of 10, item-first; beside it the user alone, the
// same keys in one piece, and the same plan with nothing cached.
func (s *subject) ranking() ([]*workCase, error) {
	var all []int32
	for i := range rankItems {
		all = append(all, int32(i))
	}
	items := func(cached int) []segment {
		var out []segment
		for range rankItems {
			out = append(out, segment{tokens: rankItem, cached: cached})
		}
		return append(out, segment{tokens: rankUser, start: rankItem, sees: all, chunk: userChunk},
			segment{tokens: rankInstruction, start: rankItem + rankUser, sees: append(all[:len(all):len(all)], rankItems)})
	}
	plans := map[int][]segment{
		rankAlone: {{tokens: rankUser, chunk: userChunk}, {tokens: rankInstruction, start: rankUser, sees: []int32{0}}},
		rankWhole: {{tokens: rankItems * rankItem, cached: rankItems * rankItem},
			{tokens: rankUser, start: rankItem, sees: []int32{0}, chunk: userChunk},
			{tokens: rankInstruction, start: rankItem + rankUser, sees: []int32{0, 1}}},
		rankScattered: items(rankItem),
		rankAll:       items(0),
	}
	out := make([]*workCase, len(plans))
	for i, name := range []string{"rank: the user alone", "rank: 100 cached items", "rank: the same keys in one piece",
		"rank: everything recomputed"} {
		c, err := s.plan(name, plans[i]...)
		if err != nil {
			return nil, err
		}
		out[i] = c
	}
	return out, nil
}

// forward runs a batch as a decoder does and takes one logit of each wanted row.
func (s *subject) forward(b *compute.Batch, wanted []int32) error {
	if err := s.layers(b, wanted); err != nil {
		return err
	}
	var pairs [64]compute.Pair
	for i, row := range wanted {
		pairs[i] = compute.Pair{Row: row, ID: 1}
	}
	var out [64]float32
	return s.runner.Logits(s.norm, s.embedding, pairs[:len(wanted)], out[:len(wanted)])
}

func (s *subject) layers(b *compute.Batch, wanted []int32) error {
	r := s.runner
	if err := r.Begin(b); err != nil {
		return err
	}
	s.through(wanted)
	return nil
}

// through puts a batch that was begun through the layers; nil keeps all rows.
func (s *subject) through(keep []int32) {
	r := s.runner
	r.Embed(s.embedding)
	for i := range s.attention {
		r.QKV(i, &s.attention[i])
		r.Attend(i)
		if i == len(s.attention)-1 && keep != nil {
			r.Keep(keep)
		}
		r.Output(&s.attention[i])
		r.FFN(&s.ffn[i])
	}
}

package beam

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"grebe/compute"
	"grebe/compute/cpu"
	"grebe/engine"
)

// Attention is one layer's attention of beams, in a round in which each has one token behind it.
type Attention struct {
	Width   int     `json:"width"`
	Context int     `json:"context"`
	Group   int     `json:"paged_group"` // beams of a batch of the paged baseline: the fastest number for it
	Ways    []Way   `json:"ways"`        // grebe, paged, packed
	Differ  float64 `json:"differ"`      // largest difference of what the ways yield
}

// Memory is the KV of one request, in bytes of a Qwen3-0.6B or 1.7B, whose heads are alike.
type Memory struct {
	Width    int   `json:"width"`
	Context  int   `json:"context"`
	Rounds   int   `json:"rounds"` // that feed a token of each beam
	Prompt   int   `json:"prompt"`
	Beams    int   `json:"beams"`      // width × rounds tokens
	Paged    int   `json:"paged"`      // pages of 16 tokens, those of the prompt shared, all others a beam's own
	Separate int64 `json:"separate"`   // every beam with its own prompt
	Tokens   int   `json:"beam_token"` // tokens that Beams has room for
}

const (
	pageTokens = 16
	ownTokens  = 2 // of a beam: one from the round before, and this round's
	vocab      = 1024
)

// layer is one layer with the heads of Qwen3-0.6B and 1.7B. The hidden size, which attention does not
// see, is small.
func layer() compute.Shape {
	s := compute.Shape{Layers: 1, Hidden: 64, Heads: 16, KVHeads: 8, HeadDim: 128, Inter: 64, Eps: 1e-6, KV: compute.BF16}
	for i := range s.HeadDim / 2 {
		s.Rope.InvFreq = append(s.Rope.InvFreq, float32(math.Pow(1e6, -2*float64(i)/float64(s.HeadDim))))
	}
	s.Rope.Scale = 1
	return s
}

// attention compares beams that share a prompt with beams that do not.
func attention(ctx context.Context, o *Options, r *Report, p *printer) error {
	dev, err := cpu.New(cpu.Options{Threads: o.Threads})
	if err != nil {
		return err
	}
	defer func() { _ = dev.Close() }()
	r.Device = dev.Name()
	widths := o.widths(128, 256, 512)
	p.attentionHead(r.Device)
	for _, tokens := range o.Contexts {
		for _, width := range widths {
			a, err := attend(ctx, o, dev, width, tokens)
			if err != nil {
				return fmt.Errorf("attention of %d beams behind %d tokens: %w", width, tokens, err)
			}
			r.Attention = append(r.Attention, a)
			p.attention(&a)
			r.Checks = append(r.Checks, Check{
				What: fmt.Sprintf("the ways agree, width %d, context %d", width, tokens),
				Got:  fmt.Sprintf("largest difference %.2g", a.Differ), OK: a.Differ <= 1e-2})
			if width == 512 {
				r.Checks = append(r.Checks, Check{
					What: fmt.Sprintf("attention of 512 beams behind %d tokens takes at most 1/6 of the paged time", tokens),
					Got:  fmt.Sprintf("%.1f× [%.1f, %.1f]", a.Ways[1].Over, a.Ways[1].Low, a.Ways[1].High), OK: a.Ways[1].Over >= 6})
			}
		}
	}
	p.memoryHead()
	for _, tokens := range o.Contexts {
		for _, width := range widths {
			m, err := memory(width, tokens)
			if err != nil {
				return err
			}
			r.Memory = append(r.Memory, m)
			p.memory(&m)
			r.Checks = append(r.Checks, Check{
				What: fmt.Sprintf("beams add width × rounds tokens, width %d, context %d", width, tokens),
				Got:  fmt.Sprintf("%d tokens", m.Tokens), OK: m.Tokens == width*m.Rounds})
		}
	}
	return nil
}

// memory counts the bytes of a request with three codes: the third is chosen and not fed.
func memory(width, tokens int) (Memory, error) {
	s := layer()
	s.Layers = 28
	const rounds = 2
	beams, err := engine.NewBeams(s, width, rounds)
	if err != nil {
		return Memory{}, err
	}
	one := s.ChunkBytes(1, false)
	// pages of a beam: the prompt's last is copied unless full
	own := (tokens%pageTokens + rounds + pageTokens - 1) / pageTokens
	return Memory{
		Width: width, Context: tokens, Rounds: rounds, Prompt: tokens * one, Beams: beams.Bytes(),
		Tokens: beams.Bytes() / one,
		Paged:  width * own * pageTokens * one, Separate: int64(width) * int64(tokens+rounds) * int64(one),
	}, nil
}

// bench is a layer, and the KV of a prompt and of beams.
type bench struct {
	shape         compute.Shape
	runner        compute.Runner
	table         compute.Table
	weights       compute.AttentionWeights
	width, tokens int
	prompt        []compute.Chunk // pages
	own           []compute.Chunk // of each beam, room for its tokens
	first, last   []compute.Chunk // of each beam, its first token alone and its last
	pages         []compute.Chunk // of each beam, a page
}

func attend(ctx context.Context, o *Options, dev compute.Device, width, tokens int) (a Attention, err error) {
	b := &bench{shape: layer(), width: width, tokens: tokens}
	if b.runner, err = dev.Open(b.shape, width); err != nil {
		return a, err
	}
	defer func() { _ = b.runner.Close() }()
	r := rand.New(rand.NewPCG(uint64(width), uint64(tokens)))
	if err := b.setWeights(dev, r); err != nil {
		return a, err
	}
	memory := dev.Memory()
	size := func(n int) int { return b.shape.ChunkBytes(n, false) }
	block, err := memory.Alloc(size(tokens) + width*(size(ownTokens)+2*size(1)+size(pageTokens)))
	if err != nil {
		return a, err
	}
	defer memory.Free(block)
	b.lay(block, r)

	a = Attention{Width: width, Context: tokens}
	shared, packed := b.shared(), b.packed()
	if a.Group, err = b.bestGroup(); err != nil {
		return a, err
	}
	paged := b.paged(a.Group)
	if a.Differ, err = b.differ(shared, packed, paged); err != nil {
		return a, err
	}
	a.Ways, err = compare(ctx, o.Blocks,
		way{"grebe", func() (time.Duration, error) { return b.time(shared) }},
		way{"paged", func() (time.Duration, error) { return b.time(paged) }},
		way{"packed", func() (time.Duration, error) { return b.time(packed) }})
	return a, err
}

func (b *bench) setWeights(dev compute.Device, r *rand.Rand) error {
	tensor := func(rows, cols int, scale float64) compute.Tensor {
		t := compute.Tensor{DType: compute.F32, Rows: rows, Cols: cols, Data: make([]byte, 4*rows*cols)}
		for i := range rows * cols {
			binary.LittleEndian.PutUint32(t.Data[4*i:], math.Float32bits(float32(r.NormFloat64()*scale)))
		}
		return t
	}
	s := &b.shape
	var err error
	if b.table, err = dev.Table(tensor(vocab, s.Hidden, 1)); err != nil {
		return err
	}
	if b.weights.Norm, err = dev.Vector(tensor(1, s.Hidden, 1)); err != nil {
		return err
	}
	if b.weights.QKV, err = dev.Linear(compute.F32, tensor((s.Heads+2*s.KVHeads)*s.HeadDim, s.Hidden, 0.15)); err != nil {
		return err
	}
	b.weights.Out, err = dev.Linear(compute.F32, tensor(s.Hidden, s.Heads*s.HeadDim, 0.05))
	return err
}

// lay cuts the block into chunks and fills them with random KV, the same for a beam in all its chunks.
func (b *bench) lay(block compute.Block, r *rand.Rand) {
	at := 0
	cut := func(tokens int) compute.Chunk {
		n := b.shape.ChunkBytes(tokens, false)
		at += n
		return block.Slice(at-n, n).Chunk(tokens, false)
	}
	for range b.tokens / pageTokens {
		c := cut(pageTokens)
		fill(c.Bytes, r)
		b.prompt = append(b.prompt, c)
	}
	row := b.shape.HeadDim * b.shape.KV.Size()
	for range b.width {
		own, first, last, page := cut(ownTokens), cut(1), cut(1), cut(pageTokens)
		fill(first.Bytes, r)
		for h := range 2 * b.shape.KVHeads { // K of all heads, then V
			kv := first.Bytes[h*row:][:row]
			copy(own.Bytes[h*ownTokens*row:], kv)
			copy(page.Bytes[h*pageTokens*row:], kv)
		}
		b.own, b.pages = append(b.own, own), append(b.pages, page)
		b.first, b.last = append(b.first, first), append(b.last, last)
	}
}

func fill(kv []byte, r *rand.Rand) {
	for i := 0; i < len(kv); i += 2 {
		binary.LittleEndian.PutUint16(kv[i:], uint16(math.Float32bits(float32(r.NormFloat64()))>>16))
	}
}

// shared is how Grebe runs a round: beams are segments behind one prompt.
func (b *bench) shared() []*compute.Batch {
	x := b.batch(0, b.width)
	x.Segments = append(x.Segments, compute.Segment{Cached: b.tokens, Len: b.tokens, Chunks: b.prompt})
	for i := range b.width {
		x.Segments = append(x.Segments, compute.Segment{
			First: i, Cached: 1, Len: ownTokens, Sees: []int32{0}, Chunks: b.own[i : i+1]})
	}
	return []*compute.Batch{x}
}

// paged is how PagedAttention runs it: every beam is a sequence of its own with a table of pages, and
// goes through all of them. The prompt's pages are the same memory. Beams come in groups, so that what
// the kernels copy of each stays close.
func (b *bench) paged(group int) (out []*compute.Batch) {
	for from := 0; from < b.width; from += group {
		x := b.batch(from, min(group, b.width-from))
		for i := range len(x.Tokens) {
			table := append(append(make([]compute.Chunk, 0, len(b.prompt)+1), b.prompt...), b.pages[from+i])
			x.Segments = append(x.Segments, compute.Segment{
				First: i, Cached: b.tokens + 1, Len: b.tokens + ownTokens, Chunks: table})
		}
		out = append(out, x)
	}
	return out
}

// packed is between the two: the kernels lay the prompt out once for all beams, but each goes through it
// by itself. Its first token stands apart, so that no two beams see the same.
func (b *bench) packed() []*compute.Batch {
	x := b.batch(0, b.width)
	x.Segments = append(x.Segments, compute.Segment{Cached: b.tokens, Len: b.tokens, Chunks: b.prompt})
	for i := range b.width {
		first := int32(len(x.Segments))
		x.Segments = append(x.Segments,
			compute.Segment{First: i, Cached: 1, Len: 1, Sees: []int32{0}, Chunks: b.first[i : i+1]},
			compute.Segment{First: i, Len: 1, Sees: []int32{0, first}, Chunks: b.last[i : i+1]})
	}
	return []*compute.Batch{x}
}

func (b *bench) batch(from, rows int) *compute.Batch {
	x := &compute.Batch{}
	for i := range rows {
		x.Tokens = append(x.Tokens, int32((from+i)%vocab))
		x.Positions = append(x.Positions, int32(b.tokens+1))
	}
	return x
}

// time runs the batches and returns what their attention took.
func (b *bench) time(batches []*compute.Batch) (took time.Duration, err error) {
	for _, x := range batches {
		if err := b.runner.Begin(x); err != nil {
			return 0, err
		}
		b.runner.Embed(b.table)
		b.runner.QKV(0, &b.weights)
		start := time.Now()
		b.runner.Attend(0)
		took += time.Since(start)
	}
	return took, b.runner.Hidden(nil, nil, nil)
}

// bestGroup finds the number of beams in a batch that is fastest for the paged baseline.
func (b *bench) bestGroup() (best int, err error) {
	least := time.Duration(math.MaxInt64)
	for group := 1; group <= b.width && group*b.tokens <= 1<<16; group *= 4 {
		batches := b.paged(group)
		batches = batches[:max(1, len(batches)/4)]
		for range 2 { // the first warms up
			took, err := b.time(batches)
			if err != nil {
				return 0, err
			}
			if per := took / time.Duration(len(batches)*group); per < least {
				least, best = per, group
			}
		}
	}
	return best, nil
}

// differ returns the largest difference between what the ways yield.
func (b *bench) differ(ways ...[]*compute.Batch) (float64, error) {
	var first []float32
	worst := 0.0
	for _, batches := range ways {
		var all []float32
		for _, x := range batches {
			if _, err := b.time([]*compute.Batch{x}); err != nil {
				return 0, err
			}
			b.runner.Output(&b.weights)
			rows := make([]int32, len(x.Tokens))
			for i := range rows {
				rows[i] = int32(i)
			}
			out := make([]float32, len(rows)*b.shape.Hidden)
			if err := b.runner.Hidden(nil, rows, out); err != nil {
				return 0, err
			}
			all = append(all, out...)
		}
		if first == nil {
			first = all
		}
		for i, v := range all {
			worst = max(worst, math.Abs(float64(v-first[i])))
		}
	}
	return worst, nil
}

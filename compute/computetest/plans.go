package computetest

import (
	"fmt"
	"slices"
	"unsafe"

	"grebe/compute"
)

// A segment of a plan, before it has a place in a batch.
type segment struct {
	tokens    []int32
	start     int32 // position of the first token
	sees      []int // segments of the same plan
	cached    int
	kv        []byte // K and V of the cached tokens: a chunk of exactly len(tokens) tokens
	chunks    []int  // tokens per chunk; nil: one of the exact length
	transient bool
}

type plan []segment

func (r random) segment(n int, start int32, sees ...int) segment {
	g := segment{start: start, sees: sees}
	for range n {
		g.tokens = append(g.tokens, r.Int32N(vocabulary))
	}
	return g
}

// userFirst: items see the user, the instruction sees all.
func (r random) userFirst(start int32, user int, items []int, instruction int) plan {
	p := plan{r.segment(user, start)}
	all := []int{0}
	for i, n := range items {
		p = append(p, r.segment(n, start+int32(user), 0))
		all = append(all, i+1)
	}
	return append(p, r.segment(instruction, start+int32(user+slices.Max(items)), all...))
}

// itemFirst: a lead-in that all see, items, the user, who sees them, the instruction, which sees all.
func (r random) itemFirst(start int32, lead, user int, items []int, instruction int) plan {
	p := plan{r.segment(lead, start)}
	start += int32(lead)
	all := []int{0}
	for i, n := range items {
		p = append(p, r.segment(n, start, 0))
		all = append(all, i+1)
	}
	start += int32(slices.Max(items))
	p = append(p, r.segment(user, start, all...))
	all = append(slices.Clone(all), len(p)-1)
	return append(p, r.segment(instruction, start+int32(user), all...))
}

// pointwise: user-first with a discriminant of its own for every item.
func (r random) pointwise(start int32, user int, items []int, discriminant int) plan {
	p := plan{r.segment(user, start)}
	for _, n := range items {
		p = append(p, r.segment(n, start+int32(user), 0))
		p = append(p, r.segment(discriminant, start+int32(user+n), 0, len(p)-1))
	}
	return p
}

// causal: one segment.
func (r random) causal(start int32, n int) plan { return plan{r.segment(n, start)} }

// chain returns chunks of size tokens that hold n.
func chain(n, size int) []int {
	var c []int
	for room := 0; room < n; room += size {
		c = append(c, size)
	}
	return c
}

// kv draws K and V of n tokens.
func (r random) kv(s *compute.Shape, n int) []byte {
	if s.KV == compute.FP8 {
		return r.scaledKV(s, n)
	}
	kv := make([]byte, 0, s.ChunkBytes(n, false))
	for range s.ChunkBytes(n, false) / s.KV.Size() {
		kv = appendValue(kv, s.KV, r.NormFloat64())
	}
	return kv
}

// scatter returns the plan with other sources and places of its K and V: some segments are cached in
// full or in part, some lie in chains, some in transient chunks. kv returns a cached segment's.
func (r random) scatter(p plan, kv func(segment int) []byte) plan {
	p = slices.Clone(p)
	for i := range p {
		g := &p[i]
		n := len(g.tokens)
		if n == 0 {
			continue
		}
		switch r.IntN(6) {
		case 0:
			if i < len(p)-1 { // something remains to be computed
				g.cached, g.kv = n, kv(i)
			}
		case 1:
			g.cached, g.kv = r.IntN(n), kv(i)
		case 2:
			g.transient = true
		}
		switch r.IntN(4) {
		case 0:
			g.chunks = chain(n, 64)
		case 1:
			g.chunks = chain(n, 1+r.IntN(20))
		case 2:
			g.chunks = []int{n + r.IntN(40)}
		}
	}
	return p
}

// scatterRandom is scatter with random K and V where cached.
func (r random) scatterRandom(s *compute.Shape, p plan) plan {
	return r.scatter(p, func(i int) []byte { return r.kv(s, len(p[i].tokens)) })
}

// guard is what surrounds chunks, and untouched what their bytes are before anything is written:
// a NaN in every format.
const (
	guard     = 256
	untouched = 0xff
)

// batch is plans with a place for everything.
type batch struct {
	compute.Batch
	shape  *compute.Shape
	from   []place           // per segment
	host   [][]compute.Chunk // per segment: its chunks as the host sees them, after fetch
	memory compute.Memory
	block  compute.Block // of memory: the chunks with their surroundings
	image  []byte        // block's content on the host; its own bytes where the host sees them
	prior  []byte        // image as it was before the pass
	ends   []int         // of the chunks in block
	err    error         // why there is no room
	sum    []compute.SumPart
}

// place says which segment of which plan something belongs to.
type place struct{ plan, segment int }

// newBatch lays the plans out one after the other, their chunks in memory. Segments that are cached in
// full and share their kv share chunks.
func newBatch(memory compute.Memory, s *compute.Shape, plans ...plan) *batch {
	b := &batch{shape: s, memory: memory}
	size := guard
	for _, p := range plans {
		for j := range p {
			for _, n := range p[j].sizes() {
				size += b.room(n, p[j].transient)
			}
		}
	}
	if b.block, b.err = memory.Alloc(size); b.err != nil {
		return b
	}
	if b.image = b.block.Bytes; b.image == nil {
		b.image = make([]byte, size)
	}
	for i := range b.image {
		b.image[i] = untouched
	}
	b.lay(plans)
	b.prior = slices.Clone(b.image)
	b.err = memory.Write(b.block, b.prior)
	return b
}

// begin has a runner take the batch.
func (b *batch) begin(r compute.Runner) error {
	if b.err != nil {
		return fmt.Errorf("a batch in the device's memory: %w", b.err)
	}
	return r.Begin(&b.Batch)
}

// rows returns how many rows plans compute.
func rows(plans []plan) int {
	n := 0
	for _, p := range plans {
		for i := range p {
			n += len(p[i].tokens) - p[i].cached
		}
	}
	return n
}

func (b *batch) lay(plans []plan) {
	shared := map[*byte]int{}
	for i, p := range plans {
		base := len(b.Segments)
		for j := range p {
			g := &p[j]
			seg := compute.Segment{First: len(b.Tokens), Cached: g.cached, Len: len(g.tokens), Start: int(g.start)}
			if len(p)%2 == 1 {
				seg.Scale = 0.75
			}
			for _, k := range g.sees {
				seg.Sees = append(seg.Sees, int32(base+k))
			}
			key := unsafe.SliceData(g.kv)
			full := g.cached > 0 && g.cached == len(g.tokens)
			var host []compute.Chunk
			if k, ok := shared[key]; ok && full {
				seg.Chunks, host = b.Segments[k].Chunks, b.host[k]
			} else {
				seg.Chunks, host = b.chunks(g)
			}
			if full {
				shared[key] = len(b.Segments)
			}
			for t := g.cached; t < len(g.tokens); t++ {
				b.Tokens = append(b.Tokens, g.tokens[t])
				b.Positions = append(b.Positions, g.start+int32(t))
			}
			b.Segments = append(b.Segments, seg)
			b.host = append(b.host, host)
			b.from = append(b.from, place{i, j})
		}
	}
}

// sizes returns the tokens of each chunk.
func (g *segment) sizes() []int {
	if g.chunks == nil && len(g.tokens) > 0 {
		return []int{len(g.tokens)}
	}
	return g.chunks
}

// room returns the bytes of a chunk and of the guard behind it, which keeps the next one's place a
// multiple of 256.
func (b *batch) room(tokens int, transient bool) int {
	return (b.shape.ChunkBytes(tokens, transient)+guard-1)/guard*guard + guard
}

// chunks takes a segment's chunks from the block, in the device's terms and as the host sees them, and
// fills in what is cached.
func (b *batch) chunks(g *segment) (device, host []compute.Chunk) {
	for _, n := range g.sizes() {
		size, at := b.shape.ChunkBytes(n, g.transient), guard
		if len(b.ends) > 0 {
			at = b.ends[len(b.ends)-1]
		}
		b.ends = append(b.ends, at+b.room(n, g.transient))
		device = append(device, b.block.Slice(at, size).Chunk(n, g.transient))
		host = append(host, compute.Chunk{Bytes: b.image[at : at+size : at+size], Tokens: n, Transient: g.transient})
	}
	whole := []compute.Chunk{{Bytes: g.kv, Tokens: len(g.tokens)}}
	for l := range b.shape.Layers {
		for t := range g.cached {
			for i := range 2 * b.shape.KVHeads {
				copyVector(b.shape, host, whole, l, i, t)
			}
		}
	}
	return device, host
}

// fetch brings what the device wrote to where the host sees it.
func (b *batch) fetch() error {
	if b.block.Bytes != nil {
		return nil
	}
	return b.memory.Read(b.image, b.block)
}

// vectorAt returns the bytes of one token's K or V of one head; i counts the K of all heads, then V.
func vectorAt(s *compute.Shape, chunks []compute.Chunk, layer, i, token int) []byte {
	c, token, layer := chunkOf(chunks, token, layer)
	at := s.TokenAt(layer, i, token, c.Tokens)
	return c.Bytes[at : at+s.HeadDim*s.KV.Size()]
}

// chunkOf returns a token's chunk, and its place and its layer's there.
func chunkOf(chunks []compute.Chunk, token, layer int) (*compute.Chunk, int, int) {
	c := 0
	for token >= chunks[c].Tokens {
		token -= chunks[c].Tokens
		c++
	}
	if chunks[c].Transient {
		layer = 0
	}
	return &chunks[c], token, layer
}

// copyVector copies a token's K or V of one head, and the scale.
func copyVector(s *compute.Shape, to, from []compute.Chunk, layer, i, token int) {
	copy(vectorAt(s, to, layer, i, token), vectorAt(s, from, layer, i, token))
	copy(scaleAt(s, to, layer, i, token), scaleAt(s, from, layer, i, token))
}

// whole returns a segment's K and V as one chunk of its exact length.
func (b *batch) whole(segment int) []byte {
	g := &b.Segments[segment]
	kv := make([]byte, b.shape.ChunkBytes(g.Len, false))
	to := []compute.Chunk{{Bytes: kv, Tokens: g.Len}}
	for l := range b.shape.Layers {
		for t := range g.Len {
			for i := range 2 * b.shape.KVHeads {
				copyVector(b.shape, to, b.host[segment], l, i, t)
			}
		}
	}
	return kv
}

func (b *batch) transient(segment int) bool {
	g := &b.Segments[segment]
	return g.Len > 0 && g.Chunks[0].Transient
}

// row says what a row is, for people.
func (b *batch) row(row int) string {
	for i := range b.Segments {
		g := &b.Segments[i]
		if row >= g.First && row < g.First+g.Rows() {
			return fmt.Sprintf("row %d of %d (%s token %d of %d)", row, len(b.Tokens), b.name(i), g.Cached+row-g.First, g.Len)
		}
	}
	return fmt.Sprintf("row %d", row)
}

func (b *batch) name(segment int) string {
	return fmt.Sprintf("plan %d segment %d", b.from[segment].plan, b.from[segment].segment)
}

// untouchedElsewhere checks that a pass wrote the computed tokens' K and V and nothing else. It
// destroys what was written.
func (b *batch) untouchedElsewhere() error {
	for i := range b.Segments {
		g := &b.Segments[i]
		for t := g.Cached; t < g.Len; t++ {
			for l := range b.shape.Layers {
				for h := range 2 * b.shape.KVHeads {
					v := vectorAt(b.shape, b.host[i], l, h, t)
					copy(v, slices.Repeat([]byte{untouched}, len(v)))
					if _, first, _ := chunkOf(b.host[i], t, l); first == 0 {
						scale := scaleAt(b.shape, b.host[i], l, h, t)
						copy(scale, slices.Repeat([]byte{untouched}, len(scale)))
					}
				}
			}
		}
	}
	for at := range b.image {
		// What was computed held untouched before: its tokens were not cached.
		if b.image[at] != b.prior[at] {
			return fmt.Errorf("%s was %#x and became %#x, but is no computed token's", b.where(at), b.prior[at], b.image[at])
		}
	}
	return nil
}

// where says what a byte of the image is, for people.
func (b *batch) where(at int) string {
	begin := guard
	for i, end := range b.ends {
		if at < end {
			return fmt.Sprintf("byte %d from the beginning of chunk %d (%d bytes, the last %d or more no chunk's)", at-begin, i,
				end-begin, guard)
		}
		begin = end
	}
	return fmt.Sprintf("byte %d behind the last chunk", at-begin)
}

package engine

import (
	"fmt"
	"slices"
	"sync"

	"grebe/compute"
)

// Beams is the KV of what a search has generated so far: exactly width × depth tokens, beside the
// prompt's, which all beams share (XGR-1). Beam b of a job is its segment First+b; the first tokens of
// each have their KV here already, as many as Advance was told.
//
// It belongs to one search at a time. Who begins one MUST Close it; then it can begin another. A job that
// uses it MUST be done before it is changed.
type Beams struct {
	First int // the segment of beam 0

	stride int // bytes of a beam
	rows   int // of a beam: keys and values of a head and layer, of all its tokens
	row    int // bytes of a row
	scale  int // bytes ahead of its tokens
	token  int // bytes of a token in a row
	width  int
	depth  int
	done   int
	store  *beamStore // of the engine that runs the search; nil before its first round
	block  compute.Block
	moves  []compute.Move // not made yet
}

// NewBeams begins a search with new Beams.
func NewBeams(shape compute.Shape, width, depth int) (*Beams, error) {
	b := &Beams{}
	return b, b.Begin(&shape, width, depth)
}

// Begin is for a search of width beams of depth tokens each, of models of a shape. Their memory is taken
// from the device that runs the first job.
func (b *Beams) Begin(shape *compute.Shape, width, depth int) error {
	if width < 1 || depth < 1 {
		return fmt.Errorf("engine: %d beams of %d tokens", width, depth)
	}
	b.Close()
	b.width, b.depth, b.done, b.stride = width, depth, 0, align(shape.ChunkBytes(depth, false))
	b.rows, b.row = 2*shape.Layers*shape.KVHeads, shape.HeadBytes(depth)
	b.scale, b.token = shape.ScaleBytes(), shape.HeadDim*shape.KV.Size()
	b.moves = slices.Grow(b.moves[:0], width)
	return nil
}

// Width returns the number of beams that there is room for.
func (b *Beams) Width() int { return b.width }

// Bytes returns the memory that the beams' KV takes.
func (b *Beams) Bytes() int { return b.width * b.stride }

// Advance says that a round is over: each beam has the KV of one more token.
func (b *Beams) Advance() { b.done++ }

// Move copies what beam src has generated to beam dst, before the next job.
func (b *Beams) Move(dst, src int) {
	if b.store != nil && b.done > 0 && dst != src {
		b.moves = append(b.moves, compute.Move{Dst: b.of(dst), Src: b.of(src),
			Width: b.scale + b.done*b.token, Rows: b.rows, DstStride: b.row, SrcStride: b.row})
	}
}

// ready takes memory if there is none yet, and makes the moves.
func (b *Beams) ready(s *beamStore) error {
	if b.store == nil {
		block, err := s.take(b.Bytes())
		if err != nil {
			return fmt.Errorf("engine: KV of %d beams: %w", b.width, err)
		}
		b.store, b.block = s, block
	}
	if s.memory != b.store.memory && b.block.Bytes == nil {
		return fmt.Errorf("engine: the KV of %d beams is on another device", b.width)
	}
	if len(b.moves) == 0 {
		return nil
	}
	err := b.store.memory.Copy(b.moves...)
	b.moves = b.moves[:0]
	if err != nil {
		return fmt.Errorf("engine: move the KV of beams: %w", err)
	}
	return nil
}

func (b *Beams) of(i int) compute.Block { return b.block.Slice(i*b.stride, b.stride) }

func (b *Beams) chunk(i int) compute.Chunk { return b.of(i).Chunk(b.depth, false) }

// Close gives the memory back.
func (b *Beams) Close() {
	if b.store != nil {
		b.store.give(b.block)
		b.store, b.block = nil, compute.Block{}
	}
}

// beamStore is where the KV of beams lies. It keeps the blocks of searches that ended for later ones: to
// ask the device for memory is slow.
type beamStore struct {
	memory compute.Memory

	mu     sync.Mutex
	free   []compute.Block
	bytes  int // of those
	closed bool
}

// keptBeams bounds the bytes that are kept for later searches.
const keptBeams = 512 << 20

// take returns a block of at least n bytes.
func (s *beamStore) take(n int) (compute.Block, error) {
	s.mu.Lock()
	best := -1
	for i := range s.free {
		if size := s.free[i].Size; size >= n && size/2 <= n && (best < 0 || size < s.free[best].Size) {
			best = i
		}
	}
	if best >= 0 {
		b := s.free[best]
		s.free = slices.Delete(s.free, best, best+1)
		s.bytes -= b.Size
		s.mu.Unlock()
		return b, nil
	}
	s.mu.Unlock()
	return s.memory.Alloc(n)
}

// give takes a block back. Those that lie longest make room.
func (s *beamStore) give(b compute.Block) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || b.Size > keptBeams {
		s.memory.Free(b)
		return
	}
	s.free = append(s.free, b)
	for s.bytes += b.Size; s.bytes > keptBeams; {
		s.bytes -= s.free[0].Size
		s.memory.Free(s.free[0])
		s.free = slices.Delete(s.free, 0, 1)
	}
}

func (s *beamStore) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.free {
		s.memory.Free(b)
	}
	s.free, s.bytes, s.closed = nil, 0, true
}

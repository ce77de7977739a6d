package engine

import (
	"fmt"

	"grebe/compute"
)

// Beams is the KV of what a search has generated so far: exactly width × depth tokens, beside the
// prompt's, which all beams share (XGR-1). Beam b of a job is its segment First+b; the first tokens of
// each have their KV here already, as many as Advance was told.
//
// It belongs to one search and MUST be closed. A job that uses it MUST be done before it is changed.
type Beams struct {
	First int // the segment of beam 0

	stride int // bytes of a beam
	width  int
	depth  int
	done   int
	memory compute.Memory // of the engine that runs the search; nil before its first round
	block  compute.Block
	moves  []compute.Move // not made yet
}

// NewBeams is for width beams of depth tokens each, of models of a shape. Their memory is taken from
// the device that runs the first job.
func NewBeams(shape compute.Shape, width, depth int) (*Beams, error) {
	if width < 1 || depth < 1 {
		return nil, fmt.Errorf("engine: %d beams of %d tokens", width, depth)
	}
	return &Beams{width: width, depth: depth, stride: align(shape.ChunkBytes(depth, false))}, nil
}

// Width returns the number of beams that there is room for.
func (b *Beams) Width() int { return b.width }

// Bytes returns the memory that the beams' KV takes.
func (b *Beams) Bytes() int { return b.width * b.stride }

// Reset forgets what was generated, for the next search.
func (b *Beams) Reset() {
	b.done = 0
	b.moves = b.moves[:0]
}

// Advance says that a round is over: each beam has the KV of one more token.
func (b *Beams) Advance() { b.done++ }

// Move copies what beam src has generated to beam dst, before the next job.
func (b *Beams) Move(dst, src int) {
	if b.memory != nil && dst != src {
		b.moves = append(b.moves, compute.MoveAll(b.of(dst), b.of(src)))
	}
}

// ready takes memory if there is none yet, and makes the moves.
func (b *Beams) ready(m compute.Memory) error {
	if b.memory == nil {
		block, err := m.Alloc(b.Bytes())
		if err != nil {
			return fmt.Errorf("engine: KV of %d beams: %w", b.width, err)
		}
		b.memory, b.block = m, block
	}
	if m != b.memory && b.block.Bytes == nil {
		return fmt.Errorf("engine: the KV of %d beams is on another device", b.width)
	}
	if len(b.moves) == 0 {
		return nil
	}
	err := b.memory.Copy(b.moves...)
	b.moves = b.moves[:0]
	if err != nil {
		return fmt.Errorf("engine: move the KV of beams: %w", err)
	}
	return nil
}

func (b *Beams) of(i int) compute.Block { return b.block.Slice(i*b.stride, b.stride) }

func (b *Beams) chunk(i int) compute.Chunk { return b.of(i).Chunk(b.depth, false) }

// Close frees the memory.
func (b *Beams) Close() {
	if b.memory != nil {
		b.memory.Free(b.block)
		b.memory = nil
	}
}

package engine

import (
	"fmt"

	"grebe/compute"
	"grebe/internal/offheap"
)

// Beams is the KV of what a search has generated so far: exactly width × depth tokens, beside the
// prompt's, which all beams share (XGR-1). Beam b of a job is its segment First+b; the first tokens of
// each have their KV here already, as many as Advance was told.
//
// It belongs to one search and MUST be closed. A job that uses it MUST be done before it is changed.
type Beams struct {
	First int // the segment of beam 0

	shape  compute.Shape
	block  *offheap.Block
	stride int // bytes of a beam
	width  int
	depth  int
	done   int
}

// NewBeams makes room for width beams of depth tokens each, for models of a shape.
func NewBeams(shape compute.Shape, width, depth int) (*Beams, error) {
	if width < 1 || depth < 1 {
		return nil, fmt.Errorf("engine: %d beams of %d tokens", width, depth)
	}
	b := &Beams{shape: shape, width: width, depth: depth, stride: align(shape.ChunkBytes(depth, false))}
	var err error
	if b.block, err = offheap.Alloc(width * b.stride); err != nil {
		return nil, fmt.Errorf("engine: KV of %d beams: %w", width, err)
	}
	return b, nil
}

// Width returns the number of beams that there is room for.
func (b *Beams) Width() int { return b.width }

// Bytes returns the memory that the beams' KV takes.
func (b *Beams) Bytes() int { return len(b.block.Bytes) }

// Reset forgets what was generated, for the next search.
func (b *Beams) Reset() { b.done = 0 }

// Advance says that a round is over: each beam has the KV of one more token.
func (b *Beams) Advance() { b.done++ }

// Move copies what beam src has generated to beam dst.
func (b *Beams) Move(dst, src int) {
	copy(b.bytes(dst), b.bytes(src))
}

func (b *Beams) bytes(i int) []byte { return b.block.Bytes[i*b.stride : (i+1)*b.stride] }

func (b *Beams) chunk(i int) compute.Chunk {
	return compute.Chunk{Bytes: b.bytes(i), Tokens: b.depth}
}

// Close frees the memory.
func (b *Beams) Close() { b.block.Free() }

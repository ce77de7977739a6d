package compute

import (
	"strings"
	"testing"
)

var small = Shape{Layers: 2, Hidden: 4, Heads: 2, KVHeads: 1, HeadDim: 2, Inter: 3, KV: BF16}

func chunk(tokens int) Chunk {
	return Chunk{Bytes: make([]byte, small.ChunkBytes(tokens, false)), Tokens: tokens}
}

// valid is a cached user in a chain of chunks, an empty segment, and an item and an instruction.
func valid() *Batch {
	return &Batch{
		Tokens:    []int32{1, 2, 3, 4},
		Positions: []int32{5, 6, 5, 8},
		Segments: []Segment{
			{Cached: 5, Len: 6, Chunks: []Chunk{chunk(4), chunk(4)}},
			{First: 1, Sees: []int32{0}},
			{First: 1, Len: 2, Sees: []int32{0}, Chunks: []Chunk{
				{Bytes: make([]byte, small.ChunkBytes(2, true)), Tokens: 2, Transient: true}}},
			{First: 3, Len: 1, Sees: []int32{0, 1, 2}, Chunks: []Chunk{chunk(1)}},
		},
	}
}

func TestValidateAccepts(t *testing.T) {
	if err := valid().Validate(&small); err != nil {
		t.Error(err)
	}
	if err := new(Batch).Validate(&small); err != nil {
		t.Errorf("an empty batch: %v", err)
	}
	b := valid()
	b.Tokens, b.Positions = b.Tokens[1:], b.Positions[1:]
	b.Segments[0].Cached = 6
	for i := 1; i < 4; i++ {
		b.Segments[i].First--
	}
	if err := b.Validate(&small); err != nil {
		t.Errorf("a segment cached in full: %v", err)
	}
}

func TestValidateRefuses(t *testing.T) {
	for _, c := range []struct {
		want  string // part of the message
		spoil func(b *Batch)
	}{
		{"4 tokens but 3 positions", func(b *Batch) { b.Positions = b.Positions[:3] }},
		{"segment 0: 7 of 6 tokens cached", func(b *Batch) { b.Segments[0].Cached = 7 }},
		{"segment 0: -1 of 6", func(b *Batch) { b.Segments[0].Cached = -1 }},
		{"segment 1: 0 of -1", func(b *Batch) { b.Segments[1].Len = -1 }},
		{"segment 2 starts at row 2, want 1", func(b *Batch) { b.Segments[2].First = 2 }},
		{"segment 0 starts at row -1, want 0", func(b *Batch) { b.Segments[0].First = -1 }},
		{"segment 2 sees segment 2", func(b *Batch) { b.Segments[2].Sees = []int32{2} }},
		{"segment 2 sees segment 3", func(b *Batch) { b.Segments[2].Sees = []int32{3} }},
		{"segment 2 sees segment -1", func(b *Batch) { b.Segments[2].Sees = []int32{-1} }},
		{"segment 3: chunks for 0 of 1 tokens", func(b *Batch) { b.Segments[3].Chunks = nil }},
		{"segment 0: chunks for 4 of 6 tokens", func(b *Batch) { b.Segments[0].Chunks = b.Segments[0].Chunks[:1] }},
		{"segment 0: chunk 2 is beyond its 6 tokens", func(b *Batch) {
			b.Segments[0].Chunks = append(b.Segments[0].Chunks, chunk(1))
		}},
		{"segment 1: chunk 0 is beyond its 0 tokens", func(b *Batch) { b.Segments[1].Chunks = []Chunk{chunk(1)} }},
		{"segment 3 chunk 0: 15 bytes for 1 tokens, want 16",
			func(b *Batch) { c := &b.Segments[3].Chunks[0]; c.Bytes = c.Bytes[1:] }},
		{"segment 2 chunk 0: 16 bytes for 2 tokens, want 32", func(b *Batch) { b.Segments[2].Chunks[0].Transient = false }},
		{"segment 3 chunk 0: 16 bytes for 0 tokens", func(b *Batch) { b.Segments[3].Chunks[0].Tokens = 0 }},
		{"segments compute 4 rows of 5", func(b *Batch) {
			b.Tokens, b.Positions = append(b.Tokens, 0), append(b.Positions, 0)
		}},
		{"segments compute 3 rows of 4", func(b *Batch) { b.Segments = b.Segments[:3] }},
	} {
		b := valid()
		c.spoil(b)
		if err := b.Validate(&small); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want an error with %q", err, c.want)
		}
	}
}

func TestChunkBytes(t *testing.T) {
	if got := small.ChunkBytes(3, false); got != 2*2*1*3*2*2 {
		t.Errorf("all layers: %d", got)
	}
	if got := small.ChunkBytes(3, true); got != 2*1*3*2*2 {
		t.Errorf("transient: %d", got)
	}
	eighth := small
	eighth.KV = FP8 // 3 tokens of 2 values are 6 bytes, which take 16 behind the scale's 16
	if got := eighth.ChunkBytes(3, false); got != 2*2*1*32 {
		t.Errorf("with scales: %d", got)
	}
	if got := eighth.TokenAt(1, 1, 2, 3); got != 3*32+16+2*2 {
		t.Errorf("the last token's V in the second layer is at %d", got)
	}
}

func TestDType(t *testing.T) {
	for dt, want := range map[DType]struct {
		size int
		name string
	}{F32: {4, "f32"}, BF16: {2, "bf16"}, F16: {2, "f16"}, FP8: {1, "fp8"}} {
		if dt.Size() != want.size || dt.String() != want.name {
			t.Errorf("%d: %d bytes, %q, want %+v", dt, dt.Size(), dt.String(), want)
		}
	}
}

package cuda

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"grebe/compute"
	"grebe/internal/offheap"
)

// largeFree is what the tests of large offsets want of the GPU's memory.
const largeFree = 40 << 30

func openLarge(t *testing.T) Device {
	t.Helper()
	if testing.Short() {
		t.Skip("short")
	}
	d := open(t, Options{FixedSplit: true})
	if free, _ := d.Memory().Sizes(); free < largeFree {
		_ = d.Close()
		t.Skipf("%d GiB of the GPU's memory are free, %d are needed", free>>30, largeFree>>30)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// TestLargeChunks: a chunk of more than 4 GiB, gathered into a scratch of more than 2³¹ elements, yields the bits of
// the same KV in small chunks.
func TestLargeChunks(t *testing.T) {
	const tokens, rows, piece = 560_000, 4, 20_000
	for _, where := range []string{"device", "host"} {
		t.Run(where, func(t *testing.T) {
			d := openLarge(t)
			m := newSmall(t, d, 2)
			s := &m.shape
			s.KVHeads, s.Heads, s.HeadDim = 8, 8, 128
			m.widen(t, d)
			if got := s.ChunkBytes(tokens, false); got < 1<<32+1<<28 {
				t.Fatalf("the chunk has %d bytes", got)
			}
			memory := d.Memory()
			if where == "host" {
				memory = memory.Host()
			}
			large, err := memory.Alloc(s.ChunkBytes(tokens, false))
			if err != nil {
				t.Fatal(err)
			}
			defer memory.Free(large)
			var small []compute.Block
			for range tokens / piece {
				b, err := d.Memory().Alloc(s.ChunkBytes(piece, false))
				if err != nil {
					t.Fatal(err)
				}
				defer d.Memory().Free(b)
				small = append(small, b)
			}
			fillLarge(t, s, memory, large, d.Memory(), small, tokens, piece)
			own, err := d.Memory().Alloc(s.ChunkBytes(rows, false))
			if err != nil {
				t.Fatal(err)
			}
			defer d.Memory().Free(own)
			batch := func(chunks ...compute.Chunk) *compute.Batch {
				return &compute.Batch{Tokens: make([]int32, rows), Positions: make([]int32, rows), Segments: []compute.Segment{
					{Cached: tokens, Len: tokens, Chunks: chunks},
					{Len: rows, Sees: []int32{0}, Chunks: []compute.Chunk{own.Chunk(rows, false)}}}}
			}
			r, err := d.Open(*s, rows)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			if err := m.runSome(r, batch(large.Chunk(tokens, false)), 2, 0); err != nil {
				t.Fatal(err)
			}
			got := m.out
			var chunks []compute.Chunk
			for _, b := range small {
				chunks = append(chunks, b.Chunk(piece, false))
			}
			if err := m.runSome(r, batch(chunks...), 2, 0); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, m.out) {
				t.Errorf("from one chunk %v, from small ones %v", got[:4], m.out[:4])
			}
			if slices.ContainsFunc(got, func(v float32) bool { return math.IsNaN(float64(v)) }) {
				t.Errorf("%v", got[:4])
			}
		})
	}
}

// widen gives the model weights for the heads of its shape.
func (m *small) widen(t *testing.T, d compute.Device) {
	t.Helper()
	s := &m.shape
	s.Rope.InvFreq = make([]float32, s.HeadDim/2)
	var err error
	if m.attention.QKV, err = d.Linear(compute.BF16, noise((s.Heads+2*s.KVHeads)*s.HeadDim, s.Hidden, 1)); err != nil {
		t.Fatal(err)
	}
	if m.attention.Out, err = d.Linear(compute.BF16, noise(s.Hidden, s.Heads*s.HeadDim, 1)); err != nil {
		t.Fatal(err)
	}
}

// fillLarge writes the same K and V to one chunk and to small ones: values that are different at the same place of any
// two heads, pieces and layers.
func fillLarge(t *testing.T, s *compute.Shape, memory compute.Memory, large compute.Block, to compute.Memory,
	small []compute.Block, tokens, piece int) {
	t.Helper()
	row := s.HeadDim * s.KV.Size()
	stage := make([]byte, piece*row)
	values := offheap.Slice[uint16](stage, piece*s.HeadDim)
	for layer := range s.Layers {
		for head := range 2 * s.KVHeads {
			for i, b := range small {
				state := uint32(layer*7919 + head*104729 + i*1299709 + 1)
				for j := range values {
					state = state*1664525 + 1013904223
					values[j] = toBF16(float32(state>>8)/(1<<23) - 1)
				}
				at := s.TokenAt(layer, head, i*piece, tokens)
				if err := memory.Write(large.Slice(at, len(stage)), stage); err != nil {
					t.Fatal(err)
				}
				if err := to.Write(b.Slice(s.TokenAt(layer, head, 0, piece), len(stage)), stage); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// TestLargeTables: rows beyond 2³¹ elements and 4 GiB of a table are embedded, and multiplied for logits.
func TestLargeTables(t *testing.T) {
	const hidden, rows = 2048, 1_200_000
	d := openLarge(t)
	table := compute.Tensor{DType: compute.BF16, Rows: rows, Cols: hidden, Data: make([]byte, 2*rows*hidden)}
	ids := []int32{0, 1, 1 << 20, 1<<20 + 1, 1<<20 - 1, rows - 1}
	for i, id := range ids {
		values := offheap.Slice[uint16](table.Data[2*hidden*int(id):], hidden)
		for j := range values {
			values[j] = toBF16(float32(i+1) * float32(j%7-3) / 16)
		}
	}
	on, err := d.Table(table)
	if err != nil {
		t.Fatal(err)
	}
	s := tiny()
	s.Hidden = hidden
	r, err := d.Open(s, len(ids))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	own, err := d.Memory().Alloc(s.ChunkBytes(len(ids), false))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Memory().Free(own)
	b := &compute.Batch{Tokens: ids, Positions: make([]int32, len(ids)),
		Segments: []compute.Segment{{Len: len(ids), Chunks: []compute.Chunk{own.Chunk(len(ids), false)}}}}
	if err := r.Begin(b); err != nil {
		t.Fatal(err)
	}
	r.Embed(on)
	out := make([]float32, len(ids)*hidden)
	all := []int32{0, 1, 2, 3, 4, 5}
	if err := r.Hidden(nil, all, out); err != nil {
		t.Fatal(err)
	}
	for i := range ids {
		for j := range hidden {
			if want := float32(i+1) * float32(j%7-3) / 16; math.Abs(float64(out[i*hidden+j]-want)) > 0.01*math.Abs(
				float64(want)) {
				t.Fatalf("token %d, value %d: %v, want %v", ids[i], j, out[i*hidden+j], want)
			}
		}
	}
	gain := compute.Tensor{DType: compute.BF16, Rows: 1, Cols: hidden, Data: make([]byte, 2*hidden)}
	for j := range offheap.Slice[uint16](gain.Data, hidden) {
		offheap.Slice[uint16](gain.Data, hidden)[j] = toBF16(1)
	}
	norm, err := d.Vector(gain)
	if err != nil {
		t.Fatal(err)
	}
	var pairs []compute.Pair
	for _, id := range ids {
		pairs = append(pairs, compute.Pair{Row: 0, ID: id})
	}
	logits := make([]float32, len(pairs))
	if err := r.Logits(norm, on, pairs, logits); err != nil {
		t.Fatal(err)
	}
	for i, v := range logits { // rows are multiples of the first one
		if want := logits[0] * float32(i+1); math.Abs(float64(v-want)) > 0.01*math.Abs(float64(want)) {
			t.Errorf("logit %d is %v, want %v: %v", ids[i], v, want, fmt.Sprint(logits))
		}
	}
}

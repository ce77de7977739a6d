package cpu

import (
	"encoding/binary"
	"math"
	"testing"

	"grebe/compute"
	"grebe/internal/offheap"
)

// TestLargeBatchesGiveMemoryBack: what an exceptionally large batch took is given back with the next one, and not left
// behind.
func TestLargeBatchesGiveMemoryBack(t *testing.T) {
	d, err := New(Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	s := compute.Shape{Layers: 1, Hidden: 16, Heads: 1, KVHeads: 1, HeadDim: 16, Inter: 16, Eps: 1e-6, KV: compute.BF16,
		Rope: compute.Rope{InvFreq: make([]float32, 8), Scale: 1}}
	tensor := func(rows int) compute.Tensor {
		out := compute.Tensor{DType: compute.F32, Rows: rows, Cols: 16}
		for i := range rows * 16 {
			out.Data = binary.LittleEndian.AppendUint32(out.Data, math.Float32bits(float32(i%7)-3))
		}
		return out
	}
	table, err := d.Table(tensor(8))
	if err != nil {
		t.Fatal(err)
	}
	qkv, err := d.Linear(compute.BF16, tensor(48))
	if err != nil {
		t.Fatal(err)
	}
	r, err := d.Open(s, keptRows+1)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	run := func(rows int) {
		b := &compute.Batch{Tokens: make([]int32, rows), Positions: make([]int32, rows)}
		chunk := compute.Chunk{Bytes: make([]byte, s.ChunkBytes(rows, false)), Tokens: rows}
		b.Segments = []compute.Segment{{Len: rows, Chunks: []compute.Chunk{chunk}}}
		if err := r.Begin(b); err != nil {
			t.Fatal(err)
		}
		r.Embed(table)
		r.QKV(0, &compute.AttentionWeights{QKV: qkv})
		if err := r.Hidden(nil, []int32{0}, make([]float32, 16)); err != nil {
			t.Fatal(err)
		}
	}
	var before int64
	for turn := range 5 {
		run(keptRows + 1)
		run(1)
		held := offheap.Mapped() // other tests' weights may go meanwhile
		if turn > 0 && held > before {
			t.Fatalf("after %d large batches %d bytes are held, after one less %d", turn+1, held, before)
		}
		before = held
	}
}

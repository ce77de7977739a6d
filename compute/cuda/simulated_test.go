package cuda

import (
	"bytes"
	"fmt"
	"strconv"
	"testing"

	"grebe/compute"
	"grebe/compute/cuda/drivertest"
	"grebe/internal/offheap"
)

// simulate opens a device on a simulated GPU.
func simulate(t *testing.T, opt Options) (*drivertest.GPU, *device) {
	t.Helper()
	t.Setenv("GREBE_KERNEL_CACHE", t.TempDir())
	g := drivertest.New()
	t.Cleanup(g.Close)
	opt.FixedSplit = true
	d, err := New(opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		g.Fail = nil
		if err := d.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		for _, e := range g.Errors {
			t.Error(e)
		}
	})
	return g, d.(*device)
}

// small is a decoder on a device.
type small struct {
	shape     compute.Shape
	embed     compute.Table
	norm      compute.Vector
	head      compute.Linear
	attention compute.AttentionWeights
	ffn       compute.FFNWeights
	out       []float32 // of the last task
	of        *small    // whose weights it shares; they are freed with the last that has them
}

func newSmall(t *testing.T, d compute.Device, layers int) *small {
	t.Helper()
	m := &small{shape: compute.Shape{Layers: layers, Hidden: 32, Heads: 4, KVHeads: 2, HeadDim: 64, Inter: 16, Eps: 1e-6,
		KV:   compute.BF16,
		Rope: compute.Rope{InvFreq: make([]float32, 32), Scale: 1}}}
	s := &m.shape
	fail := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	m.embed, err = d.Table(noise(32, s.Hidden, 1))
	fail(err)
	m.norm, err = d.Vector(noise(1, s.Hidden, 1))
	fail(err)
	m.head, err = d.Linear(compute.BF16, noise(16, s.Hidden, 1))
	fail(err)
	m.attention.QKV, err = d.Linear(compute.BF16, noise((s.Heads+2*s.KVHeads)*s.HeadDim, s.Hidden, 1))
	fail(err)
	m.attention.Out, err = d.Linear(compute.BF16, noise(s.Hidden, s.Heads*s.HeadDim, 1))
	fail(err)
	m.ffn.GateUp, err = d.GateUp(compute.BF16, noise(s.Inter, s.Hidden, 1), noise(s.Inter, s.Hidden, 1))
	fail(err)
	m.ffn.Down, err = d.Linear(compute.BF16, noise(s.Hidden, s.Inter, 1))
	fail(err)
	m.attention.Norm, m.ffn.Norm = m.norm, m.norm
	return m
}

// kept is a batch of rows that see many cached segments, and where their KV lies.
type kept struct {
	batch  compute.Batch
	blocks []compute.Block
	memory compute.Memory
}

const keptTokens = 3 // of a cached segment

// newKept makes a batch of rows that see chunks cached segments. Every layer of every segment holds bytes of its own.
func newKept(t *testing.T, m compute.Memory, s *compute.Shape, chunks, rows int) *kept {
	t.Helper()
	k := &kept{memory: m}
	size := s.ChunkBytes(keptTokens, false)
	block := func(tokens int) compute.Block {
		b, err := m.Alloc(s.ChunkBytes(tokens, false))
		if err != nil {
			t.Fatal(err)
		}
		k.blocks = append(k.blocks, b)
		return b
	}
	var sees []int32
	for i := range chunks {
		data := make([]byte, size)
		for l := range s.Layers {
			copy(data[l*size/s.Layers:], layerBytes(s, i, l))
		}
		b := block(keptTokens)
		if err := m.Write(b, data); err != nil {
			t.Fatal(err)
		}
		k.batch.Segments = append(k.batch.Segments, compute.Segment{
			Cached: keptTokens, Len: keptTokens, Chunks: []compute.Chunk{b.Chunk(keptTokens, false)}})
		sees = append(sees, int32(i))
	}
	b := block(rows)
	k.batch.Segments = append(k.batch.Segments, compute.Segment{
		Len: rows, Sees: sees, Chunks: []compute.Chunk{b.Chunk(rows, false)}})
	k.batch.Tokens, k.batch.Positions = make([]int32, rows), make([]int32, rows)
	return k
}

func (k *kept) free() {
	for _, b := range k.blocks {
		k.memory.Free(b)
	}
}

// layerBytes is what a layer of a cached segment holds.
func layerBytes(s *compute.Shape, segment, layer int) []byte {
	return bytes.Repeat([]byte{byte(layer + 1), byte(segment), byte(segment >> 8)},
		s.ChunkBytes(keptTokens, false)/s.Layers/3+1)[:s.ChunkBytes(keptTokens, false)/s.Layers]
}

// scratchCheck executes the kernels that write attention's scratch, and checks in those that read it that it holds the
// layer that they are launched for.
type scratchCheck struct {
	g     *drivertest.GPU
	shape *compute.Shape
	layer int // of rope.cu's last launch
	reads int
	wrong []string
}

func watchScratch(g *drivertest.GPU, s *compute.Shape) *scratchCheck {
	c := &scratchCheck{g: g, shape: s}
	g.Kernels["attend_gather"] = c.gather
	g.Kernels["rope"] = func(l *drivertest.Launch) { c.layer = int(int32(l.Args[11])) }
	g.Kernels["attend"] = func(l *drivertest.Launch) { c.read("attend", l.Args[10], l.Args[11], l.Args[6], l.Args[2]) }
	g.Kernels["received"] = func(l *drivertest.Launch) { c.read("received", l.Args[7], l.Args[8], l.Args[3], l.Args[1]) }
	return c
}

// gatherPiece is Piece of attend_gather.cu.
type gatherPiece struct {
	chunk, home                uint64
	room, token, tokens, slots int
}

func (c *scratchCheck) pieces(list uint64) []gatherPiece {
	const listPieces = 9
	head := offheap.Slice[int32](c.g.Bytes(list, 64), 16)
	n := int(head[listPieces])
	words := offheap.Slice[int32](c.g.Bytes(list+4*uint64(head[listPieces+1]), 32*n), 8*n)
	address := func(w []int32) uint64 { return uint64(uint32(w[0])) | uint64(uint32(w[1]))<<32 }
	var out []gatherPiece
	for ; len(words) > 0; words = words[8:] {
		out = append(out, gatherPiece{address(words), address(words[6:]), int(words[2]), int(words[3]), int(words[4]),
			int(words[5])})
	}
	return out
}

// vectors returns a piece's K or V of a head, in a chunk and in the scratch.
func (c *scratchCheck) vectors(chunk uint64, p *gatherPiece, scratch uint64, slots, buffer, layer,
	matrix int) (from, to []byte) {
	s := c.shape
	row := s.HeadDim * s.KV.Size()
	kv, head := matrix/s.KVHeads, matrix%s.KVHeads
	at := ((buffer*s.KVHeads+head)*2+kv)*slots + p.slots
	return c.g.Bytes(chunk+uint64(s.TokenAt(layer, matrix, p.token, p.room)), p.tokens*row),
		c.g.Bytes(scratch+uint64(at*row), p.tokens*row)
}

// gather is attend_gather.cu.
func (c *scratchCheck) gather(l *drivertest.Launch) {
	number := func(i int) int { return int(int32(l.Args[i])) }
	slots, buffers, first, layers, home := number(1), number(2), number(4), number(5), number(6)
	for layer := first; layer < first+layers; layer++ {
		for _, p := range c.pieces(l.Args[3]) {
			chunk := p.chunk
			if home != 0 {
				chunk = p.home
			}
			for matrix := range 2 * c.shape.KVHeads {
				from, to := c.vectors(chunk, &p, l.Args[0], slots, layer%buffers, layer, matrix)
				copy(to, from)
			}
		}
	}
}

// read checks that a buffer of the scratch holds all cached tokens of the layer.
func (c *scratchCheck) read(kernel string, scratch, slots, buffer, list uint64) {
	c.reads++
	for i, p := range c.pieces(list) {
		for matrix := range 2 * c.shape.KVHeads {
			want, got := c.vectors(p.home, &p, scratch, int(int32(slots)), int(int32(buffer)), c.layer, matrix)
			if !bytes.Equal(got, want) {
				c.wrong = append(c.wrong, fmt.Sprintf("%s of layer %d, cached segment %d: buffer %d holds layer %d", kernel,
					c.layer, i, buffer, int(got[0])-1))
				return
			}
		}
	}
}

// TestScratchHoldsTheLayerThatIsRead: whatever cached KV lies where, however many buffers the scratch has, and wherever
// a batch is launched in pieces, attention of a layer finds that layer's cached KV in its buffer.
func TestScratchHoldsTheLayerThatIsRead(t *testing.T) {
	const layers, rows = 9, 2
	for _, buffers := range []int{1, 2, 3, 4, 7, layers} {
		for _, graphs := range []bool{true, false} {
			t.Run(fmt.Sprintf("buffers=%d/graphs=%v", buffers, graphs), func(t *testing.T) {
				slot := 2 * 2 * 64 * 2 // bytes of a token in a layer
				g, d := simulate(t, Options{Scratch: buffers * slot * bucket(rows), NoGraphs: !graphs})
				m := newSmall(t, d, layers)
				r, err := d.Open(m.shape, rows)
				if err != nil {
					t.Fatal(err)
				}
				defer r.Close()
				check := watchScratch(g, &m.shape)
				for _, at := range []struct {
					name    string
					memory  compute.Memory
					inPlace bool
				}{{"host", d.Memory().Host(), false}, {"device", d.Memory(), false}, {"in place", d.Memory().Host(), true}} {
					d.UseInPlace(at.inPlace)
					for _, chunks := range []int{1, fewChunks, 100} {
						k := newKept(t, at.memory, &m.shape, chunks, rows)
						for _, pieces := range piecesOf(layers) {
							for range 3 { // alone, captured, and replayed
								check.wrong = nil
								before := check.reads
								if err := m.run(r, &k.batch, pieces); err != nil {
									t.Fatal(err)
								}
								if len(check.wrong) > 0 {
									t.Errorf("%s, %d chunks, %s: %v", at.name, chunks, pieces.name, check.wrong)
								}
								if n := check.reads - before; n < layers {
									t.Errorf("%s, %d chunks, %s: %d launches read the scratch, of %d layers", at.name, chunks, pieces.name, n,
										layers)
								}
							}
						}
						k.free()
					}
				}
				if got := r.(*runner).att.(*tensor).buffers; got != buffers {
					t.Errorf("the scratch has %d buffers, want %d", got, buffers)
				}
			})
		}
	}
}

// launchedInPieces says after which layers' attention a batch is launched, and how.
type launchedInPieces struct {
	name     string
	received func(layer int) bool
	start    func(layer int) bool
}

func piecesOf(layers int) []launchedInPieces {
	never := func(int) bool { return false }
	at := func(n int) func(int) bool { return func(l int) bool { return l == n } }
	return []launchedInPieces{
		{"at once", never, never},
		{"received after every layer", func(int) bool { return true }, never},
		{"received after every third layer", func(l int) bool { return l%3 == 1 }, never},
		{"started after layer 0", never, at(0)},
		{"started after layer 4", never, at(4)},
		{"started after layer " + strconv.Itoa(layers-2), never, at(layers - 2)},
		{"started after every layer", never, func(int) bool { return true }},
		{"started and received", at(6), at(2)},
	}
}

// run runs the model over a batch.
func (m *small) run(r compute.Runner, b *compute.Batch, p launchedInPieces) error {
	m.out = make([]float32, m.shape.Hidden)
	if err := r.Begin(b); err != nil {
		return err
	}
	r.Embed(m.embed)
	for l := range m.shape.Layers {
		r.QKV(l, &m.attention)
		r.Attend(l)
		if p.start(l) {
			r.(compute.Starter).Start()
		}
		if p.received(l) {
			if err := r.(compute.Blender).Received(make([]float32, len(b.Tokens))); err != nil {
				return err
			}
		}
		r.Output(&m.attention)
		r.FFN(&m.ffn)
	}
	return r.Hidden(nil, []int32{0}, m.out)
}

package attend

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"grebe/compute"
	"grebe/compute/cuda/driver"
)

// enter makes the GPU current for the test's goroutine.
func enter(t *testing.T, c *driver.Context) {
	t.Helper()
	if err := c.Enter(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Leave)
}

// gpu opens the first GPU or skips the test.
func gpu(t *testing.T) *driver.Context {
	t.Helper()
	c, err := driver.New(0)
	if err != nil {
		t.Skipf("no GPU: %v", err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	enter(t, c)
	return c
}

func toBF16(v float64) uint16 {
	b := math.Float32bits(float32(v))
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

func fromBF16(v uint16) float64 { return float64(math.Float32frombits(uint32(v) << 16)) }

// trial is a batch with data: two layers, of which the second is computed.
type trial struct {
	shape   compute.Shape
	batch   *compute.Batch
	k, v    [][]uint16 // per slot: all KV heads
	q       [][]uint16 // per row: all heads
	chunks  []byte     // image of the memory that the chunks lie in
	scratch []byte     // image of the scratch with the computed rows
}

const layer = 1 // that is computed

// newTrial draws data for a batch whose chunks have no memory yet. sharp is the deviation of scores.
func newTrial(s compute.Shape, b *compute.Batch, seed uint64, sharp float64) *trial {
	r := rand.New(rand.NewPCG(seed, 5))
	draw := func(n int, scale float64) []uint16 {
		out := make([]uint16, n)
		for i := range out {
			out[i] = toBF16(r.NormFloat64() * scale)
		}
		return out
	}
	t := &trial{shape: s, batch: b}
	for i := range b.Segments {
		for range b.Segments[i].Len {
			t.k = append(t.k, draw(s.KVHeads*s.HeadDim, 1))
			t.v = append(t.v, draw(s.KVHeads*s.HeadDim, 1))
		}
	}
	for range b.Tokens {
		t.q = append(t.q, draw(s.Heads*s.HeadDim, sharp))
	}
	return t
}

// place gives the chunks memory from base on and fills in what is cached; all the rest is NaN.
func (t *trial) place(base driver.Ptr) {
	s := &t.shape
	at := 0
	for i := range t.batch.Segments {
		for c := range t.batch.Segments[i].Chunks {
			ch := &t.batch.Segments[i].Chunks[c]
			ch.Addr = uint64(base) + uint64(at)
			at += (s.ChunkBytes(ch.Tokens, false) + 255) / 256 * 256
		}
	}
	t.chunks = make([]byte, at)
	for i := range t.chunks {
		t.chunks[i] = 0xff
	}
	slot := 0
	for i := range t.batch.Segments {
		g := &t.batch.Segments[i]
		chunk, token := 0, 0
		for n := range g.Len {
			for ; token == g.Chunks[chunk].Tokens; token = 0 {
				chunk++
			}
			if ch := &g.Chunks[chunk]; n < g.Cached {
				for h := range s.KVHeads {
					for kv, from := range [][]uint16{t.k[slot], t.v[slot]} {
						to := int(ch.Addr-uint64(base)) + 2*s.HeadDim*(((layer*2+kv)*s.KVHeads+h)*ch.Tokens+token)
						putWords(t.chunks[to:], from[h*s.HeadDim:(h+1)*s.HeadDim])
					}
				}
			}
			slot++
			token++
		}
	}
}

// chunkBytes returns the memory that place needs.
func (t *trial) chunkBytes() int {
	n := 256
	for i := range t.batch.Segments {
		for _, ch := range t.batch.Segments[i].Chunks {
			n += (t.shape.ChunkBytes(ch.Tokens, false) + 255) / 256 * 256
		}
	}
	return n
}

func putWords(to []byte, from []uint16) {
	for i, v := range from {
		binary.LittleEndian.PutUint16(to[2*i:], v)
	}
}

// fillScratch makes an image of the scratch with the computed rows in it.
func (t *trial) fillScratch(at Scratch) {
	s := &t.shape
	row := 2 * s.HeadDim
	t.scratch = make([]byte, at.Buffers*s.KVHeads*2*at.Slots*row)
	slot := 0
	for i := range t.batch.Segments {
		g := &t.batch.Segments[i]
		for n := range g.Len {
			for h := range s.KVHeads {
				for kv, from := range [][]uint16{t.k[slot], t.v[slot]} {
					if n >= g.Cached {
						putWords(t.scratch[((layer%at.Buffers*s.KVHeads+h)*2+kv)*at.Slots*row+slot*row:],
							from[h*s.HeadDim:(h+1)*s.HeadDim])
					}
				}
			}
			slot++
		}
	}
}

// run computes the trial on the GPU and returns the result.
func (t *trial) run(c *driver.Context, a *Attention) (out []byte, err error) {
	s := &t.shape
	width := s.Heads * s.HeadDim
	rows := a.cfg.Rows
	var mem [3]driver.Ptr
	for i, n := range []int{t.chunkBytes(), 2 * rows * width, 2 * rows * width} {
		if mem[i], err = c.Alloc(n); err != nil {
			return nil, err
		}
		defer c.Free(mem[i])
	}
	chunks, queries, result := mem[0], mem[1], mem[2]
	t.place(chunks)
	image := make([]byte, 2*rows*width)
	for i := range image {
		image[i] = 0xff
	}
	if err := c.Upload(result, image); err != nil {
		return nil, err
	}
	for r := range t.q {
		putWords(image[2*r*width:], t.q[r])
	}
	st, err := c.NewStream()
	if err != nil {
		return nil, err
	}
	defer st.Close()
	if err := errors.Join(c.Upload(queries, image), c.Upload(chunks, t.chunks), a.Begin(st, t.batch),
		st.Sync()); err != nil {
		return nil, err
	}
	t.fillScratch(a.Scratch())
	if err := errors.Join(c.Upload(a.Scratch().Base, t.scratch), a.Gather(st, layer, 1),
		a.Run(st, layer, queries, width, result, width), st.Sync()); err != nil {
		return nil, err
	}
	out = make([]byte, 2*len(t.q)*width)
	return out, c.Download(out, result)
}

// want computes one row by the definition, in float64.
func (t *trial) want(row int, sees []int8) []float64 {
	s := &t.shape
	d := s.HeadDim
	out := make([]float64, s.Heads*d)
	for h := range s.Heads {
		kv := h / (s.Heads / s.KVHeads) * d
		scores, largest := make([]float64, len(sees)), math.Inf(-1)
		for key := range sees {
			if sees[key] == 0 {
				continue
			}
			for i := range d {
				scores[key] += fromBF16(t.q[row][h*d+i]) * fromBF16(t.k[key][kv+i])
			}
			scores[key] /= math.Sqrt(float64(d))
			largest = math.Max(largest, scores[key])
		}
		sum := 0.0
		for key := range sees {
			if sees[key] == 0 {
				continue
			}
			p := math.Exp(scores[key] - largest)
			sum += p
			for i := range d {
				out[h*d+i] += p * fromBF16(t.v[key][kv+i])
			}
		}
		for i := range d {
			out[h*d+i] /= sum
		}
	}
	return out
}

// compare holds up to most rows against the definition. It returns the largest relative error of a
// head of a row.
func (t *trial) compare(out []byte, most int) (worst float64, err error) {
	s := &t.shape
	d, masks := s.HeadDim, wanted(t.batch)
	step := max(1, len(t.q)/most)
	var lock sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, 16)
	bad := 0
	for row := 0; row < len(t.q); row += step {
		wg.Add(1)
		slots <- struct{}{}
		go func() {
			defer func() { <-slots; wg.Done() }()
			want := t.want(row, masks[row])
			lock.Lock()
			defer lock.Unlock()
			for h := range s.Heads {
				dist, norm := 0.0, 0.0
				for i := range d {
					got := fromBF16(binary.LittleEndian.Uint16(out[2*(row*s.Heads*d+h*d+i):]))
					dist += (got - want[h*d+i]) * (got - want[h*d+i])
					norm += want[h*d+i] * want[h*d+i]
				}
				e := math.Sqrt(dist / norm)
				if !(e <= worst) {
					worst = e
				}
				if !(e <= tolerance) {
					if bad++; bad <= 4 {
						got := out[2*(row*s.Heads*d+h*d):]
						err = errors.Join(err, fmt.Errorf("row %d head %d: error %.3g; first values %.4g %.4g %.4g, want %.4g %.4g %.4g",
							row, h, e,
							fromBF16(binary.LittleEndian.Uint16(got)), fromBF16(binary.LittleEndian.Uint16(got[2:])),
							fromBF16(binary.LittleEndian.Uint16(got[4:])),
							want[h*d], want[h*d+1], want[h*d+2]))
					}
				}
			}
		}()
	}
	wg.Wait()
	if bad > 0 {
		err = errors.Join(err, fmt.Errorf("%d heads of rows are wrong", bad))
	}
	return worst, err
}

// tolerance of a head's result: probabilities and the result are rounded to 8 bits.
const tolerance = 0.01

func shapeOf(heads, kvHeads, dim int) compute.Shape {
	return compute.Shape{Layers: 2, Heads: heads, KVHeads: kvHeads, HeadDim: dim, KV: compute.BF16}
}

// TestAgainstDefinition runs random plans on both paths of the kernels.
func TestAgainstDefinition(t *testing.T) {
	c := gpu(t)
	for _, plain := range []bool{true, false} {
		for _, s := range []compute.Shape{shapeOf(12, 2, 128), shapeOf(14, 2, 64), shapeOf(3, 3, 80), shapeOf(7, 7, 128),
			shapeOf(8, 1, 96)} {
			t.Run(fmt.Sprintf("plain=%v/%d×%d×%d", plain, s.Heads, s.KVHeads, s.HeadDim), func(t *testing.T) {
				enter(t, c)
				a, err := New(c, Config{Shape: s, Rows: 8192, Slots: 2000, Buffers: 2, Plain: plain})
				if err != nil {
					t.Fatal(err)
				}
				defer a.Close()
				if r, err := a.run.Resources(); err != nil || r.Local > 0 {
					t.Errorf("resources %+v, %v", r, err)
				}
				for name, b := range trials(s.HeadDim) {
					tr := newTrial(s, b, 1, 2.5)
					out, err := tr.run(c, a)
					if err != nil {
						t.Fatalf("%s: %v", name, err)
					}
					worst, err := tr.compare(out, 100)
					t.Logf("%-24s %5d rows %5d slots %4d units %3d parts: error %.2g", name, len(tr.q), len(tr.k), len(a.plan.units),
						a.plan.parts, worst)
					if err != nil {
						t.Errorf("%s: %v", name, err)
					}
				}
			})
		}
	}
}

// trials are batches of all kinds.
func trials(dim int) map[string]*compute.Batch {
	m := map[string]*compute.Batch{
		"1 token": sequence(1), "64 tokens": sequence(64), "200 tokens": sequence(200), "1,100 tokens": sequence(1100),
		"item-first": itemFirst(333, 30, 7), "user-first": userFirst(333, 30, 7), "1 item": userFirst(100, 1, 10),
		"no user": userFirst(0, 5, 10),
	}
	if dim == 128 {
		m["item-first, long"] = itemFirst(1500, 100, 10)
		m["beams"] = beams(1000, 200, 3)
	}
	for seed := range uint64(8) {
		m[fmt.Sprintf("random %d", seed)] = withRows(seed)
	}
	return m
}

// withRows draws a random batch that computes something.
func withRows(seed uint64) *compute.Batch {
	for n := seed; ; n += 1000 {
		if b := batchOf(rand.New(rand.NewPCG(n, 9)), 4); len(b.Tokens) > 0 {
			return b
		}
	}
}

// beams are width segments of which the last token is computed, behind a cached prompt.
func beams(prompt, width, length int) *compute.Batch {
	b := &compute.Batch{}
	add(b, prompt, prompt, nil)
	for range width {
		add(b, length, length-1, []int32{0})
	}
	return b
}

// TestRepeats: launches leave nothing behind, and who adds parts up does not matter.
func TestRepeats(t *testing.T) {
	c := gpu(t)
	s := shapeOf(12, 2, 128)
	a, err := New(c, Config{Shape: s, Rows: 2048, Slots: 4096, Buffers: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	tr := newTrial(s, sequence(1024), 3, 2.5)
	first, err := tr.run(c, a)
	if err != nil {
		t.Fatal(err)
	}
	if a.plan.parts == 0 {
		t.Error("no tile is split: the test tests nothing")
	}
	for i := range 20 {
		again, err := tr.run(c, a)
		if err != nil {
			t.Fatal(err)
		}
		if string(again) != string(first) {
			t.Fatalf("run %d differs from the first", i+2)
		}
	}
}

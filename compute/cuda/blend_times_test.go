package cuda

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"grebe/compute"
	"grebe/compute/cuda/driver"
)

// blendTimed is a prompt of Qwen3-8B's shape: a cached preamble, history of which each token has a prototype, items
// that have blocks, and a question. All layers have the same weights, which are larger than caches.
type blendTimed struct {
	*timedModel
	layers   int // that are run
	r        compute.Blender
	batch    *compute.Batch
	parts    []compute.Part
	rows     []int32 // that go on
	received []float32
	out      []float32
}

const (
	blendPreamble, blendHistory, blendQuestion = 207, 520, 20
	blendItems, blendItem                      = 17, 87
	blendBudget                                = 0.3
	blendWhole                                 = 2 // layers that compute all rows
)

// newBlendTimed lets rows of all that has something to stand in go on by chance.
func newBlendTimed(t *testing.T, d compute.Device, layers int, far bool) *blendTimed {
	t.Helper()
	s := compute.Shape{Layers: layers, Hidden: 4096, Heads: 32, KVHeads: 8, HeadDim: 128, Inter: 12288, Eps: 1e-6,
		KV: compute.BF16, Rope: compute.Rope{Scale: 1}}
	for i := range s.HeadDim / 2 {
		s.Rope.InvFreq = append(s.Rope.InvFreq, float32(math.Pow(1e6, -2*float64(i)/float64(s.HeadDim))))
	}
	m := &timedModel{shape: s}
	x := &blendTimed{timedModel: m, layers: layers, batch: &compute.Batch{}, out: make([]float32, s.Hidden)}
	var failed error
	must := func(err error) {
		if err != nil && failed == nil {
			failed = err
		}
	}
	linear := func(rows, cols int) compute.Linear {
		l, err := d.Linear(compute.BF16, noise(rows, cols, float32(math.Sqrt(3/float64(cols)))))
		must(err)
		return l
	}
	var err error
	m.table, err = d.Table(noise(1000, s.Hidden, 1))
	must(err)
	norm, err := d.Vector(noise(1, s.Hidden, 1))
	must(err)
	gateUp, err := d.GateUp(compute.BF16, noise(s.Inter, s.Hidden, 0.03), noise(s.Inter, s.Hidden, 0.03))
	must(err)
	a := compute.AttentionWeights{Norm: norm, QKV: linear((s.Heads+2*s.KVHeads)*s.HeadDim, s.Hidden),
		Out: linear(s.Hidden, s.Heads*s.HeadDim)}
	f := compute.FFNWeights{Norm: norm, GateUp: gateUp, Down: linear(s.Hidden, s.Inter)}
	for range s.Layers {
		m.attn, m.ffn = append(m.attn, a), append(m.ffn, f)
	}
	chunk := func(mem compute.Memory, n int) compute.Chunk {
		b, err := mem.Alloc(s.ChunkBytes(n, false))
		must(err)
		if err == nil {
			t.Cleanup(func() { mem.Free(b) })
			must(mem.Zero(b))
		}
		return b.Chunk(n, false)
	}
	x.lay(d, far, chunk)
	r, err := d.Open(s, 4096)
	must(err)
	if failed != nil {
		t.Fatal(failed)
	}
	t.Cleanup(func() { _ = r.Close() })
	x.r = r.(compute.Blender)
	return x
}

// lay makes the batch, the parts and the rows that go on.
func (x *blendTimed) lay(d compute.Device, far bool, chunk func(mem compute.Memory, n int) compute.Chunk) {
	sources, random := d.Memory(), rand.New(rand.NewPCG(1, 2))
	if far {
		sources = sources.Host()
	}
	n, b := blendHistory+blendItems*blendItem+blendQuestion, x.batch
	g := compute.Segment{Len: n, Sees: []int32{0}}
	for at := 0; at < n; at += 64 {
		g.Chunks = append(g.Chunks, chunk(d.Memory(), 64))
	}
	b.Segments = []compute.Segment{{Len: blendPreamble, Cached: blendPreamble,
		Chunks: []compute.Chunk{chunk(d.Memory(), blendPreamble)}}, g}
	for i := range n {
		b.Tokens, b.Positions = append(b.Tokens, int32(i%1000)), append(b.Positions, int32(blendPreamble+i))
		if i >= n-blendQuestion || random.Float64() < blendBudget {
			x.rows = append(x.rows, int32(i))
		}
	}
	x.received = make([]float32, n)
	page := chunk(sources, blendHistory)
	for i, from := range random.Perm(blendHistory) {
		x.parts = append(x.parts, compute.Part{Segment: 1, At: i, Tokens: 1, From: page, First: from, Turn: i - from})
	}
	for i := range blendItems {
		x.parts = append(x.parts, compute.Part{Segment: 1, At: blendHistory + i*blendItem, Tokens: blendItem,
			From: chunk(sources, blendItem), Turn: 400 + i*blendItem})
	}
}

// hostTimes say when the host was through with what, from the batch on.
type hostTimes struct{ started, placed, received, next, last, all time.Duration }

func (h hostTimes) String() string {
	return fmt.Sprintf("the host had started the whole layers after %v, placing after %v, attention received after %v, "+
		"the rest of that layer after %v, recorded the others after %v, started them after %v",
		h.started, h.placed, h.received, h.next, h.last, h.all)
}

// blend runs the prompt with what stands in.
func (x *blendTimed) blend(received bool) (h hostTimes, err error) {
	begin := time.Now()
	r := x.r
	if err := r.Begin(x.batch); err != nil {
		return h, err
	}
	r.Embed(x.table)
	for l := range blendWhole - 1 {
		r.QKV(l, &x.attn[l])
		r.Attend(l)
		r.Output(&x.attn[l])
		r.FFN(&x.ffn[l])
	}
	const last = blendWhole - 1
	r.QKV(last, &x.attn[last])
	r.Attend(last)
	r.(compute.Starter).Start()
	h.started = time.Since(begin)
	r.Place(blendWhole, x.parts)
	h.placed = time.Since(begin)
	if received {
		if err := r.Received(x.received); err != nil {
			return h, err
		}
	}
	h.received = time.Since(begin)
	r.Keep(x.rows)
	for l := last; l < x.layers; l++ {
		if l > last {
			r.QKV(l, &x.attn[l])
			r.Attend(l)
		}
		if l == last+1 {
			h.next = time.Since(begin)
		}
		if l == x.layers-1 {
			r.Keep(x.rows[len(x.rows)-1:])
		}
		r.Output(&x.attn[l])
		r.FFN(&x.ffn[l])
	}
	h.last = time.Since(begin)
	if err := x.start(); err != nil {
		return h, err
	}
	h.all = time.Since(begin)
	return h, r.Hidden(nil, x.rows[len(x.rows)-1:], x.out)
}

// start puts all that was recorded into the stream, as taking a result does.
func (x *blendTimed) start() error {
	r := x.r.(*runner)
	defer r.dev.c.Leave()
	if err := errors.Join(r.err, r.dev.c.Enter()); err != nil {
		return err
	}
	return r.start()
}

// full runs it without.
func (x *blendTimed) full() error {
	if err := x.r.Begin(x.batch); err != nil {
		return err
	}
	x.r.Embed(x.table)
	last := int32(len(x.batch.Tokens) - 1)
	for l := range x.layers {
		x.r.QKV(l, &x.attn[l])
		x.r.Attend(l)
		if l == x.layers-1 {
			x.r.Keep([]int32{last})
		}
		x.r.Output(&x.attn[l])
		x.r.FFN(&x.ffn[l])
	}
	return x.r.Hidden(nil, []int32{last}, x.out)
}

// TestBlendTimes prints what a blended prompt takes beside the whole one, and where its time goes. It is for people:
// GREBE_BLEND_TIMES=1.
func TestBlendTimes(t *testing.T) {
	if os.Getenv("GREBE_BLEND_TIMES") == "" {
		t.Skip("GREBE_BLEND_TIMES is not set")
	}
	d := open(t, Options{})
	defer d.Close()
	for name, far := range map[string]bool{"device": false, "host": true} {
		t.Run(name, func(t *testing.T) {
			x := newBlendTimed(t, d, 36, far)
			x.print(t)
			if !far {
				x.products(t, d.(*device))
			}
		})
	}
}

// TestBlendTrace runs a whole and a blended prompt of few layers, for a profiler: GREBE_BLEND_TRACE=1.
func TestBlendTrace(t *testing.T) {
	if os.Getenv("GREBE_BLEND_TRACE") == "" {
		t.Skip("GREBE_BLEND_TRACE is not set")
	}
	d := open(t, Options{NoGraphs: true, NoOverlap: true})
	defer d.Close()
	x := newBlendTimed(t, d, 5, false)
	if err := x.full(); err != nil {
		t.Fatal(err)
	}
	if _, err := x.blend(true); err != nil {
		t.Fatal(err)
	}
}

func (x *blendTimed) print(t *testing.T) {
	var host hostTimes
	timesOf := func(f func() error) float64 {
		var all []time.Duration
		for i := range 15 {
			begin := time.Now()
			if err := f(); err != nil {
				t.Fatal(err)
			}
			if i >= 4 {
				all = append(all, time.Since(begin))
			}
		}
		slices.Sort(all)
		return float64(all[len(all)/2].Microseconds()) / 1e3
	}
	full := timesOf(x.full)
	blended := timesOf(func() (err error) { host, err = x.blend(true); return err })
	n, left := len(x.batch.Tokens), len(x.rows)
	t.Logf("%d rows %.2f ms, %d left %.2f ms: %.2f × of %.2f × (%.0f %%); %v", n, full, left, blended, full/blended,
		float64(n)/float64(left), 100*full/blended*float64(left)/float64(n), host)
	x.layers /= 2
	half, halfBlended := timesOf(x.full), timesOf(func() error { _, err := x.blend(true); return err })
	layer, blendedLayer := 1e3*(full-half)/float64(x.layers), 1e3*(blended-halfBlended)/float64(x.layers)
	x.layers *= 2
	t.Logf("a layer %.1f µs of all rows, %.1f of those left: %.2f ×; besides %.2f ms", layer, blendedLayer,
		layer/blendedLayer,
		blended-1e-3*blendedLayer*float64(x.layers-blendWhole))
	t.Logf("without attention received %.2f ms", timesOf(func() error { _, err := x.blend(false); return err }))
	t.Logf("placing alone %.2f ms", timesOf(func() error {
		if err := x.r.Begin(x.batch); err != nil {
			return err
		}
		x.r.Embed(x.table)
		x.r.Place(1, x.parts)
		return x.r.Hidden(nil, []int32{0}, x.out)
	}))
	parts := x.parts
	x.parts = nil
	t.Logf("placing nothing %.2f ms", timesOf(func() error { _, err := x.blend(true); return err }))
	x.parts = parts
	for _, left := range []int{620, 640, 768} {
		for _, from := range []int{0, n - left} {
			x.rows = x.rows[:0]
			for i := range left - 1 {
				x.rows = append(x.rows, int32(from+i))
			}
			x.rows = append(x.rows, int32(n-1))
			t.Logf("%d left, from row %d on, %.2f ms", left, from, timesOf(func() error { _, err := x.blend(true); return err }))
		}
	}
}

// products prints what products take by the number of rows.
func (x *blendTimed) products(t *testing.T, d *device) {
	s := &x.shape
	defer d.c.Leave()
	if err := d.c.Enter(); err != nil {
		t.Fatal(err)
	}
	for _, m := range []int{640, 768, 896, 2048} {
		var us [4]float64
		gateUp := driver.Product{M: coarse(m), N: 2 * s.Inter, K: s.Hidden, In: driver.NumberBF16, Out: driver.NumberBF16}
		if _, err := d.tile(gateUp, false); err != nil {
			t.Fatal(err)
		}
		us[0] = d.tuned.best[fusedName(gateUp, false)].Microseconds
		for i, p := range []driver.Product{{N: (s.Heads + 2*s.KVHeads) * s.HeadDim, K: s.Hidden, In: driver.NumberBF16,
			Out: driver.NumberBF16},
			{N: s.Hidden, K: s.Heads * s.HeadDim, In: driver.NumberBF16, Add: true},
			{N: s.Hidden, K: s.Inter, In: driver.NumberBF16, Add: true}} {
			p.M = coarse(m)
			if _, err := d.fastest(p); err != nil {
				t.Fatal(err)
			}
			us[i+1] = d.tuned.best[fmt.Sprintf("%dx%dx%d %d-%d add=%v", p.M, p.N, p.K, p.In, p.Out, p.Add)].Microseconds
		}
		t.Logf("products of %d rows (timed for %d): gate and up %.1f µs, QKV %.1f, output %.1f, down %.1f", m, coarse(m),
			us[0], us[1], us[2], us[3])
	}
}

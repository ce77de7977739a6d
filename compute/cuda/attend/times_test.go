package attend

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"grebe/compute"
	"grebe/compute/cuda/driver"
)

// timing is a batch to time, and the products of its attention without what masks waste.
type timing struct {
	name  string
	shape compute.Shape
	batch *compute.Batch
}

// pairs returns the (row, key) pairs that are seen.
func (m *timing) pairs() float64 {
	n := 0.0
	b := m.batch
	for i := range b.Segments {
		g := &b.Segments[i]
		seen := 0
		for _, j := range g.Sees {
			seen += b.Segments[j].Len
		}
		for t := g.Cached; t < g.Len; t++ {
			n += float64(seen + t + 1)
		}
	}
	return n
}

const (
	timedLayers = 8 // with their own buffers, so that their data does not stay in the cache by itself
	timedRuns   = 25
)

// TestTimes prints how long a layer takes. It is for people: GREBE_TIMES=1.
func TestTimes(t *testing.T) {
	if os.Getenv("GREBE_TIMES") == "" {
		t.Skip("GREBE_TIMES is not set")
	}
	c := gpu(t)
	qwen2, qwen3 := shapeOf(12, 2, 128), shapeOf(16, 8, 128)
	timings := []timing{
		{"causal 256", qwen2, sequence(256)}, {"causal 1,024", qwen2, sequence(1024)},
		{"causal 4,096", qwen2, sequence(4096)}, {"causal 8,192", qwen2, sequence(8192)},
		{"item-first 1,500 + 100×10", qwen2, itemFirst(1500, 100, 10)},
		{"contiguous 1,500 + 1,000", qwen2, itemFirst(1500, 1, 1000)},
		{"user-first 1,500 + 100×10", qwen2, userFirst(1500, 100, 10)},
		{"beams 512 behind 1,000", qwen3, beams(1000, 512, 3)}, {"beams 512 behind 4,000", qwen3, beams(4000, 512, 3)},
	}
	for _, v := range variants() {
		for _, m := range timings {
			if only := os.Getenv("GREBE_TIMES"); only != "1" && !strings.Contains(m.name+"; "+v.name, only) {
				continue
			}
			if err := m.measure(t, c, v); err != nil {
				t.Errorf("%s, %s: %v", m.name, v.name, err)
			}
		}
	}
}

type variant struct {
	name           string
	plain, overlap bool
	costs          costs
}

func variants() []variant {
	return []variant{
		{name: "plain", plain: true, costs: measuredCosts},
		{name: "hopper", costs: measuredCosts},
		{name: "overlapping", costs: measuredCosts, overlap: true},
		{name: "dear parts", costs: costs{6, 12}},
		{name: "never split", costs: costs{6, 1000}},
	}
}

func (m *timing) measure(t *testing.T, c *driver.Context, v variant) error {
	s := m.shape
	s.Layers = timedLayers
	a, err := New(c, Config{Shape: s, Rows: 8192, Slots: 9000, Buffers: timedLayers, Plain: v.plain, Overlap: v.overlap})
	if err != nil {
		return err
	}
	defer a.Close()
	a.plan.costs = v.costs
	st, err := c.NewStream()
	if err != nil {
		return err
	}
	defer st.Close()
	width := s.Heads * s.HeadDim
	size := 2 * a.cfg.Rows * width
	var mem []driver.Ptr
	defer func() {
		for _, p := range mem {
			c.Free(p)
		}
	}()
	noise := randomBytes()
	for range 2 * timedLayers {
		p, err := c.Alloc(size)
		if err != nil {
			return err
		}
		mem = append(mem, p)
		if err := fill(c, p, size, noise); err != nil {
			return err
		}
	}
	at := a.Scratch()
	if err := fill(c, at.Base, at.Buffers*s.KVHeads*2*at.Slots*s.HeadDim*2, noise); err != nil {
		return err
	}
	chunks, err := m.chunks(c, &s, noise)
	if err != nil {
		return err
	}
	mem = append(mem, chunks)
	start := time.Now()
	if err := a.Begin(st, m.batch); err != nil {
		return err
	}
	planned := time.Since(start)
	run := func() (err error) {
		for l := range timedLayers {
			err = errors.Join(err, a.Run(st, l, mem[2*l], width, mem[2*l+1], width))
		}
		return err
	}
	if err := errors.Join(run(), st.Sync()); err != nil {
		return err
	}
	took, err := timeGraph(c, st, run)
	if err != nil {
		return err
	}
	gather, err := timeGraph(c, st, func() error { return a.Gather(st, 0, timedLayers) })
	if err != nil {
		return err
	}
	took /= timedLayers
	flops := m.pairs() * float64(s.Heads*s.HeadDim) * 4
	t.Logf("%-26s %-13s %7.2f µs %6.1f TFLOP/s  units %4d parts %3d gather×%d %.1f plan %v", m.name, v.name,
		float64(took.Nanoseconds())/1e3, flops/took.Seconds()/1e12, len(a.plan.units), a.plan.parts, timedLayers,
		float64(gather.Nanoseconds())/1e3, planned.Round(time.Microsecond))
	return nil
}

// chunks gives the batch's chunks memory with random content.
func (m *timing) chunks(c *driver.Context, s *compute.Shape, noise []byte) (driver.Ptr, error) {
	n := 0
	for i := range m.batch.Segments {
		for j := range m.batch.Segments[i].Chunks {
			n += s.ChunkBytes(m.batch.Segments[i].Chunks[j].Tokens, false)
		}
	}
	p, err := c.Alloc(n)
	if err != nil {
		return 0, err
	}
	at := p
	for i := range m.batch.Segments {
		for j := range m.batch.Segments[i].Chunks {
			ch := &m.batch.Segments[i].Chunks[j]
			ch.Addr = uint64(at)
			at = at.At(s.ChunkBytes(ch.Tokens, false))
		}
	}
	return p, fill(c, p, n, noise)
}

// randomBytes are normal numbers in bf16.
func randomBytes() []byte {
	r := rand.New(rand.NewPCG(1, 2))
	words := make([]uint16, 1<<20)
	for i := range words {
		words[i] = toBF16(r.NormFloat64())
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), 2*len(words))
}

// fill repeats noise over the GPU's memory.
func fill(c *driver.Context, p driver.Ptr, n int, noise []byte) error {
	for at := 0; at < n; at += len(noise) {
		if err := c.Upload(p.At(at), noise[:min(len(noise), n-at)]); err != nil {
			return err
		}
	}
	return nil
}

// timeGraph captures what f launches and returns the median time of its replays.
func timeGraph(c *driver.Context, s *driver.Stream, f func() error) (time.Duration, error) {
	g, err := s.Capture(f)
	if err != nil {
		return 0, err
	}
	defer g.Close()
	var events [2]*driver.Event
	for i := range events {
		if events[i], err = c.NewEvent(true); err != nil {
			return 0, err
		}
		defer events[i].Close()
	}
	for range 3 {
		if err := g.Launch(s); err != nil {
			return 0, err
		}
	}
	var times []time.Duration
	for range timedRuns {
		if err := errors.Join(events[0].Record(s), g.Launch(s), events[1].Record(s), s.Sync()); err != nil {
			return 0, err
		}
		d, err := events[1].Since(events[0])
		if err != nil {
			return 0, err
		}
		times = append(times, d)
	}
	slices.Sort(times)
	return times[len(times)/2], nil
}

// TestDiagnose shows the probabilities that a path computes where they are wrong: with values that are
// 1 at their own key's dimension, results are probabilities. It is for people: GREBE_TIMES=1.
func TestDiagnose(t *testing.T) {
	if os.Getenv("GREBE_TIMES") == "" {
		t.Skip("GREBE_TIMES is not set")
	}
	c := gpu(t)
	s := shapeOf(1, 1, 128)
	for _, plain := range []bool{true, false} {
		a, err := New(c, Config{Shape: s, Rows: 512, Slots: 512, Buffers: 2, Plain: plain})
		if err != nil {
			t.Fatal(err)
		}
		tr := newTrial(s, sequence(128), 3, 2.5)
		for key := range tr.v {
			clear(tr.v[key])
			tr.v[key][key] = toBF16(1)
		}
		out, err := tr.run(c, a)
		if err != nil {
			t.Fatal(err)
		}
		masks := wanted(tr.batch)
		lines := 0
		for row := 0; row < 128 && lines < 12; row++ {
			want := tr.want(row, masks[row])
			for key, w := range want {
				got := fromBF16(uint16(out[2*(row*128+key)]) | uint16(out[2*(row*128+key)+1])<<8)
				if !(got-w < 0.01 && w-got < 0.01) && lines < 12 {
					lines++
					best, where := 1.0, ""
					for k2, w2 := range want {
						if d := got - w2; d*d < best && w2 > 0.05 {
							best, where = d*d, fmt.Sprint(k2)
						}
					}
					t.Errorf("plain %v row %d key %d: probability %.4f, want %.4f (nearest is key %s)", plain, row, key, got, w, where)
				}
			}
		}
		a.Close()
	}
}

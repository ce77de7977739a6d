package cuda

import (
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"
	"unsafe"

	"grebe/compute"
	"grebe/internal/offheap"
)

// TestRowCacheTimes compares passes of 6 layers of HSTU over 15,000 new events, and over 64 behind 14,936 cached ones,
// by where the items' rows come from: a table on the GPU, the host's memory with every batch, or a cache that has all
// of them, or all but a tenth. It runs if GREBE_ROW_TIMES is set.
func TestRowCacheTimes(t *testing.T) {
	if os.Getenv("GREBE_ROW_TIMES") == "" {
		t.Skip("GREBE_ROW_TIMES is not set")
	}
	const all, hot, events = 400_000, 40_000, 15_000
	d := open(t, Options{}).(*device)
	defer d.Close()
	s := compute.Shape{Layers: 6, Hidden: 512, Heads: 4, KVHeads: 4, HeadDim: 128, Eps: 1e-6, KV: compute.BF16,
		Pointwise: &compute.Pointwise{Alpha: float32(1 / math.Sqrt(128)), Scale: 1.0 / 16384}}
	w := stuWeights(t, d, &s)
	host := &timedRows{width: s.Hidden, data: make([]float32, all*s.Hidden)}
	draw := rand.New(rand.NewPCG(1, 1))
	for i := range host.data {
		host.data[i] = draw.Float32() - 0.5
	}
	resident, err := d.Table(compute.Tensor{DType: compute.F32, Rows: all, Cols: s.Hidden,
		Data: unsafe.Slice((*byte)(unsafe.Pointer(&host.data[0])), 4*len(host.data))})
	if err != nil {
		t.Fatal(err)
	}
	c, err := d.rowCache(all, s.Hidden, compute.F32, 2*hot*4*int64(s.Hidden), rowStage)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 2 * hot * 4 * s.Hidden / c.PageBytes() {
		b, err := d.Memory().Alloc(c.PageBytes())
		if err != nil {
			t.Fatal(err)
		}
		defer d.Memory().Free(b)
		if _, err := c.Grow([]compute.Block{b}); err != nil {
			t.Fatal(err)
		}
	}
	open, err := d.Open(s, events)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	r := open.(compute.STU)
	kv, err := d.Memory().Alloc(s.ChunkBytes(64, false) * (events/64 + 1))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Memory().Free(kv)
	for _, n := range []int{events, 64} {
		var base []float64
		for _, kind := range []string{"resident", "host", "cached", "cached but a tenth"} {
			var times []float64
			fetched := c.Stats().Fetched
			for i := range 130 {
				b := &compute.Batch{Tokens: make([]int32, n), Positions: make([]int32, n),
					Segments: []compute.Segment{{Len: events, Cached: events - n}}}
				for at, size := 0, s.ChunkBytes(64, false); at*64 < events; at++ {
					b.Segments[0].Chunks = append(b.Segments[0].Chunks, kv.Slice(at*size, size).Chunk(64, false))
				}
				list := make([]int32, n)
				for k := range list {
					list[k] = int32(draw.IntN(hot))
					if kind == "cached but a tenth" && k%10 == 0 {
						list[k] = int32(hot + draw.IntN(all-hot))
					}
					b.Positions[k] = int32(events - n + k)
				}
				began := time.Now()
				part := compute.SumPart{Table: resident, Rows: list, Scale: 1}
				switch kind {
				case "host":
					part = host.vectors(list)
				case "cached", "cached but a tenth":
					part = compute.SumPart{Cached: c, Source: host, Rows: list, Scale: 1}
				}
				passSTU(t, r, b, w, part, s.Hidden)
				if i >= 30 { // the cache has filled, and graphs are captured
					times = append(times, time.Since(began).Seconds()*1000)
				} else if i == 29 {
					fetched = c.Stats().Fetched
				}
			}
			slices.Sort(times)
			if base == nil {
				base = times
			}
			t.Logf("%5d new events, %-18s P50 %.3f ms (%.3f of resident), P99 %.3f ms, %.2f MB fetched per pass", n, kind,
				times[50], times[50]/base[50], times[99], float64(c.Stats().Fetched-fetched)/1e6/float64(len(times)))
		}
	}
}

func passSTU(t *testing.T, r compute.STU, b *compute.Batch, w []compute.STUWeights, part compute.SumPart, hidden int) {
	t.Helper()
	if err := r.Begin(b); err != nil {
		t.Fatal(err)
	}
	last := int32(len(b.Tokens) - 1)
	r.Sum([]compute.SumPart{part})
	for l := range w {
		r.UVQK(l, &w[l])
		r.Attend(l)
		if l == len(w)-1 {
			r.Keep([]int32{last})
		}
		r.Mix(&w[l])
	}
	if err := r.Hidden(nil, []int32{last}, make([]float32, hidden)); err != nil {
		t.Fatal(err)
	}
}

// timedRows are rows in the host's memory.
type timedRows struct {
	width int
	data  []float32
	known map[int32]int32
	out   []float32
}

func (s *timedRows) Format() compute.DType { return compute.F32 }

func (s *timedRows) Fetch(list []int32, to []byte, known []bool) error {
	out := offheap.Slice[float32](to, len(list)*s.width)
	for i, row := range list {
		copy(out[i*s.width:][:s.width], s.data[int(row)*s.width:])
		known[i] = true
	}
	return nil
}

// vectors gathers each row once, as a model does for a table without a cache on the device.
func (s *timedRows) vectors(list []int32) compute.SumPart {
	s.known, s.out = map[int32]int32{}, s.out[:0]
	at := make([]int32, len(list))
	for i, row := range list {
		k, ok := s.known[row]
		if !ok {
			k = int32(len(s.known))
			s.known[row] = k
			s.out = append(s.out, s.data[int(row)*s.width:][:s.width]...)
		}
		at[i] = k
	}
	return compute.SumPart{Vectors: s.out, Rows: at, Scale: 1}
}

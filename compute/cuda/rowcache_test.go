package cuda

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"grebe/compute"
	"grebe/compute/cuda/drivertest"
	"grebe/compute/cuda/rows/rowstest"
	"grebe/internal/offheap"
)

// rowTable is a table in the host's memory.
type rowTable struct {
	width int
	data  []float32
	dt    compute.DType // that rows are fetched in, without rounding

	mu      sync.Mutex
	fetched []int32
	during  func() // called in the next Fetch, once
	err     error
}

const holes = 17 // every such row is missing: another one stands in, which MUST NOT be cached

func newRowTable(n, width int, dt compute.DType) *rowTable {
	t := &rowTable{width: width, data: make([]float32, n*width), dt: dt}
	for row := range n {
		t.write(row, 1)
	}
	return t
}

func (t *rowTable) row(row int32) []float32 { return t.data[int(row)*t.width:][:t.width] }

func (t *rowTable) write(row, version int) {
	r := rand.New(rand.NewPCG(uint64(row), uint64(version)))
	for i := range t.row(int32(row)) {
		t.row(int32(row))[i] = float32(r.NormFloat64())
		if t.dt == compute.BF16 {
			t.row(int32(row))[i] = float32(r.IntN(256)-128) / 8
		}
	}
}

func (t *rowTable) Format() compute.DType { return t.dt }

func (t *rowTable) Fetch(list []int32, to []byte, known []bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fetched = append(t.fetched, list...)
	for i, row := range list {
		if t.dt == compute.F32 {
			copy(offheap.Slice[float32](to, len(list)*t.width)[i*t.width:], t.row(row))
		} else {
			for k, v := range t.row(row) {
				offheap.Slice[uint16](to, len(list)*t.width)[i*t.width+k] = uint16(math.Float32bits(v) >> 16)
			}
		}
		known[i] = row%holes != 0
	}
	if t.during != nil {
		t.during()
		t.during = nil
	}
	return t.err
}

// take returns what was fetched since it was called last.
func (t *rowTable) take() []int32 {
	defer func() { t.fetched = nil }()
	return t.fetched
}

const rowWidth = 1024 // 256 rows in a page

// onBoth runs a test on a simulated GPU, which has the kernels that Sum needs, and on a real one where there is one.
func onBoth(t *testing.T, f func(t *testing.T, d *device)) {
	t.Run("simulated", func(t *testing.T) {
		g, d := simulate(t, Options{NoGraphs: true})
		rowstest.Simulate(g)
		g.Kernels["sum"] = func(l *drivertest.Launch) { simulatedSum(g, l) }
		g.Kernels["rms_norm"] = func(l *drivertest.Launch) { simulatedHidden(g, l) }
		f(t, d)
	})
	t.Run("gpu", func(t *testing.T) {
		d := open(t, Options{})
		t.Cleanup(func() { d.Close() }) // behind what f has cleaned up: caches fetch ahead until they are closed
		f(t, d.(*device))
	})
}

// simulatedSum is sum.cu over a table of F32.
func simulatedSum(g *drivertest.GPU, l *drivertest.Launch) {
	n, stride := int(offheap.Slice[int32](g.Bytes(l.Args[3], 4), 1)[0]), int(int32(l.Args[4]))
	at := offheap.Slice[int32](g.Bytes(l.Args[2], 4*n), n)
	x := offheap.Slice[float32](g.Bytes(l.Args[0], 4*n*stride), n*stride)
	scale := math.Float32frombits(uint32(l.Args[5]))
	for row, from := range at {
		to := x[row*stride:][:stride]
		if int32(l.Args[6]) == 0 {
			clear(to)
		}
		if from < 0 {
			continue
		}
		for i, v := range offheap.Slice[float32](g.Bytes(l.Args[1]+uint64(4*int(from)*stride), 4*stride), stride) {
			to[i] += scale * v
		}
	}
}

// simulatedHidden is norm.cu without a gain: it copies rows.
func simulatedHidden(g *drivertest.GPU, l *drivertest.Launch) {
	n, stride := int(offheap.Slice[int32](g.Bytes(l.Args[4], 4), 1)[0]), int(int32(l.Args[5]))
	for i, row := range offheap.Slice[int32](g.Bytes(l.Args[3], 4*n), n) {
		copy(g.Bytes(l.Args[0]+uint64(4*i*stride), 4*stride), g.Bytes(l.Args[1]+uint64(4*int(row)*stride), 4*stride))
	}
}

// summing sums rows of a table, which come from a cache or, to compare, from the host.
type summing struct {
	t     *testing.T
	r     compute.STU
	table *rowTable
	cache *rowCache
	size  int // rows of the largest batch
	kv    compute.Block
	shape compute.Shape

	closed bool
}

func newSumming(t *testing.T, d *device, table *rowTable, cache *rowCache, size int) *summing {
	t.Helper()
	s := &summing{t: t, table: table, cache: cache, size: size, shape: compute.Shape{Layers: 1, Hidden: rowWidth, Heads: 1,
		KVHeads: 1, HeadDim: 64, Eps: 1e-6, KV: compute.F32, Pointwise: &compute.Pointwise{Alpha: 1, Scale: 1}}}
	r, err := d.Open(s.shape, size)
	if err != nil {
		t.Fatal(err)
	}
	s.r = r.(compute.STU)
	if s.kv, err = d.Memory().Alloc(s.shape.ChunkBytes(size, false)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !s.closed {
			s.close(d)
		}
	})
	return s
}

func (s *summing) close(d *device) {
	s.closed = true
	if err := s.r.Close(); err != nil {
		s.t.Error(err)
	}
	d.Memory().Free(s.kv)
}

// sum returns the sums of a batch. Every row gets the part's and, from the host, a row of the table's beginning.
func (s *summing) sum(part compute.SumPart) ([]float32, error) {
	beside := make([]int32, len(part.Rows))
	for i := range beside {
		beside[i] = int32(i%7) - 1
	}
	part.Scale = 1.5
	return s.parts([]compute.SumPart{part, {Vectors: s.table.data[:7*rowWidth], Rows: beside, Scale: 0.75}})
}

// parts returns the sums of a batch's parts.
func (s *summing) parts(parts []compute.SumPart) ([]float32, error) {
	n := len(parts[0].Rows)
	b := &compute.Batch{Tokens: make([]int32, n), Positions: make([]int32, n), Segments: []compute.Segment{{Len: n,
		Chunks: []compute.Chunk{s.kv.Chunk(s.size, false)}}}}
	all := make([]int32, n)
	for i := range n {
		b.Positions[i], all[i] = int32(i), int32(i)
	}
	if err := s.r.Begin(b); err != nil {
		return nil, err
	}
	s.r.Sum(parts)
	out := make([]float32, n*rowWidth)
	return out, s.r.Hidden(nil, all, out)
}

// same compares a batch's sums with those of rows that the host sends, bit by bit.
func (s *summing) same(what string, list []int32) {
	s.t.Helper()
	got, err := s.sum(compute.SumPart{Cached: s.cache, Source: s.table, Rows: list})
	if err != nil {
		s.t.Fatalf("%s: %v", what, err)
	}
	want, err := s.sum(compute.SumPart{Vectors: s.table.data, Rows: list})
	if err != nil {
		s.t.Fatalf("%s, rows from the host: %v", what, err)
	}
	for i := range got {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			s.t.Fatalf("%s: row %d of the batch, row %d of the table, column %d: %v, want %v", what, i/rowWidth,
				list[i/rowWidth], i%rowWidth, got[i], want[i])
		}
	}
}

// openRows makes a cache for a table, and pages for it.
func openRows(t *testing.T, d *device, n, pages, stage int, dt compute.DType) (*rowCache, []compute.Block) {
	t.Helper()
	c, err := d.rowCache(n, rowWidth, dt, int64(pages)*rowPage, stage)
	if err != nil {
		t.Fatal(err)
	}
	arena, err := d.Memory().Alloc(pages * c.PageBytes())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		d.Memory().Free(arena)
	})
	var blocks []compute.Block
	for i := range pages {
		blocks = append(blocks, arena.Slice(i*c.PageBytes(), c.PageBytes()))
	}
	return c, blocks
}

func (s *summing) grow(pages ...compute.Block) {
	s.t.Helper()
	if n, err := s.cache.Grow(pages); n != len(pages) || err != nil {
		s.t.Fatalf("%d of %d pages: %v", n, len(pages), err)
	}
}

// draw returns n rows of a table, most of them of a few that move with at, and some that are none.
func draw(r *rand.Rand, n, all, at int) []int32 {
	list := make([]int32, n)
	for i := range list {
		list[i] = int32((at*50 + int(math.Abs(r.NormFloat64())*100)) % all)
		if r.IntN(9) == 0 {
			list[i] = -1
		}
	}
	return list
}

// TestRowCache: sums of cached rows have the bits of those that the host sends, whatever was cached before, evicted or
// changed, and while pages come and go; batches of more rows than the stage holds take several rounds.
func TestRowCache(t *testing.T) {
	onBoth(t, func(t *testing.T, d *device) {
		for _, dt := range []compute.DType{compute.F32, compute.BF16} {
			t.Run(dt.String(), func(t *testing.T) { testRowCache(t, d, dt) })
		}
	})
}

func testRowCache(t *testing.T, d *device, dt compute.DType) {
	const pages = 3
	bytes, all := 4*rowWidth, 2000
	if dt == compute.BF16 {
		bytes, all = 2*rowWidth, 4000
	}
	table := newRowTable(all, rowWidth, dt)
	c, blocks := openRows(t, d, all, pages, 100, dt)
	s := newSumming(t, d, table, c, 400)
	r := rand.New(rand.NewPCG(1, 1))
	s.same("without pages", draw(r, 50, all, 0))
	s.grow(blocks[:2]...)
	for i := range 60 {
		list := draw(r, []int{1, 40, 90, 400}[i%4], 2000, i)
		for k, row := range list {
			if all > 2000 && row >= 0 {
				list[k] = 2*row + int32(r.IntN(2))
			}
		}
		s.same("cached", list)
		switch i % (all / 200) {
		case 3:
			rows := []int32{list[0], list[len(list)/2], list[len(list)-1], -1, int32(all)}
			for _, row := range rows {
				if row >= 0 && int(row) < all {
					table.write(int(row), i)
				}
			}
			c.Changed(rows)
		case 5:
			s.grow(blocks[2])
		case 8:
			if gone, err := c.Shrink(1); err != nil || len(gone) != 1 || gone[0].Addr != blocks[2].Addr {
				t.Fatalf("shrink: %v, %v", gone, err)
			}
		case 9:
			for row := range all {
				table.write(row, i)
			}
			c.Changed(nil)
		}
	}
	stats := c.Stats()
	if stats.Hits == 0 || stats.Misses == 0 || stats.Evictions == 0 || stats.Rows != 2*rowPage/bytes ||
		stats.Bytes != 2*rowPage || stats.Fetched != stats.Misses*int64(bytes) {
		t.Errorf("statistics are %+v", stats)
	}
	if n, err := c.Grow(blocks); n != 1 || err != nil {
		t.Errorf("of 3 pages over 2 it took %d, %v, want 1", n, err)
	}
}

// TestRowCacheHits: rows that are cached are not fetched again; those that stand in for missing ones are.
func TestRowCacheHits(t *testing.T) {
	onBoth(t, func(t *testing.T, d *device) {
		const all = 2000
		c, blocks := openRows(t, d, all, 2, 100, compute.F32)
		s := newSumming(t, d, newRowTable(all, rowWidth, compute.F32), c, 100)
		s.grow(blocks...)
		list := []int32{40, 41, -1, 41, 2 * holes, 43}
		s.same("first", list)
		if got := s.table.take(); !slices.Equal(got, []int32{40, 41, 2 * holes, 43}) {
			t.Errorf("first: %v was fetched", got)
		}
		s.same("again", list)
		if got := s.table.take(); !slices.Equal(got, []int32{2 * holes}) {
			t.Errorf("again: %v was fetched", got)
		}
		if got := c.Stats(); got.Hits != 3 || got.Misses != 5 {
			t.Errorf("statistics are %+v, want 3 hits and 5 misses", got)
		}
		s.same("of cached rows alone", []int32{43, 40})
		s.same("of no rows", []int32{-1, -1})
		if got := s.table.take(); len(got) > 0 {
			t.Errorf("cached: %v was fetched", got)
		}
	})
}

// TestRowCacheChangesDuringFetch: a row that changes while it is fetched is used once and not cached, one that is
// evicted meanwhile is fetched, too, and a source that fails fails the batch alone.
func TestRowCacheChangesDuringFetch(t *testing.T) {
	onBoth(t, func(t *testing.T, d *device) {
		const all = 2000
		table := newRowTable(all, rowWidth, compute.F32)
		c, blocks := openRows(t, d, all, 2, 100, compute.F32)
		s := newSumming(t, d, table, c, 100)
		s.grow(blocks...)
		s.same("first", []int32{1, 2})
		table.take()
		table.during = func() { // under way: 3 and 4
			c.Changed([]int32{3, 1})
		}
		s.same("changed", []int32{1, 2, 3, 4})
		if got := table.take(); !slices.Equal(got, []int32{3, 4, 1}) {
			t.Errorf("%v was fetched, want 3, 4, and 1 which was forgotten meanwhile", got)
		}
		s.same("after the change", []int32{1, 2, 3, 4})
		if got := table.take(); !slices.Equal(got, []int32{1, 3}) {
			t.Errorf("after the change %v was fetched, want 1 and 3, which had changed during the fetch", got)
		}
		table.err = errors.New("no store")
		if _, err := s.sum(compute.SumPart{Cached: c, Source: table, Rows: []int32{1, 9}}); !errors.Is(err, table.err) {
			t.Errorf("a source that fails: %v", err)
		}
		table.err = nil
		s.same("after a failure", []int32{1, 9})
	})
}

// TestRowCachePrefetch: rows that were fetched ahead are hits, those that may not be cached are fetched again, and a
// row that changes meanwhile is not cached.
func TestRowCachePrefetch(t *testing.T) {
	onBoth(t, func(t *testing.T, d *device) {
		const all = 2000
		table := newRowTable(all, rowWidth, compute.F32)
		c, blocks := openRows(t, d, all, 2, 4, compute.F32)
		s := newSumming(t, d, table, c, 100)
		s.grow(blocks...)
		s.same("first", []int32{1})
		table.take()
		list := []int32{1, 2, 3, 2, 4, -1, 2 * holes, 6, 7} // more than the stage holds
		l := c.prefetch(nil, prefetch{list, table})
		if got := table.take(); !slices.Equal(got, []int32{2, 3, 4, 2 * holes, 6, 7}) {
			t.Errorf("%v was fetched ahead", got)
		}
		s.same("afterwards", list)
		if got := table.take(); !slices.Equal(got, []int32{2 * holes}) {
			t.Errorf("%v was fetched once more, want %d alone, which may not be cached", got, 2*holes)
		}
		if got := c.Stats(); got.Prefetched != 6 {
			t.Errorf("statistics are %+v, want 6 rows fetched ahead", got)
		}
		table.during = func() {
			table.write(9, 2)
			c.Changed([]int32{9})
		}
		l = c.prefetch(l, prefetch{[]int32{8, 9}, table})
		table.take()
		s.same("after a change", []int32{8, 9})
		if got := table.take(); !slices.Equal(got, []int32{9}) {
			t.Errorf("%v was fetched, want 9, which had changed", got)
		}
		table.err = errors.New("no store")
		l = c.prefetch(l, prefetch{[]int32{11}, table})
		table.err = nil
		s.same("after a failure", []int32{11})
		l.close(d)
	})
}

// TestRowCacheShared: two runners use a cache at once while rows are forgotten and fetched ahead, and pages come and
// go.
func TestRowCacheShared(t *testing.T) {
	onBoth(t, func(t *testing.T, d *device) {
		const all, pages = 1000, 3
		table := newRowTable(all, rowWidth, compute.F32)
		c, blocks := openRows(t, d, all, pages, 100, compute.F32)
		var wg sync.WaitGroup
		done := make(chan struct{})
		for i := range 2 {
			s := newSumming(t, d, table, c, 90)
			if i == 0 {
				s.grow(blocks[:2]...)
			}
			wg.Go(func() {
				r := rand.New(rand.NewPCG(2, uint64(i)))
				for turn := range 60 {
					list := draw(r, 90, all, turn)
					got, err := s.sum(compute.SumPart{Cached: c, Source: table, Rows: list})
					if err != nil {
						t.Error(err)
						return
					}
					for k, row := range list {
						want := float32(0)
						if row >= 0 {
							want = 1.5 * table.row(row)[5]
						}
						if beside := k%7 - 1; beside >= 0 {
							want += float32(0.75 * table.row(int32(beside))[5])
						}
						if v := got[k*rowWidth+5]; math.Abs(float64(v-want)) > 1e-5 {
							t.Errorf("runner %d, turn %d, row %d (%d of the table): %v, want %v", i, turn, k, row, v, want)
							return
						}
					}
				}
			})
		}
		var others sync.WaitGroup
		others.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				c.Changed([]int32{int32(i % all)})
				c.Prefetch([]int32{int32(i * 7 % all), int32(i * 13 % all)}, table)
				if i%20 == 0 {
					if gone, err := c.Shrink(1); err != nil || len(gone) != 1 {
						t.Errorf("shrink: %v, %v", gone, err)
						return
					} else if n, err := c.Grow(gone); err != nil || n != 1 {
						t.Errorf("grow: %d, %v", n, err)
						return
					}
				}
			}
		})
		wg.Wait()
		close(done)
		others.Wait()
	})
}

// TestRowCacheRefuses: what does not fit is an error, and no panic.
func TestRowCacheRefuses(t *testing.T) {
	_, d := simulate(t, Options{NoGraphs: true})
	for _, c := range []struct {
		rows, width int
		dt          compute.DType
		most        int64
	}{{0, 64, compute.F32, 1 << 30}, {10, 6, compute.F32, 1 << 30}, {10, 0, compute.F32, 1 << 30},
		{10, 64, compute.F32, 1000}, {10, 4, compute.BF16, 1 << 30}, {10, 64, compute.FP8, 1 << 30}} {
		if _, err := d.RowCache(c.rows, c.width, c.dt, c.most); err == nil {
			t.Errorf("%+v is no error", c)
		}
	}
	table := newRowTable(100, rowWidth, compute.F32)
	c, blocks := openRows(t, d, 100, 1, 100, compute.F32)
	s := newSumming(t, d, table, c, 10)
	if _, err := c.Grow([]compute.Block{{Addr: blocks[0].Addr, Size: 100}}); err == nil {
		t.Error("a page that is too small is no error")
	}
	for what, part := range map[string]compute.SumPart{
		"without a source":     {Cached: c, Rows: []int32{1}},
		"a row beyond the end": {Cached: c, Source: table, Rows: []int32{100}},
	} {
		if _, err := s.sum(part); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}

// TestRowCacheFailures: whatever call of the driver fails, a batch returns an error or succeeds without it, leaves
// nothing under way, and the batches after it are right. A batch that nobody takes results of leaves nothing, too.
func TestRowCacheFailures(t *testing.T) {
	g, d := simulate(t, Options{NoGraphs: true})
	rowstest.Simulate(g)
	g.Kernels["sum"] = func(l *drivertest.Launch) { simulatedSum(g, l) }
	g.Kernels["rms_norm"] = func(l *drivertest.Launch) { simulatedHidden(g, l) }
	const all = 1000
	table := newRowTable(all, rowWidth, compute.F32)
	r := rand.New(rand.NewPCG(3, 3))
	for turn := 0; ; turn++ { // a new runner and a new cache each: what they make first can fail, too
		c, err := d.rowCache(all, rowWidth, compute.F32, 1<<30, 30)
		if err != nil {
			t.Fatal(err)
		}
		pages, err := d.Memory().Alloc(2 * c.PageBytes())
		if err != nil {
			t.Fatal(err)
		}
		s := newSumming(t, d, table, c, 40)
		_, failed, after := failNth(g, turn, 1)
		n, err := c.Grow([]compute.Block{pages.Slice(0, c.PageBytes()), pages.Slice(c.PageBytes(), c.PageBytes())})
		if n == 2 && err == nil {
			_, err = s.sum(compute.SumPart{Cached: c, Source: table, Rows: draw(r, 40, all, turn)})
		}
		if err == nil {
			_, err = c.Shrink(1)
		}
		g.Fail = nil
		if err != nil && len(*after) > 0 {
			t.Fatalf("call %d, %s, failed (%v): %v followed", turn, *failed, err, *after)
		}
		for range 3 {
			s.same("after "+*failed+" failed", draw(r, 40, all, turn))
		}
		if err := s.r.Begin(&compute.Batch{Tokens: make([]int32, 1), Positions: make([]int32, 1),
			Segments: []compute.Segment{{Len: 1, Chunks: []compute.Chunk{s.kv.Chunk(s.size, false)}}}}); err != nil {
			t.Fatal(err)
		}
		s.r.Sum([]compute.SumPart{{Cached: c, Source: table, Rows: []int32{5}}})
		if err := s.r.Begin(&compute.Batch{}); err != nil {
			t.Fatal(err)
		}
		if pending := g.Pending(); len(pending) > 0 {
			t.Fatalf("a batch that nobody took results of: %v are still under way", pending)
		}
		s.close(d)
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		d.Memory().Free(pages)
		if *failed == "" {
			if err != nil {
				t.Fatalf("nothing failed: %v", err)
			}
			break
		}
	}
}

// TestRowCachesBeside: parts of several caches, looked up beside each other, have the bits of rows that the host sends.
// Two runners name the caches in opposite orders while rows change, are fetched ahead and pages come and go. One table
// has more rows in a batch than its stage holds, and one is named twice.
func TestRowCachesBeside(t *testing.T) {
	onBoth(t, func(t *testing.T, d *device) {
		const all, rows = 1200, besideRows + 40
		var tables []*rowTable
		var caches []*rowCache
		for i, stage := range []int{400, 400, 100} {
			dt := []compute.DType{compute.F32, compute.BF16}[i%2]
			c, blocks := openRows(t, d, all, 2-i%2, stage, dt)
			if n, err := c.Grow(blocks); n != len(blocks) || err != nil {
				t.Fatalf("%d pages: %v", n, err)
			}
			table := newRowTable(all, rowWidth, dt)
			for at := range table.data {
				table.data[at] *= float32(int(1) << i) // so that tables differ
			}
			tables, caches = append(tables, table), append(caches, c)
		}
		done := make(chan struct{})
		var runners, others sync.WaitGroup
		for i, order := range [][]int{{0, 1, 2, 0}, {2, 1, 0}} {
			s := newSumming(t, d, tables[0], caches[0], rows)
			runners.Go(func() {
				r := rand.New(rand.NewPCG(3, uint64(i)))
				for turn := range 20 {
					var cached, sent []compute.SumPart
					for _, k := range order {
						list := draw(r, rows, all, turn)
						cached = append(cached, compute.SumPart{Cached: caches[k], Source: tables[k], Rows: list, Scale: 1})
						sent = append(sent, compute.SumPart{Vectors: tables[k].data, Rows: list, Scale: 1})
					}
					got, err := s.parts(cached)
					if err != nil {
						t.Errorf("runner %d, turn %d: %v", i, turn, err)
						return
					}
					want, err := s.parts(sent)
					if err != nil {
						t.Errorf("runner %d, turn %d, rows from the host: %v", i, turn, err)
						return
					}
					for at := range got {
						if math.Float32bits(got[at]) != math.Float32bits(want[at]) {
							t.Errorf("runner %d, turn %d, row %d, column %d: %v, want %v", i, turn, at/rowWidth, at%rowWidth, got[at],
								want[at])
							return
						}
					}
				}
			})
		}
		others.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				c := caches[i%len(caches)]
				c.Changed([]int32{int32(i % all)})
				c.Prefetch([]int32{int32(i * 7 % all), int32(i * 13 % all)}, tables[i%len(caches)])
				if i%20 != 0 {
					continue
				}
				gone, err := c.Shrink(1)
				if err == nil {
					_, err = c.Grow(gone)
				}
				if err != nil {
					t.Errorf("pages: %v", err)
					return
				}
			}
		})
		runners.Wait()
		close(done)
		others.Wait()
		if t.Failed() {
			return
		}
		s := newSumming(t, d, tables[0], caches[0], rows)
		tables[1].err = errors.New("no store")
		caches[1].Changed(nil)
		list := draw(rand.New(rand.NewPCG(4, 1)), rows, all, 0)
		part := func(k int) compute.SumPart {
			return compute.SumPart{Cached: caches[k], Source: tables[k], Rows: list, Scale: 1}
		}
		if _, err := s.parts([]compute.SumPart{part(0), part(1)}); !errors.Is(err, tables[1].err) {
			t.Errorf("a source that fails: %v", err)
		}
		tables[1].err = nil
		if _, err := s.parts([]compute.SumPart{part(0), part(1)}); err != nil {
			t.Errorf("after a failure: %v", err)
		}
		for i, c := range caches { // rows may still be fetched ahead
			c.mu.Lock()
			for _, l := range s.r.(*runner).sums.cached {
				if c.flights[l] {
					t.Errorf("a look-up of the runner is a flight of cache %d at the end", i)
				}
			}
			c.mu.Unlock()
		}
	})
}

package rows_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"grebe/compute/cuda/driver"
	"grebe/compute/cuda/drivertest"
	"grebe/compute/cuda/rows"
	"grebe/compute/cuda/rows/rowstest"
	"grebe/evict"
	"grebe/internal/offheap"
)

// onGPUs runs a test on a simulated GPU and, where there is one, on a real one.
func onGPUs(t *testing.T, f func(t *testing.T, c *driver.Context)) {
	t.Run("simulated", func(t *testing.T) {
		t.Setenv("GREBE_KERNEL_CACHE", t.TempDir())
		g := drivertest.New()
		defer g.Close()
		rowstest.Simulate(g)
		run(t, f)
		for _, e := range g.Errors {
			t.Error(e)
		}
	})
	t.Run("gpu", func(t *testing.T) {
		if n, err := driver.Count(); err != nil || n == 0 {
			t.Skip("there is no GPU")
		}
		run(t, f)
	})
}

func run(t *testing.T, f func(t *testing.T, c *driver.Context)) {
	c, err := driver.New(0)
	must(t, err)
	defer func() { must(t, c.Close()) }()
	must(t, c.Enter())
	defer c.Leave()
	f(t, c)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// rig is a cache of one table and what a test needs beside it.
type rig struct {
	t     *testing.T
	c     *driver.Context
	r     *rows.Cache
	s     *driver.Stream
	spec  rows.Spec
	bf16  rows.BF16
	all   *driver.Host // the table, pinned
	in    *driver.Host // rows that the host fetched
	ids   *driver.Host
	bags  *driver.Host // starts, then weights
	plan  *driver.Host // changes
	out   *driver.Host
	arena driver.Ptr // of pages
	jobs  *rows.Jobs
}

const (
	most  = 4096    // ids of a batch
	used  = 4       // pages that get memory
	pages = 1 << 19 // so many leave 6 bits for epochs, which begin again after 62
)

// newRig enters the context, which belongs to a thread: subtests have their own.
func newRig(t *testing.T, c *driver.Context, spec rows.Spec, format rows.BF16) *rig {
	g := &rig{t: t, c: c, spec: spec, bf16: format}
	err := c.Enter()
	must(t, err)
	g.r, err = rows.New(c, []rows.Spec{spec}, format)
	must(t, err)
	g.s, err = c.NewStream()
	must(t, err)
	host := func(n int) *driver.Host {
		h, err := c.AllocHost(n)
		must(t, err)
		clear(h.Bytes)
		return h
	}
	g.all, g.in, g.ids = host(spec.Rows*spec.RowBytes), host(spec.Stage*spec.RowBytes), host(4*most)
	g.bags, g.plan, g.out = host(8*most+4), host(16*most), host(most*g.stride())
	g.arena, err = c.Alloc(used * spec.PageRows * spec.RowBytes)
	must(t, err)
	g.jobs, err = g.r.NewJobs(2)
	must(t, err)
	r := rand.New(rand.NewPCG(1, uint64(spec.RowBytes)))
	for i := range spec.Rows {
		g.write(uint32(i), r)
	}
	return g
}

func (g *rig) close() {
	defer g.c.Leave()
	must(g.t, g.s.Sync())
	must(g.t, g.r.CloseJobs(g.jobs))
	must(g.t, g.r.Close())
	for _, h := range []*driver.Host{g.all, g.in, g.ids, g.bags, g.plan, g.out} {
		must(g.t, g.c.FreeHost(h))
	}
	must(g.t, g.c.Free(g.arena))
	must(g.t, g.s.Close())
}

// width is how many values a row has.
func (g *rig) width() int {
	if g.bf16.Rows {
		return g.spec.RowBytes / 2
	}
	return g.spec.RowBytes / 4
}

// stride is the bytes of an output row.
func (g *rig) stride() int {
	if g.bf16.Out {
		return 2 * g.width()
	}
	return 4 * g.width()
}

func (g *rig) row(id uint32) []byte { return g.all.Bytes[int(id)*g.spec.RowBytes:][:g.spec.RowBytes] }

// write gives a row new content: small whole numbers, whose sums are exact in any order.
func (g *rig) write(id uint32, r *rand.Rand) {
	row := g.row(id)
	for i := range g.width() {
		bits := math.Float32bits(float32(r.IntN(9) - 4))
		if g.bf16.Rows {
			binary.LittleEndian.PutUint16(row[2*i:], uint16(bits>>16))
		} else {
			binary.LittleEndian.PutUint32(row[4*i:], bits)
		}
	}
}

func (g *rig) value(data []byte, bf16 bool, i int) float32 {
	if bf16 {
		return math.Float32frombits(uint32(binary.LittleEndian.Uint16(data[2*i:])) << 16)
	}
	return math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
}

// check compares output row i with a sum of rows.
func (g *rig) check(what string, i int, ids []uint32, weight func(k int) float32) {
	g.t.Helper()
	for c := range g.width() {
		want := float32(0)
		for k, id := range ids {
			if id < uint32(g.spec.Rows) {
				want += weight(k) * g.value(g.row(id), g.bf16.Rows, c)
			}
		}
		if got := g.value(g.out.Bytes[i*g.stride():], g.bf16.Out, c); got != want {
			g.t.Fatalf("%s, output %d, column %d: %v, want %v (rows %v)", what, i, c, got, want, ids)
		}
	}
}

func once(int) float32 { return 1 }

// gather compares the rows of ids.
func (g *rig) gather(what string, ids []uint32) {
	g.t.Helper()
	copy(offheap.Slice[uint32](g.ids.Bytes, most), ids)
	must(g.t, g.r.Set(g.s, g.jobs, rows.Job{IDs: g.ids.Ptr, Count: len(ids), Out: g.out.Ptr, Stride: g.stride()}))
	must(g.t, g.r.Gather(g.s, g.jobs))
	must(g.t, g.s.Sync())
	for i := range ids {
		g.check(what, i, ids[i:i+1], once)
	}
}

// pool compares sums of bags.
func (g *rig) pool(what string, ids []uint32, starts []int32, weights []float32, mean bool) {
	g.t.Helper()
	copy(offheap.Slice[uint32](g.ids.Bytes, most), ids)
	copy(offheap.Slice[int32](g.bags.Bytes, most+1), starts)
	job := rows.Job{IDs: g.ids.Ptr, Count: len(starts) - 1, Starts: g.bags.Ptr, Mean: mean,
		Out: g.out.Ptr, Stride: g.stride()}
	if weights != nil {
		copy(offheap.Slice[float32](g.bags.Bytes[4*(most+1):], most), weights)
		job.Weights = g.bags.Ptr.At(4 * (most + 1))
	}
	must(g.t, g.r.Set(g.s, g.jobs, job))
	must(g.t, g.r.Pool(g.s, g.jobs))
	must(g.t, g.s.Sync())
	for bag := range len(starts) - 1 {
		begin, end := int(starts[bag]), int(starts[bag+1])
		g.check(what, bag, ids[begin:end], func(k int) float32 {
			switch {
			case weights != nil:
				return weights[begin+k]
			case mean:
				return 1 / float32(end-begin)
			}
			return 1
		})
	}
}

// bagsOf cuts ids into bags whose lengths are powers of two, some of them empty.
func bagsOf(n int, r *rand.Rand) (starts []int32) {
	starts = []int32{0}
	for at := 0; at < n; {
		size := min(1<<r.IntN(8)>>1, n-at)
		for size&(size-1) != 0 {
			size &= size - 1
		}
		at += size
		starts = append(starts, int32(at))
	}
	return starts
}

func forms() map[string]rows.BF16 {
	return map[string]rows.BF16{"f32": {}, "bf16": {Rows: true, Out: true}, "bf16 to f32": {Rows: true}}
}

// TestFindAndFetch: ids that are not cached are listed once each and fetched from pinned memory on the GPU alone, and
// sequences and bags of them are right.
func TestFindAndFetch(t *testing.T) {
	onGPUs(t, func(t *testing.T, c *driver.Context) {
		for name, format := range forms() {
			for _, rowBytes := range []int{16, 128, 336, 1024, 2064} {
				t.Run(name, func(t *testing.T) {
					spec := rows.Spec{Rows: 500, RowBytes: rowBytes, Pages: pages, PageRows: 64, Stage: 300}
					g := newRig(t, c, spec, format)
					defer g.close()
					g.findAndFetch(rand.New(rand.NewPCG(3, uint64(rowBytes))))
				})
			}
		}
	})
}

func (g *rig) findAndFetch(r *rand.Rand) {
	for batch := range 80 {
		must(g.t, g.r.Forget(g.s, 0))
		ids := make([]uint32, 1+r.IntN(200))
		distinct := map[uint32]bool{}
		for i := range ids {
			ids[i] = r.Uint32N(uint32(g.spec.Rows) + 2) // some are no rows
			if ids[i] < uint32(g.spec.Rows) {
				distinct[ids[i]] = true
			}
		}
		copy(offheap.Slice[uint32](g.ids.Bytes, most), ids)
		must(g.t, g.r.Set(g.s, g.jobs, rows.Job{IDs: g.ids.Ptr, Count: len(ids), Out: g.out.Ptr, Stride: g.stride()}))
		must(g.t, g.r.Find(g.s, g.jobs))
		must(g.t, g.r.FetchFound(g.s, 0, g.all.Ptr))
		must(g.t, g.s.Sync())
		_, count := g.r.Found(0)
		var n [4]byte
		must(g.t, g.c.Download(n[:], count))
		if got := int(binary.LittleEndian.Uint32(n[:])); got != len(distinct) {
			g.t.Fatalf("batch %d: %d rows are missing, want %d", batch, got, len(distinct))
		}
		g.gather("found", ids)
		starts := bagsOf(len(ids), r)
		weights := make([]float32, len(ids))
		for i := range weights {
			weights[i] = float32(r.IntN(5)-2) / 2
		}
		if !g.bf16.Out { // sums of bf16 are rounded
			g.pool("sum", ids, starts, nil, false)
			g.pool("mean", ids, starts, nil, true)
			g.pool("weighted", ids, starts, weights, false)
		} else {
			g.pool("bags of one", ids[:1], []int32{0, 1, 1}, nil, false)
		}
	}
}

// TestStageIsFull: rows beyond the stage are left out and counted, read as zeros, and are found by a later batch.
func TestStageIsFull(t *testing.T) {
	onGPUs(t, func(t *testing.T, c *driver.Context) {
		g := newRig(t, c, rows.Spec{Rows: 500, RowBytes: 64, Pages: 1, PageRows: 64, Stage: 100}, rows.BF16{})
		defer g.close()
		ids := make([]uint32, 150)
		for i := range ids {
			ids[i] = uint32(2 * i)
		}
		copy(offheap.Slice[uint32](g.ids.Bytes, most), ids)
		must(t, g.r.Forget(g.s, 0))
		must(t, g.r.Set(g.s, g.jobs, rows.Job{IDs: g.ids.Ptr, Count: len(ids), Out: g.out.Ptr, Stride: g.stride()}))
		must(t, g.r.Find(g.s, g.jobs))
		must(t, g.r.FetchFound(g.s, 0, g.all.Ptr))
		must(t, g.r.Gather(g.s, g.jobs))
		must(t, g.s.Sync())
		there := 0
		for i, id := range ids {
			zeros := true
			for _, b := range g.out.Bytes[i*64:][:64] {
				zeros = zeros && b == 0
			}
			if !zeros {
				there++
				g.check("staged", i, []uint32{id}, once)
			}
		}
		if there != 100 {
			t.Errorf("%d rows are there, want as many as the stage holds", there)
		}
		must(t, g.r.Forget(g.s, 0))
		copy(offheap.Slice[uint32](g.ids.Bytes, most), ids[100:])
		must(t, g.r.Set(g.s, g.jobs, rows.Job{IDs: g.ids.Ptr, Count: 50, Out: g.out.Ptr, Stride: g.stride()}))
		must(t, g.r.Find(g.s, g.jobs))
		must(t, g.r.FetchFound(g.s, 0, g.all.Ptr))
		g.gather("a later batch", ids[100:])
	})
}

// TestCacheFollowsDirectory: on random batches, while pages come and go and rows change, the GPU has exactly the rows
// that the directory says, with their content, and every batch reads right rows.
func TestCacheFollowsDirectory(t *testing.T) {
	onGPUs(t, func(t *testing.T, c *driver.Context) {
		for name, format := range forms() {
			t.Run(name, func(t *testing.T) {
				spec := rows.Spec{Rows: 2000, RowBytes: 128, Pages: pages, PageRows: 64, Stage: 300}
				g := newRig(t, c, spec, format)
				defer g.close()
				g.follow(evict.NewDirectory(spec.Rows, used, spec.PageRows, 2), rand.New(rand.NewPCG(5, 6)))
			})
		}
	})
}

func (g *rig) follow(d *evict.Directory, r *rand.Rand) {
	batches := 400
	if testing.Short() {
		batches = 100
	}
	hot := rand.NewZipf(r, 1.2, 10, uint64(g.spec.Rows-1))
	hits := 0
	for batch := range batches {
		g.resize(d, r)
		ids := make([]uint32, 1+r.IntN(250))
		var missing []uint32
		listed := map[uint32]bool{}
		for i := range ids {
			ids[i] = uint32(hot.Uint64()+uint64(batch)) % uint32(g.spec.Rows)
			if d.Use(ids[i]) {
				hits++
			} else if !listed[ids[i]] {
				listed[ids[i]] = true
				missing = append(missing, ids[i])
			}
		}
		if batch%16 == 0 { // a row that is cached changes
			d.Remove(ids[0])
			g.write(ids[0], r)
			if !listed[ids[0]] {
				missing = append(missing, ids[0])
			}
		}
		must(g.t, g.r.Forget(g.s, 0))
		for i, id := range missing {
			copy(g.in.Bytes[i*g.spec.RowBytes:], g.row(id))
		}
		must(g.t, g.r.Fetch(g.s, 0, missing, g.in.Ptr))
		g.gather("before placing", ids)
		g.place(d, missing)
		must(g.t, g.r.Forget(g.s, 0))
		g.contents(d)
	}
	if hits < 10*batches {
		g.t.Errorf("%d hits in %d batches: the stream tries too little", hits, batches)
	}
}

// resize opens or shuts a page now and then.
func (g *rig) resize(d *evict.Directory, r *rand.Rand) {
	open, all := d.Pages()
	size := g.spec.PageRows * g.spec.RowBytes
	switch x := r.IntN(3); {
	case open == 0 || x == 0 && open < all:
		page, _ := d.Open()
		must(g.t, g.r.SetPage(g.s, 0, page, g.arena.At(page*size)))
	case x == 1 && open > 1:
		page, _ := d.Shut()
		must(g.t, g.r.SetPage(g.s, 0, page, 0))
	}
}

// place carries the directory's decisions about missing rows out.
func (g *rig) place(d *evict.Directory, missing []uint32) {
	p := rows.NewPlan(g.plan)
	for i, id := range missing {
		if slot, evicted, ok := d.Place(id); ok {
			p.Add(id, slot, i, evicted)
		}
	}
	must(g.t, g.r.Place(g.s, 0, p))
	must(g.t, g.s.Sync())
}

// contents compares all that is cached with what the directory says.
func (g *rig) contents(d *evict.Directory) {
	g.t.Helper()
	ids := make([]uint32, g.spec.Rows)
	for i := range ids {
		ids[i] = uint32(i)
	}
	copy(offheap.Slice[uint32](g.ids.Bytes, most), ids)
	must(g.t, g.r.Set(g.s, g.jobs, rows.Job{IDs: g.ids.Ptr, Count: len(ids), Out: g.out.Ptr, Stride: g.stride()}))
	must(g.t, g.r.Gather(g.s, g.jobs))
	must(g.t, g.s.Sync())
	for i, id := range ids {
		if _, ok := d.Slot(id); ok {
			g.check("cached", i, []uint32{id}, once)
			continue
		}
		for _, b := range g.out.Bytes[i*g.stride():][:g.stride()] {
			if b != 0 {
				g.t.Fatalf("row %d is cached, and the directory does not know it", id)
			}
		}
	}
}

// TestEpochsBeginAgain: rows that were staged, or in a page, stay forgotten when epochs begin again.
func TestEpochsBeginAgain(t *testing.T) {
	onGPUs(t, func(t *testing.T, c *driver.Context) {
		g := newRig(t, c, rows.Spec{Rows: 20, RowBytes: 64, Pages: pages, PageRows: 64, Stage: 300}, rows.BF16{})
		defer g.close()
		ids := []uint32{7, 9}
		must(t, g.r.SetPage(g.s, 0, 0, g.arena))
		must(t, g.r.Forget(g.s, 0))
		copy(g.in.Bytes, g.row(7))
		copy(g.in.Bytes[64:], g.row(9))
		must(t, g.r.Fetch(g.s, 0, ids, g.in.Ptr))
		p := rows.NewPlan(g.plan)
		p.Add(9, 5, 1, evict.NoRow)
		must(t, g.r.Place(g.s, 0, p))
		g.gather("staged and placed", ids)
		for i := range 130 {
			must(t, g.r.Forget(g.s, 0))
			must(t, g.r.SetPage(g.s, 0, 0, 0))
			must(t, g.r.SetPage(g.s, 0, 0, g.arena))
			must(t, g.r.Gather(g.s, g.jobs))
			must(t, g.s.Sync())
			if !bytes.Equal(g.out.Bytes[:128], make([]byte, 128)) {
				t.Fatalf("after %d epochs a forgotten row is read", i+1)
			}
		}
	})
}

// TestSpecs: tables that entries cannot name are refused.
func TestSpecs(t *testing.T) {
	onGPUs(t, func(t *testing.T, c *driver.Context) {
		for name, s := range map[string]rows.Spec{
			"no rows":        {RowBytes: 64, Pages: 1, PageRows: 64, Stage: 64},
			"odd rows":       {Rows: 1, RowBytes: 24, Pages: 1, PageRows: 64, Stage: 64},
			"odd pages":      {Rows: 1, RowBytes: 64, Pages: 1, PageRows: 65, Stage: 64},
			"no stage":       {Rows: 1, RowBytes: 64, Pages: 1, PageRows: 64},
			"too many slots": {Rows: 1, RowBytes: 64, Pages: 1 << 20, PageRows: 64, Stage: 64},
		} {
			if r, err := rows.New(c, []rows.Spec{s}, rows.BF16{}); err == nil {
				t.Errorf("%s: accepted", name)
				must(t, r.Close())
			}
		}
	})
}

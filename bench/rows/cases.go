package rows

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"
	"unsafe"

	"grebe/bench/report"
	"grebe/compute/cuda/driver"
	"grebe/compute/cuda/rows"
)

// bench is a case: rows of one size and format.
type bench struct {
	o      *Options
	c      *driver.Context
	report *Report
	bf16   bool
	size   int
	r      *rand.Rand

	cache  *rows.Cache
	jobs   *rows.Jobs
	memory []driver.Ptr
	hosts  []*driver.Host
	s      *driver.Stream
	filler driver.Ptr // of time
	err    error
}

const (
	stage    = 1 << 16 // rows that are fetched at once
	patterns = 1 << 10 // rows of different content: row i is as row i mod patterns
)

func (b *bench) alloc(n int) driver.Ptr {
	if b.err != nil {
		return 0
	}
	p, err := b.c.Alloc(n)
	b.memory, b.err = append(b.memory, p), err
	return p
}

func (b *bench) pinned(n int) *driver.Host {
	if b.err != nil {
		return &driver.Host{}
	}
	h, err := b.c.AllocHost(n)
	b.hosts, b.err = append(b.hosts, h), err
	return h
}

func (b *bench) stream() *driver.Stream {
	if b.err == nil && b.s == nil {
		b.s, b.err = b.c.NewStream()
	}
	return b.s
}

func (b *bench) event() *driver.Event {
	if b.err != nil {
		return nil
	}
	var e *driver.Event
	e, b.err = b.c.NewEvent(true)
	return e
}

func (b *bench) upload(data []byte) driver.Ptr {
	p := b.alloc(len(data))
	if b.err == nil {
		b.err = b.c.Upload(p, data)
	}
	return p
}

func bytesOf[T any](v []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), len(v)*int(unsafe.Sizeof(v[0])))
}

func (b *bench) close() error {
	var errs []error
	if b.s != nil {
		errs = append(errs, b.s.Sync())
	}
	if b.jobs != nil {
		errs = append(errs, b.cache.CloseJobs(b.jobs))
	}
	if b.cache != nil {
		errs = append(errs, b.cache.Close())
	}
	for _, p := range b.memory {
		errs = append(errs, b.c.Free(p))
	}
	for _, h := range b.hosts {
		errs = append(errs, b.c.FreeHost(h))
	}
	if b.s != nil {
		errs = append(errs, b.s.Close())
	}
	return errors.Join(errs...)
}

// open makes a cache of tables whose rows are in pages only if they are all to be cached.
func (b *bench) open(tables, perTable int, cached bool) (content []byte) {
	b.stream()
	if b.err != nil {
		return nil
	}
	const pageRows = 1 << 12
	spec := rows.Spec{Rows: perTable, RowBytes: b.size, Pages: (perTable + pageRows - 1) / pageRows, PageRows: pageRows,
		Stage: stage}
	specs := make([]rows.Spec, tables)
	for i := range specs {
		specs[i] = spec
	}
	if b.cache, b.err = rows.New(b.c, specs, rows.BF16{Rows: b.bf16, Out: b.bf16}); b.err != nil {
		return nil
	}
	if b.jobs, b.err = b.cache.NewJobs(tables); b.err != nil {
		return nil
	}
	in := b.pinned(stage * b.size)
	if b.err != nil {
		return nil
	}
	b.fillRows(in.Bytes[:patterns*b.size])
	for at := patterns * b.size; at < len(in.Bytes); at += patterns * b.size {
		copy(in.Bytes[at:], in.Bytes[:patterns*b.size])
	}
	if cached {
		plan := rows.NewPlan(b.pinned(16 * stage))
		for t := range tables {
			arena := b.alloc(spec.Pages * pageRows * b.size)
			for page := range spec.Pages {
				b.do(func() error { return b.cache.SetPage(b.s, t, page, arena.At(page*pageRows*b.size)) })
			}
			for first := 0; first < perTable; first += stage {
				b.cacheRows(t, first, min(stage, perTable-first), in, plan)
			}
		}
	}
	return in.Bytes
}

func (b *bench) do(f func() error) {
	if b.err == nil {
		b.err = f()
	}
}

// cacheRows gives rows their slots.
func (b *bench) cacheRows(table, first, n int, in *driver.Host, plan *rows.Plan) {
	ids := make([]uint32, n)
	plan.Reset()
	for i := range ids {
		ids[i] = uint32(first + i)
		plan.Add(ids[i], first+i, i, math.MaxUint32)
	}
	b.do(func() error { return b.cache.Forget(b.s, table) })
	b.do(func() error { return b.cache.Fetch(b.s, table, ids, in.Ptr) })
	b.do(func() error { return b.cache.Place(b.s, table, plan) })
	b.do(b.s.Sync)
}

// fillRows writes small whole numbers, whose sums are exact.
func (b *bench) fillRows(to []byte) {
	for i := 0; i < len(to); i += 4 {
		x, y := math.Float32bits(float32(b.r.IntN(3)-1)), math.Float32bits(float32(b.r.IntN(3)-1))
		if b.bf16 {
			x = x>>16 | y&0xffff0000
		}
		binary.LittleEndian.PutUint32(to[i:], x)
	}
}

// value is a number of a row.
func (b *bench) value(row []byte, i int) float32 {
	if b.bf16 {
		return math.Float32frombits(uint32(binary.LittleEndian.Uint16(row[2*i:])) << 16)
	}
	return math.Float32frombits(binary.LittleEndian.Uint32(row[4*i:]))
}

// check compares a result with the sum of rows.
func (b *bench) check(content []byte, out driver.Ptr, ids []uint32) error {
	got := make([]byte, b.size)
	if err := b.c.Download(got, out); err != nil {
		return err
	}
	width := b.size / 4
	if b.bf16 {
		width = b.size / 2
	}
	for i := range width {
		want := float32(0)
		for _, id := range ids {
			want += b.value(content[int(id)%patterns*b.size:], i)
		}
		if v := b.value(got, i); v != want {
			return fmt.Errorf("column %d of %d rows is %v, want %v: the cache is wrong", i, len(ids), v, want)
		}
	}
	return nil
}

// checked is how many results of a case are compared.
const checked = 64

// checkSome compares some outputs, of a row each.
func (b *bench) checkSome(content []byte, job rows.Job, ids []uint32) error {
	for range checked {
		i := b.r.IntN(len(ids))
		if err := b.check(content, job.Out.At(i*b.size), ids[i:i+1]); err != nil {
			return err
		}
	}
	return nil
}

// least is the least share of the copy rate for rows of a size.
func (b *bench) least(wide float64) float64 {
	if b.size >= 256 {
		return wide
	}
	return 0.35
}

// pooled measures bags of all features in one launch.
func (b *bench) pooled() error {
	o := b.o
	perTable := int(o.Bytes/int64(o.Features*b.size)) + 1
	content := b.open(o.Features, perTable, true)
	jobs, all := make([]rows.Job, o.Features), 0
	ids, starts := make([][]uint32, o.Features), make([][]int32, o.Features)
	for f := range jobs {
		starts[f] = []int32{0}
		for range o.Requests {
			for range b.r.IntN(2*o.Bag + 1) {
				ids[f] = append(ids[f], b.r.Uint32N(uint32(perTable)))
			}
			starts[f] = append(starts[f], int32(len(ids[f])))
		}
		all += len(ids[f])
		jobs[f] = rows.Job{Table: f, IDs: b.upload(bytesOf(ids[f])), Count: o.Requests, Starts: b.upload(bytesOf(starts[f])),
			Out: b.alloc(o.Requests * b.size), Stride: b.size}
	}
	moved := float64(all+o.Features*o.Requests) * float64(b.size)
	longest := slices.MaxFunc(ids, func(x, y []uint32) int { return cmp.Compare(len(x), len(y)) })
	weights := b.upload(bytesOf(slices.Repeat([]float32{1}, len(longest))))
	for _, way := range []string{"sum", "mean", "weighted"} {
		for f := range jobs {
			jobs[f].Mean, jobs[f].Weights = way == "mean", 0
			if way == "weighted" {
				jobs[f].Weights = weights
			}
		}
		b.do(func() error { return b.cache.Set(b.s, b.jobs, jobs...) })
		if b.err != nil {
			return b.err
		}
		took, err := b.time(b.s, func() error { return b.cache.Pool(b.s, b.jobs) })
		if err != nil {
			return err
		}
		for i := 0; i < checked && way != "mean"; i++ {
			f, bag := b.r.IntN(o.Features), b.r.IntN(o.Requests)
			of := ids[f][starts[f][bag]:starts[f][bag+1]]
			if err := b.check(content, jobs[f].Out.At(bag*b.size), of); err != nil {
				return err
			}
		}
		must := 0.0
		if way == "sum" {
			must = b.least(0.5)
		}
		b.add("pooled, "+way, all, moved, took, "copy", must)
	}
	return nil
}

// sequences measures one row per event.
func (b *bench) sequences() error {
	n, perTable := b.o.Users*b.o.Events, int(b.o.Bytes/int64(b.size))
	content := b.open(1, perTable, true)
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = b.r.Uint32N(uint32(perTable))
	}
	job := rows.Job{IDs: b.upload(bytesOf(ids)), Count: n, Out: b.alloc(n * b.size), Stride: b.size}
	b.do(func() error { return b.cache.Set(b.s, b.jobs, job) })
	if b.err != nil {
		return b.err
	}
	took, err := b.time(b.s, func() error { return b.cache.Gather(b.s, b.jobs) })
	if err != nil {
		return err
	}
	if err := b.checkSome(content, job, ids); err != nil {
		return err
	}
	b.add("sequences", n, 2*float64(n*b.size), took, "copy", 0.6)
	return nil
}

// missing measures rows that come from pinned memory.
func (b *bench) missing() error {
	n := min(b.o.Missing, stage)
	perTable := int(min(b.o.Bytes, 1<<30)) / b.size
	content := b.open(1, perTable, false)
	table := b.pinned(perTable * b.size)
	if b.err != nil {
		return b.err
	}
	for at := 0; at < len(table.Bytes); at += len(content) {
		copy(table.Bytes[at:], content)
	}
	ids := make([]uint32, n)
	for i, id := range b.r.Perm(perTable)[:n] {
		ids[i] = uint32(id)
	}
	job := rows.Job{IDs: b.upload(bytesOf(ids)), Count: n, Out: b.alloc(n * b.size), Stride: b.size}
	b.do(func() error { return b.cache.Set(b.s, b.jobs, job) })
	if b.err != nil {
		return b.err
	}
	forget := func() error { return b.cache.Forget(b.s, 0) }
	find := func() error { return b.cache.Find(b.s, b.jobs) }
	fetch := func() error { return b.cache.FetchFound(b.s, 0, table.Ptr) }
	alone, err := b.time(b.s, fetch, forget, find)
	if err != nil {
		return err
	}
	both, err := b.time(b.s, func() error { return errors.Join(find(), fetch()) }, forget)
	if err != nil {
		return err
	}
	if err := errors.Join(b.cache.Gather(b.s, b.jobs), b.s.Sync()); err != nil {
		return err
	}
	if err := b.checkSome(content, job, ids); err != nil {
		return err
	}
	must := 0.8
	if b.size < 256 {
		must = 0
	}
	if err := b.gathered(content, table.Bytes, ids, job, must); err != nil {
		return err
	}
	b.add("missing, fetched", n, float64(n*b.size), alone, "PCIe", must)
	b.add("missing, found and fetched", n, float64(n*b.size), both, "PCIe", 0)
	return nil
}

// gathered measures rows that the host puts into pinned memory one behind the other, as batches of a server get them:
// what the GPU does behind that, and all of it, by the host's clock.
func (b *bench) gathered(content, table []byte, ids []uint32, job rows.Job, must float64) error {
	n := len(ids)
	in := b.pinned(n * b.size)
	if b.err != nil {
		return b.err
	}
	gather := func() {
		var wg sync.WaitGroup
		parts := min(runtime.GOMAXPROCS(0), gatherers)
		for part := range parts {
			wg.Go(func() {
				for i := part * n / parts; i < (part+1)*n/parts; i++ {
					copy(in.Bytes[i*b.size:][:b.size], table[int(ids[i])*b.size:])
				}
			})
		}
		wg.Wait()
	}
	gather()
	forget := func() error { return b.cache.Forget(b.s, 0) }
	fetch := func() error { return b.cache.Fetch(b.s, 0, ids, in.Ptr) }
	alone, err := b.time(b.s, fetch, forget)
	if err != nil {
		return err
	}
	var times []float64
	for range b.o.Repeats {
		if err := errors.Join(forget(), b.s.Sync()); err != nil {
			return err
		}
		begin := time.Now()
		gather()
		if err := errors.Join(fetch(), b.s.Sync()); err != nil {
			return err
		}
		times = append(times, time.Since(begin).Seconds())
	}
	slices.Sort(times)
	if err := errors.Join(b.cache.Gather(b.s, b.jobs), b.s.Sync()); err != nil {
		return err
	}
	if err := b.checkSome(content, job, ids); err != nil {
		return err
	}
	b.add("gathered, fetched", n, float64(n*b.size), alone, "PCIe", must)
	b.add("gathered and fetched, host", n, float64(n*b.size), report.Median(times), "PCIe", 0)
	return nil
}

// gatherers are the goroutines that gather rows.
const gatherers = 8

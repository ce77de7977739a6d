// Package rows caches rows of embedding tables in a GPU's memory (kernels/rows*.cu; HLM-2 in docs/explain/papers.md).
//
// A table has a word for each of its rows, its entry: a slot and the epoch of the slot's page. It is valid while the
// epoch is the page's, so pages come and go without touching entries or rows. A look-up reads one entry and one page.
//
// Which rows are cached is the host's decision (evict.Directory), from the ids of each batch, which the host has
// before the GPU does. So the GPU keeps no statistics, the decisions are those of package evict to the bit, and hits
// wait for nothing: Gather and Pool look rows up by themselves. A batch that misses rows puts them into the table's
// stage, whose slots are looked up as all others are:
//
//	Fetch (or Find and Fetch) · Gather and Pool · Place · Forget
//
// Fetch reads rows from pinned memory of the host. Find lists the missing rows on the GPU, for ids that the host does
// not have and tables that are pinned whole. Place moves staged rows to slots after the batch has read what was there.
// Forget empties the stage. All of them are in the order of one stream, or of streams that events order.
//
// All of it belongs to the goroutine that is inside the context.
package rows

import (
	"errors"
	"fmt"
	"math/bits"
	"unsafe"

	"grebe/compute/cuda/driver"
	"grebe/compute/cuda/kernels"
	"grebe/internal/offheap"
)

// Spec describes a table. Its rows are numbered from 0.
type Spec struct {
	Rows     int // of the table
	RowBytes int // a multiple of 16
	Pages    int // that it may have at most
	PageRows int // slots of a page, a power of two
	Stage    int // rows that a batch may fetch
}

// slotBits returns the bits of an entry that name a slot, those of the stage included.
func (s *Spec) slotBits() int { return bits.Len(uint((s.Pages+s.stagePages())*s.PageRows - 1)) }

func (s *Spec) stagePages() int { return (s.Stage + s.PageRows - 1) / s.PageRows }

// leastEpochs is how many bits an entry has for epochs at least.
const leastEpochs = 6

func (s *Spec) validate() error {
	if s.Rows < 1 || s.Rows >= 1<<31 || s.RowBytes < 16 || s.RowBytes%16 != 0 || s.RowBytes > 1<<16 {
		return fmt.Errorf("%d rows of %d bytes: want below 2³¹ rows, of a multiple of 16 bytes up to 64 KiB",
			s.Rows, s.RowBytes)
	}
	if s.Pages < 1 || s.Stage < 1 || s.PageRows < 1 || s.PageRows&(s.PageRows-1) != 0 || s.slotBits() > 32-leastEpochs {
		return fmt.Errorf("%d pages of %d slots and a stage of %d: want a power of two, and at most 2²⁶ slots in all",
			s.Pages, s.PageRows, s.Stage)
	}
	return nil
}

// BF16 says which of a cache's formats are bf16; else they are float32.
type BF16 struct{ Rows, Out bool }

// Cache holds rows of several tables.
type Cache struct {
	c       *driver.Context
	modules []*driver.Module
	tables  []table
	specs   driver.Ptr // of the kernels: a tableWords each
	stages  driver.Ptr
	memory  []driver.Ptr
	args    *driver.Args

	gather, pool, find, fetch, clear, place, pages, sweep *driver.Function
}

// table is what the host keeps of one.
type table struct {
	Spec
	bits   int      // of a slot
	epochs []uint32 // of pages, whether or not they have memory; the last is the stage's
	stage  driver.Ptr
	list   driver.Ptr // the ids of the missing rows
	counts driver.Ptr // how many there are
	host   *driver.Host
}

// device is Table of rows.cuh.
type device struct {
	entries, pages            driver.Ptr
	rows                      uint32
	words, slotBits, pageBits int32
}

// stage is Stage of rows_missing.cu.
type stage struct {
	ids, count, base driver.Ptr
	first, room      uint32
}

const pageBytes = 16

// New makes a cache without pages. The caller MUST Close it.
func New(c *driver.Context, specs []Spec, format BF16) (*Cache, error) {
	r := &Cache{c: c}
	err := r.load(format)
	if err == nil {
		r.args, err = driver.NewArgs()
	}
	if err == nil {
		err = r.open(specs)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("rows: %w", err), r.Close())
	}
	return r, nil
}

func (r *Cache) load(format BF16) error {
	number := map[bool]string{true: "1", false: "0"}
	of := []string{"IN=" + number[format.Rows], "OUT=" + number[format.Out]}
	for _, f := range []struct {
		file    string
		defines []string
		kernels map[string]**driver.Function
	}{
		{"rows_gather.cu", of, map[string]**driver.Function{"rows_gather": &r.gather}},
		{"rows_pool.cu", of, map[string]**driver.Function{"rows_pool": &r.pool}},
		{"rows_missing.cu", nil, map[string]**driver.Function{"rows_find": &r.find, "rows_fetch": &r.fetch}},
		{"rows_place.cu", nil, map[string]**driver.Function{
			"rows_clear": &r.clear, "rows_place": &r.place, "rows_pages": &r.pages, "rows_sweep": &r.sweep}},
	} {
		m, err := kernels.Load(r.c, f.file, f.defines...)
		if err != nil {
			return err
		}
		r.modules = append(r.modules, m)
		for name, to := range f.kernels {
			if *to, err = m.Function(name); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *Cache) alloc(n int, err *error) driver.Ptr {
	if *err != nil {
		return 0
	}
	var p driver.Ptr
	if p, *err = r.c.Alloc(n); *err == nil {
		r.memory = append(r.memory, p)
		*err = r.c.Zero(p, n)
	}
	return p
}

func (r *Cache) open(specs []Spec) error {
	devices, stages := make([]device, len(specs)), make([]stage, len(specs))
	var err error
	for i, s := range specs {
		if err := s.validate(); err != nil {
			return fmt.Errorf("table %d: %w", i, err)
		}
		t := table{Spec: s, bits: s.slotBits(), epochs: make([]uint32, s.Pages+1)}
		pages := 1 << t.bits / s.PageRows
		t.stage, t.list, t.counts = r.alloc(s.Stage*s.RowBytes, &err), r.alloc(4*s.Stage, &err), r.alloc(4, &err)
		devices[i] = device{entries: r.alloc(4*s.Rows, &err), pages: r.alloc(pageBytes*pages, &err),
			rows: uint32(s.Rows), words: int32(s.RowBytes / 16), slotBits: int32(t.bits),
			pageBits: int32(bits.TrailingZeros(uint(s.PageRows)))}
		if err != nil {
			return err
		}
		if t.host, err = r.c.AllocHost(4 * s.Stage); err != nil {
			return err
		}
		stages[i] = stage{ids: t.list, count: t.counts, base: t.stage, room: uint32(s.Stage)}
		r.tables = append(r.tables, t)
	}
	r.specs = r.alloc(len(specs)*int(unsafe.Sizeof(device{})), &err)
	r.stages = r.alloc(len(specs)*int(unsafe.Sizeof(stage{})), &err)
	if err != nil {
		return err
	}
	if err := r.c.Upload(r.specs, bytesOf(devices)); err != nil {
		return err
	}
	return r.c.Upload(r.stages, bytesOf(stages))
}

func bytesOf[T any](v []T) []byte {
	if len(v) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), len(v)*int(unsafe.Sizeof(v[0])))
}

// Close gives the cache's own memory back, not that of its pages. None of its kernels may be running.
func (r *Cache) Close() error {
	var errs []error
	for _, p := range r.memory {
		errs = append(errs, r.c.Free(p))
	}
	for i := range r.tables {
		errs = append(errs, r.c.FreeHost(r.tables[i].host))
	}
	for _, m := range r.modules {
		errs = append(errs, m.Close())
	}
	if r.args != nil {
		r.args.Free()
	}
	r.memory, r.tables, r.modules, r.args = nil, nil, nil, nil
	return errors.Join(errs...)
}

const threads = 256

// over returns the blocks for n threads, at most so many per multiprocessor.
func (r *Cache) over(n, perProcessor int) int {
	return max(1, min((n+threads-1)/threads, perProcessor*r.c.Info().Processors))
}

func (r *Cache) launch(s *driver.Stream, f *driver.Function, x, y int) error {
	return f.Launch(s, driver.Launch{Grid: [3]int{x, y}, Block: [3]int{threads}}, r.args)
}

// SetPage gives a page memory for its slots, or takes it away with the address 0. What was cached in the page is
// forgotten. Nothing is copied.
func (r *Cache) SetPage(s *driver.Stream, table, page int, memory driver.Ptr) error {
	t := &r.tables[table]
	if page < 0 || page >= t.Pages {
		return fmt.Errorf("rows: page %d of %d", page, t.Pages)
	}
	epoch := uint32(0)
	if memory != 0 {
		var err error
		if epoch, err = r.next(s, table, page, page, 1); err != nil {
			return err
		}
	}
	return r.setPages(s, table, page, 1, memory, epoch)
}

func (r *Cache) setPages(s *driver.Stream, table, first, count int, memory driver.Ptr, epoch uint32) error {
	r.args.Reset().Ptr(r.specs).Int(table).Int(first).Int(count).Ptr(memory).Int(int(int32(epoch)))
	return r.launch(s, r.pages, 1, 1)
}

// next returns the next epoch of some pages, whose epochs are at index. When there is none left, all entries of the
// pages are forgotten, and epochs begin again. The last epoch is left out: an entry with it may look like a claimed
// one.
func (r *Cache) next(s *driver.Stream, table, index, first, count int) (uint32, error) {
	t := &r.tables[table]
	e := &t.epochs[index]
	if *e++; *e < 1<<(32-t.bits)-1 {
		return *e, nil
	}
	*e = 1
	r.args.Reset().Ptr(r.specs).Int(table).Int(first).Int(count)
	return 1, r.launch(s, r.sweep, r.over(t.Rows, 8), 1)
}

// Forget empties a table's stage, and begins the next batch.
func (r *Cache) Forget(s *driver.Stream, table int) error {
	t := &r.tables[table]
	epoch, err := r.next(s, table, t.Pages, t.Pages, t.stagePages())
	if err == nil {
		err = r.setPages(s, table, t.Pages, t.stagePages(), t.stage, epoch)
	}
	if err == nil {
		err = s.Fill(t.counts, 0, 4)
	}
	if err == nil {
		first := epoch<<t.bits | uint32(t.Pages*t.PageRows)
		err = s.Fill32(r.stages.At(table*int(unsafe.Sizeof(stage{}))+int(unsafe.Offsetof(stage{}.first))), first, 1)
	}
	return err
}

// Job is a list of ids of one table in the GPU's memory, or in pinned memory of the host.
type Job struct {
	Table   int
	IDs     driver.Ptr // 4 bytes each
	Count   int        // of ids, or with Starts of bags
	Starts  driver.Ptr // of bags: Count+1 numbers of 4 bytes
	Weights driver.Ptr // of ids in bags: float32; 0: none
	Mean    bool       // of bags: sums are divided by the bag's length
	Out     driver.Ptr
	Stride  int // bytes from one output to the next, a multiple of 16
}

// job is Job of rows.cuh.
type job struct {
	ids, out, starts, weights  driver.Ptr
	table, count, stride, mean int32
}

// Jobs are jobs of one launch.
type Jobs struct {
	host  *driver.Host
	dev   driver.Ptr
	n     int
	most  int // ids or bags of a job
	limit int
}

// NewJobs makes room for so many jobs. The caller MUST Close them.
func (r *Cache) NewJobs(limit int) (*Jobs, error) {
	j := &Jobs{limit: limit}
	var err error
	if j.host, err = r.c.AllocHost(limit * int(unsafe.Sizeof(job{}))); err != nil {
		return nil, err
	}
	j.dev, err = r.c.Alloc(limit * int(unsafe.Sizeof(job{})))
	return j, err
}

// CloseJobs gives the memory of jobs back. No launch with them may be running.
func (r *Cache) CloseJobs(j *Jobs) error { return errors.Join(r.c.Free(j.dev), r.c.FreeHost(j.host)) }

// Set puts jobs on the GPU, in the stream's order. No launch or Set of the same Jobs may be under way.
func (r *Cache) Set(s *driver.Stream, j *Jobs, jobs ...Job) error {
	if len(jobs) > j.limit {
		return fmt.Errorf("rows: %d jobs, at most %d", len(jobs), j.limit)
	}
	to := offheap.Slice[job](j.host.Bytes, j.limit)
	j.n, j.most = len(jobs), 0
	for i := range jobs {
		o := &jobs[i]
		if o.Table < 0 || o.Table >= len(r.tables) || o.Count < 0 || o.Stride%16 != 0 {
			return fmt.Errorf("rows: job %d of table %d: %d rows, %d bytes apart", i, o.Table, o.Count, o.Stride)
		}
		mean := int32(0)
		if o.Mean {
			mean = 1
		}
		to[i] = job{o.IDs, o.Out, o.Starts, o.Weights, int32(o.Table), int32(o.Count), int32(o.Stride), mean}
		j.most = max(j.most, o.Count)
	}
	return s.Copy(j.dev, j.host.Ptr, j.n*int(unsafe.Sizeof(job{})))
}

// Gather writes the row of each id. Rows that are not cached are zeros.
func (r *Cache) Gather(s *driver.Stream, j *Jobs) error {
	r.args.Reset().Ptr(r.specs).Ptr(j.dev)
	return r.launch(s, r.gather, r.share(j, j.most), max(1, j.n))
}

// Pool writes the sum of each bag's rows. Rows that are not cached add nothing.
func (r *Cache) Pool(s *driver.Stream, j *Jobs) error {
	r.args.Reset().Ptr(r.specs).Ptr(j.dev)
	return r.launch(s, r.pool, r.over(32*j.most, max(1, poolBlocks/max(1, j.n))), max(1, j.n))
}

// poolBlocks are how many blocks of a launch per multiprocessor have bags at most. With more bags a warp takes several
// at a time.
const poolBlocks = 32

// share returns the blocks of each job, of which the largest has work for n threads.
func (r *Cache) share(j *Jobs, n int) int { return r.over(n, (32+j.n)/max(1, j.n)) }

// Find lists the ids of the jobs that are not cached, each once, and gives them slots of the stage, as far as it has
// room.
func (r *Cache) Find(s *driver.Stream, j *Jobs) error {
	r.args.Reset().Ptr(r.specs).Ptr(j.dev).Ptr(r.stages)
	return r.launch(s, r.find, r.share(j, 32*j.most), max(1, j.n))
}

// FetchFound copies the rows that Find listed from a table that lies in pinned memory, row after row. If the table is
// much larger than 128 MiB, the translation of addresses limits it: rows take as long as rows of 512 bytes. Fetch reads
// rows that lie one behind the other: those of 256 bytes at 0.86 of PCIe's rate.
func (r *Cache) FetchFound(s *driver.Stream, table int, from driver.Ptr) error {
	t := &r.tables[table]
	r.args.Reset().Ptr(r.specs).Ptr(r.stages).Int(table).Ptr(from).Int(t.RowBytes).Int(1).Int(-1)
	return r.launch(s, r.fetch, fetchBlocks, 1)
}

// fetchBlocks are enough to keep PCIe busy, and leave most multiprocessors to others.
const fetchBlocks = 64

// Fetch stages rows that the host has put into pinned memory, one behind the other. No other Fetch of the table may be
// under way. The caller MUST leave the memory as it is until the stream has passed this point.
func (r *Cache) Fetch(s *driver.Stream, table int, ids []uint32, from driver.Ptr) error {
	t := &r.tables[table]
	if len(ids) > t.Stage {
		return fmt.Errorf("rows: %d rows for a stage of %d", len(ids), t.Stage)
	}
	if len(ids) == 0 {
		return nil
	}
	copy(offheap.Slice[uint32](t.host.Bytes, t.Stage), ids)
	if err := s.Copy(t.list, t.host.Ptr, 4*len(ids)); err != nil {
		return err
	}
	r.args.Reset().Ptr(r.specs).Ptr(r.stages).Int(table).Ptr(from).Int(t.RowBytes).Int(0).Int(len(ids))
	return r.launch(s, r.fetch, fetchBlocks, 1)
}

// change is Change of rows_place.cu.
type change struct {
	id, entry uint32
	staged    int32
	evicted   uint32
}

// Plan is which staged rows get slots, in the order in which that was decided.
type Plan struct {
	host    *driver.Host
	changes []change
	slots   map[int]int // which change is of a slot
}

// NewPlan makes an empty plan in pinned memory, which has room for 16 bytes per row. Reset makes it empty again.
func NewPlan(host *driver.Host) *Plan { return &Plan{host: host, slots: map[int]int{}} }

// Reset forgets the changes. None of them may be on their way.
func (p *Plan) Reset() {
	p.changes = p.changes[:0]
	clear(p.slots)
}

// Add gives a staged row a slot. evicted is the row that leaves it, or one beyond the table. Where several rows get
// the same slot the last one has it, and the others are evicted without having been there.
func (p *Plan) Add(id uint32, slot, staged int, evicted uint32) {
	c := change{id: id, entry: uint32(slot), staged: int32(staged), evicted: evicted}
	if i, ok := p.slots[slot]; ok {
		c.evicted = p.changes[i].evicted // the one that was there before the plan
		p.changes[i] = c
		return
	}
	p.slots[slot] = len(p.changes)
	p.changes = append(p.changes, c)
}

// Place carries a plan out. The plan MUST stay as it is until the stream has passed this point.
func (r *Cache) Place(s *driver.Stream, table int, p *Plan) error {
	n := len(p.changes)
	if n == 0 {
		return nil
	}
	t := &r.tables[table]
	to := offheap.Slice[change](p.host.Bytes, n)
	for i, c := range p.changes {
		c.entry |= t.epochs[int(c.entry)/t.PageRows] << t.bits
		to[i] = c
	}
	r.args.Reset().Ptr(r.specs).Int(table).Ptr(p.host.Ptr).Int(n)
	if err := r.launch(s, r.clear, (n+threads-1)/threads, 1); err != nil {
		return err
	}
	r.args.Reset().Ptr(r.specs).Int(table).Ptr(p.host.Ptr).Int(n).Ptr(t.stage)
	return r.launch(s, r.place, r.over(32*n, 4), 1)
}

// Found is where Find leaves the missing rows of a table: their ids, and how many there are.
func (r *Cache) Found(table int) (ids, count driver.Ptr) {
	return r.tables[table].list, r.tables[table].counts
}

// Package attend is the GPU's attention: it turns a batch into a list of work, which serves all
// layers, and launches the kernels that go through it.
//
// All tokens of a batch, cached or computed, have slots in a scratch, a segment's one after the other
// and segments in their order: [buffer][KV head][k|v][slot][dim] in bf16. Layer l
// uses buffer l mod Buffers. So whatever a row sees is one long range or a few, wherever the chunks lie.
// For every layer
//
//	Gather    copies cached tokens from their chunks to the scratch, and expands e4m3; it needs nothing
//	          but Begin
//	(caller)  writes K and V of computed rows to the scratch, see Scratch, as well as to their chunks,
//	          rounded to the format of the chunks
//	Run       computes attention
//
// Gather takes any number of layers, up to Buffers, and may run beside other work; Run of layer l comes
// before anything of layer l+Buffers.
//
// Receive says, behind Run of a layer, how much attention each key received. BeginLeft goes on with some of a
// batch's rows.
//
// With Shape.Pointwise, Run computes HSTU's attention by the same kernel: SiLU instead of the softmax.
//
// Begin plans on the host without allocating, once it has seen a batch of the size. Lists and sizes
// are read by the kernels from the GPU's memory, so that captured launches serve every later batch,
// until Epoch changes because memory had to grow.
package attend

import (
	"errors"
	"fmt"
	"math"
	"unsafe"

	"grebe/compute"
	"grebe/compute/cuda/driver"
	"grebe/compute/cuda/kernels"
	"grebe/compute/cuda/split"
)

// Config says what to prepare for.
type Config struct {
	Shape   compute.Shape
	Rows    int  // most rows of a batch
	Slots   int  // tokens to make room for at the start, computed or cached; more are taken when needed
	Buffers int  // layers that the scratch holds at a time, at least 1
	Plain   bool // keep to Ampere's instructions
	Overlap bool // let kernels start before the one ahead has finished (driver.Launch)
	// EveryLane has each thread arrive at barriers, not one for its warp, for tools that follow threads one by one.
	EveryLane bool
	// Locate says where a chunk with cached tokens is gathered from; nil: from where it is. Begin calls it once
	// for each of a batch's, in their order.
	Locate func(*compute.Chunk) uint64
	// Split chooses how tiles are cut; nil: as fixed costs say. Tune makes one.
	Split *split.Model
}

// Attention runs one batch at a time. It is used inside its context, by one goroutine at a time.
type Attention struct {
	c       *driver.Context
	cfg     Config
	group   int
	scale   float32 // of scores, as a power of two; of HSTU's as they are
	modules []*driver.Module
	run     *driver.Function
	gather  *driver.Function
	args    *driver.Args
	epoch   int

	plan     plan
	words    []int32       // of the pinned list
	pinned   *driver.Host  // the list, on its way
	sent     *driver.Event // the list has left pinned
	list     driver.Ptr
	scratch  driver.Ptr
	partials driver.Ptr
	counters driver.Ptr
	logs     driver.Ptr // of rows' sums, for Receive
	keys     *driver.TensorMap
	queries  queryMap
	receiver receiver
}

// queryMap is the tensor map of the queries at an address.
type queryMap struct {
	at     driver.Ptr
	stride int
	m      *driver.TensorMap
}

const (
	hopperStages = 2
	sharedHopper = 1536 // bytes beyond the matrices
	blockBytes   = 128 * 128
	ampereKeys   = 64 // of a stage
	gathersPerSM = 8
	wordBytes    = 4
)

// Supports reports whether the kernels take the shape.
func Supports(s *compute.Shape) bool {
	switch s.HeadDim {
	case 64, 80, 96, 128:
		return (s.KV == compute.BF16 || s.KV == compute.FP8) && s.Heads/s.KVHeads <= tileRows
	}
	return false
}

// New compiles the kernels and takes memory. The caller MUST Close it.
func New(c *driver.Context, cfg Config) (*Attention, error) {
	s := &cfg.Shape
	if !Supports(s) {
		return nil, fmt.Errorf("attend: %d/%d heads × %d in %v are not supported", s.Heads, s.KVHeads, s.HeadDim, s.KV)
	}
	a := &Attention{c: c, cfg: cfg, group: s.Heads / s.KVHeads}
	a.plan.costs, a.plan.model, a.plan.locate = measuredCosts, cfg.Split, cfg.Locate
	a.scale = float32(math.Log2E / math.Sqrt(float64(s.HeadDim)))
	if s.Pointwise != nil {
		a.scale, a.plan.pointwise = s.Pointwise.Alpha, s.Pointwise
	}
	if err := a.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("attend: %w", err), a.Close())
	}
	return a, nil
}

func (a *Attention) open() error {
	var err error
	if a.args, err = driver.NewArgs(); err != nil {
		return err
	}
	if err := a.load(); err != nil {
		return err
	}
	if a.sent, err = a.c.NewEvent(false); err != nil {
		return err
	}
	// A part has two halves of 128 threads, which keep 16 bytes per 8 columns and 16 for the sums.
	if a.partials, err = a.c.Alloc(a.maxPartials() * 2 * 128 * (a.cfg.Shape.HeadDim/8 + 1) * 16); err != nil {
		return err
	}
	if a.counters, err = a.zeros(a.maxPartials() * 2 * wordBytes); err != nil {
		return err
	}
	if s := &a.cfg.Shape; s.Pointwise == nil {
		if a.logs, err = a.c.Alloc(a.cfg.Rows * s.Heads * 4); err != nil {
			return err
		}
	}
	if err := a.growList(1<<16 + 4*a.cfg.Rows); err != nil {
		return err
	}
	return a.growScratch(max(a.cfg.Slots, tileRows))
}

// defines are those of attend.cu.
func defines(cfg *Config) []string {
	s := &cfg.Shape
	out := []string{fmt.Sprintf("HEADS=%d", s.Heads), fmt.Sprintf("KV_HEADS=%d", s.KVHeads),
		fmt.Sprintf("HEAD_DIM=%d", s.HeadDim)}
	if s.Pointwise != nil {
		out = append(out, "POINTWISE=1")
	}
	if cfg.Plain {
		out = append(out, kernels.Plain)
	}
	if cfg.EveryLane {
		out = append(out, "EVERY_LANE=1")
	}
	return out
}

// load compiles the kernels for the shape.
func (a *Attention) load() error {
	s := &a.cfg.Shape
	var err error
	if a.run, err = a.function("attend.cu", "attend", defines(&a.cfg)...); err != nil {
		return err
	}
	if a.gather, err = a.function("attend_gather.cu", "attend_gather", fmt.Sprintf("KV_HEADS=%d", s.KVHeads),
		fmt.Sprintf("DIM=%d", s.HeadDim), fmt.Sprintf("KV=%d", s.KV)); err != nil {
		return err
	}
	return a.run.AllowShared(a.shared())
}

func (a *Attention) function(file, name string, defines ...string) (*driver.Function, error) {
	m, err := kernels.Load(a.c, file, defines...)
	if err != nil {
		return nil, err
	}
	a.modules = append(a.modules, m)
	return m.Function(name)
}

// hopper reports whether the wgmma path runs.
func (a *Attention) hopper() bool { return a.c.Info().Arch == 90 && !a.cfg.Plain }

// rowBytes is what a key takes in the scratch.
func (a *Attention) rowBytes() int { return SlotBytes(&a.cfg.Shape) / (2 * a.cfg.Shape.KVHeads) }

// SlotBytes is what a token takes in a layer of the scratch.
func SlotBytes(s *compute.Shape) int { return 2 * s.KVHeads * s.HeadDim * compute.BF16.Size() }

// shared returns the bytes of shared memory that attend.cu takes.
func (a *Attention) shared() int {
	if a.hopper() {
		return (1+2*hopperStages)*((a.cfg.Shape.HeadDim+63)/64)*blockBytes + sharedHopper
	}
	return 4 * ampereKeys * (a.rowBytes() + 16)
}

// maxPartials bounds the parts of split tiles. Where blocks end together, each but the last of a tile fills
// a block; ways with more parts are not taken.
func (a *Attention) maxPartials() int { return 2 * a.c.Info().Processors }

// zeros allocates n bytes that are 0.
func (a *Attention) zeros(n int) (driver.Ptr, error) {
	p, err := a.c.Alloc(n)
	if err != nil {
		return 0, err
	}
	return p, a.c.Zero(p, n)
}

// growList makes room for words words.
func (a *Attention) growList(words int) error {
	err := errors.Join(a.c.Free(a.list), a.c.FreeHost(a.pinned))
	a.list, a.pinned, a.words = 0, nil, nil
	if err != nil {
		return err
	}
	a.epoch++
	if a.list, err = a.c.Alloc(words * wordBytes); err != nil {
		return err
	}
	if a.pinned, err = a.c.AllocHost(words * wordBytes); err != nil {
		return err
	}
	a.words = unsafe.Slice((*int32)(unsafe.Pointer(&a.pinned.Bytes[0])), words)
	return nil
}

// growScratch makes room for slots slots. Values in the scratch are finite, whoever writes them there:
// those that a row does not see are multiplied by 0.
func (a *Attention) growScratch(slots int) error {
	err := a.c.Free(a.scratch)
	a.scratch, a.cfg.Slots = 0, 0
	if err != nil {
		return err
	}
	s := &a.cfg.Shape
	matrices := 2 * s.KVHeads * a.cfg.Buffers
	if a.scratch, err = a.zeros(matrices * slots * a.rowBytes()); err != nil {
		return fmt.Errorf("scratch for %d tokens: %w", slots, err)
	}
	a.cfg.Slots = slots
	a.epoch++
	if !a.hopper() {
		return nil
	}
	a.keys, err = driver.Tiled{Type: driver.BF16, Base: a.scratch, Dims: []int{s.HeadDim, slots, matrices},
		Strides: []int{a.rowBytes(), slots * a.rowBytes()}, Box: []int{64, stepKeys, 1}, Swizzle: driver.Swizzle128,
		Promote: 256}.Encode()
	return err
}

// Reserve makes room for slots slots ahead of batches that are to find what earlier ones left there: to
// grow the scratch forgets its content. Nothing may be running.
func (a *Attention) Reserve(slots int) error {
	if slots <= a.cfg.Slots {
		return nil
	}
	err := a.c.Sync()
	if err == nil {
		err = a.growScratch(slots)
	}
	if err != nil {
		return fmt.Errorf("attend: %w", err)
	}
	return nil
}

// Epoch changes when addresses do: launches captured before MUST NOT run any more.
func (a *Attention) Epoch() int { return a.epoch }

// Scratch is where K and V of computed rows are to be written: value d of KV head h of row r in layer
// l is element (((l mod Buffers)·KVHeads + h)·2 + kv)·Slots + slot)·HeadDim + d, kv 0 for K and 1 for V,
// where slot is word r of the words that begin at word List[7] of List.
type Scratch struct {
	Base    driver.Ptr
	List    driver.Ptr
	Slots   int
	Buffers int
}

// Scratch returns it. It changes with Epoch.
func (a *Attention) Scratch() Scratch {
	return Scratch{Base: a.scratch, List: a.list, Slots: a.cfg.Slots, Buffers: a.cfg.Buffers}
}

// Begin plans the batch and sends the list in the stream's order. The batch is not used afterwards.
func (a *Attention) Begin(s *driver.Stream, b *compute.Batch) error {
	return a.BeginLeft(s, b, nil, Held{})
}

// Held says what the scratch holds already in the layers to come, which is not gathered: an earlier Begin of the same
// batch, whose slots are the same, or the caller has put it there. It needs a buffer for every layer.
type Held struct {
	Cached bool   // all cached tokens
	Rows   []bool // of the batch's rows, those that are true; nil: none
}

// Gathers reports whether Gather has anything to copy.
func (a *Attention) Gathers() bool { return len(a.plan.pieces) > 0 }

// BeginLeft is Begin when only some of the batch's rows are left to be computed, ascending; nil: all. They are then
// numbered from 0 on. The others' K and V lie in their chunks, but for what is held.
func (a *Attention) BeginLeft(s *driver.Stream, b *compute.Batch, left []int32, held Held) error {
	if len(b.Tokens) > a.cfg.Rows {
		return fmt.Errorf("attend: %d rows, at most %d", len(b.Tokens), a.cfg.Rows)
	}
	p := &a.plan
	p.build(b, left, held, tileRows/a.group)
	p.cutUnits(a.cfg.Shape.KVHeads, a.c.Info().Processors, a.maxPartials())
	if int(p.slots) > a.cfg.Slots {
		err := a.Reserve(int(p.slots) + int(p.slots)/4)
		if driver.OutOfMemory(err) {
			err = a.Reserve(int(p.slots))
		}
		if err != nil {
			return err
		}
	}
	if err := a.sent.Sync(); err != nil {
		return fmt.Errorf("attend: %w", err)
	}
	list := p.encode(a.words[:0])
	if len(list) > len(a.words) {
		err := a.c.Sync()
		if err == nil {
			err = a.growList(2 * len(list))
		}
		if err != nil {
			return fmt.Errorf("attend: %w", err)
		}
		copy(a.words, list)
	}
	if err := s.Copy(a.list, a.pinned.Ptr, len(list)*wordBytes); err != nil {
		return err
	}
	return a.sent.Record(s)
}

// Hurry says whether batches begun from now on serve few layers, so that a plan is better made soon than well.
func (a *Attention) Hurry(yes bool) { a.plan.hurry = yes }

// Gather copies the cached tokens' K and V of layers layer to layer+n−1 into the scratch.
func (a *Attention) Gather(s *driver.Stream, layer, n int) error {
	return a.gatherLayers(s, layer, n, a.cfg.Overlap, 0)
}

// GatherHome is GatherAlone from where the chunks lie, whatever Config.Locate says.
func (a *Attention) GatherHome(s *driver.Stream, layer, n int) error {
	return a.gatherLayers(s, layer, n, false, 1)
}

// GatherAlone is Gather behind something that is no kernel: it starts when all before it in the stream has ended.
func (a *Attention) GatherAlone(s *driver.Stream, layer, n int) error {
	return a.gatherLayers(s, layer, n, false, 0)
}

func (a *Attention) gatherLayers(s *driver.Stream, layer, n int, overlap bool, home int) error {
	if n > a.cfg.Buffers {
		return fmt.Errorf("attend: %d layers from %d on into %d buffers", n, layer, a.cfg.Buffers)
	}
	l := driver.Launch{Grid: [3]int{a.c.Info().Processors * gathersPerSM}, Block: [3]int{256}, Overlap: overlap}
	return a.gather.Launch(s, l, a.args.Reset().Ptr(a.scratch).Int(a.cfg.Slots).Int(a.cfg.Buffers).Ptr(a.list).Int(
		layer).Int(n).Int(home))
}

// Run computes attention of a layer. Queries and results are in bf16, [row][head][dim]
// with strides elements from row to row; queries have room for Config.Rows rows.
func (a *Attention) Run(s *driver.Stream, layer int, queries driver.Ptr, queryStride int, out driver.Ptr,
	outStride int) error {
	buffer := layer % a.cfg.Buffers
	args := a.args.Reset().Ptr(out).Int(outStride).Ptr(a.list).Ptr(a.partials).Ptr(a.counters).Float(a.scale).Int(
		buffer).Ptr(a.logs)
	l := driver.Launch{Grid: [3]int{a.c.Info().Processors}, Shared: a.shared(), Overlap: a.cfg.Overlap}
	if !a.hopper() {
		l.Block = [3]int{256}
		return a.run.Launch(s, l, args.Ptr(queries).Int(queryStride).Ptr(a.scratch).Int(a.cfg.Slots))
	}
	if err := a.mapQueries(queries, queryStride); err != nil {
		return err
	}
	l.Block = [3]int{384}
	return a.run.Launch(s, l, args.Map(a.queries.m).Map(a.keys))
}

// mapQueries describes the queries to the copy engine: a tile is whole tokens × the heads of a group.
func (a *Attention) mapQueries(at driver.Ptr, stride int) error {
	if a.queries.m != nil && a.queries.at == at && a.queries.stride == stride {
		return nil
	}
	s := &a.cfg.Shape
	m, err := driver.Tiled{Type: driver.BF16, Base: at, Dims: []int{s.HeadDim, s.Heads, a.cfg.Rows},
		Strides: []int{s.HeadDim * 2, stride * 2}, Box: []int{64, a.group, tileRows / a.group}, Swizzle: driver.Swizzle128,
		Promote: 256}.Encode()
	if err != nil {
		return fmt.Errorf("attend: %w", err)
	}
	a.queries = queryMap{at, stride, m}
	return nil
}

// Close gives everything back. Nothing may be running.
func (a *Attention) Close() error {
	err := errors.Join(a.c.Free(a.scratch), a.c.Free(a.list), a.c.Free(a.partials), a.c.Free(a.counters), a.c.Free(a.logs),
		a.c.FreeHost(a.pinned), a.receiver.close(a.c))
	if a.sent != nil {
		err = errors.Join(err, a.sent.Close())
	}
	for _, m := range a.modules {
		err = errors.Join(err, m.Close())
	}
	if a.args != nil {
		a.args.Free()
	}
	return err
}

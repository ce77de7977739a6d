// Package attend computes the attention of a batch of segments on the CPU, layer by layer.
//
// The keys that a segment sees are cut into runs: a long segment is a run of its own, short neighbours in Sees are
// gathered into one, and the segment itself is the last, causal run. Before a layer's units of work start, each run is
// packed once into scratch in the layout of the kernels, however many segments see it. A unit is a tile of 32 queries:
// (token, query head) pairs of one KV head. It goes through its runs with an online softmax.
//
// The bits of a result depend on the plan alone. Runs and blocks are cut by the lengths in Sees. Tiles are anchored at
// the start of the segment or of the rows kept. Keys are never split over threads, and lanes of a tile do not touch
// each other. Keys that a query does not see have probability 0 exactly. Where KV came from, how it is chunked, what
// is cached and what else is in the batch do not matter.
//
// Scratch lies outside the heap. It holds K and V of every distinct run for some KV heads: all of them if that takes
// at most 64 MiB, else as many as fit, at least one. A segment is part of one run by itself and of one for each
// different list of short neighbours it is gathered in.
package attend

//go:generate go run ./gen

import (
	"fmt"
	"math"
	"unsafe"

	"grebe/compute"
	"grebe/compute/cpu/internal/feature"
	"grebe/compute/cpu/internal/team"
	"grebe/internal/offheap"
)

// scratchLimit bounds the packed keys and values in bytes, unless one head needs more.
const scratchLimit = 64 << 20

// Attention computes the layers of one batch at a time. It is used by one goroutine at a time.
type Attention struct {
	shape  compute.Shape
	kern   *kernels
	team   *team.Team
	group  int     // query heads of a KV head
	padded int     // dims of a head in scratch
	scale  float32 // of scores, times log₂e

	plan    plan
	scratch *offheap.Block
	workers []*worker
	pack    team.Job
	attend  team.Job

	// Of the Run under way.
	layer, head int
	q, out      []float32

	attended int // the layer of the last Run, or −1
	weigh    weighing
}

// New returns the attention of models of shape s with the kernels of level l. The caller MUST
// Close it, before t.
func New(s compute.Shape, l feature.Level, t *team.Team) (*Attention, error) {
	if l > feature.Best() {
		return nil, fmt.Errorf("attend: this machine has %v, not %v", feature.Best(), l)
	}
	packed := s.KV // format in which keys are packed
	switch s.KV {
	case compute.F32, compute.BF16:
	case compute.FP8:
		packed = compute.BF16
	default:
		return nil, fmt.Errorf("attend: no attention over %v keys", s.KV)
	}
	if s.KVHeads <= 0 || s.Heads%s.KVHeads != 0 || s.HeadDim <= 0 {
		return nil, fmt.Errorf("attend: %d query heads on %d KV heads of %d dims", s.Heads, s.KVHeads, s.HeadDim)
	}
	k := kernelsFor(l, packed, s.HeadDim)
	a := &Attention{
		shape: s, kern: k, team: t,
		group:   s.Heads / s.KVHeads,
		padded:  roundUp(s.HeadDim, k.dimStep),
		scale:   float32(math.Log2E / math.Sqrt(float64(s.HeadDim))),
		scratch: &offheap.Block{},
	}
	if p := s.Pointwise; p != nil {
		a.kern, a.scale, a.plan.apart = pointwiseKernels(l, s.KV, s.HeadDim), p.Alpha, p.Window > 0
	}
	for range t.Threads() {
		w, err := newWorker(s.HeadDim, a.padded)
		if err != nil {
			a.Close()
			return nil, err
		}
		a.workers = append(a.workers, w)
	}
	a.pack.Do = a.packTask
	a.attend.Do = a.unitTask
	a.weigh.job.Do = a.weighTask
	return a, nil
}

// Plan prepares the layers of batch b, which MUST be valid and stay unchanged until the last Run.
func (a *Attention) Plan(b *compute.Batch) error {
	a.plan.all(b)
	return a.prepare()
}

// Keep prepares further layers of the planned batch with some of its rows, ascending: row i of q and out is
// rows[i] then. Of the others the chunks hold K and V of every layer. It is not for Shape.Pointwise.
func (a *Attention) Keep(rows []int32) error {
	a.plan.some(a.plan.batch, rows)
	return a.prepare()
}

// prepare cuts the plan and makes room for it.
func (a *Attention) prepare() error {
	p := &a.plan
	p.build(a.group, a.kern.size*a.padded)
	a.attended = -1
	p.heads = a.shape.KVHeads
	for p.heads > 1 && (p.heads*p.bytes > scratchLimit || p.heads*max(len(p.blocks), len(p.units)) > team.MaxTasks) {
		p.heads--
	}
	need := p.heads * p.bytes
	if need <= len(a.scratch.Bytes) {
		return nil
	}
	a.scratch.Free()
	s, err := offheap.Alloc(max(need, min(need+need/4, scratchLimit)))
	if err != nil {
		a.scratch = &offheap.Block{}
		return fmt.Errorf("attend: scratch for %d keys: %w", p.keys, err)
	}
	a.scratch = s
	return nil
}

// Run computes layer of the planned batch: out[row] = softmax(q[row]·kᵀ/√HeadDim)·v for every row,
// with q and out as [row][Heads·HeadDim]; or what Shape.Pointwise says instead of the softmax. q is rotated already,
// and the chunks hold K and V of all tokens. q and out do not overlap.
func (a *Attention) Run(layer int, q, out []float32) {
	p := &a.plan
	n := p.rows * a.shape.Heads * a.shape.HeadDim
	a.layer, a.q, a.out = layer, q[:n], out[:n]
	a.weigh.start(a)
	for h := 0; h < a.shape.KVHeads; h += p.heads {
		a.head = h
		heads := min(p.heads, a.shape.KVHeads-h)
		a.team.Run(heads*len(p.blocks), &a.pack)
		a.team.Run(heads*len(p.units), &a.attend)
	}
	a.q, a.out, a.attended = nil, nil, layer
}

// Close frees the scratch.
func (a *Attention) Close() {
	a.scratch.Free()
	for _, w := range a.workers {
		w.memory.Free()
	}
	a.workers = nil
}

// keysAt and valuesAt return where run r of the KV head in slot slot is packed.
func (a *Attention) keysAt(r *run, slot int) unsafe.Pointer {
	return unsafe.Pointer(&a.scratch.Bytes[slot*a.plan.bytes+r.offset])
}

func (a *Attention) valuesAt(r *run, slot int) unsafe.Pointer {
	return unsafe.Add(a.keysAt(r, slot), r.padded()*a.padded*a.kern.size)
}

func roundUp(n, step int) int { return (n + step - 1) / step * step }

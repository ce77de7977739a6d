// Package gemm multiplies rows of activations by packed weights on the CPU: C = A·Wᵀ, with what
// follows the product (a bias, a sum, a gated activation) done on each piece while it is in the
// cache. It knows nothing of models.
//
// Weights are packed once (Pack, PackGated) in bf16, float32 or int8, Rows are packed by whoever computes
// them, and a Multiplier runs products on a team. A level of the CPU is chosen when weights and rows
// are made. Bf16 weights meet activations rounded to bf16 on AMX, and float32 activations elsewhere.
//
// Int8 weights have one scale per column of the product, and activations, quantised when they are packed, one per row.
// Sums of their products are exact integers, at most maxInt8Depth of them, so they are equal on all levels.
//
// Same bits: a result is one chain of multiply-adds over k (AMX: over steps of 32 k), started from
// zero and stored unrounded where a product is cut into blocks. So it depends on its row, its column
// and the level alone, never on the other rows, the row's place, the cut or the number of threads.
//
// Weights stream from memory; the rest is cut to stay in L2, and each block of weights is fetched
// while the one before it is used. With AVX-512 each worker packs the rows that it multiplies, and
// workers keep to their own rows as long as there are any left.
package gemm

//go:generate go run ./gen

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"grebe/compute"
	"grebe/compute/cpu/internal/team"
	"grebe/internal/offheap"
)

const (
	panelCols = 32 // columns of a weight panel
	stepDepth = 32 // k of a step: the depth of a tile; all depths are padded to steps
	sumBytes  = panelCols * 4

	maxBlockRows = 264                                    // rows of a block that keeps its place in L2
	sumPairs     = 8                                      // pairs of panels whose sums wait while k is cut
	workerSums   = 2 * sumPairs * maxBlockRows * sumBytes // bytes of a worker's sums
)

type operation uint8

const (
	opStore operation = iota
	opAdd
	opGated
)

// Multiplier runs products on a team. Use it from one goroutine at a time; it allocates nothing per
// product. The owner MUST Free it.
type Multiplier struct {
	team    *team.Team
	own     bool // the team is closed with the multiplier
	job     team.Job
	fill    team.Job
	block   *offheap.Block
	workers []worker
	p       product
	taken   []atomic.Int32
}

// worker is the memory of one worker of the team.
type worker struct {
	sums unsafe.Pointer // [pair][panel][row][panelCols]float32
	bias *[2 * panelCols]float32
	rows packed
	part part
}

// product is the call under way.
type product struct {
	op     operation
	a      *Rows
	w      *Weights
	bias   []float32
	out    []float32 // the source of Fill
	stride int       // values between rows of out
	dst    *Rows     // of opGated
	k      *kernels

	cut
	taken []atomic.Int32 // tasks taken of each block of rows
}

// part is a block of the product, for the kernels: rows [row, row+rows) by steps [step, step+steps)
// of a pair of panels.
type part struct {
	a         *Rows
	packed    *packed // the rows, where kernels want them packed
	row, rows int
	step      int
	steps     int
	b         [2]unsafe.Pointer // the steps of each panel
	sums      [2]unsafe.Pointer // [rows][panelCols]float32
	add       int               // 0: set the sums; 1: add to them
	next      [2]unsafe.Pointer // the blocks of weights used next, as large, or nil
	out       [2]unsafe.Pointer // where the sums go next, outStride bytes between rows, or nil
	outStride int
	finish    finishing
	bias      unsafe.Pointer // [2*panelCols]float32, for finish
}

// finishing is what a block does with its results instead of leaving them in the sums.
type finishing uint8

const (
	finishNot   finishing = iota
	finishStore           // set out to the results and the bias
	finishAdd             // add the results and the bias to out
)

var noBias [2 * panelCols]float32

// New returns a multiplier that runs on tm.
func New(tm *team.Team) (*Multiplier, error) {
	const each = workerSums + packedBytes + 4096 // sums, packed rows, biases
	block, err := alloc(tm.Threads() * each)
	if err != nil {
		return nil, fmt.Errorf("gemm: allocate sums of %d workers: %w", tm.Threads(), err)
	}
	m := &Multiplier{team: tm, block: block, workers: make([]worker, tm.Threads())}
	for i := range m.workers {
		base := unsafe.Pointer(&block.Bytes[i*each])
		m.workers[i].sums = base
		m.workers[i].rows.base = unsafe.Add(base, workerSums)
		m.workers[i].bias = (*[2 * panelCols]float32)(unsafe.Add(base, workerSums+packedBytes))
	}
	m.job.Do = m.tasks
	m.fill.Do = m.fillRows
	return m, nil
}

// Standalone returns a multiplier with a team of its own, for programs that are no device.
func Standalone(threads int) (*Multiplier, error) {
	tm := team.New(threads)
	m, err := New(tm)
	if err != nil {
		tm.Close()
		return nil, err
	}
	m.own = true
	return m, nil
}

// Team returns the team that products run on.
func (m *Multiplier) Team() *team.Team { return m.team }

// Each calls f for every i in [0, n) on the team. No product may be under way.
func (m *Multiplier) Each(n int, f func(i int)) {
	m.team.Run(n, &team.Job{Do: func(_, task int) { f(task) }})
}

// Free releases the multiplier's memory.
func (m *Multiplier) Free() {
	m.block.Free()
	if m.own {
		m.team.Close()
	}
}

// Fill sets all of dst from rows of src that start stride values apart.
func (m *Multiplier) Fill(dst *Rows, src []float32, stride int) {
	if dst.m > 0 && (stride < dst.k || len(src) < (dst.m-1)*stride+dst.k) {
		panic(fmt.Sprintf("gemm: fill rows %d×%d from %d values, rows %d apart", dst.m, dst.k, len(src), stride))
	}
	m.p = product{dst: dst, out: src, stride: stride}
	m.team.Run((dst.m+fillRows-1)/fillRows, &m.fill)
	m.p = product{}
}

const fillRows = 16 // rows of a task of Fill: half a panel of tiles

func (m *Multiplier) fillRows(_, t int) {
	p := &m.p
	first, last := t*fillRows, min((t+1)*fillRows, p.dst.m)
	from := 0 // values that are set already
	if p.dst.form == formTiles && p.dst.k >= stepDepth {
		steps := p.dst.k / stepDepth
		convertRows(last-first, steps, unsafe.Pointer(&p.out[first*p.stride]), p.stride*4, p.dst.at(first, 0))
		from = steps * stepDepth
	}
	for r := first; r < last; r++ {
		p.dst.Set(r, from, p.out[r*p.stride:][from:p.dst.k])
	}
}

// Store sets row r of out, which starts at r·stride, to A·Wᵀ + bias. A nil bias adds nothing.
func (m *Multiplier) Store(out []float32, stride int, a *Rows, w *Weights, bias []float32) {
	m.run(product{op: opStore, out: out, stride: stride, a: a, w: w, bias: bias})
}

// Add adds A·Wᵀ + bias to the rows of x. The product is summed first and added last.
func (m *Multiplier) Add(x []float32, stride int, a *Rows, w *Weights, bias []float32) {
	m.run(product{op: opAdd, out: x, stride: stride, a: a, w: w, bias: bias})
}

// Gated sets dst, which has a's rows and the depth of one half of w, to silu(gate)·up of A·Wᵀ + bias.
// W comes from PackGated; bias is gate's, then up's.
func (m *Multiplier) Gated(dst *Rows, a *Rows, w *Weights, bias []float32) {
	m.run(product{op: opGated, dst: dst, a: a, w: w, bias: bias})
}

func (m *Multiplier) run(p product) {
	p.check()
	if p.a.m == 0 {
		return
	}
	var dst *Rows // quantised when all of its values are there
	if p.op == opGated && p.dst.form.quantised() {
		dst, p.dst = p.dst, p.dst.floats
	}
	p.k = p.w.kernels
	p.cut = p.cutFor(m.team.Threads())
	for len(m.taken) < p.blocks {
		m.taken = append(m.taken, atomic.Int32{})
	}
	p.taken = m.taken[:p.blocks]
	for i := range p.taken {
		p.taken[i].Store(0)
	}
	m.p = p
	m.team.Run(min(m.team.Threads(), p.blocks*p.groups), &m.job)
	m.p = product{}
	if dst != nil {
		m.Fill(dst, dst.floats.values(), dst.floats.stride/4)
	}
	for i := range m.workers {
		m.workers[i].rows.a = nil // their values may change before the next product
	}
}

// check panics on operands that do not belong together: a mistake of the caller's code.
func (p *product) check() {
	a, w := p.a, p.w
	switch {
	case a.k != w.k:
		panic(fmt.Sprintf("gemm: rows of depth %d by weights of depth %d", a.k, w.k))
	case a.form != w.kernels.form:
		panic("gemm: rows made for another level or format than the weights")
	case p.bias != nil && len(p.bias) != w.n:
		panic(fmt.Sprintf("gemm: bias of %d for %d columns", len(p.bias), w.n))
	case w.gated != (p.op == opGated):
		panic("gemm: gated weights take a gated product and others none")
	case p.op == opGated && (p.dst.m != a.m || p.dst.k != w.n/2):
		panic(fmt.Sprintf("gemm: gated product %d×%d into rows %d×%d", a.m, w.n/2, p.dst.m, p.dst.k))
	case p.op == opGated && p.dst.form.quantised() && !p.dst.results:
		panic("gemm: gated product into quantised rows that have no room for results")
	case p.op != opGated && a.m > 0 && (p.stride < w.n || len(p.out) < (a.m-1)*p.stride+w.n):
		panic(fmt.Sprintf("gemm: product %d×%d into %d values, rows %d apart", a.m, w.n, len(p.out), p.stride))
	}
}

// alloc maps memory for n bytes, in whole huge pages unless it is small: kernels touch many rows at
// once, and their addresses should not need as many entries of the TLB.
func alloc(n int) (*offheap.Block, error) {
	const small, huge = 256 << 10, 2 << 20
	if n > small {
		n = (n + huge - 1) &^ (huge - 1)
	}
	return offheap.Alloc(n)
}

// tasks runs tasks until none is left; n of all that do, it starts with its share of the rows.
func (m *Multiplier) tasks(w, n int) {
	p := &m.p
	block := n * p.blocks / p.threads
	for {
		var group int
		if block, group = p.claim(block); group < 0 {
			return
		}
		p.task(&m.workers[w], block, group)
	}
}

// claim returns a task that nobody else has: of the block if it has any left, since the block's rows
// are in the worker's cache, and else of the one with the most left. The group is negative if all
// are taken.
func (p *product) claim(block int) (b, group int) {
	for {
		if g := int(p.taken[block].Add(1)) - 1; g < p.groups {
			return block, g
		}
		most := 0
		for i := range p.taken {
			if left := p.groups - int(p.taken[i].Load()); left > most {
				block, most = i, left
			}
		}
		if most == 0 {
			return block, -1
		}
	}
}

func (p *product) task(wk *worker, block, group int) {
	pt := &wk.part
	pt.a, pt.packed = p.a, &wk.rows
	pt.row = block * p.blockRows
	pt.rows = min(p.blockRows, p.a.m-pt.row)
	first := group * p.group
	last := min(first+p.group, p.w.panels/2)
	for outer := 0; outer < p.w.steps; outer += p.outer {
		end := min(outer+p.outer, p.w.steps)
		if p.k.pack != nil {
			wk.rows.hold(p.k.pack, p.a, pt.row, pt.rows, outer, p.outer)
		}
		for pair := first; pair < last; pair++ {
			slot := 0
			if p.outer < p.w.steps {
				slot = pair - first
			}
			pt.sums[0] = unsafe.Add(wk.sums, 2*slot*maxBlockRows*sumBytes)
			pt.sums[1] = unsafe.Add(pt.sums[0], maxBlockRows*sumBytes)
			follow := p.after(group)
			switch {
			case pair+1 < last:
				follow = p.w.pair(pair+1, outer)
			case end < p.w.steps:
				follow = p.w.pair(first, end)
			}
			p.pair(pt, pair, outer, end, follow)
			if end == p.w.steps && pt.finish == finishNot {
				p.finish(wk, pair)
			}
		}
	}
	*pt = part{}
}

// after returns the first weights of the task that the worker of a group probably claims next.
func (p *product) after(group int) [2]unsafe.Pointer {
	if p.blocks >= p.threads {
		group++
	} else {
		group += p.threads
	}
	if group < p.groups {
		return p.w.pair(group*p.group, 0)
	}
	return [2]unsafe.Pointer{}
}

// pair runs steps [outer, end) of a pair of panels in blocks; follow are the weights used after them.
func (p *product) pair(pt *part, pair, outer, end int, follow [2]unsafe.Pointer) {
	for s := outer; s < end; s += p.inner {
		pt.step, pt.steps = s, min(p.inner, end-s)
		pt.b = p.w.pair(pair, s)
		pt.add = min(s, 1)
		pt.next = follow
		if s+p.inner < end {
			pt.next = p.w.pair(pair, s+p.inner)
		}
		pt.out, pt.outStride = [2]unsafe.Pointer{}, 0
		pt.finish, pt.bias = finishNot, unsafe.Pointer(&noBias)
		if s+p.inner >= p.w.steps && p.op != opGated {
			for i := range pt.out {
				if col := (2*pair + i) * panelCols; col < p.w.n {
					pt.out[i], pt.outStride = unsafe.Pointer(&p.out[pt.row*p.stride+col]), p.stride*4
				}
			}
			p.direct(pt, pair)
		}
		p.k.block(pt)
	}
}

// direct lets the kernels finish a pair of whole panels, if they can: their results need no second
// pass, and the lines of the output arrive while they multiply.
func (p *product) direct(pt *part, pair int) {
	col := 2 * pair * panelCols
	if !p.k.direct || col+2*panelCols > p.w.n {
		return
	}
	pt.finish = finishStore
	if p.op == opAdd {
		pt.finish = finishAdd
	}
	if p.bias != nil {
		pt.bias = unsafe.Pointer(&p.bias[col])
	}
}

// finish runs the epilogue on a pair's sums.
func (p *product) finish(w *worker, pair int) {
	if p.w.format == compute.INT8 {
		pt := &w.part
		for i := range pt.sums {
			scales := unsafe.Pointer(&p.w.scales[(2*pair+i)*panelCols])
			p.k.dequantise(pt.rows, pt.sums[i], scales, unsafe.Pointer(&p.a.scales[pt.row]))
		}
	}
	if p.op == opGated {
		p.finishGated(w, pair)
		return
	}
	for i := range w.part.sums {
		p.finishLinear(w, i, 2*pair+i)
	}
}

func (p *product) finishGated(w *worker, pair int) {
	pt := &w.part
	col, half := pair*panelCols, p.w.n/2
	n := min(panelCols, half-col)
	clear(w.bias[:])
	if p.bias != nil {
		copy(w.bias[:n], p.bias[col:])
		copy(w.bias[panelCols:panelCols+n], p.bias[half+col:])
	}
	f := p.k.gated
	if p.dst.form == formTiles {
		f = p.k.gatedBF16
	}
	for r := 0; r < pt.rows; {
		dst, stride, run := p.dst.place(pt.row+r, pair)
		run = min(run, pt.rows-r)
		f(run, unsafe.Add(pt.sums[0], r*sumBytes), unsafe.Add(pt.sums[1], r*sumBytes), unsafe.Pointer(w.bias), dst, stride)
		r += run
	}
}

func (p *product) finishLinear(w *worker, i, panel int) {
	pt := &w.part
	sums, col := pt.sums[i], panel*panelCols
	n := min(panelCols, p.w.n-col)
	if n <= 0 {
		return
	}
	clear(w.bias[:])
	if p.bias != nil {
		copy(w.bias[:n], p.bias[col:])
	}
	out := p.out[pt.row*p.stride+col:]
	if n < panelCols {
		finishRagged(p.op == opAdd, n, pt.rows, sums, w.bias, out, p.stride)
		return
	}
	f := p.k.store
	if p.op == opAdd {
		f = p.k.add
	}
	f(pt.rows, sums, unsafe.Pointer(w.bias), unsafe.Pointer(&out[0]), p.stride*4)
}

// finishRagged is the epilogue of a last panel with fewer columns.
func finishRagged(add bool, n, rows int, sums unsafe.Pointer, bias *[2 * panelCols]float32, out []float32, stride int) {
	for r := range rows {
		s := (*[panelCols]float32)(unsafe.Add(sums, r*sumBytes))[:n]
		o := out[r*stride:][:n]
		for i, v := range s {
			v += bias[i]
			if add {
				v += o[i]
			}
			o[i] = v
		}
	}
}

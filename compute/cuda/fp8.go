package cuda

import (
	"errors"
	"fmt"

	"grebe/compute"
	"grebe/compute/cuda/driver"
	"grebe/compute/cuda/product"
)

// Products of FP8. Norms, silu and a kernel behind attention round their input to e4m3, each row with a scale of its
// own. The product itself knows no scales, which makes it fast for few rows as well: who reads the result next applies
// those of its rows and columns. Where that is x, the product is written beside it, in bf16, and added by the next
// norm.

// activations is the format of what products in dt do not round by themselves.
func activations(dt compute.DType) compute.DType {
	if dt == compute.FP8 {
		return compute.BF16
	}
	return dt
}

// scaling are buffers of a batch with products of FP8.
type scaling struct {
	taken []driver.Ptr
	delta driver.Ptr // a product that is to be added to x, in bf16
	// Scales of rows: of what norms wrote, and of what went into the product behind attention or silu.
	normed, other driver.Ptr
}

func (s *scaling) need(d *device, b *buffers) error {
	if s.taken != nil {
		return nil
	}
	err := take(d, &s.taken, []buffer{{&s.delta, 2 * b.rows * b.hidden}, {&s.normed, 4 * b.rows}, {&s.other, 4 * b.rows}})
	if err != nil {
		s.drop(d)
	}
	return err
}

func (s *scaling) drop(d *device) {
	for _, p := range s.taken {
		d.free(p)
	}
	*s = scaling{}
}

// scaledKernels are those of batches with products of FP8.
type scaledKernels struct {
	norm     [2][2]*driver.Function // by whether it adds and whether it rounds
	silu     [2][2]silus            // by whether its input has scales and whether it rounds
	rope     *driver.Function
	quantise *driver.Function
	added    *driver.Function
	gated    *driver.Function // quantise, for the result of a fused product of gate and up

	quantiseThreads, gatedThreads int
}

// silus is silu_fp8.cu for few rows and, where shared memory has room for the scales, for many.
type silus struct {
	few, many *driver.Function
	blocks    int // of many that run at a time
	shared    int // bytes that it stages
	threads   int
}

func index(v bool) int {
	if v {
		return 1
	}
	return 0
}

// scaledFor compiles the kernels, or takes them from the device.
func (r *runner) scaledFor() (*scaledKernels, error) {
	k := &scaledKernels{}
	var failed error
	load := func(to **driver.Function, file, name string, defines ...string) {
		f, err := r.dev.kernel(file, name, defines...)
		if *to = f; failed == nil {
			failed = err
		}
	}
	for i := range 2 {
		for j, out := range []compute.DType{r.bufs.dt, compute.FP8} {
			if i+j == 0 {
				continue // which norm.cu and silu.cu do for all products
			}
			load(&k.norm[i][j], "norm.cu", "rms_norm", append(r.bufs.normDefines(out), fmt.Sprintf("ADD=%d", i))...)
			if failed == nil {
				k.silu[i][j], failed = r.dev.silus(r.bufs.gateUpFormat(), out, i, r.bufs.inter)
			}
		}
	}
	load(&k.rope, "rope.cu", "rope", append(r.ropeDefines(), "SCALED=1")...)
	load(&k.added, "added.cu", "added")
	if failed == nil {
		k.quantise, k.quantiseThreads, failed = r.dev.quantiser(r.bufs.dt, r.bufs.attCols)
	}
	if failed == nil && r.dev.fuses {
		k.gated, k.gatedThreads, failed = r.dev.quantiser(r.bufs.dt, r.bufs.inter)
	}
	return k, failed
}

// silus loads silu_fp8.cu for a product in format in, with scales if scaled is 1, and a result of so many columns in
// format out.
func (d *device) silus(in, out compute.DType, scaled, columns int) (silus, error) {
	s := silus{threads: siluThreads(columns)}
	load := func(staged int) (*driver.Function, error) {
		return d.kernel("silu_fp8.cu", "silu_fp8", fmt.Sprintf("IN=%d", in), fmt.Sprintf("OUT=%d", out),
			fmt.Sprintf("SCALED=%d", scaled), fmt.Sprintf("STAGED=%d", staged), fmt.Sprintf("COLS=%d", columns),
			fmt.Sprintf("THREADS=%d", s.threads))
	}
	var err error
	if s.few, err = load(0); err != nil || scaled == 0 || 8*columns > maxScales {
		return s, err
	}
	if s.many, err = load(1); err == nil {
		s.shared = 8 * columns
		err = s.fit(d)
	}
	return s, err
}

// maxScales are the bytes of scales that a block of silu_fp8.cu keeps: two blocks fit a multiprocessor of Hopper, and
// one those of all others.
const maxScales = 98304

// fit allows many its shared memory and counts its blocks.
func (s *silus) fit(d *device) error {
	if err := s.many.AllowShared(s.shared); err != nil {
		return err
	}
	n, err := s.many.Occupancy(s.threads, s.shared)
	s.blocks = n * d.c.Info().Processors
	return err
}

// kernel returns what to launch for m rows, and how.
func (s *silus) kernel(m int) (*driver.Function, driver.Launch) {
	l := driver.Launch{Grid: [3]int{m}, Block: [3]int{s.threads}}
	if s.many != nil && s.blocks > 0 && m > s.blocks {
		l.Grid[0], l.Shared = s.blocks, s.shared
		return s.many, l
	}
	return s.few, l
}

// siluThreads is the size of silu_fp8.cu's blocks: three turns for a row were the fastest.
func siluThreads(columns int) int { return min(512, (columns/24+31)&^31) }

// prepareScaled makes what products of FP8 need, if there are any.
func (r *runner) prepareScaled() error {
	if !r.hasFP8() {
		return nil
	}
	if r.shape.Pointwise != nil {
		return errors.New("products of fp8 are for decoders")
	}
	if err := r.bufs.scaling.need(r.dev, &r.bufs); err != nil {
		return err
	}
	if r.graphs.cores.scaled != nil {
		return nil
	}
	k, err := r.scaledFor()
	if err != nil {
		return err
	}
	r.graphs.cores.scaled = k
	return nil
}

// hasFP8 reports whether one of the recorded products is of FP8.
func (r *runner) hasFP8() bool {
	for i := range r.ops {
		for _, w := range [...]*linear{r.ops[i].w, r.ops[i].down} {
			if w != nil && w.dt == compute.FP8 {
				return true
			}
		}
	}
	return false
}

// pending is a product in delta that x lacks.
type pending struct {
	w    *linear // nil: nothing is lacking
	bias *vector
}

// pend multiplies a rounded input, with scales other, and leaves the result to the next norm.
func (r *runner) pend(p *pass, in driver.Ptr, w *linear, bias *vector) error {
	whole := driver.Product{M: p.m, N: w.rows, K: w.cols, In: driver.NumberE4M3, Out: driver.NumberBF16}
	if err := r.product(whole, r.bufs.scaling.delta, in, w); err != nil {
		return err
	}
	r.lacks = pending{w, bias}
	return nil
}

// complete adds what x lacks.
func (r *runner) complete(p *pass) error {
	if r.lacks.w == nil {
		return nil
	}
	s, add := &r.bufs.scaling, r.lacks
	r.lacks = pending{}
	a := r.args.Reset().Ptr(r.bufs.current()).Ptr(s.delta).Ptr(s.other).Ptr(add.w.scales).Ptr(add.bias.pointer())
	l := driver.Launch{Grid: [3]int{p.m}, Block: threads(r.bufs.hidden / 8)}
	return p.cores.scaled.added.Launch(r.stream, r.overlapping(l), a.Ptr(p.rows).Int(r.bufs.hidden))
}

// normScaled is norm where x lacks a product, or where the result is rounded.
func (r *runner) normScaled(p *pass, gain *vector, rounds bool) error {
	s, add := &r.bufs.scaling, r.lacks
	r.lacks = pending{}
	a := r.args.Reset().Ptr(r.bufs.normed).Ptr(r.bufs.current()).Ptr(gain.pointer()).Ptr(0).Ptr(p.rows).
		Int(r.shape.Hidden).Float(r.shape.Eps)
	if rounds {
		a.Ptr(s.normed)
	}
	if add.w != nil {
		a.Ptr(s.delta).Ptr(s.other).Ptr(add.w.scales).Ptr(add.bias.pointer())
	}
	l := driver.Launch{Grid: [3]int{p.m}, Block: [3]int{r.bufs.normThreads()}}
	return p.cores.scaled.norm[index(add.w != nil)][index(rounds)].Launch(r.stream, r.overlapping(l), a)
}

// outputFP8 rounds attention's result, to where the product of QKV was, and multiplies it.
func (r *runner) outputFP8(p *pass, o *op) error {
	s := &r.bufs.scaling
	a := r.args.Reset().Ptr(r.bufs.qkv).Ptr(s.other).Ptr(r.bufs.attention()).Ptr(p.rows)
	l := driver.Launch{Grid: [3]int{p.m}, Block: [3]int{p.cores.scaled.quantiseThreads}}
	if err := p.cores.scaled.quantise.Launch(r.stream, r.overlapping(l), a); err != nil {
		return err
	}
	return r.pend(p, r.bufs.qkv, o.w, o.bias)
}

// scaledFFN is ffn behind its norm, where one of its products is of FP8, or both.
func (r *runner) scaledFFN(p *pass, o *op) error {
	call, err := r.fused(p, o)
	if err != nil {
		return err
	}
	if call != nil {
		return r.fusedFFN(p, o, call)
	}
	whole := driver.Product{M: p.m, N: o.w.rows, K: o.w.cols, In: numberOf(o.w.dt), Out: numberOf(r.bufs.gateUpFormat())}
	if err := r.product(whole, r.bufs.gateUp, r.bufs.normed, o.w); err != nil {
		return err
	}
	s, rounds := &r.bufs.scaling, o.down.dt == compute.FP8
	a := r.args.Reset().Ptr(r.bufs.gated).Ptr(r.bufs.gateUp).Ptr(o.bias.pointer()).Ptr(p.rows).Int(r.shape.Inter).
		Ptr(s.other).Ptr(s.normed).Ptr(o.w.scales)
	f, l := p.cores.scaled.silu[index(o.w.dt == compute.FP8)][index(rounds)].kernel(p.m)
	if err := f.Launch(r.stream, r.overlapping(l), a); err != nil {
		return err
	}
	if rounds {
		return r.pend(p, r.bufs.gated, o.down, o.downBias)
	}
	return r.add(p, r.bufs.gated, o.down, o.downBias)
}

// fusedFFN is scaledFFN where the product of gate and up applies its scales and silu by itself. Its result is bf16,
// since nobody knows a row's scale before the whole row; where down is of FP8, it is rounded to where the product of
// gate and up would be.
func (r *runner) fusedFFN(p *pass, o *op, call *product.Call) error {
	if err := call.Launch(r.stream, r.args, r.dev.overlaps()); err != nil {
		return err
	}
	if o.down.dt != compute.FP8 {
		return r.add(p, r.bufs.gated, o.down, o.downBias)
	}
	a := r.args.Reset().Ptr(r.bufs.gateUp).Ptr(r.bufs.scaling.other).Ptr(r.bufs.gated).Ptr(p.rows)
	l := driver.Launch{Grid: [3]int{p.m}, Block: [3]int{p.cores.scaled.gatedThreads}}
	if err := p.cores.scaled.gated.Launch(r.stream, r.overlapping(l), a); err != nil {
		return err
	}
	return r.pend(p, r.bufs.gateUp, o.down, o.downBias)
}

// scaleResult multiplies a product of FP8 in float32 by its scales, whose input norms wrote.
func (r *runner) scaleResult(out driver.Ptr, w *linear, m int, rows driver.Ptr) error {
	if w.dt != compute.FP8 {
		return nil
	}
	if r.scaled == nil {
		if _, err := r.once(&r.scaled, "scaled.cu", "scaled"); err != nil {
			return err
		}
	}
	a := r.args.Reset().Ptr(out).Ptr(r.bufs.scaling.normed).Ptr(w.scales).Ptr(rows).Int(w.rows)
	return r.scaled.Launch(r.stream, driver.Launch{Grid: [3]int{m}, Block: threads(w.rows)}, a)
}

package cuda

import (
	"encoding/binary"
	"fmt"

	"grebe/compute"
	"grebe/compute/cuda/driver"
	"grebe/compute/cuda/product"
)

// fusedKey is a product of gate and up in a batch.
type fusedKey struct {
	w    *linear
	m    int
	rows driver.Ptr
}

// fused returns the product of gate and up with silu at its end, or nil where the two kernels by
// themselves are as fast, or the GPU has no such product.
func (r *runner) fused(p *pass, o *op) (*product.Call, error) {
	if !r.fusible(o) {
		return nil, nil
	}
	key := fusedKey{o.w, p.m, p.rows}
	if c, ok := r.calls[key]; ok {
		return c, nil
	}
	whole := driver.Product{M: p.m, N: o.w.rows, K: o.w.cols, In: numberOf(o.w.dt), Out: driver.NumberBF16}
	tile, err := r.dev.tile(whole, o.down.dt == compute.FP8)
	if err != nil {
		return nil, err
	}
	var c *product.Call
	if tile != nil {
		r.dev.tuned.mu.Lock()
		op := fusedOp(whole)
		op.X, op.W, op.Out, op.Rows, op.Stride = r.bufs.normed, o.w.data, r.bufs.gated, p.rows, r.bufs.inter
		if op.FP8 {
			op.RowScale, op.ColScale = r.bufs.scaling.normed, o.w.scales
		}
		c, err = r.dev.set.Prepare(*op, *tile)
		r.dev.tuned.mu.Unlock()
		if err != nil {
			return nil, err
		}
	}
	if r.calls == nil || len(r.calls) >= maxCalls {
		r.calls = map[fusedKey]*product.Call{}
	}
	r.calls[key] = c
	return c, nil
}

// fusible reports whether there is a kernel for a product of gate and up with silu at its end.
func (r *runner) fusible(o *op) bool {
	if !r.dev.fuses || r.dev.opt.OwnProducts || o.bias != nil || o.w.cols < 128 {
		return false
	}
	if o.w.dt != compute.FP8 {
		return o.w.dt.Size() == 2 && o.w.cols%64 == 0 && o.down.dt != compute.FP8
	}
	// Columns that only round up the width would keep what another batch left in them.
	whole := o.w.rows == 2*r.bufs.inter && r.bufs.dt == compute.BF16
	return whole && o.w.cols%128 == 0 && (r.bufs.gateUpFormat() == compute.BF16 || r.dev.opt.Fused)
}

// maxCalls of prepared products are kept per runner.
const maxCalls = 4096

// tile returns how the fused product is best cut, or nil when it is not worth it. In FP8 it depends on whether the next
// product is of FP8 too, which rounds says.
func (d *device) tile(p driver.Product, rounds bool) (*product.Tile, error) {
	if d.opt.Fused {
		return &fusedOp(p).Tiles(d.c.Info())[0], nil
	}
	p.M = coarse(p.M)
	if p.M*p.N*p.K < untimed {
		return nil, nil
	}
	d.tuned.mu.Lock()
	defer d.tuned.mu.Unlock()
	key := fusedName(p, rounds)
	if t, ok := d.tuned.best[key]; ok {
		return t.Tile, nil
	}
	t, err := d.raceFused(p, rounds)
	if err != nil {
		if driver.OutOfMemory(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("time the fused product %+v: %w", p, err)
	}
	d.tuned.best[key] = t
	d.tuned.save()
	return t.Tile, nil
}

// fusedName is what a fused product is remembered by. Its number changes with the tiles that are tried.
func fusedName(p driver.Product, rounds bool) string {
	if p.In == driver.NumberE4M3 {
		return fmt.Sprintf("gateup fp8 1 %dx%dx%d rounds=%v", p.M, p.N, p.K, rounds)
	}
	return fmt.Sprintf("gateup 2 %dx%dx%d", p.M, p.N, p.K)
}

// fusedOp is the fused product without its addresses.
func fusedOp(p driver.Product) *product.Op {
	return &product.Op{Form: product.GateUp, FP8: p.In == driver.NumberE4M3, Most: p.M, N: p.N, K: p.K, Stride: p.N / 2}
}

// raceFused times the library's product followed by silu against the fused product.
func (d *device) raceFused(p driver.Product, rounds bool) (timed, error) {
	best, err := d.fastest(p)
	if err != nil {
		return timed{}, err
	}
	r, err := newRace(d, p)
	if err != nil {
		return timed{}, err
	}
	defer r.close()
	r.pl.Use(best)
	e, err := r.newEnds(rounds)
	if err != nil {
		return timed{}, err
	}
	defer e.close()
	two, err := r.timeOf(e.two)
	if err != nil {
		return timed{}, err
	}
	result := timed{First: two, Microseconds: two}
	weights := make([]driver.Ptr, r.copies)
	for i := range weights {
		weights[i] = r.w.At(i * r.wBytes)
	}
	op := e.op()
	all, err := d.set.Choose(r.stream, op, weights)
	if err != nil {
		return timed{}, err
	}
	one, err := e.one(all[0].Tile)
	if err != nil {
		return timed{}, err
	}
	us, err := r.timeOf(one)
	if err != nil {
		return timed{}, err
	}
	result.Candidates = len(all)
	if us < two {
		result.Microseconds, result.Tile = us, &all[0].Tile
	}
	return result, nil
}

// ends are the kernels behind a product of gate and up in a race, and what they read and write.
type ends struct {
	r     *race
	taken []driver.Ptr
	args  *driver.Args

	gated, rows                  driver.Ptr
	rowScale, colScale, outScale driver.Ptr // of FP8

	siluKernel, rounding *driver.Function // rounding is nil where nothing follows the fused product
	siluLaunch           driver.Launch
	roundingThreads      int
}

func (r *race) newEnds(rounds bool) (_ *ends, err error) {
	d, columns := r.d, r.p.N/2
	e := &ends{r: r}
	defer func() {
		if err != nil {
			e.close()
		}
	}()
	if e.args, err = driver.NewArgs(); err != nil {
		return nil, err
	}
	take := func(n int) (q driver.Ptr) {
		if err == nil {
			if q, err = d.c.Alloc(n); err == nil {
				e.taken = append(e.taken, q)
			}
		}
		return q
	}
	e.gated, e.rows = take(2*r.p.M*columns), take(4)
	if err == nil {
		err = d.c.Upload(e.rows, binary.LittleEndian.AppendUint32(nil, uint32(r.p.M)))
	}
	if err != nil {
		return nil, err
	}
	if r.p.In != driver.NumberE4M3 {
		block := threads(columns / 8)
		e.siluLaunch = driver.Launch{Grid: [3]int{r.p.M, (columns/8 + block[0] - 1) / block[0]}, Block: block}
		e.siluKernel, err = d.kernel("silu.cu", "silu_up", "IN=1", "OUT=1")
		return e, err
	}
	e.rowScale, e.colScale, e.outScale = take(4*r.p.M), take(4*r.p.N), take(4*r.p.M)
	// Scales that make gate and up as large as in models.
	if err == nil {
		err = d.noise(r.stream, e.rowScale, r.p.M, driver.NumberF32, 1.0/112)
	}
	if err == nil {
		err = d.noise(r.stream, e.colScale, r.p.N, driver.NumberF32, 0.02/112)
	}
	out := compute.BF16
	if rounds {
		out = compute.FP8
		if err == nil {
			e.rounding, e.roundingThreads, err = d.quantiser(compute.BF16, columns)
		}
	}
	var s silus
	if err == nil {
		s, err = d.silus(compute.BF16, out, 1, columns)
	}
	if err != nil {
		return nil, err
	}
	e.siluKernel, e.siluLaunch = s.kernel(r.p.M)
	return e, nil
}

// op is the fused product in the race.
func (e *ends) op() product.Op {
	op := fusedOp(e.r.p)
	op.X, op.W, op.Out, op.Rows = e.r.x, e.r.w, e.gated, e.rows
	op.RowScale, op.ColScale = e.rowScale, e.colScale
	return *op
}

// two launches the library's product of the weights at w, and silu.
func (e *ends) two(w driver.Ptr) error {
	if err := e.r.pl.Run(e.r.stream, e.r.out, e.r.x, w, e.r.space, workspace); err != nil {
		return err
	}
	return e.silu()
}

// one returns what launches the fused product of the weights at w, and what follows it.
func (e *ends) one(t product.Tile) (func(w driver.Ptr) error, error) {
	op, calls := e.op(), map[driver.Ptr]*product.Call{}
	for i := range e.r.copies {
		op.W = e.r.w.At(i * e.r.wBytes)
		c, err := e.r.d.set.Prepare(op, t)
		if err != nil {
			return nil, err
		}
		calls[op.W] = c
	}
	return func(w driver.Ptr) error {
		if err := calls[w].Launch(e.r.stream, e.args, e.r.d.overlaps()); err != nil {
			return err
		}
		return e.round()
	}, nil
}

// silu launches what follows the library's product.
func (e *ends) silu() error {
	columns, l := e.r.p.N/2, e.siluLaunch
	a := e.args.Reset().Ptr(e.gated).Ptr(e.r.out).Ptr(0).Ptr(e.rows).Int(columns)
	if e.rowScale != 0 {
		a.Ptr(e.outScale).Ptr(e.rowScale).Ptr(e.colScale)
	} else {
		a.Int(columns)
	}
	l.Overlap = e.r.d.overlaps()
	return e.siluKernel.Launch(e.r.stream, l, a)
}

// round launches what follows the fused product.
func (e *ends) round() error {
	if e.rounding == nil {
		return nil
	}
	l := driver.Launch{Grid: [3]int{e.r.p.M}, Block: [3]int{e.roundingThreads}, Overlap: e.r.d.overlaps()}
	return e.rounding.Launch(e.r.stream, l, e.args.Reset().Ptr(e.r.out).Ptr(e.outScale).Ptr(e.gated).Ptr(e.rows))
}

func (e *ends) close() {
	_ = e.r.stream.Sync()
	for _, p := range e.taken {
		_ = e.r.d.c.Free(p)
	}
	if e.args != nil {
		e.args.Free()
	}
}

package cuda

import (
	"fmt"

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
	if !r.dev.fuses || r.dev.opt.OwnProducts || o.bias != nil || o.w.dt.Size() != 2 || o.w.cols%64 != 0 || o.w.cols < 128 {
		return nil, nil
	}
	key := fusedKey{o.w, p.m, p.rows}
	if c, ok := r.calls[key]; ok {
		return c, nil
	}
	tile, err := r.dev.tile(p.m, o.w.rows, o.w.cols)
	if err != nil {
		return nil, err
	}
	var c *product.Call
	if tile != nil {
		r.dev.tuned.mu.Lock()
		c, err = r.dev.set.Prepare(product.Op{Form: product.GateUp, X: r.bufs.normed, W: o.w.data, Out: r.bufs.gated,
			Rows: p.rows, Most: p.m, N: o.w.rows, K: o.w.cols, Stride: r.bufs.inter}, *tile)
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

// maxCalls of prepared products are kept per runner.
const maxCalls = 4096

// tile returns how the fused product of m rows is best cut, or nil when it is not worth it.
func (d *device) tile(m, n, k int) (*product.Tile, error) {
	if d.opt.Fused {
		return &product.Tiles(d.c.Info(), m, n, k)[0], nil
	}
	m = coarse(m)
	if m*n*k < untimed {
		return nil, nil
	}
	d.tuned.mu.Lock()
	defer d.tuned.mu.Unlock()
	key := fusedName(m, n, k)
	if t, ok := d.tuned.best[key]; ok {
		return t.Tile, nil
	}
	t, err := d.raceFused(driver.Product{M: m, N: n, K: k, In: driver.NumberBF16, Out: driver.NumberBF16})
	if err != nil {
		if driver.OutOfMemory(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("time the fused product of %d×%d×%d: %w", m, n, k, err)
	}
	d.tuned.best[key] = t
	d.tuned.save()
	return t.Tile, nil
}

// fusedName is what a fused product is remembered by. Its number changes with the tiles that are tried.
func fusedName(m, n, k int) string { return fmt.Sprintf("gateup 2 %dx%dx%d", m, n, k) }

// raceFused times the library's product followed by silu against the fused product.
func (d *device) raceFused(p driver.Product) (timed, error) {
	best, err := d.fastest(p)
	if err != nil {
		return timed{}, err
	}
	r, err := newRace(d, p)
	if err != nil {
		return timed{}, err
	}
	defer r.close()
	gated, err := d.c.Alloc(p.M * p.N)
	if err != nil {
		return timed{}, err
	}
	defer d.c.Free(gated)
	rows, err := d.rowCount(p.M)
	if err != nil {
		return timed{}, err
	}
	defer d.c.Free(rows)
	r.pl.Use(best)
	two, err := r.two(gated, rows)
	if err != nil {
		return timed{}, err
	}
	result := timed{First: two, Microseconds: two}
	weights := make([]driver.Ptr, r.copies)
	for i := range weights {
		weights[i] = r.w.At(i * r.wBytes)
	}
	op := product.Op{Form: product.GateUp, X: r.x, W: r.w, Out: gated, Rows: rows, Most: p.M, N: p.N, K: p.K,
		Stride: p.N / 2}
	all, err := d.set.Choose(r.stream, op, weights)
	if err != nil {
		return timed{}, err
	}
	one, err := r.one(op, all[0].Tile)
	if err != nil {
		return timed{}, err
	}
	result.Candidates = len(all)
	if one < two {
		result.Microseconds, result.Tile = one, &all[0].Tile
	}
	return result, nil
}

// rowCount puts a number of rows where kernels read it.
func (d *device) rowCount(n int) (driver.Ptr, error) {
	p, err := d.c.Alloc(4)
	if err != nil {
		return 0, err
	}
	return p, d.c.Upload(p, []byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)})
}

// two times the library's product and silu behind it.
func (r *race) two(gated, rows driver.Ptr) (float64, error) {
	f, err := r.d.kernel("silu.cu", "silu_up", "IN=1", "OUT=1")
	if err != nil {
		return 0, err
	}
	a, err := driver.NewArgs()
	if err != nil {
		return 0, err
	}
	defer a.Free()
	columns := r.p.N / 2
	block := threads(columns / 8)
	return r.timeOf(func(w driver.Ptr) error {
		if err := r.pl.Run(r.stream, r.out, r.x, w, r.space, workspace); err != nil {
			return err
		}
		l := driver.Launch{Grid: [3]int{r.p.M, (columns/8 + block[0] - 1) / block[0]}, Block: block, Overlap: r.d.overlaps()}
		return f.Launch(r.stream, l, a.Reset().Ptr(gated).Ptr(r.out).Ptr(0).Ptr(rows).Int(columns).Int(columns))
	})
}

// one times the fused product.
func (r *race) one(op product.Op, t product.Tile) (float64, error) {
	calls := map[driver.Ptr]*product.Call{}
	for i := range r.copies {
		op.W = r.w.At(i * r.wBytes)
		c, err := r.d.set.Prepare(op, t)
		if err != nil {
			return 0, err
		}
		calls[op.W] = c
	}
	a, err := driver.NewArgs()
	if err != nil {
		return 0, err
	}
	defer a.Free()
	return r.timeOf(func(w driver.Ptr) error { return calls[w].Launch(r.stream, a, r.d.overlaps()) })
}

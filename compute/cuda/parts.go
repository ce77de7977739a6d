package cuda

import (
	"fmt"

	"grebe/compute/cuda/driver"
	"grebe/compute/cuda/product"
)

// Few rows give a product too few tiles for all multiprocessors. The library then cuts K and adds the parts up in a
// kernel of its own, behind which comes a norm. Here the norm adds them up.

// maxPartRows is the most rows of a batch whose products are cut.
const maxPartRows = 512

// addParts leaves in·wᵀ in parts for the norm that follows, where that is faster than adding it to x.
func (r *runner) addParts(p *pass, in driver.Ptr, w *linear) (bool, error) {
	if !r.dev.fuses || r.bufs.parts == 0 || !r.dev.opt.Parts && !r.dev.opt.Fused || r.dev.opt.OwnProducts || p.m > maxPartRows || w.dt.Size() != 2 || w.cols%64 != 0 || w.rows != r.bufs.hidden {
		return false, nil
	}
	key := fusedKey{w, p.m, in, p.rows}
	c, ok := r.calls[key]
	if !ok {
		tile, err := r.dev.parts(p.m, w.rows, w.cols, r.bufs.normThreads())
		if err != nil {
			return false, err
		}
		if tile != nil {
			r.dev.tuned.mu.Lock()
			c, err = r.dev.set.Prepare(product.Op{Form: product.Parts, X: in, W: w.data, Out: r.bufs.parts, Rows: p.rows, Most: p.m,
				N: w.rows, K: w.cols, Stride: r.bufs.hidden}, *tile)
			r.dev.tuned.mu.Unlock()
			if err == nil {
				_, err = r.sumOf(tile.Split)
			}
			if err != nil {
				return false, err
			}
		}
		r.keepCall(key, c)
	}
	if c == nil {
		return false, nil
	}
	r.pending = c.Split()
	return true, c.Launch(r.stream, r.args, r.dev.overlaps())
}

// sumOf returns the norm that adds up parts.
func (r *runner) sumOf(parts int) (*driver.Function, error) {
	if f := r.sumsOf[parts]; f != nil {
		return f, nil
	}
	return r.once(&r.sumsOf[parts], "norm.cu", "rms_norm_sum", append(r.bufs.normDefines(r.bufs.dt), fmt.Sprintf("PARTS=%d", parts))...)
}

// normSum is norm behind addParts.
func (r *runner) normSum(p *pass, gain *vector) error {
	f, err := r.sumOf(r.pending)
	if err != nil {
		return err
	}
	r.pending = 0
	a := r.args.Reset().Ptr(r.bufs.normed).Ptr(r.bufs.current()).Ptr(gain.pointer()).Ptr(r.bufs.parts).Ptr(p.rows)
	return f.Launch(r.stream, r.overlapping(driver.Launch{Grid: [3]int{p.m}, Block: [3]int{r.bufs.normThreads()}}),
		a.Int(r.shape.Hidden).Float(r.shape.Eps).Int(p.m*r.bufs.hidden))
}

// first returns the most promising of tiles, nil if there are none.
func first(tiles []product.Tile) *product.Tile {
	if len(tiles) == 0 {
		return nil
	}
	return &tiles[0]
}

// parts returns how a product of m rows that a norm follows is best cut, or nil when it is not worth it.
func (d *device) parts(m, n, k, threads int) (*product.Tile, error) {
	if d.opt.Fused {
		return first(product.SplitTiles(d.c.Info(), m, n, k)), nil
	}
	if m*n*k < untimed {
		return nil, nil
	}
	d.tuned.mu.Lock()
	defer d.tuned.mu.Unlock()
	key := fmt.Sprintf("parts %dx%dx%d", m, n, k)
	if t, ok := d.tuned.best[key]; ok {
		return t.Tile, nil
	}
	t, err := d.raceParts(driver.Product{M: m, N: n, K: k, In: driver.NumberBF16, Out: driver.NumberF32, Add: true}, threads)
	if err != nil {
		if driver.OutOfMemory(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("time the cut product of %d×%d×%d: %w", m, n, k, err)
	}
	d.tuned.best[key] = t
	d.tuned.save()
	return t.Tile, nil
}

// raceParts times the library's product and a norm against the cut product and the norm that adds its parts up.
func (d *device) raceParts(p driver.Product, threads int) (timed, error) {
	best, err := d.fastest(p)
	if err != nil {
		return timed{}, err
	}
	r, err := newRace(d, p)
	if err != nil {
		return timed{}, err
	}
	defer r.close()
	parts, err := d.c.Alloc(4 * product.MaxSplit * p.M * p.N)
	if err != nil {
		return timed{}, err
	}
	defer d.c.Free(parts)
	normed, err := d.c.Alloc(2 * p.M * p.N)
	if err != nil {
		return timed{}, err
	}
	defer d.c.Free(normed)
	rows, err := d.rowCount(p.M)
	if err != nil {
		return timed{}, err
	}
	defer d.c.Free(rows)
	n := &raceNorm{race: r, normed: normed, parts: parts, rows: rows, threads: threads}
	if n.args, err = driver.NewArgs(); err != nil {
		return timed{}, err
	}
	defer n.args.Free()
	r.pl.Use(best)
	two, err := n.time(0, func(w driver.Ptr) error { return r.pl.Run(r.stream, r.out, r.x, w, r.space, workspace) })
	if err != nil {
		return timed{}, err
	}
	result := timed{First: two, Microseconds: two}
	weights := make([]driver.Ptr, r.copies)
	for i := range weights {
		weights[i] = r.w.At(i * r.wBytes)
	}
	op := product.Op{Form: product.Parts, X: r.x, W: r.w, Out: parts, Rows: rows, Most: p.M, N: p.N, K: p.K, Stride: p.N}
	all, err := d.set.Choose(r.stream, op, weights)
	if err != nil {
		return timed{}, err
	}
	result.Candidates = len(all)
	for _, c := range all[:min(len(all), finalists)] {
		calls, err := r.prepared(op, c.Tile)
		if err != nil {
			return timed{}, err
		}
		one, err := n.time(c.Tile.Split, func(w driver.Ptr) error { return calls[w].Launch(r.stream, n.args, d.overlaps()) })
		if err != nil {
			return timed{}, err
		}
		if one < result.Microseconds {
			result.Microseconds, result.Tile = one, &c.Tile
		}
	}
	return result, nil
}

// raceNorm times products with a norm behind them.
type raceNorm struct {
	*race
	normed, parts, rows driver.Ptr
	threads             int
	args                *driver.Args
}

// time returns the microseconds of a product and a norm that adds up so many parts.
func (n *raceNorm) time(parts int, multiply func(w driver.Ptr) error) (float64, error) {
	name, defines := "rms_norm", []string{"OUT=1", fmt.Sprintf("STRIDE=%d", n.p.N), fmt.Sprintf("THREADS=%d", n.threads)}
	if parts > 0 {
		name, defines = "rms_norm_sum", append(defines, fmt.Sprintf("PARTS=%d", parts))
	}
	f, err := n.d.kernel("norm.cu", name, defines...)
	if err != nil {
		return 0, err
	}
	l := driver.Launch{Grid: [3]int{n.p.M}, Block: [3]int{n.threads}, Overlap: n.d.overlaps()}
	return n.timeOf(func(w driver.Ptr) error {
		if err := multiply(w); err != nil {
			return err
		}
		a := n.args.Reset().Ptr(n.normed).Ptr(n.out).Ptr(n.out) // any numbers as gains
		if parts > 0 {
			return f.Launch(n.stream, l, a.Ptr(n.parts).Ptr(n.rows).Int(n.p.N).Float(1e-6).Int(n.p.M*n.p.N))
		}
		return f.Launch(n.stream, l, a.Ptr(0).Ptr(n.rows).Int(n.p.N).Float(1e-6))
	})
}

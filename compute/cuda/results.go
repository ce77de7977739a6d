package cuda

import (
	"fmt"
	"unsafe"

	"grebe/compute"
	"grebe/compute/cuda/driver"
	"grebe/internal/offheap"
)

// headBytes of the small inputs hold a row count.
const headBytes = 64

func (r *runner) Logits(norm compute.Vector, head compute.Table, pairs []compute.Pair, out []float32) error {
	gain := r.values("the final norm", norm, r.shape.Hidden)
	tab, ok := head.(*table)
	if !ok || tab.cols != r.shape.Hidden || len(out) != len(pairs) {
		r.fail(fmt.Errorf("cuda: %d logits into %d values, with a table or norm that does not fit", len(pairs), len(out)))
	}
	for _, p := range pairs {
		if r.err != nil {
			break
		}
		if r.at(p.Row) < 0 || p.ID < 0 || int(p.ID) >= tab.rows {
			r.fail(fmt.Errorf("cuda: logit %d of row %d: no such row or token", p.ID, p.Row))
		}
	}
	if r.err != nil || len(pairs) == 0 {
		return r.finish(nil)
	}
	if err := r.finish(func(r *runner) error { return r.logits(gain, tab, pairs) }); err != nil {
		return err
	}
	copy(out, offheap.Slice[float32](r.io.Bytes[8*len(pairs):], len(pairs)))
	return nil
}

func (r *runner) logits(gain *vector, head *table, pairs []compute.Pair) error {
	if err := r.ioBytes(12 * len(pairs)); err != nil {
		return err
	}
	own := offheap.Slice[compute.Pair](r.io.Bytes, len(pairs))
	for i, p := range pairs {
		own[i] = compute.Pair{Row: r.at(p.Row), ID: p.ID}
	}
	f := r.logitsOf[head.dt]
	if f == nil {
		var err error
		if f, err = r.once(&r.logitsOf[head.dt], "logits.cu", "logits", tableDefines[head.dt]); err != nil {
			return err
		}
	}
	a := r.args.Reset().Ptr(r.io.Ptr.At(8 * len(pairs))).Ptr(r.bufs.current()).Ptr(gain.pointer()).Ptr(head.data).Ptr(
		r.io.Ptr)
	return f.Launch(r.stream, driver.Launch{Grid: [3]int{(len(pairs) + 3) / 4}, Block: [3]int{128}},
		a.Int(len(pairs)).Int(head.stride).Int(r.shape.Hidden).Float(r.shape.Eps))
}

// once finds a kernel and keeps it. Callers look there first, since defines lie on the heap.
func (r *runner) once(to **driver.Function, file, name string, defines ...string) (*driver.Function, error) {
	f, err := r.dev.kernel(file, name, defines...)
	if err == nil {
		*to = f
	}
	return f, err
}

// pointer returns where the values are; a vector that is not there has none.
func (v *vector) pointer() driver.Ptr {
	if v == nil {
		return 0
	}
	return v.data
}

// index writes the places of rows, behind their count, to the small inputs.
func (r *runner) index(rows []int32, more int) error {
	if err := r.ioBytes(indexBytes(len(rows)) + more); err != nil {
		return err
	}
	r.ioInts(0, 1)[0] = int32(len(rows))
	to := r.ioInts(headBytes, len(rows))
	for i, id := range rows {
		to[i] = r.at(id)
	}
	return nil
}

// indexBytes is what index writes, up to where other things may begin.
func indexBytes(rows int) int { return (headBytes + 4*rows + 63) &^ 63 }

func (r *runner) Hidden(norm compute.Vector, rows []int32, out []float32) error {
	gain := r.values("the final norm", norm, r.shape.Hidden)
	if len(out) != len(rows)*r.shape.Hidden {
		r.fail(fmt.Errorf("cuda: %d rows of %d into %d values", len(rows), r.shape.Hidden, len(out)))
	}
	r.checkRows(rows)
	if r.err != nil || len(rows) == 0 {
		return r.finish(nil)
	}
	stride := r.bufs.hidden
	err := r.finish(func(r *runner) error {
		if err := r.index(rows, 4*len(rows)*stride); err != nil {
			return err
		}
		return r.chosen(compute.F32, r.io.Ptr.At(indexBytes(len(rows))), gain, len(rows))
	})
	if err != nil {
		return err
	}
	all := offheap.Slice[float32](r.io.Bytes[indexBytes(len(rows)):], len(rows)*stride)
	for i := range rows {
		copy(out[i*r.shape.Hidden:(i+1)*r.shape.Hidden], all[i*stride:])
	}
	return nil
}

// chosen norms the rows that index wrote to out.
func (r *runner) chosen(dt compute.DType, out driver.Ptr, gain *vector, n int) error {
	f := r.normTo[dt]
	if f == nil {
		var err error
		if f, err = r.once(&r.normTo[dt], "norm.cu", "rms_norm", r.bufs.normDefines(dt)...); err != nil {
			return err
		}
	}
	a := r.args.Reset().Ptr(out).Ptr(r.bufs.current()).Ptr(gain.pointer()).Ptr(r.io.Ptr.At(headBytes)).Ptr(r.io.Ptr).
		Int(r.shape.Hidden).Float(r.shape.Eps)
	if dt == compute.FP8 {
		a.Ptr(r.bufs.scaling.normed)
	}
	return f.Launch(r.stream, driver.Launch{Grid: [3]int{n}, Block: [3]int{r.bufs.normThreads()}}, a)
}

func (r *runner) Project(norm compute.Vector, w compute.Linear, rows []int32, out []float32) error {
	gain := r.values("the final norm", norm, r.shape.Hidden)
	m, ok := w.(*linear)
	if !ok || m.gated || m.in != r.shape.Hidden || len(out) != len(rows)*m.out {
		r.fail(fmt.Errorf("cuda: projection of %d rows into %d values, with a matrix that does not fit", len(rows), len(out)))
	}
	r.checkRows(rows)
	if r.err != nil || len(rows) == 0 {
		return r.finish(nil)
	}
	for step := bucket(r.max); len(rows) > 0; {
		n := min(step, len(rows))
		if err := r.finish(func(r *runner) error { return r.project(gain, m, rows[:n]) }); err != nil {
			return err
		}
		all := offheap.Slice[float32](r.io.Bytes[indexBytes(n):], n*m.rows)
		for i := range n {
			copy(out[i*m.out:(i+1)*m.out], all[i*m.rows:])
		}
		rows, out = rows[n:], out[n*m.out:]
	}
	return nil
}

func (r *runner) project(gain *vector, w *linear, rows []int32) error {
	n, m := len(rows), bucket(len(rows))
	if err := r.need(activations(w.dt)); err != nil {
		return err
	}
	if w.dt == compute.FP8 {
		if err := r.bufs.scaling.need(r.dev, &r.bufs); err != nil {
			return err
		}
	}
	bytes := 4 * n * w.rows
	if err := r.index(rows, bytes); err != nil {
		return err
	}
	if err := r.resultBytes(4 * m * w.rows); err != nil {
		return err
	}
	if err := r.chosen(w.dt, r.bufs.normed, gain, n); err != nil {
		return err
	}
	p := driver.Product{M: m, N: w.rows, K: w.cols, In: numberOf(w.dt), Out: driver.NumberF32}
	if err := r.product(p, r.result, r.bufs.normed, w); err != nil {
		return err
	}
	if err := r.scaleResult(r.result, w, n, r.io.Ptr); err != nil {
		return err
	}
	return r.stream.Copy(r.io.Ptr.At(indexBytes(n)), r.result, bytes)
}

// resultBytes makes room for n bytes of results on the GPU.
func (r *runner) resultBytes(n int) error {
	if r.room >= n {
		return nil
	}
	r.dev.free(r.result)
	r.result, r.room = 0, 0
	p, err := r.dev.alloc(n)
	if err != nil {
		return err
	}
	r.result, r.room = p, n
	return nil
}

// tableDefines say which format a table has.
var tableDefines = [formats]string{compute.F32: "TABLE=0", compute.BF16: "TABLE=1", compute.F16: "TABLE=2"}

var _ [8]byte = [unsafe.Sizeof(compute.Pair{})]byte{} // as logits.cu has it

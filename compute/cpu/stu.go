package cpu

import (
	"errors"
	"fmt"
	"runtime"

	"grebe/compute"
	"grebe/compute/cpu/gemm"
	"grebe/compute/cpu/internal/team"
)

// stuRun is what the layers of HSTU need besides. The product of UVQK stays in the runner's qkv, of which Mix
// reads u.
type stuRun struct {
	parts           []compute.SumPart
	weights         *compute.STUWeights
	ones, zeros     vector // gains and shifts of norms that have none
	gain, shift     vector // of the norm of x
	sum, norm, keep *team.Job
	mix             *team.Job
}

// width returns the values of a row of u, and of each of v, q, k and attention.
func (r *runner) width() int { return r.shape.Heads * r.shape.HeadDim }

func (r *runner) stuJobs() {
	h, n := r.shape.Hidden, max(r.shape.Hidden, r.width())
	s := &r.stu
	s.ones, s.zeros = make(vector, n), make(vector, n)
	for i := range s.ones {
		s.ones[i] = 1
	}
	s.sum = r.each(func(w, i int) { r.sumRow(w, i) })
	s.norm = r.each(func(w, i int) {
		out := r.work[w][:h]
		r.dev.ops.LayerNorm(out, r.x[i*h:][:h], s.gain, s.shift, r.shape.Eps)
		r.arg.dst.Set(i-r.arg.from, 0, out)
	})
	s.keep = r.each(func(_, i int) { r.splitUVQK(i) })
	s.mix = r.each(func(w, i int) { r.mixRow(w, i) })
}

// checkSTU refuses what is no layer of HSTU.
func (r *runner) checkSTU() {
	if r.shape.Pointwise == nil {
		r.fail(errors.New("cpu: an operation of HSTU with the shape of a decoder"))
	}
}

func (r *runner) Sum(parts []compute.SumPart) {
	r.checkSTU()
	for i := range parts {
		r.checkPart(&parts[i])
	}
	if r.err != nil {
		return
	}
	r.dev.mu.Lock()
	defer r.dev.mu.Unlock()
	r.stu.parts = parts
	r.run(r.stu.sum, 0, r.rows)
	r.stu.parts = nil
}

func (r *runner) checkPart(p *compute.SumPart) {
	rows := len(p.Vectors) / r.shape.Hidden
	if p.Vectors == nil {
		tab, ok := p.Table.(*table)
		if !ok || tab.t.Cols != r.shape.Hidden {
			r.fail(fmt.Errorf("cpu: a table that is summed does not fit a hidden size of %d", r.shape.Hidden))
			return
		}
		rows = tab.t.Rows
	}
	if r.err == nil && len(p.Rows) != r.rows {
		r.fail(fmt.Errorf("cpu: %d rows are summed for %d of the batch", len(p.Rows), r.rows))
	}
	for i, at := range p.Rows {
		if int(at) >= rows {
			r.fail(fmt.Errorf("cpu: row %d of the batch sums row %d of %d", i, at, rows))
			return
		}
	}
}

func (r *runner) sumRow(w, i int) {
	h := r.shape.Hidden
	x := r.x[i*h:][:h]
	clear(x)
	for k := range r.stu.parts {
		p := &r.stu.parts[k]
		at := int(p.Rows[i])
		if at < 0 {
			continue
		}
		if p.Vectors != nil {
			r.dev.ops.AddScaled(x, p.Vectors[at*h:][:h], p.Scale)
			continue
		}
		row := r.work[w][:h]
		r.dev.row(row, p.Table.(*table).t, at)
		r.dev.ops.AddScaled(x, row, p.Scale)
	}
}

func (r *runner) UVQK(layer int, w *compute.STUWeights) {
	s := &r.shape
	r.checkSTU()
	width := 4 * r.width()
	m := r.weights("UVQK", w.UVQK, width, s.Hidden)
	gain := r.values("the norm before UVQK", w.Norm, s.Hidden)
	shift := r.values("the norm's bias", w.NormBias, s.Hidden)
	bias := r.values("the bias of UVQK", w.UVQKBias, width)
	if layer < 0 || layer >= s.Layers {
		r.fail(fmt.Errorf("cpu: layer %d of %d", layer, s.Layers))
	}
	if r.err != nil || r.rows == 0 {
		return
	}
	r.dev.mu.Lock()
	defer r.dev.mu.Unlock()
	in := r.in[slot(m.dt)]
	if !r.ready(in, r.rows, s.Hidden) {
		return
	}
	r.stu.gain, r.stu.shift = orElse(gain, r.stu.ones), orElse(shift, r.stu.zeros)
	r.run(r.stu.norm, 0, r.rows)
	r.dev.mul.Store(r.qkv, width, in, m.w, bias)
	runtime.KeepAlive(m)
	r.arg.layer = layer
	r.run(r.stu.keep, 0, r.rows)
}

func orElse(v, def vector) vector {
	if v == nil {
		return def
	}
	return v
}

// splitUVQK finishes u in place, keeps the queries of a row and writes its keys and values.
func (r *runner) splitUVQK(i int) {
	n, d := r.width(), r.shape.HeadDim
	row := r.qkv[i*4*n:][:4*n]
	r.dev.ops.SiLU(row[:n])
	copy(r.q[i*n:][:n], row[2*n:])
	at := r.home[i]
	for h := range r.shape.Heads {
		k, v := row[3*n+h*d:][:d], row[n+h*d:][:d]
		contain(k, v)
		r.store(at, 0, h, k)
		r.store(at, 1, h, v)
	}
}

func (r *runner) Mix(w *compute.STUWeights) {
	s := &r.shape
	r.checkSTU()
	n, norms := r.width(), r.width()
	if w.PerHead {
		norms = s.Heads
	}
	m := r.weights("the output projection", w.Out, s.Hidden, 3*n)
	if m != nil && m.dt == compute.INT8 {
		r.fail(errors.New("cpu: the output projection of HSTU does not compute in int8"))
	}
	r.values("the norm of attention", w.OutNorm, norms)
	r.values("the bias of attention's norm", w.OutNormBias, norms)
	if r.err != nil {
		return
	}
	r.dev.mu.Lock()
	defer r.dev.mu.Unlock()
	r.stu.weights = w
	for from := 0; from < r.rows; from += ffnBlock {
		in, count := r.inter[slot(m.dt)], min(ffnBlock, r.rows-from)
		if !r.ready(in, count, 3*n) {
			return
		}
		r.run(r.stu.mix, from, count)
		r.dev.mul.Add(r.x[from*s.Hidden:], s.Hidden, in, m.w, nil)
	}
	runtime.KeepAlive(m)
}

// mixRow sets a row of the output product's input.
func (r *runner) mixRow(w, i int) {
	n := r.width()
	u, a, out := r.qkv[i*4*n:][:n], r.o[i*n:][:n], r.work[w][:n]
	gain, _ := r.stu.weights.OutNorm.(vector)
	shift, _ := r.stu.weights.OutNormBias.(vector)
	if r.stu.weights.PerHead {
		r.normHeads(out, a, gain, shift)
	} else {
		r.dev.ops.LayerNorm(out, a, orElse(gain, r.stu.ones), orElse(shift, r.stu.zeros), r.shape.Eps)
	}
	r.dev.ops.Multiply(out, u)
	to := i - r.arg.from
	r.arg.dst.Set(to, 0, u)
	r.arg.dst.Set(to, n, a)
	r.arg.dst.Set(to, 2*n, out)
}

// normHeads norms each head by itself.
func (r *runner) normHeads(out, a []float32, gain, shift vector) {
	d := r.shape.HeadDim
	for h := range r.shape.Heads {
		mean, scale := r.dev.ops.Moments(a[h*d:][:d], r.shape.Eps)
		var plus float32
		if gain != nil {
			scale *= gain[h]
		}
		if shift != nil {
			plus = shift[h]
		}
		for i, v := range a[h*d:][:d] {
			out[h*d+i] = (v-mean)*scale + plus
		}
	}
}

// Multiply makes the device a compute.Multiplier.
func (d *device) Multiply(w compute.Linear, in, out []float32) error {
	m, ok := w.(*linear)
	if !ok || m.In() == 0 {
		return fmt.Errorf("cpu: multiply by %T, no matrix of this device", w)
	}
	rows := len(in) / m.In()
	if len(in) != rows*m.In() || len(out) != rows*m.Out() {
		return fmt.Errorf("cpu: multiply %d values by a matrix of %d×%d into %d", len(in), m.Out(), m.In(), len(out))
	}
	if rows == 0 {
		return nil
	}
	packed := gemm.NewRows(d.level, m.dt)
	defer packed.Free()
	if err := packed.Reset(rows, m.In()); err != nil {
		return fmt.Errorf("cpu: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mul.Fill(packed, in, m.In())
	d.mul.Store(out, m.Out(), packed, m.w, nil)
	runtime.KeepAlive(m)
	return nil
}

package ref

import (
	"errors"
	"fmt"
	"math"

	"grebe/compute"
)

func (r *runner) Sum(parts []compute.SumPart) {
	if r.failed("sum", r.checkPointwise()) {
		return
	}
	r.x, r.q, r.att, r.u = make([][]float64, len(r.b.Tokens)), nil, nil, nil
	for row := range r.x {
		r.x[row] = make([]float64, r.s.Hidden)
	}
	for i := range parts {
		if r.failed("sum", r.addPart(&parts[i])) {
			return
		}
	}
}

// addPart adds a part to x.
func (r *runner) addPart(p *compute.SumPart) error {
	t := compute.Tensor{DType: compute.F32, Rows: len(p.Vectors) / r.s.Hidden, Cols: r.s.Hidden}
	if p.Vectors == nil {
		tab, err := r.table(p.Table)
		if err != nil {
			return err
		}
		t = tab.t
	}
	if len(p.Rows) != len(r.x) {
		return fmt.Errorf("a part has %d rows for %d of the batch", len(p.Rows), len(r.x))
	}
	for row, at := range p.Rows {
		if at < 0 {
			continue
		}
		if int(at) >= t.Rows {
			return fmt.Errorf("row %d: row %d of a part of %d", row, at, t.Rows)
		}
		for i := range r.x[row] {
			v := 0.0
			if p.Vectors == nil {
				v = load(t.DType, t.Data, int(at)*t.Cols+i)
			} else {
				v = float64(p.Vectors[int(at)*t.Cols+i])
			}
			r.x[row][i] += float64(p.Scale) * v
		}
	}
	return nil
}

func (r *runner) UVQK(layer int, w *compute.STUWeights) {
	s := &r.s
	n := s.Heads * s.HeadDim
	gain, err1 := r.vector("norm", w.Norm, s.Hidden)
	shift, err2 := r.vector("norm's bias", w.NormBias, s.Hidden)
	m, err3 := r.matrix("uvqk", w.UVQK, 4*n, s.Hidden, false)
	bias, err4 := r.vector("bias", w.UVQKBias, 4*n)
	if r.failed("uvqk", errors.Join(err1, err2, err3, err4, r.checkPointwise(), r.checkLayer(layer), r.checkWhole())) {
		return
	}
	r.q, r.u, r.att, r.layer = make([][]float64, len(r.x)), make([][]float64, len(r.x)), nil, layer
	for i := range r.b.Segments {
		g := &r.b.Segments[i]
		for token := g.Cached; token < g.Len; token++ {
			row := g.First + token - g.Cached
			y := r.product(m, bias, r.layerNorm(gain, shift, r.x[row]))
			u, v, q, k := y[:n], y[n:2*n], y[2*n:3*n], y[3*n:]
			for j := range u {
				u[j] = silu(u[j])
			}
			r.u[row], r.q[row] = u, q
			r.write(g, layer, token, k, v)
		}
	}
}

// attendPointwise is dense: every row goes through all tokens of all segments and takes those it sees.
func (r *runner) attendPointwise() {
	k, v := r.read(r.layer)
	d := r.s.HeadDim
	r.att = make([][]float64, len(r.q))
	for row, sees := range pointwiseMask(r.b, r.s.Pointwise) {
		scale := float64(r.s.Pointwise.ScaleOf(segmentOf(r.b, row)))
		r.att[row] = make([]float64, r.s.Heads*d)
		for h := 0; h < r.s.Heads*d; h += d {
			query := make([]float64, d)
			for i := range query {
				query[i] = r.dev.operand(r.s.KV, r.q[row][h+i])
			}
			for key := range sees {
				if sees[key] == 0 {
					continue
				}
				p := float64(sees[key]) * r.dev.operand(r.s.KV, silu(float64(r.s.Pointwise.Alpha)*dot(query, k[key][h:h+d])))
				for i := range d {
					r.att[row][h+i] += p * v[key][h+i]
				}
			}
			for i := range d {
				r.att[row][h+i] *= scale
			}
		}
	}
	r.q = nil
}

// pointwiseMask is mask with context rows, which see all of their segment, and the window.
func pointwiseMask(b *compute.Batch, p *compute.Pointwise) [][]int {
	m := mask(b)
	first := 0 // key
	for i := range b.Segments {
		g := &b.Segments[i]
		for row := g.First; row < g.First+g.Rows(); row++ {
			position := g.Start + g.Cached + row - g.First
			if position < p.Context {
				for t := range g.Len {
					m[row][first+t] = 1
				}
			} else if p.Window > 0 {
				hide(m[row], b, p, position)
			}
		}
		first += g.Len
	}
	return m
}

// hide takes away what a row at a position cannot see for the window.
func hide(sees []int, b *compute.Batch, p *compute.Pointwise, position int) {
	key := 0
	for i := range b.Segments {
		for t := range b.Segments[i].Len {
			if p.Place(position)-p.Place(b.Segments[i].Start+t) > p.Window {
				sees[key] = 0
			}
			key++
		}
	}
}

func segmentOf(b *compute.Batch, row int) *compute.Segment {
	for i := range b.Segments {
		if g := &b.Segments[i]; row >= g.First && row < g.First+g.Rows() {
			return g
		}
	}
	return nil // a valid batch has one
}

func (r *runner) Mix(w *compute.STUWeights) {
	n := r.s.Heads * r.s.HeadDim
	norms := n
	if w.PerHead {
		norms = r.s.Heads
	}
	gain, err1 := r.vector("norm of attention", w.OutNorm, norms)
	shift, err2 := r.vector("bias of attention's norm", w.OutNormBias, norms)
	m, err3 := r.matrix("out", w.Out, r.s.Hidden, 3*n, false)
	var err4 error
	if r.att == nil || r.u == nil {
		err4 = errors.New("there is no attention to mix")
	}
	if r.failed("mix", errors.Join(err1, err2, err3, err4, r.checkPointwise())) {
		return
	}
	for i, x := range r.x {
		in := append(append(make([]float64, 0, 3*n), r.u[i]...), r.att[i]...)
		for j, v := range r.normAttention(w.PerHead, gain, shift, r.att[i]) {
			in = append(in, r.u[i][j]*v)
		}
		add(x, r.product(m, nil, in))
	}
	r.att, r.u = nil, nil
}

func (r *runner) normAttention(perHead bool, gain, shift vector, a []float64) []float64 {
	if !perHead {
		return r.layerNorm(gain, shift, a)
	}
	d := r.s.HeadDim
	var out []float64
	for h := range r.s.Heads {
		head := r.layerNorm(nil, nil, a[h*d:(h+1)*d])
		for i := range head {
			if gain != nil {
				head[i] *= gain[h]
			}
			if shift != nil {
				head[i] += shift[h]
			}
		}
		out = append(out, head...)
	}
	return out
}

// layerNorm returns x less its mean over its standard deviation, times gain, plus shift.
func (r *runner) layerNorm(gain, shift vector, x []float64) []float64 {
	mean, square := 0.0, 0.0
	for _, v := range x {
		mean += v / float64(len(x))
	}
	for _, v := range x {
		square += (v - mean) * (v - mean) / float64(len(x))
	}
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = (v - mean) / math.Sqrt(square+float64(r.s.Eps))
		if gain != nil {
			out[i] *= gain[i]
		}
		if shift != nil {
			out[i] += shift[i]
		}
	}
	return out
}

func silu(v float64) float64 { return v / (1 + math.Exp(-v)) }

func (r *runner) checkPointwise() error {
	if r.s.Pointwise == nil {
		return errors.New("the shape is a decoder's")
	}
	return nil
}

func (r *runner) checkDecoder() error {
	if r.s.Pointwise != nil {
		return errors.New("the shape is HSTU's")
	}
	return nil
}

// Multiply makes the device a compute.Multiplier.
func (d *device) Multiply(w compute.Linear, in, out []float32) error {
	m, ok := w.(*linear)
	if !ok || m.gated {
		return fmt.Errorf("ref: multiply: %T is no matrix of this device", w)
	}
	rows := len(in) / m.in
	if len(in) != rows*m.in || len(out) != rows*m.out {
		return fmt.Errorf("ref: multiply: %d values by a matrix of %d×%d into %d", len(in), m.out, m.in, len(out))
	}
	r := &runner{dev: d}
	for i := range rows {
		x := make([]float64, m.in)
		for j := range x {
			x[j] = float64(in[i*m.in+j])
		}
		for j, v := range r.product(m, nil, x) {
			out[i*m.out+j] = float32(v)
		}
	}
	return nil
}

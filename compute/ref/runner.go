package ref

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"grebe/compute"
)

var errNoBatch = errors.New("ref: no batch was begun")

// runner holds one batch. The i-th rows of x, q and att belong to batch row rows[i].
type runner struct {
	dev *device
	s   compute.Shape
	max int
	err error // the first failure since Begin

	b      *compute.Batch
	rows   []int32 // rows that were not dropped, ascending
	layer  int     // whose queries q holds
	x      [][]float64
	q, att [][]float64 // nil outside QKV … Attend and Attend … Output
	u      [][]float64 // of HSTU; nil outside UVQK … Mix
	// received is what Attend added up per key, over heads; nil where it did not see all rows.
	received []float64
}

func (r *runner) Close() error {
	r.err = errors.New("ref: the runner is closed")
	return nil
}

func (r *runner) Begin(b *compute.Batch) error {
	r.b, r.x, r.q, r.att, r.u, r.received, r.rows = b, nil, nil, nil, nil, nil, r.rows[:0]
	r.err = b.ValidateHost(&r.s)
	if r.err == nil && len(b.Tokens) > r.max {
		r.err = fmt.Errorf("ref: a batch of %d rows, room for %d", len(b.Tokens), r.max)
	}
	for row := range b.Tokens {
		r.rows = append(r.rows, int32(row))
	}
	return r.err
}

// failed notes err, unless there is an earlier failure, and says whether there is any.
func (r *runner) failed(op string, err error) bool {
	if r.err == nil && err != nil {
		r.err = fmt.Errorf("ref: %s: %w", op, err)
	}
	return r.err != nil
}

func (r *runner) Embed(t compute.Table) {
	tab, err := r.table(t)
	if r.failed("embed", err) {
		return
	}
	r.x, r.q, r.att = make([][]float64, len(r.b.Tokens)), nil, nil
	for row, token := range r.b.Tokens {
		if token < 0 || int(token) >= tab.Rows() {
			r.failed("embed", fmt.Errorf("row %d: token %d of %d", row, token, tab.Rows()))
			return
		}
		r.x[row] = values(tab.t, int(token))
	}
}

func (r *runner) QKV(layer int, w *compute.AttentionWeights) {
	s := &r.s
	norm, err1 := r.vector("norm", w.Norm, s.Hidden)
	m, err2 := r.matrix("qkv", w.QKV, (s.Heads+2*s.KVHeads)*s.HeadDim, s.Hidden, false)
	bias, err3 := r.vector("bias", w.QKVBias, (s.Heads+2*s.KVHeads)*s.HeadDim)
	qNorm, err4 := r.vector("query norm", w.QNorm, s.HeadDim)
	kNorm, err5 := r.vector("key norm", w.KNorm, s.HeadDim)
	if r.failed("qkv", errors.Join(err1, err2, err3, err4, err5, r.checkDecoder(), r.checkLayer(layer), r.checkKept())) {
		return
	}
	r.q, r.att, r.layer = make([][]float64, len(r.x)), nil, layer
	for i := range r.b.Segments {
		g := &r.b.Segments[i]
		for token := g.Cached; token < g.Len; token++ {
			row := g.First + token - g.Cached
			at, ok := slices.BinarySearch(r.rows, int32(row))
			if !ok {
				continue // what its chunk holds stands in for it
			}
			y := r.product(m, bias, r.normed(norm, r.x[at]))
			q, k, v := y[:s.Heads*s.HeadDim], y[s.Heads*s.HeadDim:(s.Heads+s.KVHeads)*s.HeadDim],
				y[(s.Heads+s.KVHeads)*s.HeadDim:]
			for h := range s.Heads {
				r.turn(qNorm, q[h*s.HeadDim:(h+1)*s.HeadDim], r.b.Positions[row])
			}
			for h := range s.KVHeads {
				r.turn(kNorm, k[h*s.HeadDim:(h+1)*s.HeadDim], r.b.Positions[row])
			}
			r.q[at] = q
			r.write(g, layer, token, k, v)
		}
	}
}

// turn norms a head and rotates it to its position.
func (r *runner) turn(norm vector, head []float64, position int32) {
	copy(head, r.normed(norm, head))
	rotate(head, int(position), r.s.Rope.InvFreq, r.s.Rope.Scale)
}

func (r *runner) Keep(rows []int32) {
	if r.failed("keep", r.checkEmbedded()) {
		return
	}
	x, att, u := make([][]float64, 0, len(rows)), make([][]float64, 0, len(rows)), make([][]float64, 0, len(rows))
	for i, row := range rows {
		at, ok := slices.BinarySearch(r.rows, row)
		if !ok || i > 0 && rows[i-1] >= row {
			r.failed("keep", fmt.Errorf("row %d is unknown, was dropped before or is out of order", row))
			return
		}
		x = append(x, r.x[at])
		if r.att != nil {
			att = append(att, r.att[at])
		}
		if r.u != nil {
			u = append(u, r.u[at])
		}
	}
	if r.u != nil {
		r.u = u
	}
	if r.att != nil {
		r.att = att
	}
	r.rows, r.x, r.q, r.received = slices.Clone(rows), x, nil, nil
}

func (r *runner) Output(w *compute.AttentionWeights) {
	m, err1 := r.matrix("out", w.Out, r.s.Hidden, r.s.Heads*r.s.HeadDim, false)
	bias, err2 := r.vector("bias", w.OutBias, r.s.Hidden)
	var err3 error
	if r.att == nil {
		err3 = errors.New("there is no attention to project")
	}
	if r.failed("output", errors.Join(err1, err2, err3)) {
		return
	}
	for i, x := range r.x {
		for k, v := range r.att[i] {
			r.att[i][k] = r.dev.stored(m.dt, v)
		}
		add(x, r.product(m, bias, r.att[i]))
	}
	r.att = nil
}

func (r *runner) FFN(w *compute.FFNWeights) {
	n := r.s.Inter
	norm, err1 := r.vector("norm", w.Norm, r.s.Hidden)
	gateUp, err2 := r.matrix("gate and up", w.GateUp, 2*n, r.s.Hidden, true)
	gateUpBias, err3 := r.vector("gate and up's bias", w.GateUpBias, 2*n)
	down, err4 := r.matrix("down", w.Down, r.s.Hidden, n, false)
	downBias, err5 := r.vector("down's bias", w.DownBias, r.s.Hidden)
	if r.failed("ffn", errors.Join(err1, err2, err3, err4, err5, r.checkEmbedded())) {
		return
	}
	for _, x := range r.x {
		y := r.product(gateUp, gateUpBias, r.normed(norm, x))
		gate, up := y[:n], y[n:]
		h := make([]float64, n)
		for i := range h {
			h[i] = gate[i] / (1 + math.Exp(-gate[i])) * up[i]
		}
		add(x, r.product(down, downBias, h))
	}
}

func (r *runner) Logits(norm compute.Vector, head compute.Table, pairs []compute.Pair, out []float32) error {
	gain, err1 := r.vector("norm", norm, r.s.Hidden)
	tab, err2 := r.table(head)
	if r.err != nil {
		return r.err
	}
	if err := errors.Join(err1, err2, r.checkEmbedded()); err != nil {
		return fmt.Errorf("ref: logits: %w", err)
	}
	if len(out) != len(pairs) {
		return fmt.Errorf("ref: logits: room for %d of %d", len(out), len(pairs))
	}
	var x []float64
	for i, p := range pairs {
		if i == 0 || p.Row != pairs[i-1].Row {
			row, err := r.row(p.Row)
			if err != nil {
				return fmt.Errorf("ref: logits: pair %d: %w", i, err)
			}
			x = r.normed(gain, row)
		}
		if p.ID < 0 || int(p.ID) >= tab.Rows() {
			return fmt.Errorf("ref: logits: pair %d: output row %d of %d", i, p.ID, tab.Rows())
		}
		out[i] = float32(dot(x, values(tab.t, int(p.ID))))
	}
	return nil
}

func (r *runner) Hidden(norm compute.Vector, rows []int32, out []float32) error {
	gain, err := r.vector("norm", norm, r.s.Hidden)
	if r.err != nil {
		return r.err
	}
	if err := errors.Join(err, r.checkEmbedded()); err != nil {
		return fmt.Errorf("ref: hidden: %w", err)
	}
	if len(out) != len(rows)*r.s.Hidden {
		return fmt.Errorf("ref: hidden: room for %d values, %d rows have %d", len(out), len(rows), len(rows)*r.s.Hidden)
	}
	for i, row := range rows {
		x, err := r.row(row)
		if err != nil {
			return fmt.Errorf("ref: hidden: %w", err)
		}
		for j, v := range r.normed(gain, x) {
			out[i*r.s.Hidden+j] = float32(v)
		}
	}
	return nil
}

func (r *runner) Project(norm compute.Vector, w compute.Linear, rows []int32, out []float32) error {
	gain, err := r.vector("norm", norm, r.s.Hidden)
	m, ok := w.(*linear)
	if r.err != nil {
		return r.err
	}
	if !ok || m.gated || m.in != r.s.Hidden {
		err = errors.Join(err, errors.New("a matrix that does not fit"))
	}
	if err := errors.Join(err, r.checkEmbedded()); err != nil {
		return fmt.Errorf("ref: project: %w", err)
	}
	if len(out) != len(rows)*m.out {
		return fmt.Errorf("ref: project: room for %d values, %d rows have %d", len(out), len(rows), len(rows)*m.out)
	}
	for i, row := range rows {
		x, err := r.row(row)
		if err != nil {
			return fmt.Errorf("ref: project: %w", err)
		}
		for j, v := range r.product(m, nil, r.normed(gain, x)) {
			out[i*m.out+j] = float32(v)
		}
	}
	return nil
}

// normed returns x over its root mean square, times gain; a copy of x when there is no gain.
//
//go:norace
func (r *runner) normed(gain vector, x []float64) []float64 {
	out := append([]float64(nil), x...)
	if gain == nil {
		return out
	}
	scale := 1 / math.Sqrt(dot(x, x)/float64(len(x))+float64(r.s.Eps))
	for i := range out {
		out[i] *= scale * gain[i]
	}
	return out
}

// product returns m·x + bias.
//
//go:norace
func (r *runner) product(m *linear, bias vector, x []float64) []float64 {
	if eight(m.dt) {
		return r.eightProduct(m, bias, x)
	}
	in := make([]float64, m.in)
	for i := range in {
		in[i] = r.dev.operand(m.dt, x[i])
	}
	out := make([]float64, m.out)
	for i := range out {
		out[i] = dot(m.w[i*m.in:(i+1)*m.in], in)
	}
	if bias != nil {
		add(out, bias)
	}
	return out
}

// dot keeps four sums: one would wait for itself, and tests that use this package with it.
//
//go:norace
func dot(a, b []float64) float64 {
	var s0, s1, s2, s3 float64
	b = b[:len(a)]
	i := 0
	for ; i+4 <= len(a); i += 4 {
		s0 += a[i] * b[i]
		s1 += a[i+1] * b[i+1]
		s2 += a[i+2] * b[i+2]
		s3 += a[i+3] * b[i+3]
	}
	for ; i < len(a); i++ {
		s0 += a[i] * b[i]
	}
	return s0 + s1 + s2 + s3
}

//go:norace
func add(to, from []float64) {
	for i, v := range from {
		to[i] += v
	}
}

package computetest

import (
	"fmt"
	"math"

	"grebe/compute"
)

// stuLayer is a layer of HSTU in host memory.
type stuLayer struct {
	norm, normBias, bias, outNorm, outNormBias *compute.Tensor
	u, v, q, k, out                            compute.Tensor
}

// Rows of the tables that are summed besides the embedding.
const (
	stuActions   = 5
	stuPositions = 90
)

// stuTables are summed to the rows of the first layer, and vectors in the host's memory with them.
type stuTables struct {
	actions, positions compute.Tensor
	vectors            []float32
}

// stuModel draws the layers of an HSTU model. Attention's result is normed, and so is its error: a row of one
// key whose weight is nearly 0 would be noise alone, but for an Eps that is not small.
func (r random) stuModel(m *model) {
	c, s := &m.config, &m.shape
	m.embed = r.tensor(c.src, vocabulary, s.Hidden, 0, 0.5)
	m.stu.actions = r.tensor(c.src, stuActions, s.Hidden, 0, 0.5)
	m.stu.positions = r.tensor(compute.F32, stuPositions, s.Hidden, 0, 0.5)
	for range vocabulary * s.Hidden {
		m.stu.vectors = append(m.stu.vectors, float32(0.5*r.NormFloat64()))
	}
	for range s.Layers {
		m.stuLayers = append(m.stuLayers, r.stuLayer(c))
	}
}

func (r random) stuLayer(c *config) stuLayer {
	s := &c.shape
	n := s.Heads * s.HeadDim
	in, norms := 1/sqrt(s.Hidden), n
	if c.perHead {
		norms = s.Heads
	}
	l := stuLayer{
		u: r.tensor(c.src, n, s.Hidden, 0, in), v: r.tensor(c.src, n, s.Hidden, 0, in),
		q: r.tensor(c.src, n, s.Hidden, 0, in*c.sharp), k: r.tensor(c.src, n, s.Hidden, 0, in),
		out: r.tensor(c.src, s.Hidden, 3*n, 0, 1/sqrt(3*n)),
	}
	if !c.bare {
		l.norm, l.normBias = r.vector(c.src, s.Hidden, 1, 0.3), r.vector(c.src, s.Hidden, 0, 0.3)
		l.bias = r.vector(c.src, 4*n, 0, 0.3)
		l.outNorm, l.outNormBias = r.vector(c.src, norms, 1, 0.3), r.vector(c.src, norms, 0, 0.3)
	}
	return l
}

func (p *packer) stuLayer(dt compute.DType, l *stuLayer, perHead bool) compute.STUWeights {
	return compute.STUWeights{
		Norm: p.vector(l.norm), NormBias: p.vector(l.normBias),
		UVQK: p.linear(dt, l.u, l.v, l.q, l.k), UVQKBias: p.vector(l.bias),
		OutNorm: p.vector(l.outNorm), OutNormBias: p.vector(l.outNormBias), PerHead: perHead,
		Out: p.linear(dt, l.out),
	}
}

// stuOperations are the operations of a model of HSTU.
func (m *model) stuOperations(r compute.STU, w *packed, b *batch, do steps) {
	r.Sum(b.stuParts(m, w))
	for l := range m.stuLayers {
		if do.qkv {
			r.UVQK(l, &w.stu[l])
		}
		if do.attend {
			r.Attend(l)
			if do.keep != nil && l == len(m.stuLayers)-1 {
				r.Keep(do.keep)
			}
			r.Mix(&w.stu[l])
		}
	}
}

// stuParts makes the summands of a batch, once.
func (b *batch) stuParts(m *model, w *packed) []compute.SumPart {
	if b.sum != nil {
		b.sum[0].Table, b.sum[1].Table, b.sum[2].Table = w.embed, w.actions, w.positions
		return b.sum
	}
	n := len(b.Tokens)
	actions, positions, vectors := make([]int32, n), make([]int32, n), make([]int32, n)
	for i, t := range b.Tokens {
		actions[i] = t%(stuActions+1) - 1
		positions[i] = min(b.Positions[i], stuPositions-1)
		vectors[i] = t/2 - 3
	}
	b.sum = []compute.SumPart{
		{Table: w.embed, Rows: b.Tokens, Scale: 1.5}, {Table: w.actions, Rows: actions, Scale: 1.5},
		{Table: w.positions, Rows: positions, Scale: 1}, {Vectors: m.stu.vectors, Rows: vectors, Scale: 0.75},
	}
	return b.sum
}

// varPointwise counts V and the weights of keys, which act on the result directly, and the query and K, which
// act on scores of standard deviation sharp. SiLU's slope of up to 1.1 stands to the size of its results, over
// scores of a standard deviation between 0.25 and 4, as 1.9 at most: squared, 3.6.
func varPointwise(dt, kv compute.DType) float64 {
	values := varKV(dt, kv) + variance(kv)
	scores := varQKV(dt) + variance(kv) + varKV(dt, kv)
	return values + 3.6*scores
}

// varSTU counts u twice, once by itself and once as a factor, attention likewise, and the rounding before the
// output product.
func varSTU(layers int, dt, kv compute.DType) float64 {
	return 1.5 * float64(layers) * (2*3.6*varQKV(dt) + 2*varPointwise(dt, kv) + variance(dt))
}

// stuShape is a geometry as a shape of HSTU: every head has K and V of its own.
func (g geometry) stuShape(layers int, kv compute.DType, p compute.Pointwise) compute.Shape {
	s := g.shape(layers, kv)
	s.KVHeads, s.Inter, s.Rope = s.Heads, 0, compute.Rope{}
	p.Alpha = float32(1 / sqrt(s.HeadDim))
	s.Pointwise = &p
	return s
}

var pointwises = []compute.Pointwise{
	{Scale: 1}, {Scale: 1.0 / 8, Window: 7}, {Scale: 1.0 / 4, Window: 40}, {Scale: 1, Context: 3},
	{Scale: 0.5, Context: 5, Window: 20},
}

// stuChecks run layers of HSTU.
func stuChecks() []check {
	var out []check
	for i := range 2 * len(geometries) {
		for j, f := range formats {
			seed := uint64(5000 + 10*i + j)
			if i%len(formats) != j {
				continue // the formats take turns: ref is slow
			}
			g := geometries[i%len(geometries)]
			if i >= len(geometries) {
				g = newRandom(seed).randomGeometry()
			}
			p := pointwises[(i+j)%len(pointwises)]
			c := config{seed: seed, shape: g.stuShape(1+(i+j)%2, f.kv, p), dt: f.dt, src: sources[(i+j)%3], bare: i%4 == 3,
				perHead: (i+j)%3 == 0,
				sharp:   []float64{1, 4, 0.25}[i%3]}
			out = append(out, c.stuCheck(i%2 == 1, func(r random) []plan {
				start := int32(r.IntN(60))
				if p.Context > 0 {
					start = 0
				}
				return r.mixed(&c.shape, start)
			}))
		}
	}
	// Long enough for every kernel's inner loops and for what a window skips.
	for i, p := range []compute.Pointwise{{Scale: 1.0 / 64}, {Scale: 1.0 / 64, Window: 170},
		{Scale: 1.0 / 64, Context: 4, Window: 300}} {
		g := geometry{96, 2, 2, []int{64, 128, 64}[i], 1}
		c := config{seed: uint64(6000 + i), shape: g.stuShape(1, compute.BF16, p), dt: compute.BF16, src: compute.F32,
			sharp: 1}
		out = append(out, c.stuCheck(i == 0, func(r random) []plan {
			return []plan{r.causal(0, 520), r.pointwise(0, 330, []int{1, 1, 1}, 1), r.itemFirst(0, 0, 200, []int{1, 1, 1}, 1)}
		}))
	}
	// More values of all heads than a block of a GPU has shared memory for.
	for i, g := range []geometry{{16, 100, 100, 128, 1}, {24, 200, 200, 64, 1}} {
		c := config{seed: uint64(6010 + i), shape: g.stuShape(1, compute.BF16, compute.Pointwise{Scale: 1}), dt: compute.BF16,
			src: compute.F32, sharp: 1, perHead: i == 1}
		out = append(out, c.stuCheck(false, func(r random) []plan {
			return []plan{r.causal(0, 5), r.pointwise(0, 3, []int{1, 1}, 1)}
		}))
	}
	return out
}

func (c config) stuCheck(keep bool, draw func(r random) []plan) check {
	s := &c.shape
	name := fmt.Sprintf("stu/seed%d/%d×%d,%d×%d,%v→%v,kv_%v,%+v", c.seed, s.Layers, s.Hidden, s.Heads, s.HeadDim,
		c.src, c.dt, s.KV, *s.Pointwise)
	return check{name, func(d compute.Device) error {
		r := newRandom(c.seed)
		plans := uncontext(s, draw(r))
		do := steps{qkv: true, attend: true}
		if keep {
			do.keep = r.someRows(rows(plans))
		}
		x := within(varSTU(s.Layers, c.dt, s.KV))
		kv := limitKV(c)
		if s.Layers > 1 {
			kv = limit{x.rms, x.max, kv.step}
		}
		if err := agree(d, c, do, limits{x, x, x, kv}, plans...); err != nil {
			return fmt.Errorf("layers of HSTU: %w", err)
		}
		return nil
	}}
}

// uncontext takes the cached tokens from segments that begin with context rows.
func uncontext(s *compute.Shape, plans []plan) []plan {
	for _, p := range plans {
		for i := range p {
			if int(p[i].start) < s.Pointwise.Context {
				p[i].cached, p[i].kv = 0, nil
			}
		}
	}
	return plans
}

// stuBitChecks hold HSTU to the same bits, like decoders.
func stuBitChecks() []check {
	var out []check
	for i, g := range []geometry{{64, 4, 2, 16, 1}, {75, 3, 3, 64, 1}, {40, 2, 1, 80, 1}} {
		for j, f := range formats {
			if (i+j)%2 == 1 {
				continue
			}
			c := config{seed: uint64(7000 + 10*i + j), shape: g.stuShape(2, f.kv, pointwises[(i+j)%3]), dt: f.dt,
				src: compute.F32, sharp: 2, perHead: i == 1}
			name := fmt.Sprintf("stu same bits/seed%d/%d,%d×%d,%v,kv_%v", c.seed, g.hidden, g.heads, g.headDim, f.dt, f.kv)
			out = append(out, check{name, func(d compute.Device) error { return sameBits(d, c) }})
		}
	}
	return out
}

// stuMisuse: operations that do not fit are errors of the results.
func stuMisuse(d compute.Device) error {
	c := config{seed: 6, shape: geometries[3].stuShape(1, compute.BF16, pointwises[0]), dt: compute.BF16, sharp: 1}
	m := newModel(c)
	w, err := m.pack(d)
	if err != nil {
		return err
	}
	open, err := d.Open(m.shape, benchMaxRows)
	if err != nil {
		return err
	}
	defer open.Close()
	r, ok := open.(compute.STU)
	if !ok {
		return fmt.Errorf("a runner of a pointwise shape is %T, no compute.STU", open)
	}
	good := w.stu[0]
	badUVQK, badOut, badNorm := good, good, good
	badUVQK.UVQK, badOut.Out, badNorm.OutNorm = good.Out, good.UVQK, good.UVQKBias
	far := []compute.SumPart{{Table: w.embed, Rows: make([]int32, 9), Scale: 1}}
	far[0].Rows[4] = vocabulary
	out := make([]float32, m.shape.Hidden)
	for name, op := range map[string]func(b *batch){
		"sum: a row beyond the table": func(*batch) { r.Sum(far) },
		"sum: fewer rows than the batch": func(*batch) {
			r.Sum([]compute.SumPart{{Table: w.embed, Rows: make([]int32, 3), Scale: 1}})
		},
		"uvqk: a matrix of another size": func(*batch) { r.UVQK(0, &badUVQK) },
		"uvqk: a layer beyond the model": func(*batch) { r.UVQK(1, &good) },
		"mix: a matrix of another size":  func(*batch) { r.UVQK(0, &good); r.Attend(0); r.Mix(&badOut) },
		"mix: a norm of another size":    func(*batch) { r.UVQK(0, &good); r.Attend(0); r.Mix(&badNorm) },
		"qkv: an operation of decoders":  func(*batch) { r.QKV(0, &compute.AttentionWeights{QKV: good.UVQK}) },
		"keep: a row beyond the batch":   func(*batch) { r.Keep([]int32{3, 9}) },
	} {
		b := newBatch(d.Memory(), &m.shape, newRandom(5).causal(0, 9))
		if err := b.begin(r); err != nil {
			return fmt.Errorf("%s: begin: %w", name, err)
		}
		m.stuOperations(r, w, b, steps{qkv: true, attend: true})
		op(b)
		if r.Hidden(nil, []int32{2}, out) == nil {
			return fmt.Errorf("%s: no error from Hidden", name)
		}
	}
	if _, err := m.pass(r, w, newBatch(d.Memory(), &m.shape, newRandom(5).causal(0, 9)),
		steps{qkv: true, attend: true}); err != nil {
		return fmt.Errorf("a good batch after failures: %w", err)
	}
	return nil
}

// multiplies: rows of the host's memory times a matrix.
func multiplies(d compute.Device) error {
	if s, ok := d.(*scope); ok {
		d = s.Device // which has what is optional
	}
	mul, ok := d.(compute.Multiplier)
	if !ok {
		return nil // an optional part of the contract
	}
	if err := multipliesMany(d, mul); err != nil {
		return err
	}
	for i, dt := range []compute.DType{compute.F32, compute.BF16, compute.F32} {
		r := newRandom(uint64(i))
		w := r.tensor(compute.F32, []int{30, 64, 1}[i], 70, 0, 1/sqrt(70))
		l, err := d.Linear(dt, w)
		if err != nil {
			return err
		}
		n := []int{1, 17, 33}[i]
		in, got, alone := make([]float32, n*70), make([]float32, n*w.Rows), make([]float32, w.Rows)
		for j := range in {
			in[j] = float32(r.NormFloat64())
		}
		if err := mul.Multiply(l, in, got); err != nil {
			return err
		}
		want := make([]float32, len(got))
		for j := range want {
			sum := 0.0
			for k := range 70 {
				sum += float64(in[j/w.Rows*70+k]) * float64(value(compute.F32, w.Data[(j%w.Rows)*70*4:], k))
			}
			want[j] = float32(sum)
		}
		limit := within(2 * variance(dt))
		if err := limit.compare(got, want, w.Rows, func(i int) string {
			return fmt.Sprintf("multiply in %v: row %d", dt, i)
		}); err != nil {
			return err
		}
		if err := mul.Multiply(l, in[(n-1)*70:], alone); err != nil {
			return err
		}
		if err := exact.compare(alone, got[(n-1)*w.Rows:], w.Rows,
			func(int) string { return "multiply: the last row alone" }); err != nil {
			return err
		}
		if mul.Multiply(l, in[1:], got) == nil || mul.Multiply(l, in, got[1:]) == nil {
			return fmt.Errorf("multiply: sizes that do not fit are no error")
		}
	}
	return nil
}

// multipliesMany: more rows than a grid of a GPU has along an axis, even by fours.
func multipliesMany(d compute.Device, mul compute.Multiplier) error {
	const rows = 4*65535 + 77
	l, err := d.Linear(compute.F32, compute.Tensor{DType: compute.F32, Rows: 1, Cols: 2,
		Data: appendValue(appendValue(nil, compute.F32, 1), compute.F32, 2)})
	if err != nil {
		return err
	}
	in, out := make([]float32, 2*rows), make([]float32, rows)
	for i := range rows {
		in[2*i], in[2*i+1], out[i] = float32(i%1000), float32(i/1000), -1
	}
	if err := mul.Multiply(l, in, out); err != nil {
		return fmt.Errorf("multiply %d rows: %w", rows, err)
	}
	for i, v := range out {
		if want := float32(i%1000) + 2*float32(i/1000); v != want {
			return fmt.Errorf("multiply %d rows: row %d is %v, want %v", rows, i, v, want)
		}
	}
	return nil
}

func sqrt(n int) float64 { return math.Sqrt(float64(n)) }

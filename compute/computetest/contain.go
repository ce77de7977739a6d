package computetest

import (
	"fmt"
	"math"
	"slices"

	"grebe/compute"
)

// spoiled is the token whose embedding is no number in containChecks.
const spoiled = vocabulary - 1

// containChecks: what is no number in one plan reaches the rows that see it, and no other plan.
func containChecks() []check {
	var out []check
	for i, f := range append(formats[:len(formats):len(formats)],
		struct{ dt, kv compute.DType }{compute.BF16, compute.FP8}) {
		g := geometries[[]int{0, 3}[i%2]]
		c := config{seed: uint64(6000 + i), shape: g.shape(2, f.kv), dt: f.dt, src: compute.F32, sharp: 1}
		name := fmt.Sprintf("contained/seed%d/%d×%d,%v,kv_%v", c.seed, g.heads, g.headDim, f.dt, f.kv)
		out = append(out, check{name, func(d compute.Device) error { return contained(d, c) }})
	}
	return append(out, insideChecks()...)
}

// insideChecks: what is no number in one token reaches the rows of its plan that see it, and neither rows before it nor
// siblings.
func insideChecks() []check {
	var out []check
	for i, f := range append(formats[:len(formats):len(formats)],
		struct{ dt, kv compute.DType }{compute.BF16, compute.FP8}) {
		for j, dim := range []int{64, 128, 24} {
			if j > 0 && f.dt != f.kv || j > 0 && f.kv == compute.F32 {
				continue // ref is slow
			}
			c := config{seed: uint64(6100 + 10*i + j), shape: shape(2-j%2, 64, 4, 2, dim, 48, f.kv), dt: f.dt, src: compute.F32,
				sharp: 1}
			name := fmt.Sprintf("contained/inside/seed%d/%d,%v,kv_%v", c.seed, dim, f.dt, f.kv)
			out = append(out, check{name, func(d compute.Device) error { return containedInside(d, newModel(c).spoilToken()) }})
			if f.kv == compute.FP8 { // in which what is too large is the largest number
				continue
			}
			values := c
			values.seed, values.bare, values.shape.Layers = c.seed+1000, true, 1
			name = fmt.Sprintf("contained/values/seed%d/%d,%v,kv_%v", values.seed, dim, f.dt, f.kv)
			out = append(out, check{name, func(d compute.Device) error {
				return containedInside(d, newModel(values).spoilValue())
			}})
		}
	}
	return out
}

// stuContainChecks are insideChecks for layers of HSTU.
func stuContainChecks() []check {
	var out []check
	for i, f := range formats {
		for j, p := range []compute.Pointwise{{Scale: 1}, {Scale: 1.0 / 4, Window: 40}} {
			if i%2 != j {
				continue // the formats take turns
			}
			g := geometry{96, 4, 4, []int{64, 24}[j], 1}
			c := config{seed: uint64(6200 + 10*i + j), shape: g.stuShape(2, f.kv, p), dt: f.dt, src: compute.F32, sharp: 1}
			name := fmt.Sprintf("stu contained/seed%d/%d,%v,kv_%v", c.seed, g.headDim, f.dt, f.kv)
			out = append(out, check{name, func(d compute.Device) error { return containedInside(d, newModel(c).spoilToken()) }})
		}
	}
	return out
}

// spoilToken makes the embedding of one token no number.
func (m *model) spoilToken() *model {
	row := m.embed.Data[spoiled*m.shape.Hidden*4:]
	copy(row, slices.Concat(appendValue(nil, compute.F32, math.NaN()), appendValue(nil, compute.F32, math.Inf(1))))
	return m
}

// spoilValue makes the values of one token infinite in all heads, and leaves its keys numbers: the first dimension of x
// is 0 for the others, and only values take it in.
func (m *model) spoilValue() *model {
	h := m.shape.Hidden
	put := func(t *compute.Tensor, row int, v float64) {
		copy(t.Data[row*h*4:], appendValue(nil, compute.F32, v))
	}
	for token := range vocabulary {
		put(&m.embed, token, 0)
	}
	put(&m.embed, spoiled, 1e20)
	l := &m.layers[0]
	for row := range l.q.Rows {
		put(&l.q, row, 0)
	}
	for row := range l.k.Rows {
		put(&l.k, row, 0)
		put(&l.v, row, 1e30)
	}
	return m
}

// containedInside compares with ref, which multiplies only what a row sees.
func containedInside(d compute.Device, m *model) error {
	r := newRandom(m.seed)
	beams := make([]int, 16)
	for i := range beams {
		beams[i] = 1
	}
	plans := []plan{r.causal(0, 26), r.userFirst(0, 5, []int{3, 9, 4, 1}, 2), r.pointwise(0, 4, []int{4, 5}, 2),
		r.userFirst(0, 9, beams, 1), r.causal(0, 9)}
	for _, p := range plans {
		for i := range p {
			for j := range p[i].tokens {
				p[i].tokens[j] %= spoiled
			}
		}
	}
	plans[0][0].tokens[17], plans[1][2].tokens[3], plans[2][1].tokens[0], plans[3][11].tokens[0] = spoiled, spoiled,
		spoiled, spoiled
	do := wholeLayers
	l := within(varLayers(m.shape.Layers, m.dt, m.shape.KV, 1.5))
	if m.shape.Pointwise != nil {
		do, l = steps{qkv: true, attend: true}, within(varSTU(m.shape.Layers, m.dt, m.shape.KV))
	}
	want, w, err := m.onRef(do, plans)
	if err != nil {
		return err
	}
	_, g, err := m.on(d, do, plans)
	if err != nil {
		return err
	}
	n, bad := m.shape.Hidden, 0
	var x, y []float32
	var names []string
	for row := range want.Tokens {
		got, ref := g.x[row*n:][:n], w.x[row*n:][:n]
		if !finite(ref) {
			if bad++; finite(got) {
				return fmt.Errorf("%v: %s sees what is no number, and is one", m.config, want.row(row))
			}
			continue
		}
		x, y, names = append(x, got...), append(y, ref...), append(names, want.row(row))
	}
	if bad == 0 || len(names) == 0 {
		return fmt.Errorf("%v: %d rows see what is no number and %d do not: nothing is shown", m.config, bad, len(names))
	}
	if err := l.compare(x, y, n, func(i int) string { return names[i] }); err != nil {
		return fmt.Errorf("%v: rows that do not see what is no number: %w", m.config, err)
	}
	return nil
}

// finite reports whether all values are numbers.
func finite(values []float32) bool {
	for _, v := range values {
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return false
		}
	}
	return true
}

func contained(d compute.Device, c config) error {
	m := newModel(c).spoilToken()
	r := newRandom(c.seed)
	good := []plan{r.causal(0, 10), r.userFirst(0, 5, []int{3, 9}, 2), r.causal(0, 30), r.causal(0, 70)}
	bad := r.causal(0, 12)
	for _, p := range append(slices.Clone(good), bad) {
		for i := range p {
			for j := range p[i].tokens {
				p[i].tokens[j] %= spoiled
			}
		}
	}
	bad[0].tokens[5] = spoiled
	want, w, err := m.onRef(wholeLayers, good)
	if err != nil {
		return err
	}
	for at := range len(good) + 1 {
		plans := slices.Insert(slices.Clone(good), at, bad)
		got, g, err := m.on(d, wholeLayers, plans)
		if err != nil {
			return err
		}
		n, x := c.shape.Hidden, []float32{}
		for i := range got.Segments {
			s := &got.Segments[i]
			rows := g.x[s.First*n : (s.First+s.Rows())*n]
			if got.from[i].plan != at {
				x = append(x, rows...)
				continue
			}
			for t := 5; t < s.Len; t++ {
				if v := rows[t*n]; !math.IsNaN(float64(v)) && !math.IsInf(float64(v), 0) {
					return fmt.Errorf("token %d sees one that is no number, and became %v", t, v)
				}
			}
		}
		l := within(varLayers(2, c.dt, c.shape.KV, 1.5))
		if err := l.compare(x, w.x, n, func(i int) string { return want.row(i) }); err != nil {
			return fmt.Errorf("%v: beside plan %d with a token that is no number: %w", c, at, err)
		}
	}
	return nil
}

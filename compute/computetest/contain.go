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
	for i, f := range append(formats[:len(formats):len(formats)], struct{ dt, kv compute.DType }{compute.BF16, compute.FP8}) {
		g := geometries[[]int{0, 3}[i%2]]
		c := config{seed: uint64(6000 + i), shape: g.shape(2, f.kv), dt: f.dt, src: compute.F32, sharp: 1}
		name := fmt.Sprintf("contained/seed%d/%d×%d,%v,kv_%v", c.seed, g.heads, g.headDim, f.dt, f.kv)
		out = append(out, check{name, func(d compute.Device) error { return contained(d, c) }})
	}
	return out
}

func contained(d compute.Device, c config) error {
	m := newModel(c)
	row := m.embed.Data[spoiled*c.shape.Hidden*4:]
	copy(row, slices.Concat(appendValue(nil, compute.F32, math.NaN()), appendValue(nil, compute.F32, math.Inf(1))))
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

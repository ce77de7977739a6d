package computetest

import (
	"errors"
	"fmt"
	"slices"

	"grebe/compute"
)

// twiceChecks have rows see a segment several times: as if there were as many segments with equal KV.
func twiceChecks(opts Options) []check {
	var out []check
	add := func(c config, l limits) {
		s := &c.shape
		name := fmt.Sprintf("seen twice/seed%d/%d×%d×%d,%v,kv_%v,stu_%v", c.seed, s.Heads, s.KVHeads, s.HeadDim, c.dt, s.KV,
			s.Pointwise != nil)
		out = append(out, check{name, func(d compute.Device) error { return seenTwice(d, c, l, opts.SameBits) }})
	}
	for i, f := range formats {
		for j, g := range []geometry{geometries[0], {64, 4, 2, 64, 96}} {
			c := config{seed: uint64(8000 + 10*i + j), shape: g.shape(2, f.kv), dt: f.dt, src: compute.F32, headed: i == 1,
				sharp: 1}
			x := within(varLayers(2, c.dt, f.kv, 1.5))
			add(c, limits{x: x})
		}
		if !opts.STU {
			continue
		}
		for j, p := range pointwises[:3] {
			c := config{seed: uint64(8005 + 10*i + j), shape: geometries[3].stuShape(2, f.kv, p), dt: f.dt, src: compute.F32,
				sharp: 1}
			add(c, limits{x: within(varSTU(2, c.dt, f.kv))})
		}
	}
	return out
}

// seenTwice compares a plan with repeated items, on ref, with the same plan in which each is computed once.
func seenTwice(d compute.Device, c config, l limits, sameBits bool) error {
	m, r := newModel(c), newRandom(c.seed)
	p := r.itemFirst(0, 3, 70, []int{9, 70, 9, 9, 70, 1, 12}, 4)
	for to, from := range map[int]int{3: 1, 4: 1, 5: 2} {
		p[to].tokens = p[from].tokens
	}
	once := slices.Clone(p)
	for _, i := range []int{3, 4, 5} {
		once[i].tokens = nil
	}
	for i := range once {
		once[i].sees = slices.Clone(p[i].sees)
		for k, j := range once[i].sees {
			once[i].sees[k] = []int{0, 1, 2, 1, 1, 2, 6, 7, 8, 9}[j]
		}
	}
	got, g, err := m.on(d, wholeLayers, []plan{once})
	if err != nil {
		return err
	}
	want, w, err := m.onRef(wholeLayers, []plan{p})
	if err == nil {
		err = m.compareCommon(got, want, g, w, l.x)
	}
	if err != nil || !sameBits {
		return err
	}
	want, w, err = m.on(d, wholeLayers, []plan{p})
	return errors.Join(err, m.compareCommon(got, want, g, w, limit{}))
}

// compareCommon compares the hidden states of the segments that got has.
func (m *model) compareCommon(got, want *batch, g, w *result, l limit) error {
	n := m.shape.Hidden
	var a, b []float32
	var names []string
	for i := range got.Segments {
		have, should := &got.Segments[i], &want.Segments[i]
		for t := range have.Rows() {
			a = append(a, g.x[(have.First+t)*n:][:n]...)
			b = append(b, w.x[(should.First+t)*n:][:n]...)
			names = append(names, got.row(have.First+t))
		}
	}
	if k := differ(a, b); l == (limit{}) && k >= 0 {
		return fmt.Errorf("%s: value %d is %v, and %v when what it sees is computed twice", names[k/n], k%n, a[k], b[k])
	}
	if l == (limit{}) {
		return nil
	}
	return l.compare(a, b, n, func(i int) string { return names[i] })
}

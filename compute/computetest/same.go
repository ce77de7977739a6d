package computetest

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"grebe/compute"
)

// SameBlends runs blended passes on two devices, which have what stands in at different places, and fails where a
// result differs in a bit.
func SameBlends(t *testing.T, a, b compute.Device) {
	for i, g := range []geometry{{64, 4, 2, 64, 48}, {48, 4, 1, 128, 32}, {32, 6, 3, 80, 48}, {64, 8, 8, 64, 32}} {
		c := config{seed: uint64(7300 + i), shape: g.shape([]int{20, 4, 10, 3}[i], compute.BF16), dt: compute.BF16,
			src: compute.F32, headed: true, sharp: 1}
		for _, near := range []bool{false, true} {
			t.Run(fmt.Sprintf("seed%d/%v", c.seed, map[bool]string{false: "apart", true: "near"}[near]), func(t *testing.T) {
				if err := sameBlend(a, b, c, near); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

func sameBlend(a, b compute.Device, c config, near bool) error {
	r, m := newRandom(c.seed), newModel(c)
	natural := r.natural(0, 70, 60, 190, 9)
	natural[0].cached, natural[0].kv = 70, r.kv(&c.shape, 70)
	natural[1].cached, natural[1].kv = 33, r.kv(&c.shape, 60)
	natural[2].chunks = chain(190, 64)
	x := r.blend(&c.shape, r.IntN(c.shape.Layers-1), natural, r.causal(5, 70))
	x.last = nil
	if near {
		x.bring()
	}
	if len(x.rows)%2 > 0 { // see run: the first layers are started
		x.dropOne()
	}
	var first *blended
	for i, d := range []compute.Device{a, b} {
		s := newScope(d)
		defer s.memory.free()
		all, err := m.blendAgain(s, x, 4)
		if err != nil {
			return err
		}
		if first == nil {
			first = all[0]
		}
		for n, got := range all {
			if k := differ(first.x, got.x); k >= 0 {
				return fmt.Errorf("row %d, value %d: %v, and %v on device %d, run %d", x.rows[k/c.shape.Hidden], k%c.shape.Hidden,
					first.x[k], got.x[k], i, n)
			}
			if k := differ(first.received, got.received); k >= 0 {
				return fmt.Errorf("row %d received %v, and %v on device %d, run %d", k, first.received[k], got.received[k], i, n)
			}
		}
	}
	if slices.ContainsFunc(first.x, func(v float32) bool { return v != v }) {
		return errors.New("results are no numbers")
	}
	return nil
}

// blendAgain is blendOn some times with one runner, which may prepare what it sees again.
func (m *model) blendAgain(d compute.Device, x *blend, times int) (out []*blended, err error) {
	w, err := m.pack(d)
	if err != nil {
		return nil, err
	}
	r, err := d.Open(m.shape, rows(x.plans))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	for range times {
		got, err := m.blendWith(d.Memory(), r, w, x)
		if err != nil {
			return nil, err
		}
		out = append(out, got)
	}
	return out, nil
}

// dropOne drops a row, if something stands in for one.
func (x *blend) dropOne() {
	first, segment := 0, 0
	stands := map[int32]bool{}
	for _, p := range x.plans {
		for i := range p {
			for _, part := range x.parts {
				for t := range part.tokens {
					if part.segment == segment {
						stands[int32(first+part.at+t-p[i].cached)] = true
					}
				}
			}
			first += len(p[i].tokens) - p[i].cached
			segment++
		}
	}
	if at := slices.IndexFunc(x.rows, func(row int32) bool { return stands[row] }); at >= 0 {
		x.rows = slices.Delete(x.rows, at, at+1)
	}
}

package computetest

import (
	"bytes"
	"fmt"
	"math"
	"slices"

	"grebe/compute"
)

// bitChecks hold a device to giving a plan the same bits however it is run.
func bitChecks() []check {
	var out []check
	for i, g := range []geometry{{64, 4, 2, 16, 96}, {75, 7, 7, 16, 50}, {40, 3, 1, 80, 33}} {
		for j, f := range formats {
			c := config{seed: uint64(3000 + 10*i + j), shape: g.shape(2, f.kv), dt: f.dt, src: compute.F32, headed: i == 1,
				sharp: 2}
			name := fmt.Sprintf("same bits/seed%d/%d,%d×%d×%d,%d,%v,kv_%v", c.seed, g.hidden, g.heads, g.kvHeads, g.headDim,
				g.inter, f.dt, f.kv)
			out = append(out, check{name, func(d compute.Device) error { return sameBits(d, c) }})
		}
	}
	return out
}

// bitsMaxRows is room for any of the batches below.
const bitsMaxRows = 1200

// solo is what a plan gives when it is run alone, with nothing cached.
type solo struct {
	plan  plan
	batch *batch
	out   *result
	kv    [][]byte // per segment
}

// at returns the row of a segment's token.
func (s *solo) at(segment, token int) int { return s.batch.Segments[segment].First + token }

func sameBits(d compute.Device, c config) error {
	m := newModel(c)
	w, err := m.pack(d)
	if err != nil {
		return err
	}
	r := newRandom(c.seed)
	plans := []plan{
		r.userFirst(0, 70, []int{10, 3, 1, 12}, 5),
		r.itemFirst(0, 3, 66, []int{9, 64, 1}, 4),
		r.pointwise(7, 20, []int{5, 17}, 2),
		r.userFirst(0, 0, []int{6, 2}, 1),
		r.causal(3, 100),
		r.causal(0, 1),
	}
	var solos []*solo
	for i, p := range plans {
		s, err := m.solo(d, w, p)
		if err != nil {
			return fmt.Errorf("%v: plan %d alone: %w", c, i, err)
		}
		solos = append(solos, s)
	}
	runner, err := d.Open(m.shape, bitsMaxRows)
	if err != nil {
		return err
	}
	defer runner.Close()
	for i, t := range r.trials(solos) {
		if err := m.repeat(d, runner, w, t); err != nil {
			return fmt.Errorf("%v: trial %d, %s: differs from the plan run alone and uncached: %w", c, i, t.name, err)
		}
	}
	return m.concurrent(d, w, solos)
}

// solo uses a fresh runner that has room for nothing else.
func (m *model) solo(d compute.Device, w *packed, p plan) (*solo, error) {
	s := &solo{plan: p, batch: newBatch(d.Memory(), &m.shape, p)}
	r, err := d.Open(m.shape, rows([]plan{p}))
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if s.out, err = m.pass(r, w, s.batch, wholeLayers); err != nil {
		return nil, err
	}
	for i := range s.batch.Segments {
		s.kv = append(s.kv, s.batch.whole(i))
	}
	return s, nil
}

// A trial runs some plans together, in some way.
type trial struct {
	name  string
	solos []*solo
	plans []plan
	keep  bool
	seed  uint64
}

// trials run on one runner, one after the other, so that all but the first find a dirty one.
func (r random) trials(solos []*solo) []trial {
	var out []trial
	for _, s := range solos {
		out = append(out, trial{name: "again", solos: []*solo{s}, plans: []plan{s.plan}})
		out = append(out, trial{name: "all but the last token cached", solos: []*solo{s}, plans: []plan{s.lastToken()}})
	}
	together := trial{name: "all in one batch", solos: solos}
	for _, s := range solos {
		together.plans = append(together.plans, s.plan)
	}
	out = append(out, together)
	for i := range 8 {
		t := trial{name: "a random batch", keep: i%2 == 1, seed: uint64(i)}
		for range 1 + r.IntN(4) {
			s := solos[r.IntN(len(solos))]
			t.solos = append(t.solos, s)
			p := r.scatter(s.plan, func(segment int) []byte { return s.kv[segment] })
			if s.batch.shape.KV == compute.FP8 {
				p.uncut() // a chunk's scale depends on where it begins
			}
			t.plans = append(t.plans, p)
		}
		out = append(out, t)
	}
	return out
}

// lastToken returns the plan with only its last token left to compute.
func (s *solo) lastToken() plan {
	p := slices.Clone(s.plan)
	for i := range p {
		if len(p[i].tokens) > 0 {
			p[i].cached, p[i].kv = len(p[i].tokens), s.kv[i]
		}
	}
	p[len(p)-1].cached--
	return p
}

// repeat runs a trial and compares bits.
func (m *model) repeat(d compute.Device, r compute.Runner, w *packed, t trial) error {
	b := newBatch(d.Memory(), &m.shape, t.plans...)
	if len(b.Tokens) > bitsMaxRows {
		return fmt.Errorf("the suite's batch of %d rows is too large", len(b.Tokens))
	}
	do := wholeLayers
	if t.keep && len(b.Tokens) > 0 {
		do.keep = newRandom(t.seed).someRows(len(b.Tokens))
	}
	out, err := m.pass(r, w, b, do)
	if err != nil {
		return err
	}
	for i := range b.Segments {
		from := b.from[i]
		if !b.transient(i) && !bytes.Equal(b.whole(i), t.solos[from.plan].kv[from.segment]) {
			return fmt.Errorf("the K and V of %s (%d of %d tokens cached)", b.name(i), b.Segments[i].Cached, b.Segments[i].Len)
		}
	}
	for i, row := range out.rows {
		if err := m.sameRow(b, out, i, int(row), t.solos); err != nil {
			return err
		}
	}
	return b.untouchedElsewhere()
}

func (m *model) sameRow(b *batch, out *result, i, row int, solos []*solo) error {
	n := m.shape.Hidden
	for j := range b.Segments {
		g := &b.Segments[j]
		if row < g.First || row >= g.First+g.Rows() {
			continue
		}
		alone := solos[b.from[j].plan]
		at := alone.at(b.from[j].segment, g.Cached+row-g.First)
		if k := differ(out.x[i*n:(i+1)*n], alone.out.x[at*n:(at+1)*n]); k >= 0 {
			return fmt.Errorf("hidden state of %s, value %d: got %v, want %v", b.row(row), k, out.x[i*n+k], alone.out.x[at*n+k])
		}
		if k := differ(out.normed[i*n:(i+1)*n], alone.out.normed[at*n:(at+1)*n]); k >= 0 {
			return fmt.Errorf("normed hidden state of %s, value %d: got %v, want %v", b.row(row), k, out.normed[i*n+k],
				alone.out.normed[at*n+k])
		}
		if i%out.stride() != 0 || at%alone.out.stride() != 0 {
			return nil // one of the two has no logits
		}
		got, want := out.logits[i/out.stride()*vocabulary:][:vocabulary],
			alone.out.logits[at/alone.out.stride()*vocabulary:][:vocabulary]
		if k := differ(got, want); k >= 0 {
			return fmt.Errorf("logit %d of %s: got %v, want %v", k, b.row(row), got[k], want[k])
		}
	}
	return nil
}

// differ returns the first index at which the bits differ, or −1.
func differ(a, b []float32) int {
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return i
		}
	}
	return -1
}

// concurrent uses two runners of the device at the same time.
func (m *model) concurrent(d compute.Device, w *packed, solos []*solo) error {
	errs := make(chan error)
	for _, s := range solos[:2] {
		go func() {
			r, err := d.Open(m.shape, bitsMaxRows)
			if err != nil {
				errs <- err
				return
			}
			defer r.Close()
			for range 3 {
				if err = m.repeat(d, r, w, trial{solos: []*solo{s}, plans: []plan{s.plan}}); err != nil {
					break
				}
			}
			errs <- err
		}()
	}
	err1, err2 := <-errs, <-errs
	for _, err := range []error{err1, err2} {
		if err != nil {
			return fmt.Errorf("%v: two runners at the same time: %w", m.config, err)
		}
	}
	return nil
}

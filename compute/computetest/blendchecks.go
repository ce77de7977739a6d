package computetest

import (
	"errors"
	"fmt"
	"slices"

	"grebe/compute"
)

// blendChecks hold a runner that is a compute.Blender to what that says.
func blendChecks(opts Options) []check {
	var out []check
	agree := func(run func(d compute.Device, c config, opts Options) error) func(d compute.Device, c config) error {
		return func(d compute.Device, c config) error { return run(d, c, opts) }
	}
	add := func(name string, c config, run func(d compute.Device, c config) error) {
		s := &c.shape
		name = fmt.Sprintf("blend/%s/seed%d/%d×%d,%d×%d×%d,%d,%v→%v,kv_%v", name, c.seed, s.Layers, s.Hidden, s.Heads,
			s.KVHeads, s.HeadDim, s.Inter, c.src, c.dt, s.KV)
		out = append(out, check{name, func(d compute.Device) error {
			if err := run(d, c); err != nil {
				return fmt.Errorf("%s: %v: %w", name, c, err)
			}
			return nil
		}})
	}
	for i := range 2 * len(geometries) {
		f := formats[(i+i/len(geometries))%len(formats)]
		g := geometries[i%len(geometries)]
		g.inter = max(g.inter, minInter)
		c := config{seed: uint64(7000 + i), shape: g.shape(2+i%3, f.kv), dt: f.dt, src: sources[i%3], bare: i%4 == 3,
			headed: i%2 == 0, sharp: 1}
		if i < len(geometries) || i%3 == 0 {
			add("pass", c, agree(blendPass))
		}
		switch {
		case i%3 == 0:
			add("all rows", c, func(d compute.Device, c config) error { return blendAll(d, c, opts.SameBits) })
		case i%3 == 1:
			add("turn", c, blendTurn)
		case opts.SameBits:
			add("same bits", c, blendBits)
			add("in place", c, blendInPlace)
		}
	}
	for i, f := range formats[:3] {
		g := []geometry{{64, 4, 2, 64, 48}, {48, 4, 1, 128, 32}}[i%2]
		c := config{seed: uint64(7100 + i), shape: g.shape(3, f.kv), dt: f.dt, src: compute.F32, headed: true, sharp: 1}
		add("long", c, agree(blendLong))
		add("watch", c, blendWatch)
		if opts.NoAlloc && f.dt == f.kv {
			add("no allocation", config{seed: c.seed, shape: geometries[3].shape(3, f.kv), dt: f.dt, sharp: 1}, blendAllocates)
		}
	}
	c := config{seed: 7200, shape: geometries[3].shape(3, compute.BF16), dt: compute.BF16, sharp: 1}
	add("misuse", c, blendMisuse)
	add("nothing goes on", c, agree(blendNothing))
	return out
}

// blendPass: plans of every kind, cached prefixes that blended segments see, segments that nothing stands in for.
func blendPass(d compute.Device, c config, opts Options) error {
	r := newRandom(c.seed)
	plans := r.mixed(&c.shape, int32(r.IntN(3000)))
	natural := r.natural(int32(r.IntN(100)), 1+r.IntN(20), r.IntN(30), 40+r.IntN(60), 1+r.IntN(4))
	natural[0].cached, natural[0].kv = len(natural[0].tokens), r.kv(&c.shape, len(natural[0].tokens))
	natural[2].chunks = chain(len(natural[2].tokens), 1+r.IntN(64))
	plans = slices.Insert(plans, r.IntN(len(plans)+1), natural)
	x := r.blend(&c.shape, r.IntN(c.shape.Layers-1), plans...)
	if c.seed%3 == 0 {
		x.bring()
	}
	return newModel(c).agreeBlended(d, x, opts)
}

// blendLong is large enough for every kernel's inner tiles.
func blendLong(d compute.Device, c config, opts Options) error {
	r := newRandom(c.seed)
	natural := r.natural(0, 70, 60, 290, 9)
	natural[0].cached, natural[0].kv = 70, r.kv(&c.shape, 70)
	natural[2].chunks = chain(290, 64)
	x := r.blend(&c.shape, 0, natural, r.causal(5, 90))
	if c.seed%2 == 1 {
		x.bring()
	}
	return newModel(c).agreeBlended(d, x, opts)
}

// blendAll: when all rows go on, what stood in for them is gone.
func blendAll(d compute.Device, c config, sameBits bool) error {
	r, m := newRandom(c.seed), newModel(c)
	plans := append(r.mixed(&c.shape, 7), r.natural(0, 30, 150, 3))
	x := r.blend(&c.shape, r.IntN(c.shape.Layers-1), plans...)
	for x.rows = x.rows[:0]; len(x.rows) < rows(plans); {
		x.rows = append(x.rows, int32(len(x.rows)))
	}
	x.last = nil
	got, err := m.blendOn(d, x)
	if err != nil {
		return err
	}
	b, want, err := m.on(d, wholeLayers, plans)
	if err != nil {
		return err
	}
	l, kv := exact, exact
	if !sameBits {
		l = within(varLayers(c.shape.Layers, c.dt, c.shape.KV, 1.5))
		kv = l
		kv.step = limitKV(c).step
	}
	if err := compareKV(got.batch, b, kv); err != nil {
		return fmt.Errorf("against the plain pass: %w", err)
	}
	if sameBits {
		if k := differ(got.projected, want.projected); k >= 0 {
			return fmt.Errorf("against the plain pass: projected logit %d is %v, want %v", k, got.projected[k],
				want.projected[k])
		}
	}
	if err := m.compareResults(b, got.result, want, limits{x: l, normed: l, logits: l}); err != nil {
		return fmt.Errorf("against the plain pass: %w", err)
	}
	return got.batch.untouchedElsewhere()
}

// blendTurn: K at position p turned by d is K at p+d, whatever norms and scales there are; turned back by as
// much it is what it was, but for two roundings.
func blendTurn(d compute.Device, c config) error {
	const tokens = 37
	r, m := newRandom(c.seed), newModel(c)
	turn := 1 + r.IntN(150)
	p := r.causal(int32(r.IntN(100)), tokens)
	there := slices.Clone(p)
	there[0].start += int32(turn)
	s := &c.shape
	s.Layers, m.shape.Layers, m.layers = 1, 1, m.layers[:1]
	here, _, err1 := m.on(d, steps{qkv: true}, []plan{p})
	want, _, err2 := m.on(d, steps{qkv: true}, []plan{there})
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	turned, err := m.placed(d, here.whole(0), tokens, turn)
	if err != nil {
		return err
	}
	back, err := m.placed(d, turned, tokens, -turn)
	if err != nil {
		return err
	}
	same, err := m.placed(d, here.whole(0), tokens, 0)
	if err != nil {
		return err
	}
	// Angles are float32: of positions up to 250, within 250·2⁻²⁴ = 1.5e-5 of each other.
	l := limit{rms: 1e-4, max: 1e-4}
	if s.KV == compute.BF16 {
		l = within(3 * variance(compute.BF16))
	}
	if err := m.compareChunks(turned, want.whole(0), tokens, l); err != nil {
		return fmt.Errorf("turned by %d, and computed there: %w", turn, err)
	}
	l = limit{rms: 1e-6, max: 1e-6}
	if s.KV == compute.BF16 {
		l = limit{rms: 2 * noiseBF16, max: 4 * stepBF16}
	}
	if err := m.compareChunks(back, here.whole(0), tokens, l); err != nil {
		return fmt.Errorf("turned by %d and back: %w", turn, err)
	}
	if !slices.Equal(same, here.whole(0)) {
		return errors.New("turned by nothing: other bits")
	}
	return nil
}

// placed returns a chunk's KV after Place put it into a batch.
func (m *model) placed(d compute.Device, kv []byte, tokens, turn int) ([]byte, error) {
	x := &blend{plans: []plan{newRandom(1).causal(0, tokens)}, sources: []source{{tokens: tokens, kv: kv}},
		parts: []standIn{{tokens: tokens, turn: turn}}}
	w, err := m.pack(d)
	if err != nil {
		return nil, err
	}
	r, err := d.Open(m.shape, tokens)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if !blends(r) {
		return nil, errNoBlender
	}
	l, err := x.lay(d.Memory(), &m.shape)
	if err != nil {
		return nil, err
	}
	defer l.free()
	if err := l.batch.begin(r); err != nil {
		return nil, err
	}
	r.Embed(w.embed)
	r.(compute.Blender).Place(0, l.parts)
	if err := r.Hidden(nil, []int32{0}, make([]float32, m.shape.Hidden)); err != nil {
		return nil, err
	}
	if err := l.batch.fetch(); err != nil {
		return nil, err
	}
	return l.batch.whole(0), nil
}

// compareChunks compares K, and the bits of V.
func (m *model) compareChunks(got, want []byte, tokens int, l limit) error {
	s := &m.shape
	a, b := []compute.Chunk{{Bytes: got, Tokens: tokens}}, []compute.Chunk{{Bytes: want, Tokens: tokens}}
	for t := range tokens {
		for kv, limit := range []limit{l, exact} {
			if err := limit.compareRow(tokenKV(s, a, 0, kv, t), tokenKV(s, b, 0, kv, t), 0); err != nil {
				return fmt.Errorf("token %d, %s: %w", t, []string{"K", "V"}[kv], err)
			}
		}
	}
	return nil
}

// blendBits: what a blended plan yields depends on the plan, on what stands in and on the rows that go on, not on
// what else is in the batch nor on how its chunks are cut.
func blendBits(d compute.Device, c config) error {
	r, m := newRandom(c.seed), newModel(c)
	s := &c.shape
	plain := r.natural(3, 20, 100, 2)
	alone := r.blend(s, 0, plain)
	alone.last = nil
	want, err := m.blendOn(d, alone)
	if err != nil {
		return err
	}
	other := r.mixed(s, 0)
	together := r.blend(s, 0, append(slices.Clone(other), plain, r.causal(9, 33))...)
	// What was drawn for the plan gives way to what it had alone.
	first, base, n := int32(rows(other)), 0, int32(rows(alone.plans))
	for _, p := range other {
		base += len(p)
	}
	together.last = nil
	together.plans[len(other)] = slices.Clone(plain)
	for i := range plain {
		together.plans[len(other)][i].chunks = chain(len(plain[i].tokens), 7+9*i)
	}
	together.parts = slices.DeleteFunc(together.parts,
		func(p standIn) bool { return p.segment >= base && p.segment < base+len(plain) })
	together.rows = slices.DeleteFunc(together.rows, func(row int32) bool { return row >= first && row < first+n })
	for _, p := range alone.parts {
		p.segment += base
		p.source += len(together.sources)
		together.parts = append(together.parts, p)
	}
	together.sources = append(together.sources, alone.sources...)
	for _, row := range alone.rows {
		together.rows = append(together.rows, first+row)
	}
	slices.Sort(together.rows)
	got, err := m.blendOn(d, together)
	if err != nil {
		return err
	}
	at, _ := slices.BinarySearch(together.rows, first)
	h := s.Hidden
	if k := differ(want.x, got.x[at*h:]); k >= 0 {
		return fmt.Errorf("row %d, value %d: %v alone, %v beside others", alone.rows[k/h], k%h, want.x[k], got.x[at*h+k])
	}
	if k := differ(want.received, got.received[first:]); k >= 0 {
		return fmt.Errorf("row %d received %v alone, %v beside others", k, want.received[k], got.received[int(first)+k])
	}
	for i := range plain {
		if !slices.Equal(want.batch.whole(i), got.batch.whole(base+i)) {
			return fmt.Errorf("the KV of segment %d is another beside others", i)
		}
	}
	return nil
}

// blendInPlace: for a block that was computed where it stands, with nothing before it, stands what it computes
// itself: dropping its rows changes no bit of those that see it.
func blendInPlace(d compute.Device, c config) error {
	r, m := newRandom(c.seed), newModel(c)
	block := 1 + r.IntN(150)
	p := r.natural(0, block, 3)
	alone, _, err := m.on(d, wholeLayers, []plan{p[:1]})
	if err != nil {
		return err
	}
	b, want, err := m.on(d, wholeLayers, []plan{p})
	if err != nil {
		return err
	}
	x := &blend{plans: []plan{p}, sources: []source{{tokens: block, kv: alone.whole(0)}},
		parts: []standIn{{tokens: block}},
		rows:  []int32{int32(block), int32(block + 1), int32(block + 2)}}
	got, err := m.blendOn(d, x)
	if err != nil {
		return err
	}
	if k := differ(got.x, want.x[block*c.shape.Hidden:]); k >= 0 {
		return fmt.Errorf("value %d is %v, %v in the plain pass", k, got.x[k], want.x[block*c.shape.Hidden+k])
	}
	for i := range p {
		if !slices.Equal(got.batch.whole(i), b.whole(i)) {
			return fmt.Errorf("the KV of segment %d is another than in the plain pass", i)
		}
	}
	return nil
}

// blendNothing: no row may be left to go on with.
func blendNothing(d compute.Device, c config, opts Options) error {
	r := newRandom(c.seed)
	x := &blend{plans: []plan{r.causal(0, 20)}, sources: []source{{tokens: 20, kv: r.kv(&c.shape, 20)}},
		parts: []standIn{{tokens: 20, turn: 3}}, rows: []int32{}, last: []int32{}}
	return newModel(c).agreeBlended(d, x, opts)
}

// blendMisuse: what does not fit is refused, and the next batch runs.
func blendMisuse(d compute.Device, c config) error {
	t, err := newBench(d)
	if err != nil {
		return err
	}
	defer t.r.Close()
	if !blends(t.r) {
		return errNoBlender
	}
	r, w := t.r.(compute.Blender), t.w
	source, err := d.Memory().Alloc(t.shape.ChunkBytes(5, false))
	if err != nil {
		return err
	}
	part := compute.Part{Segment: 1, At: 0, Tokens: 3, From: source.Chunk(5, false), First: 2, Turn: 4}
	changed := func(f func(p *compute.Part)) []compute.Part {
		p := part
		f(&p)
		return []compute.Part{p}
	}
	received := make([]float32, 18)
	layer := func() {
		r.QKV(0, &w.attention[0])
		r.Attend(0)
	}
	place := func(from int, f func(p *compute.Part)) func(b *batch) error {
		return func(*batch) error { layer(); r.Place(from, changed(f)); return nil }
	}
	for name, do := range map[string]func(b *batch) error{
		"a part of no segment":          place(1, func(p *compute.Part) { p.Segment = 4 }),
		"a part of a negative segment":  place(1, func(p *compute.Part) { p.Segment = -1 }),
		"a part beyond its segment":     place(1, func(p *compute.Part) { p.At = 1 }),
		"a part before its segment":     place(1, func(p *compute.Part) { p.At = -1 }),
		"a part beyond its source":      place(1, func(p *compute.Part) { p.First = 3 }),
		"a part of no tokens":           place(1, func(p *compute.Part) { p.Tokens = 0 }),
		"a part of a transient source":  place(1, func(p *compute.Part) { p.From.Transient = true }),
		"a part of a source cut short":  place(1, func(p *compute.Part) { cut(&p.From) }),
		"a part of nothing":             place(1, func(p *compute.Part) { p.From = compute.Chunk{Tokens: 5} }),
		"parts of layers beyond":        place(3, func(p *compute.Part) {}),
		"parts of a negative layer":     place(-1, func(p *compute.Part) {}),
		"received before any attention": func(*batch) error { return r.Received(received) },
		"received of too few rows":      func(*batch) error { layer(); return r.Received(received[1:]) },
		"received after keep": func(*batch) error {
			layer()
			r.Keep([]int32{1, 2})
			return r.Received(received[:2])
		},
		"received after output": func(*batch) error {
			layer()
			r.Output(&w.attention[0])
			return r.Received(received)
		},
		"a transient row dropped": func(*batch) error {
			layer()
			r.Keep([]int32{0, 1})
			r.Output(&w.attention[0])
			r.QKV(1, &w.attention[1])
			return nil
		},
	} {
		b := t.batch()
		if name == "a transient row dropped" {
			b.Segments[2].Chunks[0].Transient = true
		}
		if err := b.begin(r); err != nil {
			return fmt.Errorf("%s: begin: %w", name, err)
		}
		r.Embed(w.embed)
		err := do(b)
		if err == nil {
			err = r.Hidden(nil, []int32{1}, make([]float32, t.shape.Hidden))
		}
		if err == nil {
			return fmt.Errorf("%s: no error", name)
		}
		if err := t.usable(); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// blendAllocates: a blended pass allocates nothing in the steady state.
func blendAllocates(d compute.Device, c config) error {
	m, rnd := newModel(c), newRandom(c.seed)
	w, err := m.pack(d)
	if err != nil {
		return err
	}
	r, err := d.Open(m.shape, 400)
	if err != nil {
		return err
	}
	defer r.Close()
	if !blends(r) {
		return errNoBlender
	}
	var passes []*laid
	for _, p := range []plan{rnd.natural(0, 20, 60, 3), rnd.natural(0, 5, 9, 2)} {
		x := rnd.blend(&m.shape, 0, p)
		x.last = nil
		l, err := x.lay(d.Memory(), &m.shape)
		if err != nil {
			return err
		}
		defer l.free()
		passes = append(passes, l)
	}
	received, hidden := make([]float32, 400), make([]float32, m.shape.Hidden)
	n := allocations(func() {
		for _, l := range passes {
			err = errors.Join(err, l.run(m, r.(compute.Blender), w, received[:len(l.batch.Tokens)]))
			err = errors.Join(err, r.Hidden(nil, l.rows[len(l.rows)-1:], hidden))
		}
	})
	if err != nil {
		return err
	}
	if n > 0 {
		return fmt.Errorf("%d allocations per pass in steady state", n)
	}
	return nil
}

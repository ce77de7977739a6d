package computetest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"grebe/compute"
	"grebe/compute/ref"
)

// errNoBlender skips the cases of a device that does not blend.
var errNoBlender = errors.New("the device's runners are no compute.Blender")

// blend is a pass in which KV from elsewhere stands in for rows.
type blend struct {
	plans   []plan
	sources []source
	parts   []standIn
	layer   int     // after whose Attend rows are chosen
	rows    []int32 // that go on from there
	last    []int32 // of those, the ones that the last layer keeps; nil: all
}

// source is KV that stands in for that of others.
type source struct {
	tokens int
	kv     []byte
	host   bool // lies in the host's memory where the device can use that
}

// standIn is a compute.Part before its source has a place.
type standIn struct{ segment, at, tokens, source, first, turn int }

// natural: segments one after the other, each of which sees all before it.
func (r random) natural(start int32, sizes ...int) plan {
	var p plan
	for i, n := range sizes {
		var all []int
		for j := range i {
			all = append(all, j)
		}
		p = append(p, r.segment(n, start, all...))
		start += int32(n)
	}
	return p
}

// blend draws what stands in for rows of plans, and the rows that go on: all for which nothing does, some others.
func (r random) blend(s *compute.Shape, layer int, plans ...plan) *blend {
	x := &blend{plans: plans, layer: layer, rows: []int32{}}
	row, segment := int32(0), 0
	for _, p := range plans {
		for i := range p {
			g := &p[i]
			whole := g.transient || r.IntN(5) == 0 // nothing stands in for any
			for t := g.cached; t < len(g.tokens); {
				n := min(1+r.IntN(30), len(g.tokens)-t)
				stands := !whole && r.IntN(4) > 0
				if stands {
					x.parts = append(x.parts, r.standIn(s, x, segment, t, n))
				}
				share := r.IntN(3) // none of the part's rows go on, some or all
				for range n {
					if !stands || share == 2 || share == 1 && r.IntN(3) == 0 {
						x.rows = append(x.rows, row)
					}
					row++
				}
				t += n
			}
			segment++
		}
	}
	if len(x.rows) > 0 && r.IntN(3) > 0 {
		for _, at := range r.someRows(len(x.rows)) {
			x.last = append(x.last, x.rows[at])
		}
	}
	return x
}

// standIn draws a part for n tokens of a segment, from a source of its own or one that others use.
func (r random) standIn(s *compute.Shape, x *blend, segment, at, n int) standIn {
	p := standIn{segment: segment, at: at, tokens: n, turn: r.IntN(401) - 200}
	switch r.IntN(4) {
	case 0:
		p.turn = 0
	case 1:
		p.turn = r.IntN(20001) - 10000
	}
	if p.source = r.IntN(len(x.sources) + 1); p.source == len(x.sources) || x.sources[p.source].tokens < n {
		p.source = len(x.sources)
		room := n + r.IntN(6)
		x.sources = append(x.sources, source{tokens: room, kv: r.kv(s, room), host: r.IntN(2) == 0})
	}
	p.first = r.IntN(x.sources[p.source].tokens - n + 1)
	return p
}

// bring has all sources in the device's own memory.
func (x *blend) bring() {
	for i := range x.sources {
		x.sources[i].host = false
	}
}

// laid is a blend on a device.
type laid struct {
	*blend
	batch  *batch
	parts  []compute.Part
	memory []compute.Memory // of the blocks
	blocks []compute.Block
}

// lay gives everything a place. The caller MUST free it.
func (x *blend) lay(mem compute.Memory, s *compute.Shape) (*laid, error) {
	out := &laid{blend: x, batch: newBatch(mem, s, x.plans...)}
	for _, src := range x.sources {
		if err := out.take(mem, src); err != nil {
			out.free()
			return nil, fmt.Errorf("what stands in: %w", err)
		}
	}
	for _, p := range x.parts {
		from := out.blocks[p.source].Chunk(x.sources[p.source].tokens, false)
		out.parts = append(out.parts, compute.Part{Segment: p.segment, At: p.at, Tokens: p.tokens, From: from, First: p.first,
			Turn: p.turn})
	}
	return out, nil
}

// take puts a source into the device's memory, or its host's.
func (x *laid) take(mem compute.Memory, src source) error {
	host := mem.Host()
	b, err := host.Alloc(len(src.kv))
	if err == nil && (!src.host || b.Addr == 0) { // a device uses its host's memory where that gives addresses
		host.Free(b)
		host = mem
		b, err = mem.Alloc(len(src.kv))
	}
	if err != nil {
		return err
	}
	x.memory, x.blocks = append(x.memory, host), append(x.blocks, b)
	return host.Write(b, src.kv)
}

func (x *laid) free() {
	for i, b := range x.blocks {
		x.memory[i].Free(b)
	}
	x.blocks = nil
}

// unchanged checks that what stands in was only read.
func (x *laid) unchanged() error {
	for i, b := range x.blocks {
		got := make([]byte, len(x.sources[i].kv))
		if err := x.memory[i].Read(got, b); err != nil {
			return err
		}
		if !bytes.Equal(got, x.sources[i].kv) {
			return fmt.Errorf("source %d of what stands in was written to", i)
		}
	}
	return nil
}

// run puts the blend through a runner, and returns what the rows received.
func (x *laid) run(m *model, r compute.Blender, w *packed, received []float32) error {
	if err := x.batch.begin(r); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	r.Embed(w.embed)
	for l := range m.layers {
		r.QKV(l, &w.attention[l])
		r.Attend(l)
		if l == x.layer {
			if s, ok := r.(compute.Starter); ok && len(x.rows)%2 == 0 {
				s.Start()
			}
			r.Place(l+1, x.parts)
			if err := r.Received(received); err != nil {
				return fmt.Errorf("received: %w", err)
			}
			r.Keep(x.rows)
		}
		if l == len(m.layers)-1 && x.last != nil {
			r.Keep(x.last)
		}
		r.Output(&w.attention[l])
		r.FFN(&w.ffn[l])
	}
	return nil
}

// blended is what a blend yields.
type blended struct {
	*result
	received []float32
	batch    *batch
}

// blendOn runs a blend on a device. What it wrote is in the result's batch.
func (m *model) blendOn(d compute.Device, x *blend) (out *blended, err error) {
	w, err := m.pack(d)
	if err != nil {
		return nil, err
	}
	r, err := d.Open(m.shape, max(1, rows(x.plans)))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	return m.blendWith(d.Memory(), r, w, x)
}

// blendWith is blendOn with a runner.
func (m *model) blendWith(mem compute.Memory, r compute.Runner, w *packed, x *blend) (*blended, error) {
	if !blends(r) {
		return nil, errNoBlender
	}
	l, err := x.lay(mem, &m.shape)
	if err != nil {
		return nil, err
	}
	defer l.free()
	out := &blended{batch: l.batch, received: make([]float32, len(l.batch.Tokens))}
	if err := l.run(m, r.(compute.Blender), w, out.received); err != nil {
		return nil, err
	}
	rows := x.last
	if rows == nil {
		rows = x.rows
	}
	if out.result, err = m.results(r, w, l.batch, rows); err != nil {
		return nil, err
	}
	return out, l.unchanged()
}

// blends reports whether a runner does; one that stands for another as that one.
func blends(r compute.Runner) bool {
	if f, ok := r.(*farRunner); ok {
		r = f.Runner
	}
	_, ok := r.(compute.Blender)
	return ok
}

func (m *model) blendOnRef(x *blend) (*blended, error) {
	out, err := recall(func() (*blended, error) {
		d := ref.New()
		w, err := m.pack(d)
		if err != nil {
			return nil, err
		}
		r, err := d.Open(m.shape, max(1, rows(x.plans)))
		if err != nil {
			return nil, err
		}
		return m.blendWith(d.Memory(), r, w, x)
	}, m, x)
	if err != nil {
		return nil, fmt.Errorf("on ref: %w", err)
	}
	return out, nil
}

// agreeBlended runs a blend on d and on ref.
func (m *model) agreeBlended(d compute.Device, x *blend, opts Options) error {
	got, err := m.blendOn(d, x)
	if err != nil {
		return err
	}
	want, err := m.blendOnRef(x)
	if err != nil {
		return err
	}
	if err := m.compareReceived(got.batch, got.received, want.received); err != nil {
		return err
	}
	if opts.Aside {
		x.forgive(got.batch, want.batch)
	}
	s := &m.shape
	l := within(m.narrowHeads() * varLayers(s.Layers, m.dt, s.KV, 1.5))
	kv := l
	kv.step = limitKV(m.config).step
	if err := compareKV(got.batch, want.batch, kv); err != nil {
		return err
	}
	if err := x.comparePlaced(got.batch, want.batch); err != nil {
		return err
	}
	if err := m.compareResults(got.batch, got.result, want.result, limits{x: l, normed: l, logits: l}); err != nil {
		return err
	}
	return got.batch.untouchedElsewhere()
}

// forgive takes what was placed and not overwritten as it should be: the device has it elsewhere.
func (x *blend) forgive(got, want *batch) {
	s := got.shape
	for _, p := range x.parts {
		g := &got.Segments[p.segment]
		for t := p.at; t < p.at+p.tokens; t++ {
			if _, computed := slices.BinarySearch(x.rows, int32(g.First+t-g.Cached)); computed {
				continue
			}
			for l := x.layer + 1; l < s.Layers; l++ {
				for i := range 2 * s.KVHeads {
					copyVector(s, got.host[p.segment], want.host[p.segment], l, i, t)
				}
			}
		}
	}
}

// compareReceived: a probability is off by as much of it as its score is off, and a row received few at worst.
func (m *model) compareReceived(b *batch, got, want []float32) error {
	return m.compareReceivedIn(0, b, got, want)
}

// compareReceivedIn is compareReceived behind so many layers: scores are off by what these are.
func (m *model) compareReceivedIn(layers int, b *batch, got, want []float32) error {
	s := &m.shape
	operand, sharp := s.KV, m.sharp*float64(s.Rope.Scale)*float64(s.Rope.Scale)
	scores := varQKV(m.dt) + variance(operand) + varKV(m.dt, s.KV)
	if layers > 0 {
		scores += varLayers(layers, m.dt, s.KV, 1.5)
	}
	l := within(m.narrowHeads()*2*sharp*sharp*scores + variance(operand) + variance(compute.F32))
	for row := range want {
		if err := l.compareRow(got[row:row+1], want[row:row+1], 0); err != nil {
			return fmt.Errorf("attention received by %s: %w", b.row(row), err)
		}
	}
	return nil
}

// comparePlaced looks at what was placed and not overwritten: the bits, but for K that was turned.
func (x *blend) comparePlaced(got, want *batch) error {
	s := got.shape
	turned := within(variance(compute.F32))
	if s.KV == compute.BF16 {
		turned.rms, turned.step = within(2*variance(compute.BF16)).rms, stepBF16
	}
	for i, p := range x.parts {
		g := &got.Segments[p.segment]
		for t := p.at; t < p.at+p.tokens; t++ {
			if _, computed := slices.BinarySearch(x.rows, int32(g.First+t-g.Cached)); computed {
				continue
			}
			for l := x.layer + 1; l < s.Layers; l++ {
				for kv := range 2 {
					limit := exact
					if kv == 0 && p.turn != 0 {
						limit = turned
					}
					a, b := tokenKV(s, got.host[p.segment], l, kv, t), tokenKV(s, want.host[p.segment], l, kv, t)
					if err := limit.compareRow(a, b, 0); err != nil {
						return fmt.Errorf("part %d turned by %d: token %d of segment %d, layer %d, %s: %w", i, p.turn, t, p.segment, l,
							[]string{"K", "V"}[kv], err)
					}
				}
			}
		}
	}
	return nil
}

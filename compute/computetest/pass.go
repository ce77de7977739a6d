package computetest

import (
	"errors"
	"fmt"

	"grebe/compute"
	"grebe/compute/ref"
)

// steps says which operations a pass runs on each layer.
type steps struct {
	qkv    bool
	attend bool // with Output
	ffn    bool
	keep   []int32 // between the last layer's Attend and Output; nil: all
}

var wholeLayers = steps{qkv: true, attend: true, ffn: true}

// result is what a pass returns for the rows that it kept.
type result struct {
	rows   []int32
	x      []float32 // rows × hidden
	normed []float32
	logits []float32 // every stride()-th row × vocabulary
	// projected are the same logits by a product, which rounds its operands.
	projected []float32
}

// stride spares time: logits of about a dozen rows are enough.
func (r *result) stride() int { return 1 + len(r.rows)/12 }

// operations queues the pass's operations up to the last one that returns nothing.
func (m *model) operations(r compute.Runner, w *packed, do steps) {
	r.Embed(w.embed)
	for l := range m.layers {
		if do.qkv {
			r.QKV(l, &w.attention[l])
		}
		if do.attend {
			r.Attend(l)
			if do.keep != nil && l == len(m.layers)-1 {
				r.Keep(do.keep)
			}
			r.Output(&w.attention[l])
		}
		if do.ffn {
			r.FFN(&w.ffn[l])
		}
	}
}

// pass runs a batch.
func (m *model) pass(r compute.Runner, w *packed, b *batch, do steps) (*result, error) {
	if err := b.begin(r); err != nil {
		return nil, fmt.Errorf("begin: %w", err)
	}
	if m.shape.Pointwise == nil {
		m.operations(r, w, do)
	} else if stu, ok := r.(compute.STU); ok {
		m.stuOperations(stu, w, b, do)
	} else {
		return nil, fmt.Errorf("a runner of a pointwise shape is %T, no compute.STU", r)
	}
	if do.keep == nil {
		for row := range b.Tokens {
			do.keep = append(do.keep, int32(row))
		}
	}
	return m.results(r, w, b, do.keep)
}

// results fetches those of a pass that is done, for the rows that it kept.
func (m *model) results(r compute.Runner, w *packed, b *batch, rows []int32) (*result, error) {
	out := &result{rows: rows}
	var pairs []compute.Pair
	var some []int32
	for i := 0; i < len(out.rows); i += out.stride() {
		some = append(some, out.rows[i])
		for id := range vocabulary {
			pairs = append(pairs, compute.Pair{Row: out.rows[i], ID: int32(id)})
		}
	}
	out.x = make([]float32, len(out.rows)*m.shape.Hidden)
	out.normed = make([]float32, len(out.rows)*m.shape.Hidden)
	out.logits = make([]float32, len(pairs))
	err1 := r.Hidden(nil, out.rows, out.x)
	err2 := r.Hidden(w.norm, out.rows, out.normed)
	err3 := r.Logits(w.norm, w.head, pairs, out.logits)
	out.projected = make([]float32, len(pairs))
	err4 := r.Project(w.norm, w.project, some, out.projected)
	return out, errors.Join(err1, err2, err3, err4, b.fetch())
}

// once packs the model, runs one pass and closes the runner.
func (m *model) once(d compute.Device, b *batch, do steps) (*result, error) {
	w, err := m.pack(d)
	if err != nil {
		return nil, err
	}
	r, err := d.Open(m.shape, max(1, len(b.Tokens)))
	if err != nil {
		return nil, fmt.Errorf("open a runner on %s: %w", d.Name(), err)
	}
	out, err := m.pass(r, w, b, do)
	return out, errors.Join(err, r.Close())
}

// on runs plans on a device.
func (m *model) on(d compute.Device, do steps, plans []plan) (*batch, *result, error) {
	b := newBatch(d.Memory(), &m.shape, plans...)
	out, err := m.once(d, b, do)
	return b, out, err
}

func (m *model) onRef(do steps, plans []plan) (*batch, *result, error) {
	type answer struct {
		*batch
		*result
	}
	a, err := recall(func() (answer, error) {
		d := ref.New()
		shape := m.shape
		b := newBatch(heap{d.Memory()}, &shape, plans...)
		out, err := m.once(d, b, do)
		return answer{b, out}, err
	}, m, do, plans)
	if err != nil {
		return nil, nil, fmt.Errorf("on ref: %w", err)
	}
	return a.batch, a.result, nil
}

// limits bound what agree compares. K and V are compared where QKV runs.
type limits struct{ x, normed, logits, kv limit }

// agree runs plans on d and on ref.
func agree(d compute.Device, c config, do steps, l limits, plans ...plan) error {
	if err := newModel(c).agree(d, do, l, plans...); err != nil {
		return fmt.Errorf("%v, %d plans: %w", c, len(plans), err)
	}
	return nil
}

func (m *model) agree(d compute.Device, do steps, l limits, plans ...plan) error {
	want, w, err := m.onRef(do, plans)
	if err != nil {
		return err
	}
	got, g, err := m.on(d, do, plans)
	if err != nil {
		return err
	}
	if do.qkv {
		if err := compareKV(got, want, l.kv); err != nil {
			return err
		}
	}
	if err := m.compareResults(got, g, w, l); err != nil {
		return err
	}
	return got.untouchedElsewhere()
}

// compareResults compares what a pass over batch b returned with what it should have.
func (m *model) compareResults(b *batch, g, w *result, l limits) error {
	name := func(i int) string { return b.row(int(w.rows[i])) }
	if err := l.x.compare(g.x, w.x, m.shape.Hidden, name); err != nil {
		return fmt.Errorf("hidden state: %w", err)
	}
	if err := l.normed.compare(g.normed, w.normed, m.shape.Hidden, name); err != nil {
		return fmt.Errorf("normed hidden state: %w", err)
	}
	strided := func(i int) string { return name(i * w.stride()) }
	if err := l.logits.compare(g.logits, w.logits, vocabulary, strided); err != nil {
		return fmt.Errorf("logits: %w", err)
	}
	if err := l.logits.rounded(m.dt).compare(g.projected, w.projected, vocabulary, strided); err != nil {
		return fmt.Errorf("projected logits: %w", err)
	}
	return nil
}

// compareKV compares what was written, token by token.
func compareKV(got, want *batch, l limit) error {
	s := got.shape
	for layer := range s.Layers {
		for kv := range 2 {
			var g, w []float32
			var names []string
			for i := range got.Segments {
				if got.transient(i) && layer != s.Layers-1 {
					continue // overwritten by the last
				}
				for t := got.Segments[i].Cached; t < got.Segments[i].Len; t++ {
					g = append(g, tokenKV(s, got.host[i], layer, kv, t)...)
					w = append(w, tokenKV(s, want.host[i], layer, kv, t)...)
					names = append(names, fmt.Sprintf("%s token %d of %d", got.name(i), t, got.Segments[i].Len))
				}
			}
			if err := l.compare(g, w, s.KVHeads*s.HeadDim, func(i int) string { return names[i] }); err != nil {
				return fmt.Errorf("layer %d %s (value = head·%d + dimension): %w", layer, []string{"K", "V"}[kv], s.HeadDim, err)
			}
		}
	}
	return nil
}

// tokenKV decodes one token's K (kv 0) or V (kv 1) of all heads.
func tokenKV(s *compute.Shape, chunks []compute.Chunk, layer, kv, token int) []float32 {
	var out []float32
	for h := range s.KVHeads {
		b := vectorAt(s, chunks, layer, kv*s.KVHeads+h, token)
		if s.KV == compute.FP8 {
			out = appendScaled(out, b, scaleAt(s, chunks, layer, kv*s.KVHeads+h, token))
			continue
		}
		for d := range s.HeadDim {
			out = append(out, value(s.KV, b, d))
		}
	}
	return out
}

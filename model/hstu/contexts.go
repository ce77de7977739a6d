package hstu

import (
	"slices"

	"grebe/compute"
)

// contexts is what contextual rows are made of.
type contexts struct {
	tables []*table      // of the features
	ready  compute.Table // all rows, where none comes from elsewhere; else nil
	slots  []*linear     // of each slot, where ready is nil
}

// contexts makes the table of contextual rows: for each slot the absent feature, then its rows. Where rows come from
// elsewhere, batches compute them.
func (l *loader) contexts(m *Model, byName map[string]*table) {
	c := l.cfg
	slots := c.slots()
	weights := l.floats(inputs+"_batched_contextual_linear_weights", slots, c.TableDim, c.Hidden)
	shape := []int{slots, c.Hidden}
	if info, ok := l.set.Lookup(inputs + "_batched_contextual_linear_bias"); ok && len(info.Shape) == 3 {
		shape = []int{slots, 1, c.Hidden} // Meta's code has it so where it concatenates features
	}
	biases := l.floats(inputs+"_batched_contextual_linear_bias", shape...)
	elsewhere := false
	for _, f := range c.Features {
		t := l.embeddings(byName, f.Table, f.Rows, c.TableDim)
		m.contexts.tables = append(m.contexts.tables, t)
		elsewhere = elsewhere || t.source != nil
	}
	var out []float32
	for _, f := range c.Features {
		for range f.MaxLength {
			if l.err != nil {
				return
			}
			at := len(m.contexts.slots)
			bias := biases[at*c.Hidden:][:c.Hidden]
			linear, err := newLinear(l.dev, transposed(weights[at*c.TableDim*c.Hidden:][:c.TableDim*c.Hidden], c.TableDim,
				c.Hidden), c.Hidden, c.TableDim, bias)
			if err != nil {
				l.fail(err)
				return
			}
			if m.contexts.slots = append(m.contexts.slots, linear); elsewhere {
				continue
			}
			rows := l.floats(tables+f.Table+".weight", f.Rows, c.TableDim)
			values, err := linear.apply(rows)
			if err != nil {
				l.fail(err)
				return
			}
			out = append(append(out, bias...), values...)
		}
	}
	if !elsewhere {
		m.contexts.ready, m.contexts.slots = l.table(tensorF32(out, len(out)/c.Hidden, c.Hidden)), nil
	}
}

// addContexts adds the contextual rows.
func (x *rows) addContexts(m *Model) error {
	c := &m.contexts
	if c.ready != nil || len(c.slots) == 0 {
		x.add(c.ready, x.context, m.scale)
		return nil
	}
	events := int32(m.cfg.Items) * int32(m.cfg.actions())
	lists, at := make([][]int32, len(c.slots)), make([]int32, len(x.context)) // at: which slot
	some := false
	for i, context := range x.context {
		if context < 0 {
			continue
		}
		token := context + events
		s, found := slices.BinarySearchFunc(m.slots, token, func(s slot, t int32) int { return s.first - int(t) })
		if !found {
			s--
		}
		at[i], x.context[i] = int32(s), int32(len(lists[s]))
		lists[s] = append(lists[s], token-int32(m.slots[s].first)-1)
		some = true
	}
	if !some {
		return nil
	}
	got := make([][]float32, len(lists))
	for s, list := range lists {
		got[s] = x.ask(c.tables[m.slots[s].feature], list)
	}
	if err := x.fetch(); err != nil {
		return err
	}
	first, out := make([]int32, len(lists)), []float32(nil)
	for s := range lists {
		values, err := c.slots[s].apply(got[s])
		if err != nil {
			return err
		}
		first[s] = int32(len(out) / m.cfg.Hidden)
		out = append(out, values...)
	}
	for i := range x.context {
		if x.context[i] >= 0 {
			x.context[i] += first[at[i]]
		}
	}
	x.parts = append(x.parts, compute.SumPart{Vectors: out, Rows: x.context, Scale: m.scale})
	return nil
}

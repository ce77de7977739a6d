package hstu

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"grebe/compute"
	"grebe/internal/contain"
	"grebe/model/safetensors"
)

// table is an embedding table of the model.
type table struct {
	name      string
	rows, dim int
	tensor    compute.Tensor   // without rows: the checkpoint lacks it
	source    RowSource        // nil: the rows are the tensor's
	onDevice  compute.Table    // the tensor, where batches sum its rows; else nil
	cache     compute.RowCache // of the source's rows in the device's memory; nil: none
}

// gather writes the rows with these numbers to out, one after the other. A negative number is a row of zeros.
func (t *table) gather(rows []int32, out []float32) error {
	if t.source != nil {
		return t.gatherSource(rows, out)
	}
	for i, row := range rows {
		to := out[i*t.dim : (i+1)*t.dim]
		switch {
		case row < 0:
			clear(to)
		case int(row) >= t.rows:
			return fmt.Errorf("hstu: table %s: row %d of %d", t.name, row, t.rows)
		default:
			copy(to, rowsOf(t.tensor, int(row), 1))
		}
	}
	return nil
}

func (t *table) gatherSource(rows []int32, out []float32) error {
	if len(rows) == 0 {
		return nil
	}
	if !slices.ContainsFunc(rows, func(row int32) bool { return row < 0 }) {
		return t.source.Gather(rows, out)
	}
	var known []int32
	for _, row := range rows {
		if row >= 0 {
			known = append(known, row)
		}
	}
	values := make([]float32, len(known)*t.dim)
	if len(known) > 0 {
		if err := t.source.Gather(known, values); err != nil {
			return err
		}
	}
	for i, row := range rows {
		to := out[i*t.dim : (i+1)*t.dim]
		if row < 0 {
			clear(to)
			continue
		}
		copy(to, values)
		values = values[t.dim:]
	}
	return nil
}

// content is what rows are made of beside actions, positions and times.
type content struct {
	item     *table
	features []feature     // in the order of the configuration
	mlp      *mlp          // nil: rows are summed as they are
	ready    compute.Table // the MLP of all items' rows, where nothing else goes into it; else nil
}

// feature is a table beside the items'.
type feature struct {
	*ContentFeature
	table *table
	dummy []float32     // what events have in place of a candidate's feature; nil: the feature is of both
	sums  compute.Table // dummy, where rows are summed; else nil
}

// dummyRow stands for the row that events have of a feature of candidates.
const dummyRow = -2

// tables returns the tables by name, each once: features may share one.
func (m *Model) tables() []*table {
	if m.list != nil {
		return m.list
	}
	list := []*table{m.content.item}
	for i := range m.content.features {
		if t := m.content.features[i].table; !slices.Contains(list, t) {
			list = append(list, t)
		}
	}
	for _, t := range m.contexts.tables {
		if !slices.Contains(list, t) {
			list = append(list, t)
		}
	}
	m.list = list
	return list
}

// checkSources refuses sources of tables that the model does not have, and those of other widths.
func (m *Model) checkSources(sources map[string]RowSource) error {
	var names []string
	for _, t := range m.tables() {
		names = append(names, t.name)
		if t.source != nil && t.source.Dim() != t.dim {
			return fmt.Errorf("table %s has rows of %d numbers, want %d", t.name, t.source.Dim(), t.dim)
		}
	}
	for name := range sources {
		if !slices.Contains(names, name) {
			return fmt.Errorf("the model has no table %s: it has %s", name, strings.Join(names, ", "))
		}
	}
	return nil
}

// rows is which rows of the tables a batch sums.
type rows struct {
	parts                                  []compute.SumPart
	content, acts, context, position, time []int32
	features                               [][]int32 // rows of each feature's table, −1: none
	fetches                                []fetch
	vectors                                [][]float32 // of fetches, used again
	uniques                                [][]int32   // lists of rows of fetches, used again
	used                                   int         // of vectors
	known                                  map[int32]int32
	tuples                                 map[string]int32
}

// fetch gets rows of a table for a batch.
type fetch struct {
	table *table
	rows  []int32
	out   []float32
}

func (m *Model) newRows() *rows {
	return &rows{known: map[int32]int32{}, tuples: map[string]int32{}, features: make([][]int32, len(m.content.features))}
}

// reset empties x for another batch.
func (x *rows) reset() {
	x.content, x.acts, x.context, x.position, x.time = x.content[:0], x.acts[:0], x.context[:0], x.position[:0], x.time[:0]
	for f := range x.features {
		x.features[f] = x.features[f][:0]
	}
	clear(x.parts)
	clear(x.fetches)
	x.parts, x.fetches, x.used = x.parts[:0], x.fetches[:0], 0
}

// fill says for every row of the batch what is summed.
func (x *rows) fill(m *Model, b *compute.Batch) error {
	if len(b.Extra) != 0 && len(b.Extra) != len(b.Tokens) {
		return fmt.Errorf("hstu: %d rows, but positions and times of %d", len(b.Tokens), len(b.Extra))
	}
	width := m.Width()
	if len(b.Content) != 0 && len(b.Content) != width*len(b.Tokens) {
		return fmt.Errorf("hstu: %d rows with %d numbers of content, want %d each", len(b.Tokens), len(b.Content), width)
	}
	x.reset()
	for row, token := range b.Tokens {
		var own []int32
		if len(b.Content) > 0 {
			own = b.Content[row*width : (row+1)*width]
			token, own = own[0], own[1:]
		}
		if err := x.split(m, token, own); err != nil {
			return fmt.Errorf("hstu: row %d: %w", row, err)
		}
		position, time := min(int(b.Positions[row]), m.cfg.PositionBuckets-1), -1
		if len(b.Extra) > 0 {
			position, time = m.cfg.unpack(b.Extra[row])
		}
		x.position, x.time = append(x.position, int32(position)), append(x.time, int32(time))
	}
	if err := x.addContent(m); err != nil {
		return err
	}
	x.add(m.acts, x.acts, m.scale)
	if err := x.addContexts(m); err != nil {
		return err
	}
	x.add(m.positions, x.position, 1)
	x.add(m.times, x.time, 1)
	return nil
}

// split takes one row apart. features are the rows of its features, nil: it has none.
func (x *rows) split(m *Model, token int32, features []int32) error {
	item, act, context, err := m.split(token)
	if err != nil {
		return err
	}
	x.content, x.acts, x.context = append(x.content, item), append(x.acts, act), append(x.context, context)
	for f := range m.content.features {
		row := int32(-1)
		if features != nil {
			row = features[f]
		}
		if own := &m.content.features[f]; row >= int32(own.Rows) || row < -1 && (row != dummyRow || own.dummy == nil) {
			return fmt.Errorf("feature %s is row %d of %d", own.Name, row, own.Rows)
		}
		x.features[f] = append(x.features[f], row)
	}
	return nil
}

func (x *rows) add(t compute.Table, rows []int32, scale float32) {
	if t != nil {
		x.parts = append(x.parts, compute.SumPart{Table: t, Rows: rows, Scale: scale})
	}
}

// addContent adds the rows of items and features: all as they are, or the MLP of each combination.
func (x *rows) addContent(m *Model) error {
	c := &m.content
	if c.ready != nil {
		x.add(c.ready, x.content, m.scale)
		return nil
	}
	if c.mlp != nil {
		return x.addMLP(m)
	}
	x.addTable(c.item, x.content, m.scale)
	for f := range c.features {
		own := &c.features[f]
		if own.dummy != nil {
			x.add(own.sums, dummies(x.features[f]), m.scale)
		}
		x.addTable(own.table, x.features[f], m.scale)
	}
	return x.fetch()
}

// dummies returns row 0 where a row is the dummy, and changes those to none.
func dummies(rows []int32) []int32 {
	out := make([]int32, len(rows))
	for i, row := range rows {
		if out[i] = -1; row == dummyRow {
			out[i], rows[i] = 0, -1
		}
	}
	return out
}

// addTable adds rows of a table as they are, each of a source once.
func (x *rows) addTable(t *table, rows []int32, scale float32) {
	if !slices.ContainsFunc(rows, func(row int32) bool { return row >= 0 }) {
		return
	}
	switch {
	case t.source == nil:
		x.add(t.onDevice, rows, scale)
		return
	case t.cache != nil:
		x.parts = append(x.parts, compute.SumPart{Cached: t.cache, Source: t.source.(compute.RowSource), Rows: rows,
			Scale: scale})
		return
	}
	clear(x.known)
	for x.used >= len(x.uniques) {
		x.uniques = append(x.uniques, nil)
	}
	unique := x.uniques[x.used][:0]
	for i, row := range rows {
		if row < 0 {
			continue
		}
		at, ok := x.known[row]
		if !ok {
			at = int32(len(unique))
			x.known[row] = at
			unique = append(unique, row)
		}
		rows[i] = at
	}
	x.uniques[x.used] = unique
	out := x.ask(t, unique)
	x.parts = append(x.parts, compute.SumPart{Vectors: out, Rows: rows, Scale: scale})
}

// ask has the next fetch get rows of a table, and returns where they will be.
func (x *rows) ask(t *table, rows []int32) []float32 {
	i, n := x.used, len(rows)*t.dim
	if x.used++; i == len(x.vectors) {
		x.vectors = append(x.vectors, nil)
	}
	if cap(x.vectors[i]) < n {
		x.vectors[i] = make([]float32, n+n/4)
	}
	out := x.vectors[i][:n]
	x.fetches = append(x.fetches, fetch{t, rows, out})
	return out
}

// fetch gets the rows of all tables at once, so that a batch waits for the slowest store only.
func (x *rows) fetch() error {
	errs := make([]error, len(x.fetches))
	var wg contain.Group
	for i, f := range x.fetches {
		get := func() {
			if err := f.table.gather(f.rows, f.out); err != nil {
				errs[i] = fmt.Errorf("hstu: %d rows of table %s: %w", len(f.rows), f.table.name, err)
			}
		}
		if f.table.source == nil || i == len(x.fetches)-1 {
			get()
		} else {
			wg.Go(get)
		}
	}
	wg.Wait()
	x.fetches = x.fetches[:0]
	return errors.Join(errs...)
}

// addMLP adds the MLP of the rows of items and features side by side, each combination once.
func (x *rows) addMLP(m *Model) error {
	c := &m.content
	clear(x.tuples)
	var items []int32
	lists := make([][]int32, len(c.features))
	key := make([]byte, 0, 4*(1+len(c.features)))
	for i, item := range x.content {
		if item < 0 {
			continue
		}
		key = appendNumber(key[:0], item)
		for f := range c.features {
			key = appendNumber(key, x.features[f][i])
		}
		at, ok := x.tuples[string(key)]
		if !ok {
			at = int32(len(items))
			x.tuples[string(key)] = at
			items = append(items, item)
			for f := range c.features {
				lists[f] = append(lists[f], x.features[f][i])
			}
		}
		x.content[i] = at
	}
	if len(items) == 0 {
		return nil
	}
	wide, err := x.sideBySide(m, items, lists)
	if err != nil {
		return err
	}
	out, err := c.mlp.apply(wide)
	if err != nil {
		return err
	}
	if m.dt == compute.BF16 { // as a table that is computed when the model is opened
		out = safetensors.Floats(compute.Tensor{DType: m.dt, Rows: len(items), Cols: m.cfg.Hidden,
			Data: safetensors.Encode(nil, m.dt, out...)})
	}
	x.parts = append(x.parts, compute.SumPart{Vectors: out, Rows: x.content, Scale: m.scale})
	return nil
}

func appendNumber(b []byte, n int32) []byte {
	return append(b, byte(n), byte(n>>8), byte(n>>16), byte(n>>24))
}

// sideBySide returns for each item its row and those of its features, one after the other.
func (x *rows) sideBySide(m *Model, items []int32, lists [][]int32) ([]float32, error) {
	c := &m.content
	got := [][]float32{x.ask(c.item, items)}
	for f := range c.features {
		got = append(got, x.ask(c.features[f].table, lists[f]))
	}
	if err := x.fetch(); err != nil {
		return nil, err
	}
	for f := range c.features {
		own := &c.features[f]
		for i, row := range lists[f] {
			if row == dummyRow {
				copy(got[1+f][i*own.Dim:], own.dummy)
			}
		}
	}
	return beside(len(items), got), nil
}

// beside puts n rows of each list side by side.
func beside(n int, lists [][]float32) []float32 {
	total := 0
	for _, l := range lists {
		total += len(l)
	}
	out := make([]float32, 0, total)
	for i := range n {
		for _, l := range lists {
			width := len(l) / n
			out = append(out, l[i*width:(i+1)*width]...)
		}
	}
	return out
}

// itemRows returns item(i) of FORMAT.md for some candidates: their items, and for each the rows of all features; nil
// where the model has no features.
func (m *Model) itemRows(items, features []int32) ([]float32, error) {
	c := &m.content
	for _, i := range items {
		if i < 0 || int(i) >= m.cfg.Items {
			return nil, fmt.Errorf("hstu: item %d of %d", i, m.cfg.Items)
		}
	}
	if len(features) != len(items)*len(c.features) {
		return nil, fmt.Errorf("hstu: %d rows of features of %d candidates, want %d each", len(features), len(items),
			len(c.features))
	}
	if len(items) == 0 {
		return nil, nil
	}
	x := &rows{}
	got := [][]float32{x.ask(c.item, items)}
	for f := range c.features {
		if !c.features[f].ItemMLP {
			continue
		}
		list := make([]int32, len(items))
		for i := range items {
			list[i] = features[i*len(c.features)+f]
		}
		got = append(got, x.ask(c.features[f].table, list))
	}
	if err := x.fetch(); err != nil {
		return nil, err
	}
	if m.itemMLP == nil {
		return got[0], nil
	}
	return m.itemMLP.apply(beside(len(items), got))
}

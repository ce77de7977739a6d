// Package hstu is Meta's HSTU: rows of item embeddings instead of tokens of text, layers of pointwise attention,
// and heads that predict what a user does with a candidate or which item comes next. FORMAT.md says what a
// checkpoint looks like and what exactly is computed.
//
// A row of the engine's plans is still one token: it says which item and which actions, or which contextual feature
// (Vocabulary in tokens.go). So plans, batches, caches and their keys are those of language models. Values that depend
// only on an item or an action (their MLPs) are computed once, when a model is opened. A row is then a sum of rows of
// a few tables.
//
// A Model is immutable, but for a count, and safe for concurrent use.
package hstu

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"grebe/compute"
	"grebe/internal/offheap"
	"grebe/model"
	"grebe/model/safetensors"
)

// Model is an HSTU whose weights are on a device.
type Model struct {
	Vocabulary
	cfg   *Config
	dt    compute.DType
	shape compute.Shape
	set   *safetensors.Set
	held  int64
	owned []*offheap.Block // tables that were computed

	scale                                     float32 // of content and actions
	content, acts, contexts, positions, times compute.Table
	layers                                    []compute.STUWeights
	source                                    RowSource
	cache                                     compute.RowCache // of the source's rows; nil: none
	items                                     compute.Tensor   // the item table, in the checkpoint's memory
	itemMLP                                   *mlp             // nil: none
	post                                      *postprocessor
	predict                                   *predictor // nil: no tasks
	index                                     *index     // nil: no retrieval
	scratch                                   sync.Pool  // of *rows
	incomplete                                atomic.Uint64
}

// RowSource gives content rows of items that are not in the checkpoint: Shape().Hidden values each, one after
// the other. It is safe for concurrent use.
type RowSource interface {
	Gather(items []int32, out []float32) error
}

// Open loads the checkpoint in dir onto a device. The caller MUST Close the model.
func Open(dir string, dev compute.Device, opts model.Options) (*Model, error) {
	cfg, err := ReadConfig(dir)
	if err != nil {
		return nil, err
	}
	if opts.KV != "" && opts.KV != "auto" && opts.KV != opts.DType {
		return nil, fmt.Errorf("hstu: keys and values in %s: they have the products' format", opts.KV)
	}
	set, err := safetensors.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("hstu: %w", err)
	}
	l := &loader{cfg: cfg, dev: dev, set: set, progress: opts.Progress, total: set.Bytes(), ctx: opts.Loading()}
	m := &Model{cfg: cfg, set: set}
	if l.dt, l.err = l.chooseDType(opts.DType); l.err == nil {
		l.load(m)
	}
	if l.err == nil {
		m.Vocabulary, l.err = newVocabulary(cfg, dir)
	}
	if l.err != nil {
		return nil, errors.Join(fmt.Errorf("hstu: load %s: %w", dir, l.err), m.Close())
	}
	return m, nil
}

// Config returns the configuration, which MUST NOT be changed.
func (m *Model) Config() *Config { return m.cfg }

// NeedsRows reports whether the checkpoint has no item table, so that SetRows MUST be called.
func (m *Model) NeedsRows() bool { return m.content == nil }

// SetRows makes the content rows of items come from elsewhere. It is called before the model is used.
func (m *Model) SetRows(s RowSource) { m.source = s }

// SetCache has batches take the rows of a source that FromTable returned from a cache in the device's memory. It is
// called behind SetRows and before the model is used. The cache stays the caller's, who closes it after the runners.
func (m *Model) SetCache(c compute.RowCache) error {
	if _, ok := m.source.(compute.RowSource); !ok {
		return fmt.Errorf("hstu: a cache of rows that come from %T", m.source)
	}
	m.cache = c
	return nil
}

// Incomplete counts the times that a table's store failed, so that default rows stood in for rows it may have.
// What Forward computed while the count moved answers a request, but MUST NOT be kept for others.
func (m *Model) Incomplete() uint64 { return m.incomplete.Load() }

// Prefetch has the cache, if there is one, fetch the rows of events and candidates ahead of their batch. It returns at
// once.
func (m *Model) Prefetch(tokens []int32) {
	if m.cache == nil {
		return
	}
	items := make([]int32, 0, len(tokens))
	for _, token := range tokens {
		if item := m.Item(token); item >= 0 {
			items = append(items, item)
		}
	}
	if len(items) > 0 {
		m.cache.Prefetch(items, m.source.(compute.RowSource))
	}
}

func (m *Model) Shape() compute.Shape   { return m.shape }
func (m *Model) MaxPositions() int      { return m.cfg.MaxSeqLen }
func (m *Model) DType() compute.DType   { return m.dt }
func (m *Model) Bytes() int64           { return m.held }
func (m *Model) CheckpointBytes() int64 { return m.set.Bytes() }

// Close unmaps the checkpoint. The runners MUST be closed before.
func (m *Model) Close() error {
	for _, b := range m.owned {
		b.Free()
	}
	m.owned = nil
	return m.set.Close()
}

// Forward runs all layers over the batch; keep is as in model.Model. A batch without Extra has absolute
// positions and no times.
func (m *Model) Forward(r compute.Runner, b *compute.Batch, keep []int32) error {
	stu, ok := r.(compute.STU)
	if !ok {
		return fmt.Errorf("hstu: the device does not run HSTU: %T", r)
	}
	rows, _ := m.scratch.Get().(*rows)
	if rows == nil {
		rows = m.newRows()
	}
	defer m.scratch.Put(rows)
	if err := rows.fill(m, b); err != nil {
		return err
	}
	if err := stu.Begin(b); err != nil {
		return err
	}
	stu.Sum(rows.parts)
	last := len(m.layers) - 1
	for i := range m.layers {
		b.GiveWay()
		stu.UVQK(i, &m.layers[i])
		if i == last && keep != nil && len(keep) == 0 {
			break // the KV is all that was wanted
		}
		stu.Attend(i)
		if i == last && keep != nil {
			stu.Keep(keep)
		}
		b.GiveWay()
		stu.Mix(&m.layers[i])
	}
	return nil
}

// Hidden copies the state of each row behind the last layer to out. Score and Retrieve go on from there.
func (m *Model) Hidden(r compute.Runner, rows []int32, out []float32) error {
	return r.Hidden(nil, rows, out)
}

// Logits reports a failure of the device. There are no logits of tokens.
func (m *Model) Logits(r compute.Runner, pairs []compute.Pair, out []float32) error {
	if len(pairs) > 0 {
		return errors.New("hstu: logits of tokens are wanted of a model that has none")
	}
	return r.Hidden(nil, nil, nil)
}

// Project is like Logits.
func (m *Model) Project(compute.Runner, compute.Linear, []int32, []float32) error {
	return errors.New("hstu: logits of tokens are wanted of a model that has none")
}

// rows is which rows of the tables a batch sums.
type rows struct {
	parts                                  []compute.SumPart
	content, acts, context, position, time []int32
	vectors                                []float32 // content rows of unique, where they come from a source
	unique                                 []int32
	known                                  map[int32]int32
}

func (m *Model) newRows() *rows { return &rows{known: map[int32]int32{}} }

// fill says for every row of the batch what is summed.
func (x *rows) fill(m *Model, b *compute.Batch) error {
	if len(b.Extra) != 0 && len(b.Extra) != len(b.Tokens) {
		return fmt.Errorf("hstu: %d rows, but positions and times of %d", len(b.Tokens), len(b.Extra))
	}
	x.content, x.acts, x.context, x.position, x.time = x.content[:0], x.acts[:0], x.context[:0], x.position[:0], x.time[:0]
	for row, token := range b.Tokens {
		item, act, context, err := m.split(token)
		if err != nil {
			return fmt.Errorf("hstu: row %d: %w", row, err)
		}
		x.content, x.acts, x.context = append(x.content, item), append(x.acts, act), append(x.context, context)
		position, time := min(int(b.Positions[row]), m.cfg.PositionBuckets-1), -1
		if len(b.Extra) > 0 {
			position, time = m.cfg.unpack(b.Extra[row])
		}
		x.position, x.time = append(x.position, int32(position)), append(x.time, int32(time))
	}
	x.parts = x.parts[:0]
	if err := x.addContent(m); err != nil {
		return err
	}
	x.add(m.acts, x.acts, m.scale)
	x.add(m.contexts, x.context, m.scale)
	x.add(m.positions, x.position, 1)
	x.add(m.times, x.time, 1)
	return nil
}

func (x *rows) add(t compute.Table, rows []int32, scale float32) {
	if t != nil {
		x.parts = append(x.parts, compute.SumPart{Table: t, Rows: rows, Scale: scale})
	}
}

// addContent adds the items' rows: of the table, or of the source, each item once.
func (x *rows) addContent(m *Model) error {
	if m.source == nil && m.content == nil {
		return errors.New("hstu: the checkpoint has no item table, and none was given")
	}
	if m.source == nil {
		x.add(m.content, x.content, m.scale)
		return nil
	}
	if m.cache != nil {
		if slices.ContainsFunc(x.content, func(item int32) bool { return item >= 0 }) {
			x.parts = append(x.parts, compute.SumPart{Cached: m.cache, Source: m.source.(compute.RowSource), Rows: x.content,
				Scale: m.scale})
		}
		return nil
	}
	clear(x.known)
	x.unique = x.unique[:0]
	for i, item := range x.content {
		if item < 0 {
			continue
		}
		at, ok := x.known[item]
		if !ok {
			at = int32(len(x.unique))
			x.known[item] = at
			x.unique = append(x.unique, item)
		}
		x.content[i] = at
	}
	n := len(x.unique) * m.shape.Hidden
	if cap(x.vectors) < n {
		x.vectors = make([]float32, n+n/4)
	}
	x.vectors = x.vectors[:n]
	if err := m.source.Gather(x.unique, x.vectors); err != nil {
		return fmt.Errorf("hstu: rows of %d items: %w", len(x.unique), err)
	}
	if n > 0 {
		x.parts = append(x.parts, compute.SumPart{Vectors: x.vectors, Rows: x.content, Scale: m.scale})
	}
	return nil
}

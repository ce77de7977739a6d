// Package hstu is Meta's HSTU: rows of item embeddings instead of tokens of text, layers of pointwise attention,
// and heads that predict what a user does with a candidate or which item comes next. FORMAT.md says what a
// checkpoint looks like and what exactly is computed.
//
// A row of the engine's plans is still one token: it says which item and which actions, or which contextual feature
// (Vocabulary in tokens.go). So plans, batches, caches and their keys are those of language models. Values that depend
// only on an item or an action (their MLPs) are computed once, when a model is opened. A row is then a sum of rows of
// a few tables. Where rows of tables come from a store, or several tables go into an MLP, that is computed per batch.
//
// A Model is immutable, but for a count, and safe for concurrent use.
package hstu

import (
	"errors"
	"fmt"
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

	scale                  float32 // of content and actions
	content                content
	contexts               contexts
	list                   []*table // of all of these; made when the model is opened
	acts, positions, times compute.Table
	layers                 []compute.STUWeights
	itemMLP                *mlp // nil: none
	post                   *postprocessor
	predict                *predictor // nil: no tasks
	index                  *index     // nil: no retrieval, or live
	live                   *live      // the index of items whose rows come from elsewhere; else nil
	scratch                sync.Pool  // of *rows
	incomplete             atomic.Uint64
}

// Open loads the checkpoint in dir onto a device. The caller MUST Close the model.
func Open(dir string, dev compute.Device, opts model.Options) (*Model, error) {
	return OpenWith(dir, dev, opts, nil)
}

// OpenWith is Open for a model of which some tables' rows, by the tables' names in the model, come from elsewhere. The
// checkpoint need not have those tables. A source is for one model.
func OpenWith(dir string, dev compute.Device, opts model.Options, sources map[string]RowSource) (*Model, error) {
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
	l := &loader{cfg: cfg, dev: dev, set: set, sources: sources, progress: opts.Progress, total: set.Bytes(),
		ctx: opts.Loading(), warn: opts.Warn}
	m := &Model{cfg: cfg, set: set}
	for _, s := range sources {
		if t, ok := s.(*tableRows); ok {
			t.incomplete = &m.incomplete
		}
	}
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

func (m *Model) Shape() compute.Shape   { return m.shape }
func (m *Model) MaxPositions() int      { return m.cfg.MaxSeqLen }
func (m *Model) DType() compute.DType   { return m.dt }
func (m *Model) Bytes() int64           { return m.held }
func (m *Model) CheckpointBytes() int64 { return m.set.Bytes() }

// Close unmaps the checkpoint. The runners MUST be closed before.
func (m *Model) Close() error {
	if m.live != nil {
		m.live.close()
	}
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

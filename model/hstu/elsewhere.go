package hstu

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"grebe/embed"
)

// tableRows are content rows of an embedding table, by the items' rows as keys.
type tableRows struct {
	table      *embed.Table
	incomplete *atomic.Uint64 // the model's
	scratch    sync.Pool      // of *gathered
}

type gathered struct {
	keys []uint64
	rows []byte
}

// ask makes keys of items.
func (g *gathered) ask(items []int32) {
	g.keys = g.keys[:0]
	for _, i := range items {
		g.keys = append(g.keys, uint64(i))
	}
}

// FromTable makes a table with rows of Shape().Hidden numbers a source of content rows. A row that the table
// does not have is its default row: a request never fails for it, and the table counts it. Rows that its store
// cannot give, or that are damaged there, are the default too, but Incomplete tells.
//
// What is cached of a user was computed with the rows as they were then. The model MUST use an item's row for
// nothing but content and ranking: what is computed from the checkpoint's rows would not be the table's.
func (m *Model) FromTable(t *embed.Table) (RowSource, error) {
	if m.cfg.Preprocessor > 0 {
		return nil, fmt.Errorf("hstu: rows from a table are used as they are, but the model has an MLP before its layers")
	}
	if m.cfg.ItemMLP > 0 || m.cfg.Retrieval {
		return nil, fmt.Errorf("hstu: rows from a table, but the model's item MLP or retrieval was computed from those of " +
			"the checkpoint: want item_mlp_hidden_dim 0 and retrieval false")
	}
	if t.Dim() != m.cfg.Hidden {
		return nil, fmt.Errorf("hstu: a table with rows of %d numbers, want %d", t.Dim(), m.cfg.Hidden)
	}
	s := &tableRows{table: t, incomplete: &m.incomplete}
	s.scratch.New = func() any { return &gathered{} }
	return s, nil
}

func (s *tableRows) Gather(items []int32, out []float32) error {
	if len(items) == 0 {
		return nil
	}
	g := s.scratch.Get().(*gathered)
	defer s.scratch.Put(g)
	g.ask(items)
	if n := 4 * len(out); cap(g.rows) < n {
		g.rows = make([]byte, n)
	} else {
		g.rows = g.rows[:n]
	}
	s.told(s.table.Gather(context.Background(), g.keys, g.rows)) // within the table's own deadline
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(g.rows[4*i:]))
	}
	return nil
}

// Fetch implements compute.RowSource, for a cache of these rows.
func (s *tableRows) Fetch(items []int32, to []float32, known []bool) error {
	g := s.scratch.Get().(*gathered)
	defer s.scratch.Put(g)
	g.ask(items)
	s.told(s.table.GatherKnown(context.Background(), g.keys, embed.Bytes(to), known))
	return nil
}

// told counts what the store did not give.
func (s *tableRows) told(got embed.Gathered) {
	if got.Err != nil || got.Broken > 0 {
		s.incomplete.Add(1)
	}
}

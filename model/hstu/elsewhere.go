package hstu

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"grebe/compute"
	"grebe/embed"
	"grebe/internal/offheap"
)

// RowSource gives rows of a table that are not in the checkpoint: Dim values each, one after the other. It is safe for
// concurrent use.
type RowSource interface {
	Dim() int
	Gather(rows []int32, out []float32) error
}

// tableRows are rows of an embedding table, by their numbers as keys.
type tableRows struct {
	table      *embed.Table
	incomplete *atomic.Uint64 // the model's
	scratch    sync.Pool      // of *gathered
	fetched    func(rows int, took time.Duration)
	holds      atomic.Bool
	held       heldRows
}

type gathered struct{ keys []uint64 }

// ask makes keys of rows.
func (g *gathered) ask(rows []int32) {
	g.keys = g.keys[:0]
	for _, i := range rows {
		g.keys = append(g.keys, uint64(i))
	}
}

// FromTable makes an embedding table a source of rows for one model. A row that the table does not have is its default
// row: a request never fails for it, and the table counts it. Rows that its store cannot give, or that are damaged
// there, are the default too, but the model's Incomplete tells.
//
// What is cached of a user was computed with the rows as they were then.
func FromTable(t *embed.Table) RowSource {
	s := &tableRows{table: t, incomplete: &atomic.Uint64{}, fetched: func(int, time.Duration) {}}
	s.held.rows, s.held.most = map[int32]*heldRow{}, heldBytes/max(1, 4*t.Dim())
	s.scratch.New = func() any { return &gathered{} }
	return s
}

// Dim implements RowSource.
func (s *tableRows) Dim() int { return s.table.Dim() }

func (s *tableRows) Gather(items []int32, out []float32) error {
	s.gatherHeld(items, out)
	return nil
}

// errOutage says that a store did not give all of its rows.
var errOutage = errors.New("hstu: the store of a table does not answer")

// Read implements changing.
func (s *tableRows) Read(items []int32, out []float32) (read int, err error) {
	g := s.scratch.Get().(*gathered)
	defer s.scratch.Put(g)
	g.ask(items)
	if read, err = s.table.Read(context.Background(), g.keys, out); err != nil {
		return read, fmt.Errorf("%w: %w", errOutage, err)
	}
	return read, nil
}

// Listen implements changing.
func (s *tableRows) Listen(changed func(rows []int32)) (stop func()) {
	return s.table.Listen(func(keys []uint64) { changed(RowsOf(keys)) })
}

// RowsOf returns the rows that have these keys; nil for nil, which means all.
func RowsOf(keys []uint64) []int32 {
	if keys == nil {
		return nil
	}
	rows := make([]int32, 0, len(keys))
	for _, k := range keys {
		if k < 1<<31 {
			rows = append(rows, int32(k))
		}
	}
	return rows
}

// get writes rows, or default ones.
func (s *tableRows) get(items []int32, out []float32) (got embed.Gathered) {
	if len(items) == 0 {
		return got
	}
	g := s.scratch.Get().(*gathered)
	defer s.scratch.Put(g)
	g.ask(items)
	return s.table.GatherFloats(context.Background(), g.keys, out, nil) // within the table's own deadline
}

// Format implements compute.RowSource. Rows go to a device as they are stored, if that copies 16 bytes at a time.
func (s *tableRows) Format() compute.DType {
	if s.table.BF16() && s.table.Dim()%8 == 0 {
		return compute.BF16
	}
	return compute.F32
}

// Fetch implements compute.RowSource, for a cache of these rows.
func (s *tableRows) Fetch(items []int32, to []byte, known []bool) error {
	g := s.scratch.Get().(*gathered)
	defer s.scratch.Put(g)
	g.ask(items)
	begin := time.Now()
	var got embed.Gathered
	if s.Format() == compute.BF16 || !s.table.BF16() {
		got = s.table.GatherRows(context.Background(), g.keys, to, known)
	} else {
		got = s.table.GatherFloats(context.Background(), g.keys, offheap.Slice[float32](to, len(items)*s.Dim()), known)
	}
	s.fetched(len(items), time.Since(begin))
	if got.Err != nil || got.Broken > 0 {
		s.incomplete.Add(1)
	}
	return nil
}

// SetCache has batches take the rows of a table, by its name in the model, from a cache in the device's memory. The
// table's rows MUST come from a table of an embedding store. It is called before the model is used. The cache stays the
// caller's, who closes it after the runners.
func (m *Model) SetCache(name string, c compute.RowCache) error {
	for _, t := range m.tables() {
		if t.name != name {
			continue
		}
		if _, ok := t.source.(compute.RowSource); !ok {
			return fmt.Errorf("hstu: a cache of rows that come from %T", t.source)
		}
		if !m.Caches(name) {
			return fmt.Errorf("hstu: a cache of table %s, whose rows go into an MLP on the host", name)
		}
		t.cache = c
		return nil
	}
	return fmt.Errorf("hstu: a cache of table %s, which the model does not have", name)
}

// WatchItems has f called after each fetch of a cache's rows of items, with their number and the time that it took. It
// is called before the model is used.
func (m *Model) WatchItems(f func(rows int, took time.Duration)) {
	if s, ok := m.content.item.source.(*tableRows); ok {
		s.fetched = f
	}
}

// Caches reports whether batches sum rows of a table as they are, so that a cache in the device's memory helps.
func (m *Model) Caches(name string) bool {
	if m.content.mlp != nil {
		return false
	}
	if m.content.item.name == name {
		return true
	}
	for i := range m.content.features {
		if m.content.features[i].table.name == name {
			return true
		}
	}
	return false
}

// RowFormat returns the format of a table's rows in a cache of the device's memory.
func (m *Model) RowFormat(name string) compute.DType {
	for _, t := range m.tables() {
		if s, ok := t.source.(compute.RowSource); ok && t.name == name {
			return s.Format()
		}
	}
	return compute.F32
}

// Sourced returns the names of the tables whose rows do not come from the checkpoint, and how many rows each has.
func (m *Model) Sourced() map[string]int {
	out := map[string]int{}
	for _, t := range m.tables() {
		if t.source != nil {
			out[t.name] = t.rows
		}
	}
	return out
}

// Incomplete counts the times that a table's store failed, so that default rows stood in for rows it may have.
// What Forward computed while the count moved answers a request, but MUST NOT be kept for others.
func (m *Model) Incomplete() uint64 { return m.incomplete.Load() }

// Prefetch has the caches, if there are any, fetch the rows of events and candidates ahead of their batch: tokens, and
// the content of each where the model has features. It returns at once.
func (m *Model) Prefetch(tokens, content []int32) {
	cached := func(t *table) bool { return t.cache != nil }
	m.eachRows(tokens, content, cached, func(t *table, rows []int32) {
		t.cache.Prefetch(rows, t.source.(compute.RowSource))
	})
}

// eachRows calls f with the rows that events and candidates need of each wanted table.
func (m *Model) eachRows(tokens, content []int32, wanted func(*table) bool, f func(t *table, rows []int32)) {
	width, c := m.Width(), &m.content
	each := func(t *table, row func(i int) int32) {
		if !wanted(t) {
			return
		}
		var list []int32
		for i := range tokens {
			if r := row(i); r >= 0 {
				list = append(list, r)
			}
		}
		if len(list) > 0 {
			f(t, list)
		}
	}
	if width == 1 {
		each(c.item, func(i int) int32 { return m.Item(tokens[i]) })
		return
	}
	if len(content) != width*len(tokens) {
		return
	}
	each(c.item, func(i int) int32 { return m.Item(content[i*width]) })
	for k := range c.features {
		each(c.features[k].table, func(i int) int32 { return content[i*width+1+k] })
	}
}

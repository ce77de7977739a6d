package hstu

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// heldRows are rows of one table that were fetched for requests that wait for their batches. Without them a batch waits
// for a store while its device has nothing to do and others wait behind it. Each row is fetched once for all requests
// that need it meanwhile. A row that changes is not held, nor are more than heldBytes: the batch looks those up.
//
// mu is a leaf, and not held during a fetch.
type heldRows struct {
	mu      sync.Mutex
	rows    map[int32]*heldRow
	most    int // of rows
	changes uint64
	asked   atomic.Int64 // rows that the store is being asked for
}

// heldBytes bounds the held rows of a table: a request may need tens of thousands, and many requests wait.
const heldBytes = 64 << 20

// heldRow is a row that some requests need. Values and bad are set before done is closed, and never change.
type heldRow struct {
	requests int // that need it, those twice that need it twice
	done     chan struct{}
	values   []float32
	bad      bool // the store did not give all rows of this fetch
}

// hold fetches the rows that are neither cached nor held. They are there until release is called. It waits no longer
// than for ctx.
func (s *tableRows) hold(ctx context.Context, rows []int32) (release func()) {
	h := &s.held
	var mine, keys []int32 // keys are those of need
	var need []*heldRow
	for _, row := range rows {
		if row >= 0 && !s.table.Has(uint64(row)) {
			keys = append(keys, row)
		}
	}
	done := make(chan struct{})
	h.mu.Lock()
	for _, row := range keys {
		r := h.rows[row]
		if r == nil {
			if len(h.rows) >= h.most {
				continue
			}
			r = &heldRow{done: done}
			h.rows[row] = r
			mine = append(mine, row)
		}
		r.requests++
		keys[len(need)] = row
		need = append(need, r)
	}
	keys = keys[:len(need)]
	changes := h.changes
	h.mu.Unlock()
	if len(mine) > 0 {
		s.fetchHeld(mine, done, changes)
	}
	for _, r := range need {
		select {
		case <-r.done:
			continue
		case <-ctx.Done():
		}
		break
	}
	return func() { h.release(keys, need) }
}

// fetchHeld fetches rows that are waited for until done is closed. What changed since changes were counted is not held.
func (s *tableRows) fetchHeld(rows []int32, done chan struct{}, changes uint64) {
	h := &s.held
	h.asked.Add(int64(len(rows)))
	defer func() {
		h.asked.Add(-int64(len(rows)))
		close(done)
	}()
	dim := s.table.Dim()
	values := make([]float32, len(rows)*dim)
	got := s.get(rows, values)
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, row := range rows {
		r := h.rows[row]
		if r == nil || r.done != done {
			continue // it changed
		}
		if h.changes != changes {
			delete(h.rows, row)
			continue
		}
		r.values, r.bad = values[i*dim:(i+1)*dim], got.Err != nil || got.Broken > 0
	}
}

func (h *heldRows) release(rows []int32, held []*heldRow) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, r := range held {
		if r.requests--; r.requests == 0 && h.rows[rows[i]] == r {
			delete(h.rows, rows[i])
		}
	}
}

// changed drops rows; nil: all.
func (h *heldRows) changed(rows []int32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.changes++
	if rows == nil {
		clear(h.rows)
	}
	for _, row := range rows {
		delete(h.rows, row)
	}
}

// take writes rows that are held to out. It returns the others and where they belong, and whether a store failed to
// give some of the held ones.
func (h *heldRows) take(items []int32, dim int, out []float32) (others, places []int32, bad bool) {
	h.mu.Lock()
	if len(h.rows) == 0 {
		h.mu.Unlock()
		return items, nil, false
	}
	held := make([]*heldRow, len(items))
	for i, row := range items {
		if r := h.rows[row]; r != nil && r.values != nil {
			held[i] = r
		}
	}
	h.mu.Unlock()
	for i, r := range held {
		if r == nil {
			others, places = append(others, items[i]), append(places, int32(i))
			continue
		}
		copy(out[i*dim:(i+1)*dim], r.values)
		bad = bad || r.bad
	}
	return others, places, bad
}

// HoldRows has Hold work until stop is called. Rows that tables have in memory are not held.
func (m *Model) HoldRows() (stop func()) {
	var stops []func()
	for _, t := range m.tables() {
		if s, ok := t.source.(*tableRows); ok && t.cache == nil && s.table.Far() && !s.holds.Swap(true) {
			stops = append(stops, s.Listen(s.held.changed), func() { s.holds.Store(false) })
		}
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// holds reports whether rows are held for requests that wait.
func (t *table) holds() bool {
	s, ok := t.source.(*tableRows)
	return ok && t.cache == nil && s.holds.Load()
}

// Hold fetches the rows of events and candidates for the batches that run before release is called: tokens, and the
// content of each where the model has features. It returns when the rows are there, when the deadlines of their tables
// have passed, or when ctx has ended.
func (m *Model) Hold(ctx context.Context, tokens, content []int32) (release func()) {
	if m.content.ready != nil {
		return func() {}
	}
	var releases []func()
	m.eachRows(tokens, content, (*table).holds, func(t *table, rows []int32) {
		releases = append(releases, t.source.(*tableRows).hold(ctx, rows))
	})
	return func() {
		for _, release := range releases {
			release()
		}
	}
}

// Fetching returns the time that the store will take for the item rows that it is being asked for.
func (m *Model) Fetching() time.Duration {
	s, ok := m.content.item.source.(*tableRows)
	if !ok || s.table.Shards() == nil {
		return 0
	}
	ms := float64(s.held.asked.Load()) * s.table.Shards().RowMs()
	return time.Duration(ms * float64(time.Millisecond))
}

// gatherHeld is Gather of rows of which some may be held.
func (s *tableRows) gatherHeld(items []int32, out []float32) {
	dim := s.table.Dim()
	others, places, bad := s.held.take(items, dim, out)
	if places == nil && len(others) > 0 {
		got := s.get(others, out)
		bad = got.Err != nil || got.Broken > 0
	} else if len(others) > 0 {
		values := make([]float32, len(others)*dim)
		got := s.get(others, values)
		bad = bad || got.Err != nil || got.Broken > 0
		for i, at := range places {
			copy(out[int(at)*dim:], values[i*dim:(i+1)*dim])
		}
	}
	if bad {
		s.incomplete.Add(1)
	}
}

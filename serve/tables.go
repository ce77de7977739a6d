package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"grebe/embed"
)

// tableRow is a row in the API: {"key": 17, "row": [0.1, …]}, or {"key": 17, "delete": true}.
type tableRow struct {
	Key    *uint64   `json:"key"`
	Row    []float32 `json:"row,omitempty"`
	Delete bool      `json:"delete,omitempty"`
}

const (
	rowsAtOnce = 512  // rows written together
	rowsAsked  = 4096 // rows per request

	numbersAsked = 1 << 20 // numbers per request; as text they take some ten times as many bytes
)

// Table is an embedding table with its name.
type Table struct {
	*embed.Table
	name string
}

// Table finds a table by name.
func (s *Service) Table(name string) (Table, error) {
	if t := s.cfg.Tables.Table(name); t != nil {
		return Table{t, name}, nil
	}
	return Table{}, Errorf(NotFound, "", "no table %s", Quoted(name))
}

// Rows returns the rows of keys, one per line. For unknown keys it returns the default row.
func (t Table) Rows(ctx context.Context, asked []string) ([]byte, error) {
	if len(asked) == 0 || len(asked) > rowsAsked {
		return nil, Errorf(InvalidArgument, "key", "%d keys: want 1 to %d", len(asked), rowsAsked)
	}
	if n := len(asked) * t.Dim(); n > numbersAsked {
		return nil, Errorf(TooLarge, "key", "%d rows of %d numbers: want at most %d numbers", len(asked), t.Dim(),
			numbersAsked)
	}
	keys := make([]uint64, len(asked))
	for i, k := range asked {
		var err error
		if keys[i], err = strconv.ParseUint(k, 10, 64); err != nil {
			return nil, Errorf(InvalidArgument, "key", "%s is not a key: want a whole number", Quoted(k))
		}
	}
	dim := t.Dim()
	rows := make([]float32, len(keys)*dim)
	if g := t.GatherFloats(ctx, keys, rows, nil); g.Err != nil {
		return nil, Errorf(Unavailable, "", "the store of table %s: %v", Quoted(t.name), g.Err)
	}
	var body []byte
	for i := range keys {
		line, err := json.Marshal(tableRow{Key: &keys[i], Row: rows[i*dim : (i+1)*dim]})
		if err != nil {
			return nil, fmt.Errorf("encode a row: %w", err)
		}
		body = append(append(body, line...), '\n')
	}
	return body, nil
}

// Change writes and deletes rows, one per line. Lines before a bad one take effect. The next lookup sees all of them.
func (t Table) Change(ctx context.Context, lines []byte) (put, deleted int, err error) {
	w, n := rowWriter{table: t.Table, ctx: ctx}, 0
	for line := range bytes.Lines(lines) {
		if n++; len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		if err := w.line(n, line); err != nil {
			return 0, 0, errors.Join(err, w.flush())
		}
	}
	if err := w.flush(); err != nil {
		return 0, 0, err
	}
	return w.put, w.deleted, nil
}

// rowWriter collects changes, because each write waits for the disk. It holds rows to put or rows to delete, never
// both.
type rowWriter struct {
	table        *embed.Table
	ctx          context.Context // of the request
	keys         []uint64
	rows         []float32
	gone         []uint64
	put, deleted int
}

// decodeRow decodes a row and refuses unknown fields.
func decodeRow(text []byte, row *tableRow) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(row)
}

// LacksNumbers reports whether a row has null among its numbers. Some programs write null for values that are not
// finite; decoding would turn it into 0.
func LacksNumbers(line []byte) bool {
	_, row, _ := bytes.Cut(line, []byte{'['})
	row, _, _ = bytes.Cut(row, []byte{']'})
	return bytes.Contains(row, []byte("null"))
}

func (w *rowWriter) line(n int, text []byte) error {
	var row tableRow
	field := fmt.Sprintf("line %d", n)
	switch {
	case !json.Valid(text):
		return Errorf(InvalidArgument, field, "is not JSON")
	case decodeRow(text, &row) != nil || row.Delete && row.Row != nil:
		return Errorf(InvalidArgument, field, `want {"key": 17, "row": [0.5, 1]} or {"key": 17, "delete": true}`)
	case row.Key == nil:
		return Errorf(InvalidArgument, field, "has no key")
	case row.Delete:
		return w.remove(*row.Key)
	case len(row.Row) != w.table.Dim():
		return Errorf(InvalidArgument, field, "the row has %d numbers, the table's %d", len(row.Row), w.table.Dim())
	case LacksNumbers(text):
		return Errorf(InvalidArgument, field, "the row has null where a number should be")
	case !w.table.Fits(row.Row):
		return Errorf(InvalidArgument, field, "the row has numbers that are not finite")
	}
	if len(w.gone) > 0 {
		if err := w.flush(); err != nil {
			return err
		}
	}
	w.keys, w.rows = append(w.keys, *row.Key), append(w.rows, row.Row...)
	if len(w.keys) == rowsAtOnce {
		return w.flush()
	}
	return nil
}

func (w *rowWriter) remove(key uint64) error {
	if len(w.keys) > 0 {
		if err := w.flush(); err != nil {
			return err
		}
	}
	if w.gone = append(w.gone, key); len(w.gone) == rowsAtOnce {
		return w.flush()
	}
	return nil
}

func (w *rowWriter) flush() error {
	if len(w.gone) > 0 {
		return w.flushGone()
	}
	if len(w.keys) == 0 {
		return nil
	}
	err := w.table.PutFloats(w.ctx, w.keys, w.rows)
	w.put += len(w.keys)
	w.keys, w.rows = w.keys[:0], w.rows[:0]
	if err != nil {
		return Errorf(Unavailable, "", "write rows: %v", err)
	}
	return nil
}

func (w *rowWriter) flushGone() error {
	err := w.table.Delete(w.ctx, w.gone)
	w.deleted += len(w.gone)
	w.gone = w.gone[:0]
	switch {
	case errors.Is(err, embed.ErrKept):
		return Errorf(Unprocessable, "", "delete rows: %v", err)
	case err != nil:
		return Errorf(Unavailable, "", "delete rows: %v", err)
	}
	return nil
}

// tableMetrics reports the statistics of embedding tables.
type tableMetrics struct {
	tables                                                *embed.Tables
	hits, misses, defaults, failures, rows, evicted, mode *prometheus.Desc
}

func newTableMetrics(t *embed.Tables) *tableMetrics {
	one := []string{"table"}
	return &tableMetrics{
		tables: t,
		hits:   prometheus.NewDesc("grebe_embed_hits_total", "Rows that were found in a table's cache.", one, nil),
		misses: prometheus.NewDesc("grebe_embed_misses_total", "Rows that were asked of a table's store.", one, nil),
		defaults: prometheus.NewDesc("grebe_embed_defaults_total",
			"Rows answered with the default: the store has none, was not reached, or has a broken one.",
			[]string{"table", "reason"}, nil),
		failures: prometheus.NewDesc("grebe_embed_store_failures_total", "Batches that a table's store failed to answer.",
			one, nil),
		rows:    prometheus.NewDesc("grebe_embed_cache_rows", "Rows that fit into a table's cache.", one, nil),
		evicted: prometheus.NewDesc("grebe_embed_evictions_total", "Rows that left a table's cache to make room.", one, nil),
		mode:    prometheus.NewDesc("grebe_embed_cache_mode", "How a table's cache values rows, 0: as LRU does.", one, nil),
	}
}

// Describe implements prometheus.Collector.
func (m *tableMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.hits, m.misses, m.defaults, m.failures, m.rows, m.evicted, m.mode} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m *tableMetrics) Collect(out chan<- prometheus.Metric) {
	for _, name := range m.tables.Names() {
		s := m.tables.Table(name).Stats()
		count := func(d *prometheus.Desc, v int64, labels ...string) {
			out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), append([]string{name}, labels...)...)
		}
		count(m.hits, s.Cache.Hits)
		count(m.misses, s.Lookups-s.Cache.Hits)
		count(m.defaults, s.Missing, "missing")
		count(m.defaults, s.Outage, "outage")
		count(m.defaults, s.Broken, "broken")
		count(m.failures, s.Failures)
		count(m.evicted, s.Cache.Evictions)
		out <- prometheus.MustNewConstMetric(m.rows, prometheus.GaugeValue, float64(s.Cache.Rows), name)
		out <- prometheus.MustNewConstMetric(m.mode, prometheus.GaugeValue, float64(s.Cache.Mode), name)
	}
}

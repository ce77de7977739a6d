package hstu

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"sync"

	"grebe/compute"
	"grebe/embed"
)

// tableRows are content rows of an embedding table, by the items' rows as keys.
type tableRows struct {
	table   *embed.Table
	dt      compute.DType
	cols    int
	scratch sync.Pool // of *gathered
}

type gathered struct {
	keys []uint64
	rows []byte
}

// FromTable makes a table of m.Shape().Hidden values per row, float32 or bf16 by the rows' size, a source of
// content rows. A row that the table does not have is its default row: a request never fails for it, and the
// table counts it.
//
// What is cached of a user was computed with the rows as they were then.
func (m *Model) FromTable(t *embed.Table, rowBytes int) (RowSource, error) {
	if m.cfg.Preprocessor > 0 {
		return nil, fmt.Errorf("hstu: rows from a table are used as they are, but the model has an MLP before its layers")
	}
	s := &tableRows{table: t, cols: m.cfg.Hidden}
	switch rowBytes {
	case 4 * m.cfg.Hidden:
		s.dt = compute.F32
	case 2 * m.cfg.Hidden:
		s.dt = compute.BF16
	default:
		return nil, fmt.Errorf("hstu: rows of %d bytes, want %d values in float32 or bf16", rowBytes, m.cfg.Hidden)
	}
	s.scratch.New = func() any { return &gathered{} }
	return s, nil
}

func (s *tableRows) Gather(items []int32, out []float32) error {
	if len(items) == 0 {
		return nil
	}
	g := s.scratch.Get().(*gathered)
	defer s.scratch.Put(g)
	g.keys = g.keys[:0]
	for _, i := range items {
		g.keys = append(g.keys, uint64(i))
	}
	if n := len(items) * s.cols * s.dt.Size(); cap(g.rows) < n {
		g.rows = make([]byte, n)
	} else {
		g.rows = g.rows[:n]
	}
	s.table.Gather(context.Background(), g.keys, g.rows) // within the table's own deadline
	decode(out, s.dt, g.rows)
	return nil
}

// decode reads values of a format.
func decode(out []float32, dt compute.DType, raw []byte) {
	for i := range out {
		if dt == compute.F32 {
			out[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
		} else {
			out[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(raw[2*i:])) << 16)
		}
	}
}

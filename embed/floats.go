package embed

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
)

// Formats of the numbers of a table, in its store and in its cache.
const (
	F32  = "f32"
	BF16 = "bf16" // half the bytes; numbers are rounded when they are written
)

// numberBytes returns the size of a number of a format.
func numberBytes(format string) int {
	if format == BF16 {
		return 2
	}
	return 4
}

// GatherFloats is Gather for rows as float32, whatever their format. It sets known[i], unless that is nil, to whether
// out has keys[i]'s own row; the default row that replaces a missing one MUST NOT be kept.
func (t *Table) GatherFloats(ctx context.Context, keys []uint64, out []float32, known []bool) Gathered {
	if !t.bf16 {
		return t.GatherRows(ctx, keys, Bytes(out), known)
	}
	raw, _ := t.narrow.Get().(*[]byte)
	if raw == nil {
		raw = new([]byte)
	}
	defer t.narrow.Put(raw)
	*raw = grown(*raw, 2*len(out))
	g := t.GatherRows(ctx, keys, *raw, known)
	widen(out, *raw)
	return g
}

// BF16 reports whether numbers of rows are bf16, not float32.
func (t *Table) BF16() bool { return t.bf16 }

// GatherRows is GatherFloats for rows as they are stored, one behind the other.
func (t *Table) GatherRows(ctx context.Context, keys []uint64, out []byte, known []bool) Gathered {
	for i := range known {
		known[i] = true
	}
	g := t.gather(ctx, keys, out, known)
	if !t.bf16 {
		return g
	}
	size := t.RowBytes()
	for i := range keys {
		row := out[i*size : (i+1)*size]
		if finite16(row) {
			continue
		}
		copy(row, t.def)
		g.Default, g.Broken = g.Default+1, g.Broken+1
		t.broken.Add(1)
		if known != nil {
			known[i] = false
		}
	}
	return g
}

// finite16 reports whether a row's bf16 all are finite: their exponents are not all ones.
func finite16(row []byte) bool {
	const exponent, last, carry = 0x7F80_7F80_7F80_7F80, 0x0080_0080_0080_0080, 0x8000_8000_8000_8000
	for ; len(row) >= 8; row = row[8:] {
		if (binary.LittleEndian.Uint64(row)&exponent+last)&carry != 0 {
			return false
		}
	}
	for ; len(row) >= 2; row = row[2:] {
		if binary.LittleEndian.Uint16(row)&0x7F80 == 0x7F80 {
			return false
		}
	}
	return true
}

// readRows is how many rows Read asks the store for at a time.
const readRows = 256

// Read is GatherFloats past the cache, for readers of a whole table: no count of look-ups, misses or shards has it, and
// Watch reports nothing. It asks for a few rows at a time, each time within the table's timeout, and stops where the
// store fails: out has default rows then behind the first read ones. keys MUST be distinct.
func (t *Table) Read(ctx context.Context, keys []uint64, out []float32) (read int, err error) {
	s := t.scratch.Get().(*scratch)
	defer t.scratch.Put(s)
	dim, rb := t.Dim(), t.store.RowBytes()
	for first := 0; first < len(keys); first += readRows {
		n := min(readRows, len(keys)-first)
		if err == nil {
			s.reset()
			s.keys = append(s.keys, keys[first:first+n]...)
			var g Gathered
			t.fetch(ctx, s, &g)
			if err = g.Err; err == nil {
				read += n
			}
		}
		for i := range n {
			row, to := t.def, out[(first+i)*dim:][:dim]
			if read > first && s.found[i] {
				row = s.rows[i*rb:][:rb]
			}
			if !t.bf16 {
				copy(Bytes(to), row)
				continue
			}
			if !finite16(row) {
				row = t.def
			}
			widen(to, row)
		}
	}
	return read, err
}

// PutFloats is Put for rows as float32. It refuses rows that do not Fit.
func (t *Table) PutFloats(ctx context.Context, keys []uint64, rows []float32) error {
	if !t.bf16 {
		return t.Put(ctx, keys, Bytes(rows))
	}
	if !t.Fits(rows) {
		return fmt.Errorf("embed: put %d rows: numbers that are not finite in bf16: %w", len(keys), ErrRow)
	}
	return t.Put(ctx, keys, narrowed(rows))
}

// Fits reports whether numbers are finite, also in the table's format.
func (t *Table) Fits(row []float32) bool {
	if !t.bf16 {
		return Finite(row)
	}
	for _, v := range row {
		if toBF16(v)&0x7F80 == 0x7F80 {
			return false
		}
	}
	return true
}

// widen writes bf16 numbers as float32.
func widen(to []float32, raw []byte) {
	for i := range to {
		to[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(raw[2*i:])) << 16)
	}
}

// narrowed returns numbers in bf16.
func narrowed(row []float32) []byte {
	out := make([]byte, 0, 2*len(row))
	for _, v := range row {
		out = binary.LittleEndian.AppendUint16(out, toBF16(v))
	}
	return out
}

// toBF16 rounds to the nearest, ties to even. What is too large becomes infinite, and a NaN stays one.
func toBF16(v float32) uint16 {
	bits := math.Float32bits(v)
	if v != v {
		return uint16(bits>>16) | 0x40
	}
	return uint16((bits + 0x7FFF + bits>>16&1) >> 16)
}

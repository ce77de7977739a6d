package ingest

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"
)

// parquetRows is the number of rows of a chunk.
const parquetRows = 2048

// parquetFile opens the file; one that is compressed as a whole is decompressed to the disk first.
func (s *source) parquetFile() (*os.File, *parquet.File, error) {
	if s.packing != "" {
		in, err := openStream(s.file, s.packing)
		if err != nil {
			return nil, nil, s.named(err)
		}
		name, err := spool(in)
		if err = errors.Join(err, in.close()); err != nil {
			return nil, nil, fmt.Errorf("read %s: %w", s.path, err)
		}
		old, was := s.file, s.temporary
		s.file, s.temporary, s.packing = name, true, ""
		if was {
			if err := os.Remove(old); err != nil {
				return nil, nil, err
			}
		}
	}
	f, err := os.Open(s.file)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	s.size = info.Size()
	p, err := openFooter(f, info.Size())
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("%s: not a whole Parquet file: %w. It was cut off or is still being "+
			"written: copy or export it again",
			s.path, err), f.Close())
	}
	return f, p, nil
}

// openFooter reads the footer. The library panics on some damaged files.
func openFooter(f *os.File, size int64) (p *parquet.File, err error) {
	defer recovered(&err)
	return parquet.OpenFile(f, size, parquet.SkipBloomFilters(true), parquet.SkipPageIndex(true))
}

// recovered turns a panic of the library into an error.
func recovered(err *error) {
	if v := recover(); v != nil {
		*err = fmt.Errorf("unreadable: %v", v)
	}
}

// parquetColumns returns the names of the columns and sets what else is known of the file.
func (s *source) parquetColumns() ([]string, error) {
	f, p, err := s.parquetFile()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	s.unit = "row"
	var names []string
	for _, path := range p.Schema().Columns() {
		names = append(names, columnName(path))
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%s: the file has no columns", s.path)
	}
	return names, nil
}

// columnName returns the name of a column as users know it: a list's, without the levels that the format puts between.
func columnName(path []string) string {
	if n := len(path); n >= 3 && (path[n-2] == "list" || path[n-2] == "bag") {
		path = path[:n-2]
	} else if n >= 2 && path[n-1] == "array" {
		path = path[:n-1]
	}
	return strings.Join(path, ".")
}

// parquetReader reads the columns that fields need, a number of rows at a time.
type parquetReader struct {
	file    *os.File
	p       *parquet.File
	s       *source
	columns []*parquetColumn // nil: nobody needs it
	groups  []parquet.RowGroup
	left    int64 // rows of the current group
	row     int64
	digest  string
	ended   bool
}

func (s *source) openParquet() (reader, error) {
	f, p, err := s.parquetFile()
	if err != nil {
		return nil, err
	}
	sum, err := s.prefixSum(0)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	r := &parquetReader{file: f, p: p, s: s, groups: p.RowGroups(), digest: hex.EncodeToString(sum.Sum(nil)),
		columns: make([]*parquetColumn, len(s.table.columns))}
	for i, path := range p.Schema().Columns() {
		if !slices.ContainsFunc(s.table.fields, func(f field) bool { return f.column == i }) {
			continue
		}
		leaf, ok := p.Schema().Lookup(path...)
		if !ok || leaf.MaxRepetitionLevel > 1 {
			return nil, errors.Join(fmt.Errorf("%s: column %s: lists of lists cannot be imported", s.path, s.table.columns[i]),
				f.Close())
		}
		r.columns[i] = &parquetColumn{index: leaf.ColumnIndex, list: leaf.MaxRepetitionLevel == 1,
			convert: converter(leaf.Node.Type()),
			buf:     make([]parquet.Value, 512)}
	}
	return r, nil
}

func (r *parquetReader) close() error {
	for _, c := range r.columns {
		c.close()
	}
	return r.file.Close()
}

func (r *parquetReader) next() (c *chunk) {
	if r.ended {
		return nil
	}
	c = &chunk{endLine: r.row, end: r.row, digest: r.digest}
	if c.err = r.read(c); c.err != nil {
		c.err = fmt.Errorf("%w: the file is damaged: copy or export it again", c.err)
	}
	r.ended = r.ended || c.err != nil
	if c.err == nil && len(c.lines) == 0 {
		return nil
	}
	c.end, c.endLine = r.row, r.row
	if n := r.p.NumRows(); n > 0 {
		c.read = int64(float64(r.s.size) * float64(r.row) / float64(n))
	}
	return c
}

// read adds rows to a chunk.
func (r *parquetReader) read(c *chunk) (err error) {
	defer recovered(&err)
	for r.left == 0 {
		if len(r.groups) == 0 {
			r.ended = true
			return nil
		}
		g := r.groups[0]
		r.groups, r.left = r.groups[1:], g.NumRows()
		for _, col := range r.columns {
			if err := col.open(g); err != nil {
				return err
			}
		}
	}
	n := int(min(r.left, parquetRows))
	width := len(r.columns)
	cells := make([]cell, n*width)
	for i, col := range r.columns {
		if col == nil {
			continue
		}
		for k := range n {
			if cells[k*width+i], err = col.cell(); err != nil {
				return fmt.Errorf("column %s: %w", r.s.table.columns[i], err)
			}
		}
	}
	c.lines = make([]line, n)
	for k := range n {
		c.lines[k] = line{number: r.row + 1, start: r.row, cells: cells[k*width : (k+1)*width : (k+1)*width]}
		r.row++
	}
	r.left -= int64(n)
	return nil
}

// parquetColumn reads the values of one column of a row group.
type parquetColumn struct {
	index   int
	list    bool
	convert func(*parquet.Value) (cell, error)
	pages   parquet.Pages
	page    parquet.Page
	values  parquet.ValueReader
	buf     []parquet.Value
	at, n   int // the next value of buf, and how many it has
}

func (c *parquetColumn) open(g parquet.RowGroup) error {
	if c == nil {
		return nil
	}
	c.close()
	c.pages = g.ColumnChunks()[c.index].Pages()
	return nil
}

func (c *parquetColumn) close() {
	if c == nil || c.pages == nil {
		return
	}
	c.release()
	_ = c.pages.Close() // reading has returned its error
	c.pages, c.at, c.n = nil, 0, 0
}

func (c *parquetColumn) release() {
	if c.page != nil {
		parquet.Release(c.page)
		c.page, c.values = nil, nil
	}
}

// peek returns the next value, which lives until the one after it is taken; io.EOF: there is none.
func (c *parquetColumn) peek() (*parquet.Value, error) {
	for c.at == c.n {
		if c.values == nil {
			page, err := c.pages.ReadPage()
			if err != nil {
				return nil, err
			}
			c.page, c.values = page, page.Values()
		}
		n, err := c.values.ReadValues(c.buf)
		if c.at, c.n = 0, n; n > 0 {
			break
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		c.release()
	}
	return &c.buf[c.at], nil
}

// cell returns the column's value of the next row.
func (c *parquetColumn) cell() (cell, error) {
	v, err := c.peek()
	if err != nil {
		return cell{}, cutShort(err)
	}
	c.at++
	var out cell
	if !v.IsNull() {
		if out, err = c.convert(v); err != nil {
			return cell{}, err
		}
	}
	if !c.list {
		return out, nil
	}
	all := cell{kind: listCell}
	for {
		if out.kind != absent {
			all.list = append(all.list, out)
		}
		v, err := c.peek()
		if errors.Is(err, io.EOF) || err == nil && v.RepetitionLevel() == 0 {
			return all, nil
		}
		if err != nil {
			return cell{}, err
		}
		c.at++
		out = cell{}
		if !v.IsNull() {
			if out, err = c.convert(v); err != nil {
				return cell{}, err
			}
		}
	}
}

// cutShort explains the end of a column before the end of its rows.
func cutShort(err error) error {
	if errors.Is(err, io.EOF) {
		return errors.New("it has fewer values than the file has rows")
	}
	return err
}

// unsigned returns a cell of a number; one that is too large for an integer is a text.
func unsigned(n uint64) cell {
	if n > math.MaxInt64 {
		return cell{kind: textCell, text: strconv.FormatUint(n, 10)}
	}
	return cell{kind: intCell, int: int64(n)}
}

// converter returns how values of a type become cells.
func converter(t parquet.Type) func(*parquet.Value) (cell, error) {
	if l := t.LogicalType(); l != nil {
		switch l := l.Value.(type) {
		case *format.TimestampType:
			unit := l.Unit.Value.Duration()
			return func(v *parquet.Value) (cell, error) { return seconds(v.Int64(), unit), nil }
		case *format.DateType:
			return func(v *parquet.Value) (cell, error) { return cell{kind: timeCell, int: int64(v.Int32()) * 86400}, nil }
		case *format.DecimalType:
			return func(v *parquet.Value) (cell, error) { return decimal(v, int(l.Scale)), nil }
		case *format.IntType:
			if !l.IsSigned && t.Kind() == parquet.Int32 {
				return func(v *parquet.Value) (cell, error) { return cell{kind: intCell, int: int64(v.Uint32())}, nil }
			}
			if !l.IsSigned && t.Kind() == parquet.Int64 {
				return func(v *parquet.Value) (cell, error) { return unsigned(v.Uint64()), nil }
			}
		case *format.UUIDType:
			return func(v *parquet.Value) (cell, error) { return uuid(v.ByteArray()), nil }
		}
	}
	switch t.Kind() {
	case parquet.Boolean:
		return func(v *parquet.Value) (cell, error) {
			if v.Boolean() {
				return cell{kind: boolCell, int: 1}, nil
			}
			return cell{kind: boolCell}, nil
		}
	case parquet.Int32:
		return func(v *parquet.Value) (cell, error) { return cell{kind: intCell, int: int64(v.Int32())}, nil }
	case parquet.Int64:
		return func(v *parquet.Value) (cell, error) { return cell{kind: intCell, int: v.Int64()}, nil }
	case parquet.Int96: // nanoseconds of a Julian day, as Spark and Hive wrote times
		return func(v *parquet.Value) (cell, error) {
			n := v.Int96()
			day, nanos := int64(n[2]), int64(uint64(n[1])<<32|uint64(n[0]))
			return cell{kind: timeCell, int: (day-2440588)*86400 + nanos/int64(time.Second)}, nil
		}
	case parquet.Float:
		return func(v *parquet.Value) (cell, error) { return cell{kind: floatCell, float: float64(v.Float())}, nil }
	case parquet.Double:
		return func(v *parquet.Value) (cell, error) { return cell{kind: floatCell, float: v.Double()}, nil }
	}
	return func(v *parquet.Value) (cell, error) { return textOrNone(string(v.ByteArray())), nil }
}

// uuid writes 16 bytes as people do.
func uuid(b []byte) cell {
	s := hex.EncodeToString(b)
	if len(s) == 32 {
		s = s[:8] + "-" + s[8:12] + "-" + s[12:16] + "-" + s[16:20] + "-" + s[20:]
	}
	return cell{kind: textCell, text: s}
}

// seconds turns a count of units since 1970 into a time.
func seconds(n int64, unit time.Duration) cell {
	per := int64(time.Second / unit)
	s := n / per
	if n%per < 0 {
		s--
	}
	return cell{kind: timeCell, int: s}
}

// decimal writes a number with a scale as text: none of its digits is lost.
func decimal(v *parquet.Value, scale int) cell {
	n := new(big.Int)
	switch v.Kind() {
	case parquet.Int32:
		n.SetInt64(int64(v.Int32()))
	case parquet.Int64:
		n.SetInt64(v.Int64())
	default: // big endian, two's complement
		b := v.ByteArray()
		n.SetBytes(b)
		if len(b) > 0 && b[0] >= 0x80 {
			n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(8*len(b))))
		}
	}
	digits := new(big.Int).Abs(n).String()
	if scale > 0 {
		if short := scale + 1 - len(digits); short > 0 {
			digits = strings.Repeat("0", short) + digits
		}
		digits = digits[:len(digits)-scale] + "." + digits[len(digits)-scale:]
	}
	if n.Sign() < 0 {
		digits = "-" + digits
	}
	return cell{kind: textCell, text: digits}
}

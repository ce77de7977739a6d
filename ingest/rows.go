package ingest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"grebe/embed"
	"grebe/internal/cli"
	"grebe/serve"
)

// rowFile reads a few rows at a time. next returns io.EOF after the last one.
type rowFile struct {
	file *os.File
	in   *bufio.Reader
	size int64
	dim  int
	key  uint64 // key of the next row, if the file has no keys
	line int    // line number in an NDJSON file
	rows int64  // number of rows in a .npy or .f32 file
	read func(f *rowFile, row []float32) (uint64, error)
}

// rowsAtATime is the number of rows written together.
const rowsAtATime = 512

func openRows(name string, dim int, first uint64) (*rowFile, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	r := &rowFile{file: f, in: bufio.NewReaderSize(f, 1<<20), dim: dim, key: first, read: (*rowFile).plain}
	if info, err := f.Stat(); err == nil {
		r.size = info.Size()
	}
	switch filepath.Ext(name) {
	case ".f32":
		if r.rows = r.size / int64(4*dim); r.size != r.rows*int64(4*dim) {
			err = fmt.Errorf("%s has %d bytes, which is not a whole number of rows of %d", name, r.size, dim)
		}
	case ".npy":
		if err = r.header(); err == nil && r.size-r.done() != 4*int64(dim)*r.rows {
			err = fmt.Errorf("the header says %d rows of %d numbers, %d bytes follow: the file was cut off or damaged", r.rows,
				dim, r.size-r.done())
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", name, err)
		}
	case ".ndjson", ".jsonl":
		r.read = (*rowFile).text
	default:
		err = cli.Usagef("%s: want a file that ends in .npy, .f32 or .ndjson", name)
	}
	if err == nil && r.rows > 0 && first > math.MaxUint64-uint64(r.rows-1) {
		err = cli.Usagef("--first-key: %d: the last of %d rows would have a key beyond %d", first, r.rows,
			uint64(math.MaxUint64))
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return r, nil
}

func (f *rowFile) close() error { return f.file.Close() }

// done returns the number of bytes read.
func (f *rowFile) done() int64 {
	at, err := f.file.Seek(0, io.SeekCurrent)
	if err != nil {
		return 0
	}
	return at - int64(f.in.Buffered())
}

func (f *rowFile) next() ([]uint64, []float32, error) {
	var keys []uint64
	rows := make([]float32, 0, rowsAtATime*f.dim)
	for len(keys) < rowsAtATime {
		row := rows[len(rows) : len(rows)+f.dim]
		k, err := f.read(f, row)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, nil, err
		}
		if !embed.Finite(row) {
			return nil, nil, fmt.Errorf("row %d has numbers that are not finite", k)
		}
		keys, rows = append(keys, k), rows[:len(rows)+f.dim]
	}
	if len(keys) == 0 {
		return nil, nil, io.EOF
	}
	return keys, rows, nil
}

// plain reads the next row as binary numbers.
func (f *rowFile) plain(row []float32) (uint64, error) {
	if _, err := io.ReadFull(f.in, embed.Bytes(row)); err != nil {
		return 0, err
	}
	f.key++
	return f.key - 1, nil
}

// text reads the next row from a line.
func (f *rowFile) text(row []float32) (uint64, error) {
	for {
		line, err := f.in.ReadBytes('\n')
		if len(line) == 0 && err != nil {
			return 0, err
		}
		f.line++
		if strings.TrimSpace(string(line)) == "" {
			continue
		}
		var v struct {
			Key *uint64   `json:"key"`
			Row []float32 `json:"row"`
		}
		if err := json.Unmarshal(line, &v); err != nil {
			return 0, fmt.Errorf("line %d: %w", f.line, err)
		}
		if v.Key == nil || len(v.Row) != f.dim {
			return 0, fmt.Errorf("line %d: want a key and a row of %d numbers, got %d", f.line, f.dim, len(v.Row))
		}
		if serve.LacksNumbers(line) {
			return 0, fmt.Errorf("line %d: the row has null where a number should be", f.line)
		}
		copy(row, v.Row)
		return *v.Key, nil
	}
}

// header reads the header of a NumPy file: magic, version, length, and a text with type, order and shape.
func (f *rowFile) header() error {
	start := make([]byte, 8)
	if _, err := io.ReadFull(f.in, start); err != nil || string(start[:6]) != "\x93NUMPY" {
		return errors.New("not a .npy file")
	}
	width := 2
	if start[6] > 1 {
		width = 4
	}
	size := 0
	for i := range width {
		b, err := f.in.ReadByte()
		if err != nil {
			return err
		}
		size |= int(b) << (8 * i)
	}
	if size > 1<<16 {
		return fmt.Errorf("a header of %d bytes", size)
	}
	text := make([]byte, size)
	if _, err := io.ReadFull(f.in, text); err != nil {
		return err
	}
	shape := npyShape.FindSubmatch(text)
	if shape == nil || !strings.Contains(string(text), "'<f4'") ||
		!strings.Contains(string(text), "'fortran_order': False") {
		return fmt.Errorf("want float32 in rows and two dimensions, the header is %s", strings.TrimSpace(string(text)))
	}
	if n, err := strconv.Atoi(string(shape[2])); err != nil || n != f.dim {
		return fmt.Errorf("rows of %s numbers, the table's have %d", shape[2], f.dim)
	}
	rows, err := strconv.ParseInt(string(shape[1]), 10, 64)
	if err != nil || rows > f.size { // a row takes more than a byte
		return fmt.Errorf("%s rows in a file of %d bytes", shape[1], f.size)
	}
	f.rows = rows
	return nil
}

var npyShape = regexp.MustCompile(`'shape': \((\d+), (\d+)\)`)

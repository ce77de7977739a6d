package codebook

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"grebe/compute"
	"grebe/internal/human"
	"grebe/model/safetensors"
)

// Embeddings is a file with one row per item, in the order of the items: .npy or .safetensors.
type Embeddings struct {
	Path   string
	Tensor string // of a safetensors file; "": its only one
}

// Rows reads the rows of items at places, which ascend.
func (e *Embeddings) Rows(ctx context.Context, items *Items, places []int) (rows []float32, dims int, err error) {
	m, err := e.open()
	if err != nil {
		return nil, 0, fmt.Errorf("%s: %w", e.Path, err)
	}
	defer m.close()
	if m.rows != len(items.IDs) {
		return nil, 0, fmt.Errorf("%s has %s and %s has %s: there must be one row per item, in the same order",
			e.Path, human.Count(m.rows, "row"), items.file.Name(), human.Count(len(items.IDs), "item"))
	}
	rows = make([]float32, 0, len(places)*m.cols)
	for at := 0; len(places) > 0; at++ {
		row, err := m.next()
		if err != nil {
			return nil, 0, fmt.Errorf("%s: row %d: %w", e.Path, at, err)
		}
		if places[0] == at {
			rows, places = append(rows, row...), places[1:]
		}
		if at%4096 == 0 && ctx.Err() != nil {
			return nil, 0, ctx.Err()
		}
	}
	return rows, m.cols, nil
}

// matrix is read row by row. A row is valid until the next one is read.
type matrix struct {
	rows, cols int
	next       func() ([]float32, error)
	close      func() error
}

func (e *Embeddings) open() (*matrix, error) {
	switch ext := filepath.Ext(e.Path); {
	case ext == ".npy" && e.Tensor != "":
		return nil, errors.New("a .npy file has no named tensors")
	case ext == ".npy":
		return openNumpy(e.Path)
	case ext == ".safetensors":
		return openTensor(e.Path, e.Tensor)
	default:
		return nil, errors.New("want a file that ends in .npy or .safetensors")
	}
}

func openTensor(path, name string) (*matrix, error) {
	set, err := safetensors.OpenFile(path)
	if err != nil {
		return nil, err
	}
	names := set.Names()
	if name == "" && len(names) == 1 {
		name = names[0]
	}
	info, ok := set.Lookup(name)
	switch {
	case name == "":
		err = fmt.Errorf("it has %d tensors (%s): name one", len(names), strings.Join(names[:min(8, len(names))], ", "))
	case !ok:
		err = fmt.Errorf("no tensor %q", name)
	case len(info.Shape) != 2:
		err = fmt.Errorf("tensor %s has the shape %v, want two dimensions: items, values", name, info.Shape)
	}
	var t compute.Tensor
	if err == nil {
		t, err = set.Tensor(name)
	}
	if err == nil && t.Cols == 0 {
		err = errors.New("its rows are empty")
	}
	if err != nil {
		set.Close()
		return nil, err
	}
	width, at := t.Cols*t.DType.Size(), 0
	return &matrix{rows: t.Rows, cols: t.Cols, close: set.Close, next: func() ([]float32, error) {
		row := compute.Tensor{DType: t.DType, Rows: 1, Cols: t.Cols, Data: t.Data[at : at+width]}
		at += width
		return safetensors.Floats(row), nil
	}}, nil
}

var npyHeader = regexp.MustCompile(`^\{'descr': '([<|>=]?[a-z][0-9]+)', 'fortran_order': (True|False), ` +
	`'shape': \((\d+), (\d+)\), \}\s*$`)

// openNumpy reads the header of a NumPy file: magic, version, length, and a text with type, order and shape.
func openNumpy(path string) (*matrix, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	m, err := numpy(f)
	if err != nil {
		f.Close()
		return nil, err
	}
	m.close = f.Close
	return m, nil
}

func numpy(f *os.File) (*matrix, error) {
	in := bufio.NewReaderSize(f, 1<<20)
	start := make([]byte, 8, 12)
	if _, err := io.ReadFull(in, start); err != nil || string(start[:6]) != "\x93NUMPY" {
		return nil, errors.New("not a .npy file")
	}
	width := 2
	if start[6] > 1 {
		width = 4
	}
	length := make([]byte, 4)
	if _, err := io.ReadFull(in, length[:width]); err != nil {
		return nil, errors.New("the header is cut off")
	}
	size := binary.LittleEndian.Uint32(length)
	if size > 1<<16 {
		return nil, fmt.Errorf("a header of %d bytes", size)
	}
	text := make([]byte, size)
	if _, err := io.ReadFull(in, text); err != nil {
		return nil, errors.New("the header is cut off")
	}
	h := npyHeader.FindSubmatch(text)
	if h == nil || string(h[2]) == "True" {
		return nil, fmt.Errorf("want two dimensions in the order of C, the header is %s", strings.TrimSpace(string(text)))
	}
	wide := map[string]int{"<f2": 2, "<f4": 4, "<f8": 8}[string(h[1])]
	if wide == 0 {
		return nil, fmt.Errorf("want numbers of the type <f2, <f4 or <f8, not %s", h[1])
	}
	rows, err := strconv.Atoi(string(h[3]))
	cols, err2 := strconv.Atoi(string(h[4]))
	info, err3 := f.Stat()
	if err := errors.Join(err, err2, err3); err != nil {
		return nil, err
	}
	if cols == 0 || cols > 1<<24 {
		return nil, fmt.Errorf("rows of %d numbers", cols)
	}
	bytes := info.Size() - int64(len(start)+width+len(text))
	if perRow := bytes / int64(max(1, rows)); perRow != int64(cols*wide) || perRow*int64(rows) != bytes {
		return nil, fmt.Errorf("the header says %d rows of %d numbers and %d bytes follow: the file is cut off or damaged",
			rows, cols, bytes)
	}
	data, row := make([]byte, cols*wide), make([]float32, cols)
	return &matrix{rows: rows, cols: cols, next: func() ([]float32, error) {
		if _, err := io.ReadFull(in, data); err != nil {
			return nil, err
		}
		decode(row, data, wide)
		return row, nil
	}}, nil
}

// decode sets values from numbers of 2, 4 or 8 bytes.
func decode(row []float32, data []byte, wide int) {
	switch wide {
	case 2:
		copy(row, safetensors.Floats(compute.Tensor{DType: compute.F16, Rows: 1, Cols: len(row), Data: data}))
	case 4:
		for i := range row {
			row[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
		}
	default:
		for i := range row {
			row[i] = float32(math.Float64frombits(binary.LittleEndian.Uint64(data[8*i:])))
		}
	}
}

// Package codes makes semantic IDs: short paths of codes, one code per level, such that items with close embeddings
// share the first codes of their paths.
//
// Train runs k-means on the rows, then on what remains of each row after its centroid is subtracted, level by level
// (residual k-means). Encode gives rows the nearest path of a Book, and Resolve makes paths unique: of several items
// with the same path the closest keeps it, and each other one takes the nearest path that is free.
//
// The package is pure. Numeric work runs on a Machine. The same rows, options and arithmetic give the same bits,
// whatever number of threads the Machine has.
package codes

import (
	"errors"
	"fmt"
	"math"
)

// Limits of a Book.
const (
	MaxLevels = 16      // of a path
	MaxSize   = 1 << 16 // codes of a level
)

// Machine runs the numeric work. A score MUST depend on its row and centroid alone, not on how the work is divided.
type Machine interface {
	// Load takes k = len(bias) centroids of dims values each, for the calls of Scores that follow.
	Load(centroids, bias []float32, dims int) error
	// Scores sets out[r·k+c] to rows[r]·centroids[c] + bias[c].
	Scores(out, rows []float32) error
	// Each calls f for every i in [0, n), perhaps several at the same time.
	Each(n int, f func(i int))
}

// Options are those of Train.
type Options struct {
	Sizes      []int   // codes of each level
	Seed       uint64  // of the random choices
	Iterations int     // most passes over all rows per level; default 20
	Balance    float64 // a code has at most Balance times the mean number of rows, at least 1; 0: no bound
	// Step is called after each pass. An error stops Train, which returns it. May be nil.
	Step func(Progress) error
}

// Progress describes a pass over rows.
type Progress struct {
	Level, Pass int     // from 1 on
	Rows        int     // of the pass; fewer than all while a sample is used
	Error       float64 // mean squared distance of these rows to their centroids, before the pass moved them
}

const defaultIterations = 20

// Sizes returns the sizes of levels for n items: equal powers of two, with room for sixteen times as many items.
func Sizes(n, levels int) []int {
	most := 1 // a level cannot have more codes than items
	for most*2 <= n && most*2 <= MaxSize {
		most *= 2
	}
	size := min(16, most)
	for size < most && math.Pow(float64(size), float64(levels)) < 16*float64(n) {
		size *= 2
	}
	out := make([]int, levels)
	for i := range out {
		out[i] = size
	}
	return out
}

// Validate checks options for n rows.
func (o *Options) Validate(n int) error {
	if n == 0 {
		return errors.New("no items")
	}
	if err := checkSizes(o.Sizes); err != nil {
		return err
	}
	for l, s := range o.Sizes {
		if s > n {
			return fmt.Errorf("level %d: %d codes need at least as many items, and there are %d", l+1, s, n)
		}
	}
	if o.Iterations < 0 {
		return fmt.Errorf("iterations: %d is negative", o.Iterations)
	}
	if o.Balance != 0 && !(o.Balance >= 1 && o.Balance <= math.MaxInt32) {
		return fmt.Errorf("balance: %v, want 0 (no bound) or at least 1", o.Balance)
	}
	return nil
}

func checkSizes(sizes []int) error {
	if len(sizes) == 0 || len(sizes) > MaxLevels {
		return fmt.Errorf("%d levels, want 1 to %d", len(sizes), MaxLevels)
	}
	paths := 1.0
	for l, s := range sizes {
		if s < 1 || s > MaxSize {
			return fmt.Errorf("level %d: %d codes, want 1 to %d", l+1, s, MaxSize)
		}
		paths *= float64(s)
	}
	if paths > 1<<62 {
		return fmt.Errorf("levels of %v codes have more than 2^62 paths", sizes)
	}
	return nil
}

// checkRows returns the number of rows.
func checkRows(rows []float32, dims int) (int, error) {
	if dims < 1 || len(rows)%dims != 0 {
		return 0, fmt.Errorf("%d values are no whole number of rows of %d", len(rows), dims)
	}
	for i, v := range rows {
		if v != v || math.IsInf(float64(v), 0) {
			return 0, fmt.Errorf("row %d has a value that is not finite (%v, column %d)", i/dims, v, i%dims)
		}
	}
	return len(rows) / dims, nil
}

// Book has the centroids of each level.
type Book struct {
	Dims   int
	Levels [][]float32 // centroids of Dims values, one after the other
}

// Sizes returns the codes of each level.
func (b *Book) Sizes() []int {
	out := make([]int, len(b.Levels))
	for l, c := range b.Levels {
		out[l] = len(c) / b.Dims
	}
	return out
}

// centroid returns that of a code.
func (b *Book) centroid(level int, code int32) []float32 {
	return b.Levels[level][int(code)*b.Dims:][:b.Dims]
}

// Train makes a Book for rows of dims values and returns it with the path of each row, one after the other. Rows
// become what remains of them: their difference to the centroids of their paths.
func Train(m Machine, rows []float32, dims int, o Options) (*Book, []int32, error) {
	n, err := checkRows(rows, dims)
	if err == nil {
		err = o.Validate(n)
	}
	if err != nil {
		return nil, nil, err
	}
	if o.Iterations == 0 {
		o.Iterations = defaultIterations
	}
	book, paths := &Book{Dims: dims}, make([]int32, n*len(o.Sizes))
	for l, k := range o.Sizes {
		t := &level{pass: newPass(m, rows, dims), k: k, number: l + 1, options: o}
		if err := t.train(); err != nil {
			return nil, nil, err
		}
		book.Levels = append(book.Levels, t.centroids)
		t.subtract(t.centroids)
		for r, c := range t.nearest {
			paths[r*len(o.Sizes)+l] = c
		}
	}
	return book, paths, nil
}

// Encode returns the path of each row: at each level the code whose centroid is nearest to what remains. Rows become
// what remains of them.
func (b *Book) Encode(m Machine, rows []float32, dims int) ([]int32, error) {
	n, err := checkRows(rows, dims)
	if err != nil {
		return nil, err
	}
	if dims != b.Dims {
		return nil, fmt.Errorf("rows of %d values, the codebook has %d", dims, b.Dims)
	}
	paths := make([]int32, n*len(b.Levels))
	for l, c := range b.Levels {
		p := newPass(m, rows, dims)
		if err := p.assign(c); err != nil {
			return nil, err
		}
		p.subtract(c)
		for r, code := range p.nearest {
			paths[r*len(b.Levels)+l] = code
		}
	}
	return paths, nil
}

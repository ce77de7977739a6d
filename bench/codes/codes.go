// Package codes measures how long grebe codes takes for many items, and how near its error is to that of a plain
// k-means on all rows.
package codes

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"time"

	"grebe/app/codebook"
	"grebe/bench/report"
	"grebe/codes"
)

// Options of a run.
type Options struct {
	Items, Dims int
	Sizes       []int
	Balance     float64
	Threads     int    // 0: all cores
	Reference   bool   // run the plain k-means too
	Write       string // file, .npy, for the rows, instead of all else
	JSON        bool
}

// Found is what a run measured.
type Found struct {
	Items   int     `json:"items"`
	Dims    int     `json:"dims"`
	Sizes   []int   `json:"sizes"`
	Threads int     `json:"threads"`
	Train   float64 `json:"train_s"`
	Resolve float64 `json:"resolve_s"`
	Passes  int     `json:"passes"` // over all rows
	// Error is that of the nearest codes, and Resolved that after collisions are resolved.
	Error     float64 `json:"error"`
	Resolved  float64 `json:"resolved_error"`
	Moved     int     `json:"moved"`
	Largest   []int   `json:"largest"`
	Reference float64 `json:"reference_error,omitempty"`
	Slow      float64 `json:"reference_s,omitempty"`
}

// Run makes rows, codes and the report.
func Run(ctx context.Context, o Options, w io.Writer) (*Found, error) {
	if o.Threads == 0 {
		o.Threads = runtime.GOMAXPROCS(0)
	}
	m, err := codebook.NewMachine(o.Threads)
	if err != nil {
		return nil, err
	}
	defer m.Free()
	f := &Found{Items: o.Items, Dims: o.Dims, Sizes: o.Sizes, Threads: o.Threads}
	rows := Rows(m, o.Items, o.Dims)
	if o.Write != "" {
		return nil, write(o.Write, rows, o.Dims)
	}
	spread := codes.Spread(rows, o.Dims)
	start := time.Now()
	book, paths, err := codes.Train(m, rows, o.Dims, codes.Options{
		Sizes: o.Sizes, Balance: o.Balance, Step: func(p codes.Progress) error {
			if p.Rows == o.Items {
				f.Passes++
			}
			return ctx.Err()
		},
	})
	if err != nil {
		return nil, err
	}
	f.Train = time.Since(start).Seconds()
	before := book.Describe(rows, paths, spread)
	f.Error = before.Error
	for _, l := range before.Levels {
		f.Largest = append(f.Largest, l.Largest)
	}
	start = time.Now()
	if f.Moved, err = book.Resolve(m, rows, paths, nil); err != nil {
		return nil, err
	}
	f.Resolve = time.Since(start).Seconds()
	f.Resolved = book.Describe(rows, paths, spread).Error
	if !o.JSON {
		if err := f.print(w); err != nil {
			return nil, err
		}
	}
	if o.Reference {
		rows = Rows(m, o.Items, o.Dims)
		start = time.Now()
		for l, k := range o.Sizes {
			if err := lloyd(ctx, m, rows, o.Dims, k, uint64(l)); err != nil {
				return nil, err
			}
		}
		f.Slow = time.Since(start).Seconds()
		f.Reference = squares(m, rows) / spread
	}
	if o.JSON {
		return f, report.JSON(w, f)
	}
	if o.Reference {
		_, err = fmt.Fprintf(w, "plain k-means: %.1f s, error %.5f: codes have %.4f of it\n", f.Slow, f.Reference,
			f.Error/f.Reference)
	}
	return f, err
}

func (f *Found) print(w io.Writer) error {
	t := report.Table(w)
	fmt.Fprintf(t, "items\t%d × %d, levels of %v codes, %d threads\n", f.Items, f.Dims, f.Sizes, f.Threads)
	fmt.Fprintf(t, "codes\t%.1f s, %d passes over all rows\n", f.Train, f.Passes)
	fmt.Fprintf(t, "collisions\t%.1f s, %d items moved\n", f.Resolve, f.Moved)
	fmt.Fprintf(t, "error\t%.5f of the variance, %.5f after collisions\n", f.Error, f.Resolved)
	fmt.Fprintf(t, "largest codes\t%v items of a mean of %d\n", f.Largest, f.Items/max(1, f.Sizes[0]))
	return t.Flush()
}

// write writes rows as NumPy does.
func write(name string, rows []float32, dims int) (err error) {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	const lead = 10 // bytes before the description, which ends at a multiple of 64
	what := fmt.Sprintf("{'descr': '<f4', 'fortran_order': False, 'shape': (%d, %d), }", len(rows)/dims, dims)
	what += strings.Repeat(" ", 63-(lead+len(what))%64) + "\n"
	head := append([]byte("\x93NUMPY\x01\x00"), byte(len(what)), byte(len(what)>>8))
	w := bufio.NewWriterSize(f, 1<<20)
	if _, err := w.Write(append(head, what...)); err != nil {
		return err
	}
	if err := binary.Write(w, binary.LittleEndian, rows); err != nil {
		return err
	}
	return w.Flush()
}

// Rows returns embeddings as catalogs have them: groups of groups of different popularity, with noise.
func Rows(m codes.Machine, n, dims int) []float32 {
	const groups, levels = 1000, 3
	random := rand.New(rand.NewPCG(1, 2))
	centers := make([]float32, levels*groups*dims)
	for i := range centers {
		centers[i] = float32(random.NormFloat64() * math.Pow(.6, float64(i/(groups*dims))))
	}
	out := make([]float32, n*dims)
	const block = 1000
	m.Each((n+block-1)/block, func(b int) {
		random := rand.New(rand.NewPCG(3, uint64(b)))
		for r := b * block; r < min(n, (b+1)*block); r++ {
			row := out[r*dims:][:dims]
			for i := range row {
				row[i] = float32(.5 * random.NormFloat64())
			}
			for l := range levels {
				g := int(groups * math.Pow(random.Float64(), 2))
				for i, v := range centers[(l*groups+g)*dims:][:dims] {
					row[i] += v
				}
			}
		}
	})
	return out
}

const piece = 1 << 18 // values that one core works on

// squares sums over all values, each of a piece after the other.
func squares(m codes.Machine, rows []float32) (s float64) {
	parts := make([]float64, (len(rows)+piece-1)/piece)
	m.Each(len(parts), func(i int) {
		for _, v := range rows[i*piece : min((i+1)*piece, len(rows))] {
			parts[i] += float64(v) * float64(v)
		}
	})
	for _, part := range parts {
		s += part
	}
	return s
}

// sum adds each row to the sum of its centroid, on several cores: each has some columns.
func sum(m codes.Machine, sums []float64, rows []float32, nearest []int32, dims int) {
	const columns = 16
	m.Each((dims+columns-1)/columns, func(i int) {
		from, to := i*columns, min((i+1)*columns, dims)
		for r, c := range nearest {
			sum := sums[int(c)*dims:][from:to]
			for i, v := range rows[r*dims:][from:to] {
				sum[i] += float64(v)
			}
		}
	})
}

// lloyd is the plain algorithm: random rows as first centroids, passes over all rows until the error stays, at most
// 100. Rows become what remains.
func lloyd(ctx context.Context, m codes.Machine, rows []float32, dims, k int, seed uint64) error {
	n := len(rows) / dims
	centroids := make([]float32, 0, k*dims)
	for _, r := range rand.New(rand.NewPCG(seed, 7)).Perm(n)[:k] {
		centroids = append(centroids, rows[r*dims:][:dims]...)
	}
	book := &codes.Book{Dims: dims, Levels: [][]float32{centroids}}
	last, left := math.Inf(1), make([]float32, len(rows))
	for pass := range 100 {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		m.Each((len(rows)+piece-1)/piece, func(i int) { copy(left[i*piece:], rows[i*piece:min((i+1)*piece, len(rows))]) })
		nearest, err := book.Encode(m, left, dims)
		if err != nil {
			return err
		}
		now := squares(m, left)
		if last-now <= 1e-6*now || pass == 99 {
			copy(rows, left)
			return nil
		}
		last = now
		sums, count := make([]float64, k*dims), make([]float64, k)
		sum(m, sums, rows, nearest, dims)
		for _, c := range nearest {
			count[c]++
		}
		for i, s := range sums {
			if count[i/dims] > 0 {
				centroids[i] = float32(s / count[i/dims])
			}
		}
	}
	return nil
}

// Package codes measures how long grebe codes takes for many items, and how near its error is to that of a plain
// k-means on all rows.
package codes

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
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
	Threads     int  // 0: all cores
	Reference   bool // run the plain k-means too
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
	if o.Reference {
		rows = Rows(m, o.Items, o.Dims)
		start = time.Now()
		for l, k := range o.Sizes {
			if err := lloyd(ctx, m, rows, o.Dims, k, uint64(l)); err != nil {
				return nil, err
			}
		}
		f.Slow = time.Since(start).Seconds()
		f.Reference = squares(rows) / spread
	}
	if o.JSON {
		return f, report.JSON(w, f)
	}
	return f, f.print(w)
}

func (f *Found) print(w io.Writer) error {
	t := report.Table(w)
	fmt.Fprintf(t, "items\t%d × %d, levels of %v codes, %d threads\n", f.Items, f.Dims, f.Sizes, f.Threads)
	fmt.Fprintf(t, "codes\t%.1f s, %d passes over all rows\n", f.Train, f.Passes)
	fmt.Fprintf(t, "collisions\t%.1f s, %d items moved\n", f.Resolve, f.Moved)
	fmt.Fprintf(t, "error\t%.5f of the variance, %.5f after collisions\n", f.Error, f.Resolved)
	fmt.Fprintf(t, "largest codes\t%v items of a mean of %d\n", f.Largest, f.Items/max(1, f.Sizes[0]))
	if f.Reference > 0 {
		fmt.Fprintf(t, "plain k-means\t%.1f s, error %.5f: codes have %.4f of it\n", f.Slow, f.Reference, f.Error/f.Reference)
	}
	return t.Flush()
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

func squares(rows []float32) (s float64) {
	for _, v := range rows {
		s += float64(v) * float64(v)
	}
	return s
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
	last := math.Inf(1)
	for pass := range 100 {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		left := slices.Clone(rows)
		nearest, err := book.Encode(m, left, dims)
		if err != nil {
			return err
		}
		now := squares(left)
		if last-now <= 1e-6*now || pass == 99 {
			copy(rows, left)
			return nil
		}
		last = now
		sums, count := make([]float64, k*dims), make([]float64, k)
		for r, c := range nearest {
			count[c]++
			sum := sums[int(c)*dims:][:dims]
			for i, v := range rows[r*dims:][:dims] {
				sum[i] += float64(v)
			}
		}
		for i, s := range sums {
			if count[i/dims] > 0 {
				centroids[i] = float32(s / count[i/dims])
			}
		}
	}
	return nil
}

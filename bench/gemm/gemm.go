// Package gemm measures Grebe's matrix products on the CPU against oneDNN and OpenBLAS, on the
// products of Qwen2-0.5B and Qwen2-1.5B.
//
// All contenders get the same values, weights in the form they like best (oneDNN: reordered once;
// OpenBLAS has no such form), and activations as float32 rows: bringing them to bf16 is part of the
// measured time. Before anything is timed the results are compared with each other and, in part, with
// a product in float64; a wrong result is an error.
//
// Contenders take turns in rounds, in changing order, and between turns everything rests until the
// threads of the last one have stopped spinning. A round has one time of each: the median of its
// products. All of them count, also those during which the machine was busy with something else: a
// line's ratio is the median over rounds of the ratios within a round, which few such products cannot
// move. Rounds go on until the 95 % confidence interval of that median is narrow, or patience ends.
//
// Products of int8 take Grebe's own bf16 along, and oneDNN's int8. Grebe finds a scale for each row, which is
// part of its time; oneDNN rounds all rows with one scale that is known before.
//
// Where the CPU has AVX-512, a loop of multiply-adds on registers alone takes its turn beside products
// in float32: what share of its rate Grebe reaches says how much is left.
//
// The peers are shared libraries opened at run time; one that is not installed is reported so.
package gemm

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"time"

	"grebe/compute"
)

// Options says what to measure. Zero values stand for defaults.
type Options struct {
	Rows     []int           // default 256, 512, 1024
	Threads  []int           // default 1, 2
	Formats  []compute.DType // default BF16, F32; INT8 has Grebe's own bf16 beside it
	Models   []string        // default all: "qwen2-0.5b", "qwen2-1.5b"
	Rounds   int             // least rounds of a line; default and least 11
	Patience time.Duration   // how long a line may go on while its interval is wide; default 9 s
	JSON     bool            // write the report as JSON, not as a table
	Check    bool            // add a verdict; Run returns ErrBelow if a line is below its bar
}

func (o *Options) defaults() {
	if len(o.Rows) == 0 {
		o.Rows = []int{256, 512, 1024}
	}
	if len(o.Threads) == 0 {
		o.Threads = []int{1, 2}
	}
	if len(o.Formats) == 0 {
		o.Formats = []compute.DType{compute.BF16, compute.F32}
	}
	if len(o.Models) == 0 {
		o.Models = []string{"qwen2-0.5b", "qwen2-1.5b"}
	}
	o.Rounds = max(o.Rounds, leastRounds)
	if o.Patience == 0 {
		o.Patience = 9 * time.Second
	}
}

// Report is what Run measured.
type Report struct {
	Level   string // of the CPU, as Grebe uses it
	Peers   []Peer
	Lines   []Line
	Summary []Summary
}

// Peer is a library that Grebe is compared with.
type Peer struct {
	Name    string
	Library string
	Absent  string `json:",omitempty"` // why it could not be opened
}

// Line is one product.
type Line struct {
	Model, Product string
	Format         string
	Threads        int
	M, N, K        int
	Grebe          float64            // GFLOP/s, median
	Peers          map[string]float64 // GFLOP/s, median
	Ratio          float64            // Grebe's rate over that of the peer with which it is least; 0 without peers
	Low, High      float64            // 95 % confidence interval of Ratio
	Rounds         int
	OverBF16       float64 `json:",omitempty"` // of int8: Grebe's rate over that of its own bf16
	Ceiling        float64 `json:",omitempty"` // Grebe's rate over that of multiply-adds on registers; 0: not measured
}

// Summary is the worst and the mean ratio of a format and number of threads.
type Summary struct {
	Format         string
	Threads        int
	Worst, GeoMean float64
	WorstAt        string
	Below          int     // lines below the bar
	OverBF16       float64 `json:",omitempty"` // of int8: geometric mean
}

// shape is a product C[m][n] = A[m][k]·W[n][k]ᵀ of a model.
type shape struct {
	model, product string
	n, k           int
}

// models returns the products of a layer, by the model's sizes.
func models(names []string) (all []shape, err error) {
	sizes := map[string]struct{ hidden, heads, kv, width, inter int }{
		"qwen2-0.5b": {896, 14, 2, 64, 4864},
		"qwen2-1.5b": {1536, 12, 2, 128, 8960},
	}
	for _, name := range names {
		s, ok := sizes[name]
		if !ok {
			return nil, fmt.Errorf("bench gemm: no model %q", name)
		}
		all = append(all,
			shape{name, "QKV", (s.heads + 2*s.kv) * s.width, s.hidden},
			shape{name, "Out", s.hidden, s.heads * s.width},
			shape{name, "GateUp", 2 * s.inter, s.hidden},
			shape{name, "Down", s.hidden, s.inter})
	}
	return all, nil
}

// Run measures and writes a table, or the report as JSON, to w.
func Run(ctx context.Context, o Options, w io.Writer) (Report, error) {
	o.defaults()
	shapes, err := models(o.Models)
	if err != nil {
		return Report{}, err
	}
	// OpenMP keeps its number of threads, and its threads, per calling thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	libs := openLibraries()
	r := Report{Level: levelName(), Peers: libs.peers()}
	t := newTable(w, o.JSON, &r)
	for _, dt := range o.Formats {
		for _, s := range shapes {
			if err := runShape(ctx, &o, libs, dt, s, &r, t); err != nil {
				return r, fmt.Errorf("bench gemm: %s %s %v: %w", s.model, s.product, dt, err)
			}
		}
	}
	r.Summary = summarize(r.Lines)
	if err := t.finish(&r, o.Check); err != nil || !o.Check {
		return r, err
	}
	return r, r.check()
}

// runShape measures a shape for all numbers of rows and threads.
func runShape(ctx context.Context, o *Options, libs *libraries, dt compute.DType, s shape, r *Report, t *table) error {
	d, err := newData(slices.Max(o.Rows), s)
	if err != nil {
		return err
	}
	defer d.free()
	for _, threads := range o.Threads {
		for _, m := range o.Rows {
			l, err := runOne(ctx, o, libs, dt, d, threads, m)
			if err != nil {
				return err
			}
			r.Lines = append(r.Lines, l)
			t.line(&l)
		}
	}
	return nil
}

// contender multiplies the first m rows of the data.
type contender interface {
	name() string
	run() error
	out() []float32 // [m][n], the last result
	free()
}

// runOne checks and measures a product.
func runOne(ctx context.Context, o *Options, libs *libraries, dt compute.DType, d *data, threads, m int) (Line, error) {
	l := Line{Model: d.model, Product: d.product, Format: dt.String(), Threads: threads, M: m, N: d.n, K: d.k,
		Peers: map[string]float64{}}
	cs, err := contenders(libs, dt, d, threads, m)
	defer func() {
		for _, c := range cs {
			c.free()
		}
	}()
	if err != nil {
		return l, err
	}
	for _, c := range cs {
		if err := c.run(); err != nil {
			return l, fmt.Errorf("%s: %w", c.name(), err)
		}
	}
	if err := d.compare(cs, dt, m); err != nil {
		return l, err
	}
	limit := newCeiling(dt, threads)
	rs := newRounds(cs, limit)
	if err := rs.take(ctx, o); err != nil {
		return l, err
	}
	rs.fill(&l, limit)
	return l, nil
}

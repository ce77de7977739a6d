// Package gemm measures Grebe's matrix products on the CPU against oneDNN and OpenBLAS, on the
// products of Qwen2-0.5B and Qwen2-1.5B.
//
// All contenders get the same values, weights in the form they like best (oneDNN: reordered once;
// OpenBLAS has no such form), and activations as float32 rows: bringing them to bf16 is part of the
// measured time. Contenders take turns within each repeat, and between turns everything rests until
// the threads of the last one have stopped spinning. Products during which the system took a thread
// of this process off its core say more about other programs than about the contender: they are left
// out, unless somebody has too few others; then all products of all contenders count. Before anything is timed the results are
// compared with each other and, in part, with a product in float64; a wrong result is an error.
//
// The peers are shared libraries opened at run time; one that is not installed is reported so.
package gemm

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"syscall"
	"time"

	"grebe/compute"
)

// Options says what to measure. Zero values stand for defaults.
type Options struct {
	Rows    []int           // default 256, 512, 1024
	Threads []int           // default 1, 2
	Formats []compute.DType // default BF16, F32
	Models  []string        // default all: "qwen2-0.5b", "qwen2-1.5b"
	Repeats int             // turns of each contender; default and least 7
	Samples int             // undisturbed products of each to wait for, within reason; default 31
	JSON    bool            // write the report as JSON, not as a table
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
	o.Repeats = max(o.Repeats, 7)
	if o.Samples == 0 {
		o.Samples = 31
	}
}

// Report is what Run measured.
type Report struct {
	Level   string // of the CPU, as Grebe uses it
	Peers   []Peer
	Lines   []Line
	Summary []Summary
}

// Peer is a library that Grebe is held against.
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
	Ratio          float64            // Grebe's rate over the fastest peer's; 0 without peers
	BestRatio      float64            // the same of each one's fastest product: for machines that others use too
	Undisturbed    float64            // share of the products during which no thread was taken off its core
	Disturbed      bool               // the others were too few, so that the medians are over all products
}

// Summary is the worst and the mean ratio of a format and number of threads.
type Summary struct {
	Format         string
	Threads        int
	Worst, GeoMean float64
	WorstAt        string
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
	return r, t.finish(&r)
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
			rates, seen, err := runOne(ctx, o, libs, dt, d, threads, m)
			if err != nil {
				return err
			}
			l := Line{Model: s.model, Product: s.product, Format: dt.String(), Threads: threads, M: m, N: s.n, K: s.k,
				Peers: map[string]float64{}, Undisturbed: seen.undisturbed, Disturbed: !seen.enough}
			var own, peer rate
			for _, x := range rates {
				if x.name == grebeName {
					own = x
					continue
				}
				l.Peers[x.name] = x.rate
				peer.rate, peer.best = max(peer.rate, x.rate), max(peer.best, x.best)
			}
			l.Grebe = own.rate
			if peer.rate > 0 {
				l.Ratio, l.BestRatio = own.rate/peer.rate, own.best/peer.best
			}
			r.Lines = append(r.Lines, l)
			t.line(&l)
		}
	}
	return nil
}

// rate is a contender's speed.
type rate struct {
	name string
	rate float64 // GFLOP/s
	best float64 // of the fastest product
}

// contender multiplies the first m rows of the data.
type contender interface {
	name() string
	run() error
	out() []float32 // [m][n], the last result
	free()
}

// sample is one product.
type sample struct {
	seconds   float64
	disturbed bool // a thread of the process was taken off its core meanwhile
}

// seen says how disturbed a line's products were.
type seen struct {
	undisturbed float64 // share of the products
	enough      bool    // everybody has enough undisturbed ones
}

func runOne(ctx context.Context, o *Options, libs *libraries, dt compute.DType, d *data, threads, m int) ([]rate, seen, error) {
	cs, err := contenders(libs, dt, d, threads, m)
	defer func() {
		for _, c := range cs {
			c.free()
		}
	}()
	if err != nil {
		return nil, seen{}, err
	}
	for _, c := range cs {
		if err := c.run(); err != nil {
			return nil, seen{}, fmt.Errorf("%s: %w", c.name(), err)
		}
	}
	if err := d.compare(cs, dt, m); err != nil {
		return nil, seen{}, err
	}
	samples, err := takeTurns(ctx, o, cs)
	if err != nil {
		return nil, seen{}, err
	}
	times, how := choose(samples, o.Repeats)
	flops := 2 * float64(m) * float64(d.n) * float64(d.k)
	var rates []rate
	for i, c := range cs {
		slices.Sort(times[i])
		rates = append(rates, rate{c.name(), flops / times[i][len(times[i])/2] / 1e9, flops / times[i][0] / 1e9})
	}
	return rates, how, nil
}

// takeTurns returns the products of each contender, all in as many turns.
func takeTurns(ctx context.Context, o *Options, cs []contender) ([][]sample, error) {
	samples := make([][]sample, len(cs))
	begin := time.Now()
	for repeat := 0; ; repeat++ {
		least := o.Samples
		for _, s := range samples {
			least = min(least, undisturbed(s))
		}
		if repeat >= o.Repeats && (least == o.Samples || time.Since(begin) > patience) {
			return samples, nil
		}
		for i := range cs {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			c := (i + repeat) % len(cs) // nobody always goes first
			var err error
			if samples[c], err = turn(cs[c], samples[c]); err != nil {
				return nil, fmt.Errorf("%s: %w", cs[c].name(), err)
			}
		}
	}
}

func undisturbed(samples []sample) (n int) {
	for _, s := range samples {
		if !s.disturbed {
			n++
		}
	}
	return n
}

// choose returns the seconds that count: of undisturbed products if everybody has enough of them.
func choose(samples [][]sample, enough int) (times [][]float64, how seen) {
	all, calm := 0, 0
	how.enough = true
	for _, s := range samples {
		n := undisturbed(s)
		all, calm = all+len(s), calm+n
		how.enough = how.enough && n >= enough
	}
	how.undisturbed = float64(calm) / float64(all)
	times = make([][]float64, len(samples))
	for i, of := range samples {
		for _, s := range of {
			if !s.disturbed || !how.enough {
				times[i] = append(times[i], s.seconds)
			}
		}
	}
	return times, how
}

const (
	rest     = 2 * time.Millisecond // longer than any contender's threads spin
	measure  = 8 * time.Millisecond // least time of a turn
	patience = 4 * time.Second      // time to wait for undisturbed products of a line
)

// turn lets a contender run for a while and adds its products to samples. A first product, which
// wakes the threads, is not counted where it is short.
func turn(c contender, samples []sample) ([]sample, error) {
	time.Sleep(rest)
	begin := time.Now()
	for n := 0; ; n++ {
		before := preemptions()
		start := time.Now()
		if err := c.run(); err != nil {
			return nil, err
		}
		end := time.Now()
		if s := end.Sub(start); n > 0 || s >= measure {
			samples = append(samples, sample{s.Seconds(), preemptions() != before})
		}
		if end.Sub(begin) >= measure && (n > 0 || len(samples) > 0) {
			return samples, nil
		}
	}
}

// preemptions returns how often the system has taken a thread of the process off its core although
// it had work to do.
func preemptions() int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0 // then nothing counts as disturbed
	}
	return int64(u.Nivcsw)
}

// Package hstu measures a model of events of random weights on the CPU: rankings of users with long histories,
// computed anew and returning with a few new events, and retrieval over all items.
//
// What is compared takes turns within each repeat, and medians are reported. Peak memory is that of the KV
// and activations as the system counts it, which the history's length bounds.
package hstu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"grebe/bench/report"
	"grebe/compute"
	"grebe/compute/cpu"
	"grebe/engine"
	"grebe/kv"
	"grebe/model"
	"grebe/model/hstu"
	"grebe/model/hstu/hstutest"
	"grebe/plan"
	"grebe/pool"
	"grebe/prompt"
)

// New is how many events there are since the last visit, and Shortest the length of the shortest history, unless
// options say otherwise.
const (
	New      = 20
	Shortest = 1000
)

// Options say what to measure. Zero values stand for defaults.
type Options struct {
	Events     []int // lengths of histories; 1000, 5000, 15000
	New        int   // events since the last visit, fewer than each history has; New
	Candidates int   // 100
	Items      int   // 1,000,000
	Repeats    int   // 5
	Threads    int   // all that Go may use
	DType      string
	JSON       bool
	// Spec is the model; 4 layers of 4 heads × 64, rows of 256.
	Spec *hstutest.Spec
}

func (o *Options) setDefaults() {
	set := func(v *int, def int) {
		if *v <= 0 {
			*v = def
		}
	}
	if len(o.Events) == 0 {
		o.Events = []int{Shortest, 5000, 15000}
	}
	set(&o.New, New)
	set(&o.Candidates, 100)
	set(&o.Items, 1_000_000)
	set(&o.Repeats, 5)
	set(&o.Threads, runtime.GOMAXPROCS(0))
	if o.DType == "" {
		o.DType = "bf16"
	}
	if o.Spec == nil {
		o.Spec = &hstutest.Spec{Hidden: 256, Layers: 4, Heads: 4, HeadDim: 64, DType: compute.BF16, Seed: 1}
	}
	o.Spec.Items, o.Spec.MaxSeqLen = o.Items, slices.Max(o.Events)+3
}

// Report is what Run measured; times are milliseconds.
type Report struct {
	Device      string  `json:"device"`
	DType       string  `json:"dtype"`
	Items       int     `json:"items"`
	LoadSeconds float64 `json:"load_seconds"`
	Lines       []Line  `json:"rank"`
	Retrieve    float64 `json:"retrieve_ms"` // 100 of all items
}

// Line is rankings of users with so many events.
type Line struct {
	Events     int     `json:"events"`
	Cold       float64 `json:"cold_ms"`      // all of the history is computed
	Returning  float64 `json:"returning_ms"` // all but the new events is cached
	Heads      float64 `json:"heads_ms"`     // of which predictions from states; in both
	KVBytes    int64   `json:"kv_bytes"`     // of the user
	PeakMemory int64   `json:"peak_bytes"`   // most memory of the process so far
}

// bench is a model behind an engine with a cache.
type bench struct {
	o      *Options
	model  *hstu.Model
	engine *engine.Engine
	prompt *prompt.Builder
	rand   *rand.Rand
	close  []func() error
}

// Run measures and writes a table, or the report as JSON, to w.
func Run(ctx context.Context, o Options, w io.Writer) (Report, error) {
	o.setDefaults()
	var r Report
	b, err := open(&o, &r)
	if err == nil {
		err = b.run(ctx, &r)
	}
	if b != nil {
		for _, f := range slices.Backward(b.close) {
			err = errors.Join(err, f())
		}
	}
	if err != nil {
		return r, fmt.Errorf("bench hstu: %w", err)
	}
	if o.JSON {
		return r, report.JSON(w, r)
	}
	return r, r.write(w, &o)
}

func open(o *Options, r *Report) (*bench, error) {
	b := &bench{o: o, rand: rand.New(rand.NewPCG(1, 2))}
	dir, err := os.MkdirTemp("", "grebe-bench-hstu-")
	if err != nil {
		return b, err
	}
	b.close = append(b.close, func() error { return os.RemoveAll(dir) })
	if err := hstutest.Write(dir, *o.Spec); err != nil {
		return b, err
	}
	dev, err := cpu.New(cpu.Options{Threads: o.Threads})
	if err != nil {
		return b, err
	}
	b.close = append(b.close, dev.Close)
	start := time.Now()
	if b.model, err = hstu.Open(dir, dev, model.Options{DType: o.DType}); err != nil {
		return b, err
	}
	b.close = append(b.close, b.model.Close)
	r.Device, r.DType, r.Items, r.LoadSeconds = dev.Name(), o.DType, o.Items, time.Since(start).Seconds()
	shape := b.model.Shape()
	pages, err := pool.Over(dev.Memory(), int64(shape.ChunkBytes(3*o.Spec.MaxSeqLen, false)), 4096)
	if err != nil {
		return b, err
	}
	store := kv.New(shape, pages)
	b.close = append(b.close, pages.Close, func() error { store.Close(); return nil })
	if b.engine, err = engine.New(b.model, dev, engine.Options{Cache: store, Now: time.Now}); err != nil {
		return b, err
	}
	b.close = append(b.close, b.engine.Close)
	b.prompt, err = prompt.New(prompt.Config{}, nil, b.model.Vocab())
	return b, err
}

func (b *bench) run(ctx context.Context, r *Report) error {
	for _, n := range b.o.Events {
		line, err := b.line(ctx, n)
		if err != nil {
			return err
		}
		r.Lines = append(r.Lines, line)
	}
	state := make([]float32, b.model.Shape().Hidden)
	for i := range state {
		state[i] = float32(b.rand.NormFloat64())
	}
	var times []float64
	for range b.o.Repeats {
		start := time.Now()
		if _, _, err := b.model.Retrieve(context.Background(), state, 100, 0, nil, nil); err != nil {
			return err
		}
		times = append(times, ms(start))
	}
	r.Retrieve = report.Median(times)
	return ctx.Err()
}

// line measures users with n events.
func (b *bench) line(ctx context.Context, n int) (Line, error) {
	l := Line{Events: n}
	var cold, returning, heads []float64
	for range b.o.Repeats {
		user := make([]int32, n)
		for i := range user {
			user[i] = b.model.Event(b.rand.Int32N(int32(b.o.Items)), b.rand.Int32N(8))
		}
		kept, err := b.engine.Do(ctx, b.keep(user[:max(0, n-b.o.New)]))
		if err != nil {
			return l, err
		}
		entry := kept.Kept[0]
		for _, e := range []*kv.Entry{nil, entry} {
			total, head, err := b.rank(ctx, user, e)
			if err != nil {
				return l, err
			}
			heads = append(heads, head)
			if e == nil {
				cold = append(cold, total)
			} else {
				returning = append(returning, total)
			}
		}
		entry.Release()
	}
	shape := b.model.Shape()
	l.Cold, l.Returning, l.Heads = report.Median(cold), report.Median(returning), report.Median(heads)
	l.KVBytes, l.PeakMemory = int64(shape.ChunkBytes(n, false)), peak()
	return l, nil
}

// keep computes the KV of a history.
func (b *bench) keep(user []int32) *engine.Job {
	l := b.prompt.Generate(user)
	return &engine.Job{Plan: l.Plan, Segments: []engine.Segment{{Keep: true}}}
}

// rank ranks candidates for a user of whom entry is known, and returns the milliseconds of all and of the heads.
func (b *bench) rank(ctx context.Context, user []int32, entry *kv.Entry) (total, heads float64, err error) {
	rows, items := make([]int32, b.o.Candidates), make([][]int32, b.o.Candidates)
	for i := range rows {
		rows[i] = b.rand.Int32N(int32(b.o.Items))
		items[i] = []int32{b.model.Candidate(rows[i])}
	}
	start := time.Now()
	l, err := b.prompt.Targets(plan.UserFirst, user, items)
	if err != nil {
		return 0, 0, err
	}
	job := &engine.Job{Plan: l.Plan}
	for i := range items {
		job.Hidden = append(job.Hidden, l.Answers+i)
	}
	if entry != nil {
		job.Segments = make([]engine.Segment, len(l.Plan.Segments))
		job.Segments[l.User].Entry = entry
	}
	res, err := b.engine.Do(ctx, job)
	if err != nil {
		return 0, 0, err
	}
	scoring := time.Now()
	_, err = b.model.Score(res.Hidden, rows, nil, 0)
	return ms(start), ms(scoring), err
}

func ms(start time.Time) float64 { return float64(time.Since(start).Microseconds()) / 1000 }

// peak returns the most memory that the process held, 0 where the system does not say.
func peak() int64 {
	raw, err := os.ReadFile(filepath.Join("/proc", "self", "status"))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(raw)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kib); n == 1 {
			return kib << 10
		}
	}
	return 0
}

func (r *Report) write(w io.Writer, o *Options) error {
	s := o.Spec
	fmt.Fprintf(w, "%s, %s; HSTU of %d layers, %d heads × %d, rows of %d; %d items, opened in %.1f s\n",
		r.Device, r.DType, s.Layers, s.Heads, s.HeadDim, s.Hidden, r.Items, r.LoadSeconds)
	t := report.Table(w)
	fmt.Fprintf(t, "events\tcold ms\t%d new ms\tof which heads\tKV MiB\tpeak MiB\t\n", o.New)
	for _, l := range r.Lines {
		fmt.Fprintf(t, "%d\t%.1f\t%.1f\t%.1f\t%.0f\t%.0f\t\n", l.Events, l.Cold, l.Returning, l.Heads,
			float64(l.KVBytes)/(1<<20),
			float64(l.PeakMemory)/(1<<20))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "the best 100 of %d items: %.1f ms\n", r.Items, r.Retrieve)
	return err
}

// Package retrieve measures how fast a GPU finds the best of many items' vectors, against the time of reading them.
package retrieve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"grebe/bench/report"
	"grebe/compute"
	"grebe/compute/cuda"
	"grebe/compute/cuda/driver"
	"grebe/compute/cuda/kernels"
)

// Options say what to measure. Zero values stand for defaults.
type Options struct {
	Items   int   // 10,000,000
	Width   int   // 512
	Queries []int // 1, 8, 64
	K       []int // 100, 1000
	Repeats int   // 20
	Device  cuda.Options
	JSON    bool
}

func (o *Options) setDefaults() {
	set := func(to *int, v int) {
		if *to == 0 {
			*to = v
		}
	}
	set(&o.Items, 10_000_000)
	set(&o.Width, 512)
	set(&o.Repeats, 20)
	if len(o.Queries) == 0 {
		o.Queries = []int{1, 8, 64}
	}
	if len(o.K) == 0 {
		o.K = []int{100, 1000}
	}
}

// Report is what Run measured.
type Report struct {
	Device      string  `json:"device"`
	Items       int     `json:"items"`
	Width       int     `json:"width"`
	Bytes       int64   `json:"bytes"`
	LoadSeconds float64 `json:"load_seconds"`
	ReadRate    float64 `json:"read_bytes_per_second"` // of a kernel that reads memory and does nothing else
	CopyRate    float64 `json:"copy_bytes_per_second"` // of a copy on the device, what is read and what is written
	Lines       []Line  `json:"searches"`
}

// Line is a kind of search. Times are from the call to its results in the host's memory.
type Line struct {
	Queries int     `json:"queries"`
	K       int     `json:"k"`
	MS      float64 `json:"ms"` // the median
	Low     float64 `json:"ms_low"`
	High    float64 `json:"ms_high"`
	Rate    float64 `json:"bytes_per_second"`
	Ratio   float64 `json:"ratio"` // of the time to that of reading the vectors at ReadRate
}

// Run measures and writes a table, or the report as JSON, to w.
func Run(ctx context.Context, o Options, w io.Writer) (Report, error) {
	o.setDefaults()
	d, err := cuda.New(o.Device)
	if err != nil {
		return Report{}, err
	}
	r := Report{Device: d.Name(), Items: o.Items, Width: o.Width}
	if err := errors.Join(r.run(ctx, &o, d), d.Close()); err != nil {
		return r, fmt.Errorf("bench retrieve: %w", err)
	}
	if o.JSON {
		return r, report.JSON(w, r)
	}
	return r, r.write(w)
}

func (r *Report) run(ctx context.Context, o *Options, d cuda.Device) (err error) {
	if r.ReadRate, r.CopyRate, err = rates(d.Context(), o.Repeats); err != nil {
		return err
	}
	noise := random(1<<20 + o.Width)
	start := time.Now()
	v, err := d.(compute.Retriever).Vectors(o.Items, o.Width, func(first int, to []float32) error {
		for i := range len(to) / o.Width {
			at := uint64(first+i) * 0x9e3779b97f4a7c15 >> 44 // below 2²⁰
			copy(to[i*o.Width:][:o.Width], noise[at:])
		}
		return ctx.Err()
	})
	if err != nil {
		return err
	}
	r.Bytes, r.LoadSeconds = v.Bytes(), time.Since(start).Seconds()
	for _, n := range o.Queries {
		for _, k := range o.K {
			line, err := measure(ctx, o, v, n, k)
			if err != nil {
				return err
			}
			line.Rate = float64(r.Bytes) / line.MS * 1000
			line.Ratio = r.ReadRate / line.Rate
			r.Lines = append(r.Lines, line)
		}
	}
	return nil
}

func random(n int) []float32 {
	r := rand.New(rand.NewPCG(1, 2))
	out := make([]float32, n)
	for i := range out {
		out[i] = float32(r.NormFloat64())
	}
	return out
}

// measure times searches. What the first query finds must be what it finds alone.
func measure(ctx context.Context, o *Options, v compute.Vectors, n, k int) (Line, error) {
	vectors := random(n * o.Width)
	queries := make([]compute.Query, n)
	for i := range queries {
		queries[i] = compute.Query{Vector: vectors[i*o.Width : (i+1)*o.Width], K: k}
	}
	var times []float64
	for i := range 3 + o.Repeats {
		if err := ctx.Err(); err != nil {
			return Line{}, err
		}
		start := time.Now()
		if err := v.Best(queries); err != nil {
			return Line{}, err
		}
		if i >= 3 {
			times = append(times, float64(time.Since(start))/float64(time.Millisecond))
		}
	}
	alone := []compute.Query{{Vector: queries[0].Vector, K: k}}
	if err := v.Best(alone); err != nil {
		return Line{}, err
	}
	if len(alone[0].Hits) != min(k, o.Items) || !slices.Equal(alone[0].Hits, queries[0].Hits) {
		return Line{}, fmt.Errorf("a query finds other items alone than with %d others", n-1)
	}
	low, high := report.Interval(times)
	return Line{Queries: n, K: k, MS: report.Median(times), Low: low, High: high}, nil
}

// measured is the memory that is read and copied: far more than caches hold.
const measured = 4 << 30

// rates measures how many bytes a second a kernel reads, and a copy reads and writes.
func rates(c *driver.Context, repeats int) (read, copied float64, err error) {
	defer c.Leave()
	if err := c.Enter(); err != nil {
		return 0, 0, err
	}
	m, err := kernels.Load(c, "read.cu")
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	f, err := m.Function("read")
	if err != nil {
		return 0, 0, err
	}
	a, err := driver.NewArgs()
	if err != nil {
		return 0, 0, err
	}
	defer a.Free()
	stream, err := c.NewStream()
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, stream.Close()) }()
	memory, err := c.Alloc(2 * measured)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, c.Free(memory)) }()
	if err := stream.Fill32(memory, 0x3f9d3f61, 2*measured/4); err != nil {
		return 0, 0, err
	}
	l := driver.Launch{Grid: [3]int{4 * c.Info().Processors}, Block: [3]int{512}}
	took, err := timed(c, stream, repeats, func() error {
		return f.Launch(stream, l, a.Reset().Ptr(memory).Int64(measured/16).Ptr(memory.At(measured)))
	})
	if err != nil {
		return 0, 0, err
	}
	read = measured / took.Seconds()
	took, err = timed(c, stream, repeats, func() error { return stream.Copy(memory.At(measured), memory, measured) })
	return read, 2 * measured / took.Seconds(), err
}

// timed returns the median time of work on a stream.
func timed(c *driver.Context, s *driver.Stream, repeats int, work func() error) (took time.Duration, err error) {
	begin, err := c.NewEvent(true)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, begin.Close()) }()
	end, err := c.NewEvent(true)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, end.Close()) }()
	var times []float64
	for range repeats {
		if err := errors.Join(begin.Record(s), work(), end.Record(s), end.Sync()); err != nil {
			return 0, err
		}
		t, err := end.Since(begin)
		if err != nil {
			return 0, err
		}
		times = append(times, t.Seconds())
	}
	return time.Duration(report.Median(times) * float64(time.Second)), nil
}

func (r *Report) write(w io.Writer) error {
	fmt.Fprintf(w, "%s: %d items × %d in bf16, %.2f GB, loaded in %.1f s\n", r.Device, r.Items, r.Width,
		float64(r.Bytes)/1e9, r.LoadSeconds)
	fmt.Fprintf(w, "reading alone: %.2f TB/s; copying: %.2f TB/s\n\n", r.ReadRate/1e12, r.CopyRate/1e12)
	t := report.Table(w)
	fmt.Fprintln(t, "queries\tk\tms\t95 %\tTB/s\t× reading\t")
	for _, l := range r.Lines {
		fmt.Fprintf(t, "%d\t%d\t%.3f\t%.3f–%.3f\t%.2f\t%.2f\t\n", l.Queries, l.K, l.MS, l.Low, l.High, l.Rate/1e12, l.Ratio)
	}
	return t.Flush()
}

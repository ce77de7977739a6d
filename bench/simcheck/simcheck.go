// Package simcheck compares the simulator's predictions with a server: the same requests at the same times, to a server on this
// machine's device and to one simulated node whose batches take as long as a profile of that device predicts.
//
// The profile is fitted to batches of random tokens (bench/profile), so nothing is fitted to the load. Both begin with an empty
// cache, and requests of the warm-up are served by both and counted by neither.
package simcheck

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"grebe/bench/drive"
	"grebe/bench/profile"
	"grebe/bench/report"
	"grebe/compute"
	"grebe/sim"
)

// Options say what to compare. Zero values mean the defaults in their comments.
type Options struct {
	Program    string                         // the server: path of grebe
	Device     string                         // cpu or gpu; cpu
	Model      string                         // of profile.Models; demo
	Profile    string                         // a profile by name or file; none: one is fitted first
	Settings   []drive.Setting                // of the server's device
	Open       func() (compute.Device, error) // opens the device that is fitted; it is closed before the server starts
	Shares     []float64                      // rates, as shares of the predicted capacity; 0.3, 0.5, 0.7
	Length     time.Duration                  // of a rate, after the warm-up; 25 s
	Warmup     time.Duration                  // 5 s
	Deadline   time.Duration                  // of a request, and the SLO; 1 s
	Candidates int                            // of a request; 60
	Where      bool                           // record the server and compare batch by batch; recording costs a server time outside of batches
	Seed       uint64
	JSON       bool
	Progress   io.Writer
}

func (o *Options) setDefaults() {
	if o.Device == "" {
		o.Device = "cpu"
	}
	if o.Model == "" {
		o.Model = "demo"
	}
	if len(o.Shares) == 0 {
		o.Shares = []float64{.3, .5, .7}
	}
	if o.Length <= 0 {
		o.Length = 25 * time.Second
	}
	if o.Warmup <= 0 {
		o.Warmup = 5 * time.Second
	}
	if o.Deadline <= 0 {
		o.Deadline = time.Second
	}
	if o.Candidates <= 0 {
		o.Candidates = 60
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
}

// Bars are how far predictions may be off: shares of the server's value, of hit shares the difference.
type Bars struct {
	Throughput float64 `json:"throughput"`
	Hits       float64 `json:"hits"`
	P50        float64 `json:"p50"`
	P99        float64 `json:"p99,omitempty"` // 0: it is only reported
}

func bars(device string) Bars {
	if device == "gpu" {
		return Bars{Throughput: .05, Hits: .01, P50: .05, P99: .10}
	}
	return Bars{Throughput: .05, Hits: .01, P50: .10}
}

// Report is what Run found.
type Report struct {
	Profile  sim.Profile `json:"profile"`
	Capacity float64     `json:"capacity"` // rankings per second in a closed loop, as the simulator predicts
	Bars     Bars        `json:"bars"`
	Rates    []Rate      `json:"rates"`
	Passed   bool        `json:"passed"`
}

// Rate compares both at one rate.
type Rate struct {
	Share  float64  `json:"share"` // of the capacity
	Rate   float64  `json:"rate"`  // requests per second
	Server Figures  `json:"server"`
	Sim    Figures  `json:"sim"`
	Failed []string `json:"failed,omitempty"` // figures outside the bars
	// GeneratorCPU and ServerCPU are shares of one core's time.
	GeneratorCPU float64 `json:"generator_cpu"`
	ServerCPU    float64 `json:"server_cpu"`
	LagP99       float64 `json:"lag_p99_ms"` // of sending; sim's arrivals are the times of sending
	Where        *Where  `json:"where,omitempty"`
}

// Figures are those of a server or of the simulator. Times are milliseconds.
type Figures struct {
	Requests   int     `json:"requests"`
	Refused    int     `json:"refused"` // and shed
	Throughput float64 `json:"throughput"`
	Hits       float64 `json:"hits"` // share of the prompts' tokens that were not computed
	P50        float64 `json:"p50_ms"`
	P90        float64 `json:"p90_ms"`
	P99        float64 `json:"p99_ms"`
	Mean       float64 `json:"mean_ms"`
	Queue      float64 `json:"queue_ms"`   // of Mean
	Compute    float64 `json:"compute_ms"` // of Mean
}

// outside returns the part of Mean that is neither in the queue nor in a batch.
func (f *Figures) outside() float64 { return f.Mean - f.Queue - f.Compute }

// Run compares, and writes a report.
func Run(ctx context.Context, o Options, w io.Writer) (*Report, error) {
	o.setDefaults()
	r, err := run(ctx, &o)
	if err != nil {
		return nil, fmt.Errorf("sim-check: %w", err)
	}
	if o.JSON {
		return r, report.JSON(w, r)
	}
	return r, r.write(w)
}

func run(ctx context.Context, o *Options) (r *Report, err error) {
	dir, err := os.MkdirTemp("", "grebe-sim-check-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	s := &site{o: o, dir: dir}
	if s.shop, err = profile.NewShop(filepath.Join(dir, "shop"), o.Model); err != nil {
		return nil, err
	}
	r = &Report{Bars: bars(o.Device), Passed: true}
	p, err := s.profile(ctx)
	if err != nil {
		return nil, err
	}
	r.Profile = *p
	s.host = hostTokens * p.KVTokenBytes
	s.page = min(p.KVTokenBytes&-p.KVTokenBytes, 64<<10)
	if r.Capacity, err = s.capacity(ctx); err != nil {
		return nil, err
	}
	fmt.Fprintf(o.Progress, "predicted capacity: %.1f rankings/s\n", r.Capacity)
	for i, share := range o.Shares {
		rate := Rate{Share: share, Rate: share * r.Capacity}
		if err := s.compare(ctx, &rate, o.Seed+uint64(i)); err != nil {
			return nil, fmt.Errorf("at %.1f/s: %w", rate.Rate, err)
		}
		rate.judge(&r.Bars)
		r.Passed = r.Passed && len(rate.Failed) == 0
		r.Rates = append(r.Rates, rate)
		fmt.Fprintf(o.Progress, "%.1f/s: P50 %.1f and %.1f ms\n", rate.Rate, rate.Server.P50, rate.Sim.P50)
	}
	return r, nil
}

// site has the files of a comparison.
type site struct {
	o    *Options
	dir  string
	shop *profile.Shop
	file string // of the profile
	host int64  // bytes of host memory for KV
	page int64  // bytes of a page of memory for KV, as a server has it
	runs int
	log  string // of the last server's decisions
}

// profile fits or reads the profile.
func (s *site) profile(ctx context.Context) (*sim.Profile, error) {
	if s.o.Profile != "" {
		s.file = s.o.Profile
		p, err := sim.LoadProfile(s.file)
		if of := profile.Models[s.o.Model].Name; err == nil && p.Model != of {
			err = fmt.Errorf("profile %s is of the model %s: the server has %s", s.file, p.Model, of)
		}
		return p, err
	}
	d, err := s.o.Open()
	if err != nil {
		return nil, err
	}
	reports, err := profile.Run(ctx, profile.Options{
		Device: d, Label: s.o.Device, Models: []string{s.o.Model}, Program: s.o.Program, Settings: s.o.Settings,
		Command: "grebe-bench sim-check", Seed: 1,
		Log: func(format string, args ...any) { fmt.Fprintf(s.o.Progress, format, args...) },
	})
	if err := errors.Join(err, d.Close()); err != nil {
		return nil, err
	}
	s.file = filepath.Join(s.dir, reports[0].Profile.Name+".json")
	return &reports[0].Profile, profile.Write(s.dir, s.o.Device, reports)
}

// figures sums up requests that came after the warm-up.
func figures(all []sim.Ended, warm time.Duration) Figures {
	var f Figures
	var took []float64
	var tokens, computed int
	first, last := time.Duration(math.MaxInt64), time.Duration(0)
	for i := range all {
		e := &all[i]
		if e.At < warm {
			continue
		}
		f.Requests++
		first = min(first, e.At)
		if !e.Answered {
			f.Refused++
			continue
		}
		last = max(last, e.At+e.Took)
		took = append(took, e.Took.Seconds()*1e3)
		f.Mean += e.Took.Seconds() * 1e3
		f.Queue += e.Queue.Seconds() * 1e3
		f.Compute += e.Compute.Seconds() * 1e3
		tokens, computed = tokens+e.Tokens, computed+e.Computed
	}
	if len(took) == 0 {
		return f
	}
	n := float64(len(took))
	f.Mean, f.Queue, f.Compute = f.Mean/n, f.Queue/n, f.Compute/n
	f.Throughput = n / (last - first).Seconds()
	f.Hits = 1 - float64(computed)/float64(tokens)
	slices.Sort(took)
	f.P50, f.P90, f.P99 = report.Percentile(took, 50), report.Percentile(took, 90), report.Percentile(took, 99)
	return f
}

// judge names the figures that are outside the bars.
func (r *Rate) judge(b *Bars) {
	for _, c := range []struct {
		name         string
		off, allowed float64
	}{
		{"throughput", r.Sim.Throughput/r.Server.Throughput - 1, b.Throughput},
		{"hits", r.Sim.Hits - r.Server.Hits, b.Hits},
		{"P50", r.Sim.P50/r.Server.P50 - 1, b.P50},
		{"P99", r.Sim.P99/r.Server.P99 - 1, b.P99},
	} {
		if c.allowed > 0 && !(math.Abs(c.off) <= c.allowed) {
			r.Failed = append(r.Failed, c.name)
		}
	}
}

// write shows a report to people.
func (r *Report) write(w io.Writer) error {
	fmt.Fprintf(w, "profile: %s\npredicted capacity: %.1f rankings/s\n\n", r.Profile.Source, r.Capacity)
	t := report.Table(w)
	fmt.Fprintln(t, "load\t\trequests\trefused\tanswered/s\thits\tP50 ms\tP90 ms\tP99 ms\tmean ms\toutside\tqueue\tcompute\t")
	for i := range r.Rates {
		x := &r.Rates[i]
		x.Server.write(t, fmt.Sprintf("%.0f %%", 100*x.Share), "server")
		x.Sim.write(t, fmt.Sprintf("%.1f/s", x.Rate), "sim")
		a, b := &x.Server, &x.Sim
		fmt.Fprintf(t, "\tratio\t\t\t%.3f\t%+.2f\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t\n", b.Throughput/a.Throughput, 100*(b.Hits-a.Hits),
			b.P50/a.P50, b.P90/a.P90, b.P99/a.P99, b.Mean/a.Mean, b.outside()/a.outside(), b.Queue/a.Queue,
			b.Compute/a.Compute)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for i := range r.Rates {
		if x := &r.Rates[i]; x.Where != nil {
			if err := x.Where.write(w, x.Rate); err != nil {
				return err
			}
		}
	}
	fmt.Fprintln(w)
	for i := range r.Rates {
		x := &r.Rates[i]
		fmt.Fprintf(w, "%.1f/s: of one core, the load generator used %.1f %% and the server %.0f %%; requests were sent %.2f ms late at P99\n",
			x.Rate, 100*x.GeneratorCPU, 100*x.ServerCPU, x.LagP99)
	}
	b := &r.Bars
	fmt.Fprintf(w, "bars: throughput within %.0f %%, hits within %.0f point, P50 within %.0f %%", 100*b.Throughput, 100*b.Hits, 100*b.P50)
	if b.P99 > 0 {
		fmt.Fprintf(w, ", P99 within %.0f %%", 100*b.P99)
	} else {
		fmt.Fprint(w, "; P99 is reported only")
	}
	fmt.Fprintf(w, "\npassed: %v", r.Passed)
	for i := range r.Rates {
		if f := r.Rates[i].Failed; len(f) > 0 {
			fmt.Fprintf(w, "; at %.1f/s outside: %v", r.Rates[i].Rate, f)
		}
	}
	_, err := fmt.Fprintln(w)
	return err
}

func (f *Figures) write(w io.Writer, load, who string) {
	fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%.2f\t%.2f %%\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t\n", load, who, f.Requests, f.Refused,
		f.Throughput, 100*f.Hits, f.P50, f.P90, f.P99, f.Mean, f.outside(), f.Queue, f.Compute)
}

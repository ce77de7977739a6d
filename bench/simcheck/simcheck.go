// Package simcheck compares the simulator's predictions with a server: the same requests at the same times, to a server
// on this machine's device and to one simulated node whose batches take as long as a profile of that device predicts.
//
// The profile is fitted to batches of random tokens (bench/profile), so nothing is fitted to the load. Both begin with
// an empty cache, and requests of the warm-up are served by both and counted by neither.
package simcheck

import (
	"cmp"
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
	"grebe/plan"
	"grebe/sim"
)

// Options say what to compare. Zero values mean the defaults in their comments.
type Options struct {
	Program    string                         // the server: path of grebe
	Device     string                         // cpu, gpu, or none, which computes nothing in a given time; cpu
	Model      string                         // of profile.Models; demo
	Profile    string                         // a profile by name or file; none: one is fitted first
	Settings   []drive.Setting                // of the server's device
	Open       func() (compute.Device, error) // opens the device that is fitted; it is closed before the server starts
	Nodes      []int                          // sizes of clusters that get the same requests; 1: a server without one
	Shares     []float64                      // rates, as shares of the predicted capacity of one node; 0.3, 0.5, 0.7
	Length     time.Duration                  // of a rate, after the warm-up; 25 s
	Warmup     time.Duration                  // 5 s
	Deadline   time.Duration                  // of a request, and the SLO; 1 s
	Candidates int                            // of a request; 60
	// record the server and compare batch by batch; recording costs a server time outside of batches
	Where    bool
	Seed     uint64
	JSON     bool
	Progress io.Writer
}

func (o *Options) setDefaults() {
	if o.Device == "" {
		o.Device = "cpu"
	}
	if o.Model == "" {
		o.Model = "demo"
	}
	if len(o.Nodes) == 0 {
		o.Nodes = []int{1}
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
	Mix        float64 `json:"mix"`           // of a node's share of the requests, and of the prefix orders
	Fall       float64 `json:"fall"`          // of the tokens that a cluster computes, as a share of those of one node
}

func bars(device string) Bars {
	if device == "gpu" {
		return Bars{Throughput: .05, Hits: .01, P50: .05, P99: .10, Mix: .05, Fall: .05}
	}
	return Bars{Throughput: .05, Hits: .01, P50: .10, Mix: .05, Fall: .05}
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
	Nodes  int      `json:"nodes"`
	Share  float64  `json:"share"` // of the capacity of one node
	Rate   float64  `json:"rate"`  // requests per second
	Server Figures  `json:"server"`
	Sim    Figures  `json:"sim"`
	Failed []string `json:"failed,omitempty"` // figures outside the bars
	// GeneratorCPU and ServerCPU are shares of one core's time.
	GeneratorCPU float64 `json:"generator_cpu"`
	ServerCPU    float64 `json:"server_cpu"`
	LagP99       float64 `json:"lag_p99_ms"` // of sending; sim's arrivals are the times of sending
	Where        *Where  `json:"where,omitempty"`
	Link         *Link   `json:"link,omitempty"` // of a cluster
	// ServerFall and SimFall are the tokens that a cluster computes for a request, as shares of those that one node does.
	// 0: none was compared.
	ServerFall float64 `json:"server_fall,omitempty"`
	SimFall    float64 `json:"sim_fall,omitempty"`
}

// Figures are those of a server or of the simulator. Times are milliseconds.
type Figures struct {
	Requests   int     `json:"requests"`
	Refused    int     `json:"refused"` // and shed
	Throughput float64 `json:"throughput"`
	Hits       float64 `json:"hits"`     // share of the prompts' tokens that were not computed
	Computed   float64 `json:"computed"` // tokens of a request
	P50        float64 `json:"p50_ms"`
	P90        float64 `json:"p90_ms"`
	P99        float64 `json:"p99_ms"`
	Mean       float64 `json:"mean_ms"`
	Queue      float64 `json:"queue_ms"`   // of Mean
	Compute    float64 `json:"compute_ms"` // of Mean
	// Spread is the share of each node of the answered requests, the largest first. Which node that is depends on its
	// name.
	Spread []float64 `json:"spread"`
	User   float64   `json:"user_first"` // share of the answered requests
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
		var one *Rate
		for _, nodes := range o.Nodes {
			rate := Rate{Nodes: nodes, Share: share, Rate: share * r.Capacity}
			if err := s.compare(ctx, &rate, o.Seed+uint64(i)); err != nil {
				return nil, fmt.Errorf("%d nodes at %.1f/s: %w", nodes, rate.Rate, err)
			}
			if nodes == 1 {
				one = &rate
			} else if one != nil {
				rate.ServerFall, rate.SimFall = rate.Server.Computed/one.Server.Computed, rate.Sim.Computed/one.Sim.Computed
			}
			rate.judge(&r.Bars)
			r.Passed = r.Passed && len(rate.Failed) == 0
			r.Rates = append(r.Rates, rate)
			fmt.Fprintf(o.Progress, "%d nodes, %.1f/s: P50 %.1f and %.1f ms\n", nodes, rate.Rate, rate.Server.P50, rate.Sim.P50)
		}
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
	var tokens, computed, user int
	nodes := map[int]int{}
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
		nodes[e.Node]++
		if e.Order == plan.UserFirst {
			user++
		}
	}
	if len(took) == 0 {
		return f
	}
	n := float64(len(took))
	f.Mean, f.Queue, f.Compute = f.Mean/n, f.Queue/n, f.Compute/n
	f.Throughput = n / (last - first).Seconds()
	f.Hits, f.Computed, f.User = 1-float64(computed)/float64(tokens), float64(computed)/n, float64(user)/n
	for _, count := range nodes {
		f.Spread = append(f.Spread, float64(count)/n)
	}
	slices.SortFunc(f.Spread, func(a, b float64) int { return cmp.Compare(b, a) })
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
		{"mix", r.mix(), b.Mix},
		{"fall", r.SimFall - r.ServerFall, b.Fall},
	} {
		if c.allowed > 0 && !(math.Abs(c.off) <= c.allowed) {
			r.Failed = append(r.Failed, c.name)
		}
	}
}

// mix returns how far the nodes' shares of the requests are apart, or those of the prefix orders.
func (r *Rate) mix() float64 {
	if r.Nodes <= 1 {
		return 0
	}
	most := math.Abs(r.Sim.User - r.Server.User)
	for i := range r.Nodes {
		var a, b float64
		if i < len(r.Server.Spread) {
			a = r.Server.Spread[i]
		}
		if i < len(r.Sim.Spread) {
			b = r.Sim.Spread[i]
		}
		most = max(most, math.Abs(a-b))
	}
	return most
}

// write shows a report to people.
func (r *Report) write(w io.Writer) error {
	fmt.Fprintf(w, "profile: %s\npredicted capacity: %.1f rankings/s\n\n", r.Profile.Source, r.Capacity)
	t := report.Table(w)
	fmt.Fprintln(t, "load\t\trequests\trefused\tanswered/s\thits\tP50 ms\tP90 ms\tP99 ms\tmean "+
		"ms\toutside\tqueue\tcompute\t")
	for i := range r.Rates {
		x := &r.Rates[i]
		x.Server.write(t, fmt.Sprintf("%.0f %%, nodes: %d", 100*x.Share, x.Nodes), "server")
		x.Sim.write(t, fmt.Sprintf("%.1f/s", x.Rate), "sim")
		a, b := &x.Server, &x.Sim
		fmt.Fprintf(t, "\tratio\t\t\t%.3f\t%+.2f\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t\n", b.Throughput/a.Throughput,
			100*(b.Hits-a.Hits),
			b.P50/a.P50, b.P90/a.P90, b.P99/a.P99, b.Mean/a.Mean, b.outside()/a.outside(), b.Queue/a.Queue,
			b.Compute/a.Compute)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for i := range r.Rates {
		if x := &r.Rates[i]; x.Nodes > 1 {
			x.writeCluster(w)
		}
		if x := &r.Rates[i]; x.Where != nil {
			if err := x.Where.write(w, x.Rate); err != nil {
				return err
			}
		}
	}
	fmt.Fprintln(w)
	for i := range r.Rates {
		x := &r.Rates[i]
		fmt.Fprintf(w, "%.1f/s: of one core, the load generator used %.1f %% and the server %.0f %%; requests were sent "+
			"%.2f ms late at P99\n",
			x.Rate, 100*x.GeneratorCPU, 100*x.ServerCPU, x.LagP99)
	}
	b := &r.Bars
	fmt.Fprintf(w, "bars: throughput within %.0f %%, hits within %.0f point, P50 within %.0f %%", 100*b.Throughput,
		100*b.Hits, 100*b.P50)
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
	fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%.2f\t%.2f %%\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t\n", load, who, f.Requests,
		f.Refused,
		f.Throughput, 100*f.Hits, f.P50, f.P90, f.P99, f.Mean, f.outside(), f.Queue, f.Compute)
}

// Package decisions measures what it costs to decide: the CPU time that two binaries take for the same requests when
// nothing is computed (device: none). It says whether the second is slower than the first.
//
// Each run is a server of its own, on one thread that runs Go, and one client that asks one request after the other, so
// that both servers see the same sequence. Old and new take turns in an order drawn anew. Time is that of the process,
// user and system together, between the end of the warm-up and the last answer.
package decisions

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"grebe/bench/drive"
	"grebe/bench/load"
	"grebe/bench/report"
)

// Options of a comparison.
type Options struct {
	Old, New string // paths of grebe
	Demo     string // folder of the demo's files
	Runs     int    // of each binary and load; 12
	Requests int    // of a run, after as many for warming up; 2000
	Seed     uint64
	JSON     bool
}

// The bars.
const (
	mostRatio = 1.03
	leastP    = .05
)

// loads are what a server is asked, and what its time is divided by.
var loads = []struct {
	name   string
	per    string
	memory string
	mix    drive.Mix
	count  string // metric whose increase time is divided by; "": requests
}{
	{"everything", "request", "8MiB", nil, ""},
	{"all of it cached", "request with hits", "512MiB", drive.Mix{drive.Rank: 3, drive.ItemFirst: 1}, ""},
	{"memory for a few users", "eviction", "3MiB", drive.Mix{drive.Rank: 1, drive.RankText: 1}, "grebe_evictions_total"},
}

// Cost is one load with both binaries.
type Cost struct {
	Load  string    `json:"load"`
	Per   string    `json:"per"`
	Old   []float64 `json:"old_us"` // microseconds, one of each run
	New   []float64 `json:"new_us"`
	Ratio float64   `json:"ratio"` // of the medians
	P     float64   `json:"p"`     // of so large a difference if new were not slower
	Slow  bool      `json:"slow"`
}

// Report is what was measured.
type Report struct {
	Runs   int    `json:"runs"`
	Costs  []Cost `json:"costs"`
	Passed bool   `json:"passed"`
}

// Run measures and writes a report.
func Run(ctx context.Context, o Options, w io.Writer) (*Report, error) {
	if o.Runs == 0 {
		o.Runs = 12
	}
	if o.Requests == 0 {
		o.Requests = 2000
	}
	r := &Report{Runs: o.Runs, Costs: make([]Cost, len(loads)), Passed: true}
	rng := rand.New(rand.NewPCG(o.Seed, 0))
	for run := range o.Runs {
		for i := range loads {
			c := &r.Costs[i]
			for _, k := range rng.Perm(2) {
				program, to := o.Old, &c.Old
				if k == 1 {
					program, to = o.New, &c.New
				}
				us, err := measure(ctx, &o, program, i, uint64(run))
				if err != nil {
					return nil, fmt.Errorf("decisions: %s, %s: %w", program, loads[i].name, err)
				}
				*to = append(*to, us)
			}
		}
	}
	for i := range r.Costs {
		c := &r.Costs[i]
		c.Load, c.Per = loads[i].name, loads[i].per
		c.judge()
		r.Passed = r.Passed && !c.Slow
	}
	if o.JSON {
		return r, report.JSON(w, r)
	}
	return r, r.write(w)
}

func (c *Cost) judge() {
	c.Ratio, c.P = median(c.New)/median(c.Old), slower(c.Old, c.New)
	c.Slow = c.Ratio > mostRatio || c.P < leastP
}

// measure returns the microseconds of CPU of one run.
func measure(ctx context.Context, o *Options, program string, which int, run uint64) (us float64, err error) {
	l := &loads[which]
	work, err := os.MkdirTemp("", "grebe-decisions-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(work)
	t := drive.NewTraffic(o.Seed<<16+run, l.mix)
	people := filepath.Join(work, "users.ndjson")
	if err := t.WriteUsers(filepath.Join(o.Demo, "users.ndjson"), people); err != nil {
		return 0, err
	}
	s, err := drive.Start(ctx, program, filepath.Join(o.Demo, "grebe.yaml"), []drive.Setting{
		{Key: "device", Value: "none"}, {Key: "slo_ms", Value: "10000"}, {Key: "models[0].host_memory", Value: l.memory},
		{Key: "catalog.users", Value: people}, {Key: "data_dir", Value: filepath.Join(work, "data")},
	}, "GOMAXPROCS=1")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	t.URL = s.URL
	ask := func(first int) error {
		res, err := load.Closed(ctx, load.Options{Name: l.name, Workers: 1, Requests: o.Requests, First: first}, t.Do)
		if err == nil && res.Answered < res.Requests {
			err = fmt.Errorf("%d of %d requests were not answered: %v", res.Requests-res.Answered, res.Requests, res.Errors)
		}
		return err
	}
	if err := ask(0); err != nil {
		return 0, err
	}
	cpu, events, err := read(s.URL, l.count)
	if err != nil {
		return 0, err
	}
	if err := ask(o.Requests); err != nil {
		return 0, err
	}
	cpuAfter, eventsAfter, err := read(s.URL, l.count)
	if err != nil {
		return 0, err
	}
	n := float64(o.Requests)
	if l.count != "" {
		if n = eventsAfter - events; n == 0 {
			return 0, fmt.Errorf("%s did not grow", l.count)
		}
	}
	return (cpuAfter - cpu) * 1e6 / n, nil
}

// read returns the CPU seconds of a server so far, and the sum of a metric.
func read(url, metric string) (cpu, events float64, err error) {
	resp, err := http.Get(url + "/metrics")
	if err != nil {
		return 0, 0, err
	}
	defer resp.Body.Close()
	for in := bufio.NewScanner(resp.Body); in.Scan(); {
		name, value, _ := strings.Cut(in.Text(), " ")
		x, err := strconv.ParseFloat(value[strings.LastIndex(value, " ")+1:], 64)
		if err != nil {
			continue // a remark
		}
		switch name, _, _ = strings.Cut(name, "{"); name {
		case "process_cpu_seconds_total":
			cpu = x
		case metric:
			events += x
		}
	}
	if cpu == 0 {
		return 0, 0, errors.New("the server does not say how much CPU time it took")
	}
	return cpu, events, nil
}

func median(values []float64) float64 {
	s := slices.Sorted(slices.Values(values))
	n := len(s)
	return (s[(n-1)/2] + s[n/2]) / 2
}

// slower returns the p value of a one-sided Mann–Whitney test: how likely values of b would be above those of a so often
// if both came from the same distribution. By the normal approximation, with a correction for ties.
func slower(a, b []float64) float64 {
	all := slices.Concat(a, b)
	slices.Sort(all)
	rank := func(x float64) float64 {
		from, _ := slices.BinarySearch(all, x)
		to, _ := slices.BinarySearchFunc(all, x, func(v, x float64) int {
			if v > x {
				return 1
			}
			return -1
		})
		return float64(from+to+1) / 2
	}
	n, m := float64(len(a)), float64(len(b))
	sum := 0.0
	for _, x := range b {
		sum += rank(x)
	}
	u := sum - m*(m+1)/2
	ties := 0.0
	for i := 0; i < len(all); {
		k := i
		for k < len(all) && all[k] == all[i] {
			k++
		}
		t := float64(k - i)
		ties += t*t*t - t
		i = k
	}
	sigma := math.Sqrt(n * m / 12 * (n + m + 1 - ties/((n+m)*(n+m-1))))
	if sigma == 0 {
		return 1
	}
	return math.Erfc((u-n*m/2-.5)/sigma/math.Sqrt2) / 2
}

func (r *Report) write(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "load\tCPU per\told µs\tnew µs\tratio (≤ %g)\tp (≥ %g)\t\t\n", mostRatio, leastP)
	for i := range r.Costs {
		c := &r.Costs[i]
		verdict := "pass"
		if c.Slow {
			verdict = "SLOWER"
		}
		fmt.Fprintf(t, "%s\t%s\t%.1f\t%.1f\t%.3f\t%.3f\t%s\t\n", c.Load, c.Per, median(c.Old), median(c.New), c.Ratio, c.P, verdict)
	}
	return t.Flush()
}

// Package decisions measures what it costs to decide: the CPU time that two binaries take for the same requests when
// nothing is computed (device: none). It says whether the second is slower than the first.
//
// Each run has a server of each binary, on one thread that runs Go. One client asks one request after the other, so
// that both see the same sequence. They take turns of a few requests, so that other load of the machine slows both.
// Time is that of the process, user and system together, from the end of the warm-up to the last answer.
package decisions

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"grebe/bench/drive"
	"grebe/bench/report"
)

// Options of a comparison.
type Options struct {
	Old, New string // paths of grebe
	Demo     string // folder of the demo's files
	Runs     int    // of each load, with servers of their own; 12
	Requests int    // that each server of a run is asked, after half as many for warming up; 1000
	Seed     uint64
	JSON     bool
}

// The bars.
const (
	mostRatio = 1.03
	leastP    = .05
)

// turn is how many requests one server is asked before the other has its turn.
const turn = 20

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
	Ratio float64   `json:"ratio"` // of new to old, the median of the runs
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
		o.Requests = 1000
	}
	r := &Report{Runs: o.Runs, Costs: make([]Cost, len(loads)), Passed: true}
	for run := range o.Runs {
		for i := range loads {
			us, err := measure(ctx, &o, i, uint64(run))
			if err != nil {
				return nil, fmt.Errorf("decisions: %s: %w", loads[i].name, err)
			}
			c := &r.Costs[i]
			c.Old, c.New = append(c.Old, us[0]), append(c.New, us[1])
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
	ratios := make([]float64, len(c.Old))
	for i := range ratios {
		ratios[i] = c.New[i] / c.Old[i]
	}
	c.Ratio, c.P = report.Median(ratios), report.Above(ratios)
	c.Slow = c.Ratio > mostRatio || c.P < leastP
}

// measure returns the microseconds of CPU of one run, of old and new.
func measure(ctx context.Context, o *Options, which int, run uint64) (us [2]float64, err error) {
	var both [2]*asked
	defer func() {
		for _, a := range both {
			if a != nil {
				err = errors.Join(err, a.close())
			}
		}
	}()
	for i, program := range []string{o.Old, o.New} {
		if both[i], err = open(ctx, o, program, which, run); err != nil {
			return us, fmt.Errorf("%s: %w", program, err)
		}
	}
	warm := o.Requests / 2
	for from := 0; from < warm+o.Requests; from += turn {
		if from >= warm && from < warm+turn {
			for _, a := range both {
				if a.cpu, a.events, err = read(a.traffic.URL, loads[which].count); err != nil {
					return us, err
				}
			}
		}
		first := rand.IntN(2)
		for _, i := range []int{first, 1 - first} {
			if err := both[i].ask(ctx, from, min(turn, warm+o.Requests-from)); err != nil {
				return us, err
			}
		}
	}
	for i, a := range both {
		cpu, events, err := read(a.traffic.URL, loads[which].count)
		if err != nil {
			return us, err
		}
		n := float64(o.Requests)
		if loads[which].count != "" {
			n = events - a.events
		}
		if us[i] = (cpu - a.cpu) * 1e6 / n; n == 0 {
			return us, fmt.Errorf("%s did not grow", loads[which].count)
		}
	}
	return us, nil
}

// asked is a server and its requests.
type asked struct {
	server      *drive.Server
	traffic     *drive.Traffic
	work        string  // folder
	cpu, events float64 // when it was warm
}

func open(ctx context.Context, o *Options, program string, which int, run uint64) (_ *asked, err error) {
	l := &loads[which]
	a := &asked{traffic: drive.NewTraffic(o.Seed<<16+run, l.mix)}
	if a.work, err = os.MkdirTemp("", "grebe-decisions-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(a.work)
		}
	}()
	people := filepath.Join(a.work, "users.ndjson")
	if err := a.traffic.WriteUsers(filepath.Join(o.Demo, "users.ndjson"), people); err != nil {
		return nil, err
	}
	a.server, err = drive.Start(ctx, program, filepath.Join(o.Demo, "grebe.yaml"), []drive.Setting{
		{Key: "device", Value: "none"}, {Key: "slo_ms", Value: "10000"}, {Key: "models[0].host_memory", Value: l.memory},
		{Key: "catalog.users", Value: people}, {Key: "data_dir", Value: filepath.Join(a.work, "data")},
	}, "GOMAXPROCS=1")
	if err != nil {
		return nil, err
	}
	a.traffic.URL = a.server.URL
	return a, nil
}

func (a *asked) ask(ctx context.Context, from, n int) error {
	for i := range n {
		if err := a.traffic.Do(ctx, from+i); err != nil {
			return fmt.Errorf("request %d: %w", from+i, err)
		}
	}
	return nil
}

func (a *asked) close() error { return errors.Join(a.server.Stop(), os.RemoveAll(a.work)) }

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

func (r *Report) write(w io.Writer) error {
	t := report.Table(w)
	fmt.Fprintf(t, "load\tCPU per\told µs\tnew µs\tratio (≤ %g)\tp (≥ %g)\t\t\n", mostRatio, leastP)
	for i := range r.Costs {
		c := &r.Costs[i]
		verdict := "pass"
		if c.Slow {
			verdict = "SLOWER"
		}
		fmt.Fprintf(t, "%s\t%s\t%.1f\t%.1f\t%.3f\t%.3f\t%s\t\n", c.Load, c.Per, report.Median(c.Old), report.Median(c.New),
			c.Ratio, c.P, verdict)
	}
	return t.Flush()
}

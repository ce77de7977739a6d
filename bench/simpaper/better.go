package simpaper

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"slices"

	"grebe/bench/report"
	"grebe/internal/config"
	"grebe/placement"
	"grebe/sim"
)

// Match is a paper's workload on which its own router and the one that predicts milliseconds are compared.
type Match struct {
	Experiment string      `yaml:"experiment"`
	Run        string      `yaml:"run"`    // the trial with the paper's router
	Stream     *Stream     `yaml:"stream"` // instead of the experiment's
	Set        config.Part `yaml:"set"`    // keys of the scenario that differ
}

// Outcome is the result of a Match. Ratios are ours to the paper's, with the same requests at the same times.
type Outcome struct {
	Experiment string  `json:"experiment"`
	Router     string  `json:"router"` // the paper's
	Load       float64 `json:"load"`   // requests per second at which P99 is compared
	Limit      float64 `json:"limit_ms"`
	P99        Pairs   `json:"p99"`
	Rate       Pairs   `json:"rate"` // highest ones within the limit
}

// Pairs are values of runs with the same seeds.
type Pairs struct {
	Seeds  []uint64  `json:"seeds"`
	Theirs []float64 `json:"theirs"`
	Ours   []float64 `json:"ours"`
	// Ratio is the mean of the ratios, and Low and High its 95 % interval.
	Ratio float64 `json:"ratio"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
}

const (
	loadSeed  = 1    // on which the load is found
	equalLoad = 0.85 // of the rate that the paper's router sustains
)

//go:embed better.yaml
var matches []byte

// Matches returns all.
func Matches() ([]Match, error) {
	var all []Match
	if err := config.Decode(matches, &all); err != nil {
		return nil, fmt.Errorf("bench sim-paper: better: %w", err)
	}
	return all, nil
}

// Play compares both routers. Options.Seeds is the number of seeds from Options.First on, and for the first
// Options.Rates of them rates are searched.
func (m *Match) Play(ctx context.Context, o Options) (*Outcome, error) {
	e, err := Load(m.Experiment)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(e.Runs, func(t Trial) bool { return t.Name == m.Run })
	if i < 0 {
		return nil, fmt.Errorf("bench sim-paper: better: %s has no run %q", e.Name, m.Run)
	}
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	r := &runner{
		Experiment: e, Options: o, closed: map[string]float64{}, cuts: map[string]*placement.Map{}, size: &m.Set,
		past: loadSeed,
	}
	t := e.Runs[i]
	if m.Stream != nil {
		t.Stream = m.Stream
	}
	out, err := r.match(ctx, &t)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("bench sim-paper: better: %s: %w", e.Name, err)
	}
	return out, nil
}

func (r *runner) match(ctx context.Context, t *Trial) (*Outcome, error) {
	s, err := r.scenario(t, loadSeed)
	if err != nil {
		return nil, err
	}
	out := &Outcome{Experiment: r.Name, Router: s.Route.Policy, Limit: s.SLO.Seconds() * 1e3}
	top, err := r.search(ctx, t, loadSeed, nil, 0)
	if err != nil {
		return nil, err
	}
	out.Load = equalLoad * top.Throughput
	for k := range uint64(r.Seeds) {
		seed := r.First + k
		theirs, ours, err := r.pair(func(change func(*sim.Scenario)) (*Value, error) {
			return r.at(ctx, t, seed, out.Load, change)
		})
		if err != nil {
			return nil, err
		}
		out.P99.add(seed, theirs.P99, ours.P99)
		r.Log("  %s seed %d at %.1f/s: P99 %.4g, ours %.4g\n", r.Name, seed, out.Load, theirs.P99, ours.P99)
		if k >= uint64(r.Rates) {
			continue
		}
		near := []float64{top.Throughput, top.Throughput} // where the searches of both begin
		if n := len(out.Rate.Seeds); n > 0 {
			near = []float64{out.Rate.Theirs[n-1], out.Rate.Ours[n-1]}
		}
		theirs, ours, err = r.pair(func(change func(*sim.Scenario)) (*Value, error) {
			r.near, near = near[0], near[1:]
			return r.search(ctx, t, seed, change, 0)
		})
		if err != nil {
			return nil, err
		}
		out.Rate.add(seed, theirs.Throughput, ours.Throughput)
		r.Log("  %s seed %d: sustained %.4g/s, ours %.4g/s\n", r.Name, seed, theirs.Throughput, ours.Throughput)
	}
	return out, nil
}

// pair runs something with the paper's router and with ours.
func (r *runner) pair(run func(change func(*sim.Scenario)) (*Value, error)) (theirs, ours *Value, err error) {
	if theirs, err = run(nil); err != nil {
		return nil, nil, err
	}
	ours, err = run(func(s *sim.Scenario) { s.Route.Policy = "predicted" })
	return theirs, ours, err
}

func (p *Pairs) add(seed uint64, theirs, ours float64) {
	p.Seeds, p.Theirs, p.Ours = append(p.Seeds, seed), append(p.Theirs, theirs), append(p.Ours, ours)
	ratios := make([]float64, len(p.Ours))
	for i := range ratios {
		ratios[i] = p.Ours[i] / p.Theirs[i]
	}
	p.Ratio, p.Low, p.High = report.Mean(ratios)
}

// verdict says whether a ratio is at most 1, or at least 1 if more is better.
func (p *Pairs) verdict(more bool) string {
	better, worse := p.High < 1, p.Low > 1
	if more {
		better, worse = worse, better
	}
	switch {
	case better:
		return "better"
	case worse:
		return "worse"
	}
	return "no difference shown"
}

// WriteOutcomes writes a table.
func WriteOutcomes(w io.Writer, all []*Outcome) error {
	t := report.Table(w)
	fmt.Fprintf(t, "workload\trouter\twhat\tseeds\tpaper's\tours\tours to paper's\t95 %% interval\t\t\n")
	line := func(o *Outcome, what string, p *Pairs, more bool) {
		theirs, _, _ := report.Mean(p.Theirs)
		ours, _, _ := report.Mean(p.Ours)
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%.4g\t%.4g\t%.3f\t%.3f–%.3f\t%s\t\n", o.Experiment, o.Router, what, len(p.Seeds),
			theirs, ours,
			p.Ratio, p.Low, p.High, p.verdict(more))
	}
	for _, o := range all {
		line(o, fmt.Sprintf("P99 in ms at %.4g requests/s", o.Load), &o.P99, false)
		if len(o.Rate.Seeds) > 0 {
			line(o, fmt.Sprintf("requests/s at P99 ≤ %g ms", o.Limit), &o.Rate, true)
		}
	}
	return t.Flush()
}

package simpaper

import (
	"slices"
	"strings"
	"testing"

	"grebe/internal/config"
	"grebe/placement"
)

// Every match names a run with a router of a paper, and its sizes are keys of a scenario.
func TestMatches(t *testing.T) {
	all, err := Matches()
	if err != nil {
		t.Fatal(err)
	}
	routers := map[string]bool{}
	for _, m := range all {
		e, err := Load(m.Experiment)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(e.Runs, func(t Trial) bool { return t.Name == m.Run })
		if i < 0 {
			t.Fatalf("%s has no run %s", m.Experiment, m.Run)
		}
		r := &runner{Experiment: e, size: &m.Set}
		s, err := r.scenario(&e.Runs[i], loadSeed)
		if err != nil {
			t.Fatal(err)
		}
		routers[s.Route.Policy] = true
	}
	if len(all) != 4 || !routers["user-hash"] || !routers["least-loaded"] || !routers["affinity"] || !routers["joint"] {
		t.Errorf("%d matches with the routers %v", len(all), routers)
	}
}

// Both routers get the same requests, and the load is below what the paper's router sustains.
func TestMatch(t *testing.T) {
	e := tinyExperiment(t)
	var size config.Part
	if err := config.Decode([]byte("{duration: 6s, warmup: 2s}"), &size); err != nil {
		t.Fatal(err)
	}
	r := &runner{
		Experiment: e, Options: Options{Seeds: 1, First: 1001, Rates: 1, Log: t.Logf},
		closed: map[string]float64{}, cuts: map[string]*placement.Map{}, past: loadSeed,
		size: &size,
	}
	o, err := r.match(t.Context(), &e.Runs[1]) // without a map, which takes long to make
	if err != nil {
		t.Fatal(err)
	}
	if o.Router != "user-hash" || len(o.P99.Seeds) != 1 || o.P99.Seeds[0] != 1001 || len(o.Rate.Seeds) != 1 {
		t.Errorf("%+v", o)
	}
	for i, rate := range o.Rate.Theirs {
		if !(rate > o.Load*0.8) || !(o.P99.Theirs[i] > 0 && o.P99.Theirs[i] <= 1.2*o.Limit) || !(o.P99.Ours[i] > 0) {
			t.Errorf("at %.1f/s of %.1f: %+v", o.Load, rate, o.P99)
		}
	}
	var out strings.Builder
	if err := WriteOutcomes(&out, []*Outcome{o}); err != nil || strings.Count(out.String(), "user-hash") != 2 {
		t.Errorf("%v: %s", err, out.String())
	}
}

func TestPairs(t *testing.T) {
	var p Pairs
	for i, ours := range []float64{90, 92, 88} {
		p.add(uint64(i), 100, ours)
	}
	if p.Ratio < 0.89 || p.Ratio > 0.91 || p.Low >= p.Ratio || p.verdict(false) != "better" || p.verdict(true) != "worse" {
		t.Errorf("%+v: %s", p, p.verdict(false))
	}
	p.add(3, 100, 140)
	if p.verdict(false) != "no difference shown" {
		t.Errorf("%+v: %s", p, p.verdict(false))
	}
}

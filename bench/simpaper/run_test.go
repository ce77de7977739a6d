package simpaper

import (
	"math"
	"slices"
	"strings"
	"testing"

	"grebe/internal/config"
	"grebe/sim"
)

// tiny is an experiment of one small node that ends soon.
const tiny = `
name: tiny
paper: none
assumptions: [none]
stream: {workload: games}
measure: throughput
scenario:
  deadline: 60s
  duration: 20s
  warmup: 5s
  prompt: {question: 32, policy: bat}
  fleet: {nodes: 2, profile: h200-qwen2-1.5b, host: 8GB, device: 1GB}
  network: {overlap: false, bandwidth: 100Gb/s}
  placement: {kind: hot-cold, preload: true, alpha: 0.1, printed: true}
  route: {policy: user-hash}
  cache: {keep_peer: false, slots: 16384}
items: fit
runs:
  - {name: bat}
  - {name: re, items: none, set: {prompt: {policy: none}, placement: {kind: none, preload: false}}}
compare:
  - {what: faster, of: bat, to: re, least: 1}
  - {what: value, of: re, paper: 1}
`

func tinyExperiment(t *testing.T) *Experiment {
	t.Helper()
	var e Experiment
	if err := config.Decode([]byte(tiny), &e); err != nil {
		t.Fatal(err)
	}
	return &e
}

func TestRun(t *testing.T) {
	r, err := Run(t.Context(), tinyExperiment(t), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if l := r.Lines[0]; l.Ours <= 1 || l.Verdict != "agrees" {
		t.Errorf("%+v: items first from a cache are faster than computing everything", l)
	}
	if r.Lines[1].Verdict != "differs" || r.Values[0].ItemBytes == 0 || r.Values[1].ItemBytes != 0 {
		t.Errorf("%+v", r)
	}
	var out strings.Builder
	if err := r.Write(&out); err != nil || !strings.Contains(out.String(), "faster") {
		t.Errorf("%v: %s", err, out.String())
	}
}

func TestVerdicts(t *testing.T) {
	for _, c := range []struct {
		ours, paper, least float64
		ratio              bool
		want               string
	}{
		{1.1, 1.12, 0, true, "agrees"}, {1.1, 1.25, 0, true, "within 15 %"}, {1.1, 1.6, 0, true, "differs"},
		{0.9, 1.02, 0, true, "other sign"}, {90, 100, 0, false, "within 15 %"}, {0.95, 1, 1, true, "other order"},
		{math.NaN(), 1, 0, true, "no value"},
	} {
		l := Line{Ours: c.ours, Paper: c.paper, Difference: c.ours/c.paper - 1, Ratio: c.ratio}
		if got := l.verdict(&Compare{Least: c.least}); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

// A run's load is relative to the run of its group, or to the only one of that name.
func TestReference(t *testing.T) {
	r := &runner{Experiment: &Experiment{
		Load: Share{Of: "prefix"}, Runs: []Trial{{Name: "a-prefix"}, {Name: "a-x"}, {Name: "b-prefix"}, {Name: "b-x"}},
	}}
	if got := r.reference(&r.Runs[3]).Name; got != "b-prefix" {
		t.Errorf("b-x is relative to %s", got)
	}
	r.Load.Of = "a-x"
	if got := r.reference(&r.Runs[2]).Name; got != "a-x" {
		t.Errorf("b-prefix is relative to %s", got)
	}
}

// Prompts have the lengths that are assumed of RcLLM's, and candidates that are different.
func TestPrompts(t *testing.T) {
	s := &Stream{RcLLM: "amazon", Communities: 400, Share: 0.87}
	p, err := s.source(10, 1)
	if err != nil {
		t.Fatal(err)
	}
	var r sim.Request
	var tokens []int
	inside, all := 0, 0
	for range 4000 {
		p.Next(&r)
		n := 207 + 20 + int(r.UserTokens)
		seen, home := map[int32]bool{}, map[int32]int{}
		for i, item := range r.Items {
			if seen[item] || r.ItemTokens[i] < 1 {
				t.Fatalf("item %d twice, or without tokens", item)
			}
			seen[item] = true
			n += int(r.ItemTokens[i])
			home[item%400]++
		}
		most := 0
		for _, k := range home {
			most = max(most, k)
		}
		inside, all = inside+most, all+len(r.Items)
		tokens = append(tokens, n)
	}
	if share := float64(inside) / float64(all); math.Abs(share-0.87) > 0.03 {
		t.Errorf("%.2f of the candidates are of one community", share)
	}
	if _, err := (&Stream{RcLLM: "none", Communities: 1}).source(1, 1); err == nil {
		t.Error("an unknown dataset is found")
	}
	if _, err := (&Stream{}).source(1, 1); err == nil {
		t.Error("no stream is one")
	}
	median, high := quantile(tokens, 0.5), quantile(tokens, 0.9)
	if median < 2000 || median > 3000 || high < 3300 || high > 4600 {
		t.Errorf("prompts have %d tokens in the median, %d at P90", median, high)
	}
}

func quantile(v []int, q float64) int {
	slices.Sort(v)
	return v[int(q*float64(len(v)))]
}

package cache

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"grebe/bench/rivals"
	"grebe/evict"
)

// A small run says what it should: all policies, targets, JSON that reads back.
func TestRunOnGeneratedTraces(t *testing.T) {
	var out bytes.Buffer
	r, err := Run(t.Context(), Options{Traces: []string{"loops"}, Sizes: []float64{.1},
		Policies: []string{"lru", "sieve", "default"}, Parts: []string{"table", "replay"}, JSON: true}, &out)
	if err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(out.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if len(r.Results) != 4 || len(back.Results) != 4 {
		t.Fatalf("%d results, want lru, sieve, default and the optimum", len(r.Results))
	}
	best := r.Results[3]
	if best.Policy != "optimum" || best.Closed != 1 || best.HeldOut != 1 {
		t.Errorf("the optimum closes %v of its own gap", best.Closed)
	}
	for _, x := range r.Results {
		if x.Rate > best.Rate || x.P99 <= 0 {
			t.Errorf("%s hits %.4f, the optimum %.4f; P99 %v", x.Policy, x.Rate, best.Rate, x.P99)
		}
	}
	if !Passed(r.Checks) {
		t.Errorf("a check failed: %+v", r.Checks)
	}
}

// blind with perfect predictions is what the bench shows as the optimum.
func TestOptimumIsTheOptimum(t *testing.T) {
	tr := generate("drift")
	k := tr.entries(.03)
	o, err := replay(tr, rivals.Blind, k, perfect(tr))
	if err != nil {
		t.Fatal(err)
	}
	if want := evict.Optimal(tr.keys, k); o.hits != want {
		t.Errorf("%d hits, Belady has %d", o.hits, want)
	}
}

func TestMissingTracesAreSkipped(t *testing.T) {
	var out bytes.Buffer
	r, err := Run(t.Context(), Options{Data: t.TempDir(), Traces: []string{"scarab-recs"}, Parts: []string{"table"}}, &out)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Skipped) != 1 || !strings.Contains(out.String(), "skipped: scarab-recs") {
		t.Errorf("skipped %q, printed %q", r.Skipped, out.String())
	}
}

// Fewer blocks cached at the front means more to compute; what lies behind a gap does not help.
func TestServices(t *testing.T) {
	tr := &trace{prompts: []int32{0, 3, 6, 9}}
	y, n := true, false
	got := services(tr, []bool{y, y, n, y, n, y, n, y, y, y, y, y})
	if !(got[0] < got[1] && got[1] < got[2] && got[3] <= got[0]) {
		t.Errorf("times %v", got)
	}
}

func TestXGBoostSkipsWithAReason(t *testing.T) {
	tr := generate("loops")
	xs, ys, testX, testY := samplesOf(tr)
	missing := filepath.Join(t.TempDir(), "no-python")
	if _, err := os.Stat(missing); err == nil {
		t.Fatal("there is one")
	}
	x, why, err := xgboost(t.Context(), missing, xs[:100], ys[:100], testX[:100], testY[:100])
	if x != nil || err != nil || !strings.Contains(why, "no-python") {
		t.Errorf("got %v, %q, %v", x, why, err)
	}
}

func TestPlots(t *testing.T) {
	var rows []Error
	for _, name := range sweepPolicies {
		rows = append(rows, Error{Trace: "t", Kind: "random", Policy: name,
			Relative: []float64{1.5, 1.4, 1.3, 1.2, 1.1, 1, .5}})
	}
	if p := plot(rows); strings.Count(p, "\n") < plotHeight {
		t.Errorf("plot:\n%s", p)
	}
	if p := svg(rows); !strings.HasSuffix(p, "</svg>\n") || strings.Count(p, "<polyline") != len(sweepPolicies) {
		t.Errorf("svg:\n%s", p)
	}
}

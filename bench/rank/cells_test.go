package rank

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
)

// Every workload, seed and start has a cell. Auto finds the items of Books from a cold start too.
func TestCells(t *testing.T) {
	var out bytes.Buffer
	o := Options{Workloads: []string{"books"}, Requests: 600, Memory: -1,
		Model: "tiny", Dir: filepath.Join(t.TempDir(), "m"), Threads: 1}
	r, err := Cells(t.Context(), o, []uint64{1, 2}, &out)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Cells) != 4 || !r.Passed() {
		t.Errorf("want four cells within the bar: %+v", r.Cells)
	}
	for i, c := range r.Cells {
		if want := []string{Cold, Indexed}[i%2]; c.Start != want || c.Seed != uint64(1+i/2) {
			t.Errorf("cell %d is seed %d, %s", i, c.Seed, c.Start)
		}
		if c.Auto <= 0 || c.Ratio != c.Auto/c.Best || !(c.Work > 0.5 && c.Work < 1.5) {
			t.Errorf("cell %d: %+v", i, c)
		}
	}
	if !strings.Contains(out.String(), "PASS  auto computes at most 1.03× the tokens of the best other policy in 4 of "+
		"4 cells") {
		t.Errorf("no verdict in\n%s", out.String())
	}
	missed := CellReport{}
	missed.add("a", Cold, 1, []Policy{{Name: "UP", ComputedTokens: 100, WorkMs: 1},
		{Name: "auto", ComputedTokens: 104, WorkMs: 1}})
	if missed.Passed() {
		t.Error("4 % more tokens than UP pass")
	}
	o.Policies = []string{"item"}
	if _, err := Cells(t.Context(), o, []uint64{1}, &out); err == nil {
		t.Error("cells without auto")
	}
}

// A report counts a cold start beside an indexed one, unless only one of them is asked for.
func TestColdStartIsCountedBeside(t *testing.T) {
	o := Options{
		Workloads: []string{"beauty"}, Requests: 60, Blocks: 2, Tokens: 0.1, Count: true,
		Model: "tiny", Dir: filepath.Join(t.TempDir(), "m"), Threads: 1,
	}
	for _, c := range []struct {
		starts []string
		cold   int
		table  string
	}{{nil, 6, "cold: computed"}, {[]string{Indexed}, 0, "before the first request"},
		{[]string{Cold}, 0, "Caches start cold"}} {
		var out bytes.Buffer
		o.Starts = c.starts
		r, err := Run(t.Context(), o, &out)
		if err != nil {
			t.Fatal(err)
		}
		w := r.Workloads[0]
		if len(w.Cold) != c.cold || !strings.Contains(out.String(), c.table) {
			t.Errorf("start %v: %d policies counted cold\n%s", c.starts, len(w.Cold), out.String())
		}
		if indexed := w.policy("IP").Indexed > 0; indexed != (r.Start == Indexed) {
			t.Errorf("start %v: items indexed: %v", c.starts, indexed)
		}
		if c.cold > 0 && len(r.Checks) != 2 {
			t.Errorf("checks %+v", r.Checks)
		}
	}
	o.Starts = []string{"lukewarm"}
	if o.Validate() == nil {
		t.Error("a start that there is not")
	}
}

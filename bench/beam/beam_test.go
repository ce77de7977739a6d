package beam

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"grebe/beam"
)

// One pass over everything, with little of it: the ways agree, and every figure is there.
func TestRun(t *testing.T) {
	var out strings.Builder
	r, err := Run(t.Context(), Options{
		Widths: []int{20}, Contexts: []int{64}, Blocks: 1, Clients: []int{2}, Requests: 4,
		Model: "tiny", Dir: filepath.Join(t.TempDir(), "m"),
		Threads: 1, beams: 20, logits: 300, items: 5000,
	}, &out)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range r.Checks {
		if !c.OK && (strings.Contains(c.What, "agree") || strings.Contains(c.What, "same beams") ||
			strings.Contains(c.What, "tokens, width")) {
			t.Errorf("%s: %s", c.What, c.Got)
		}
	}
	if len(r.Attention) != 1 || len(r.Memory) != 1 || len(r.Selection) != 6 || len(r.Recommend) != 2 ||
		len(r.Throughputs) != 1 {
		t.Errorf("a part is missing: %+v", r)
	}
	if x := r.Recommend[0]; x.Rows[0] == 0 || x.Rows[1] == 0 || x.Invalid <= 0 || x.Invalid > 1 {
		t.Errorf("recommendations: %+v", x)
	}
	for _, want := range []string{"attention of one layer", "KV of a request", "selection from 20 × 300",
		"closed loops"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output lacks %q", want)
		}
	}
	if _, err := Run(t.Context(), Options{Parts: []string{"nothing"}}, io.Discard); err == nil {
		t.Error("an unknown part was accepted")
	}
}

// The rivals are timed only because they choose what sorting chooses.
func TestRivalsAgree(t *testing.T) {
	o := Options{beams: 30, logits: 200}
	for _, kind := range []string{"random", "peaked"} {
		for _, valid := range []string{"all", "half", "masked"} {
			n, err := newRound(&o, kind, valid)
			if err != nil {
				t.Fatal(err)
			}
			v := &rivals{round: n, width: 25}
			n.opts = beam.Options{Width: 30, N: 25}
			want := slices.Clone(v.sort(plainNorm))
			for name, got := range map[string][]chosen{"heap": slices.Clone(v.heap(plainNorm)),
				"merge": slices.Clone(v.merge(plainNorm))} {
				slices.SortFunc(got, best)
				if !slices.Equal(got, want) {
					t.Errorf("%s, %s: the %s differs from sorting", kind, valid, name)
				}
			}
		}
	}
}

// Real catalogs, if they are there: a few users each.
func TestRealData(t *testing.T) {
	folder := filepath.Join("..", "..", "..", "shared", "data")
	if _, err := os.Stat(folder); err != nil {
		t.Skipf("no real data: %v", err)
	}
	data, checks, err := RealData(t.Context(), DataOptions{
		Folder: folder, Users: 30, Width: 16, Dir: filepath.Join(t.TempDir(), "m")}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if !Passed(checks) || len(data) != 2 {
		t.Errorf("%+v, %+v", data, checks)
	}
	for _, d := range data {
		if d.Returned != 300 || d.FreePaths != 16*30 || d.FreeInvalid == 0 || d.Paths >= d.Items {
			t.Errorf("%+v", d)
		}
	}
	if _, _, err := RealData(t.Context(), DataOptions{Folder: t.TempDir(), Sets: []string{"beauty"}},
		io.Discard); !errors.Is(err, ErrNoData) {
		t.Errorf("without the data: %v", err)
	}
}

package gemm

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"runtime"
	"strings"
	"testing"

	"grebe/compute"
)

// All contenders that this machine has must agree on a small product with ragged edges.
func TestContendersAgree(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	libs := openLibraries()
	for _, p := range libs.peers() {
		if p.Absent != "" {
			t.Logf("%s is absent: %s", p.Name, p.Absent)
		}
	}
	d, err := newData(37, shape{"small", "product", 75, 130})
	if err != nil {
		t.Fatal(err)
	}
	defer d.free()
	for _, dt := range []compute.DType{compute.BF16, compute.F32} {
		for threads := 1; threads <= 2; threads++ {
			rates, _, err := runOne(context.Background(), &Options{Repeats: 1}, libs, dt, d, threads, 37)
			if err != nil {
				t.Fatalf("%v with %d threads: %v", dt, threads, err)
			}
			if rates[0].name != grebeName || !(rates[0].rate > 0) {
				t.Errorf("%v with %d threads: rates %v", dt, threads, rates)
			}
		}
	}
}

// wrong is a contender whose result differs in one value.
type wrong struct{ contender }

func (w wrong) out() []float32 {
	c := append([]float32(nil), w.contender.out()...)
	c[len(c)/2] += 1
	return c
}

func TestWrongResultIsAnError(t *testing.T) {
	d, err := newData(9, shape{"small", "product", 40, 64})
	if err != nil {
		t.Fatal(err)
	}
	defer d.free()
	g, err := newGrebe(compute.F32, d, 1, 9)
	if err != nil {
		t.Fatal(err)
	}
	defer g.free()
	if err := g.run(); err != nil {
		t.Fatal(err)
	}
	if err := d.compare([]contender{g, g}, compute.F32, 9); err != nil {
		t.Errorf("a right result: %v", err)
	}
	if err := d.compare([]contender{g, wrong{g}}, compute.F32, 9); err == nil {
		t.Error("a wrong value went unnoticed")
	}
}

func TestChoose(t *testing.T) {
	calm, cut := sample{1, false}, sample{9, true}
	times, how := choose([][]sample{{calm, cut, calm}, {calm, calm, calm}}, 2)
	if len(times[0]) != 2 || len(times[1]) != 3 || !how.enough || how.undisturbed != 5.0/6 {
		t.Errorf("enough undisturbed products: %v %+v", times, how)
	}
	times, how = choose([][]sample{{calm, cut, cut}, {calm, cut, calm}}, 2)
	if len(times[0]) != 3 || len(times[1]) != 3 || how.enough || how.undisturbed != 0.5 {
		t.Errorf("too few for one contender: %v %+v, want all products of both", times, how)
	}
}

func TestSummarize(t *testing.T) {
	got := summarize([]Line{
		{Model: "a", Product: "x", Format: "bf16", Threads: 1, M: 1, Ratio: 2},
		{Model: "b", Product: "y", Format: "bf16", Threads: 1, M: 2, Ratio: 0.5},
		{Format: "bf16", Threads: 2}, // no peer
		{Model: "c", Product: "z", Format: "f32", Threads: 1, M: 3, Ratio: 3},
	})
	if len(got) != 2 {
		t.Fatalf("%d summaries, want 2: %+v", len(got), got)
	}
	if s := got[0]; s.Worst != 0.5 || math.Abs(s.GeoMean-1) > 1e-12 || s.WorstAt != "b y, 2 rows" {
		t.Errorf("summary %+v", s)
	}
}

func TestReportForms(t *testing.T) {
	r := Report{Level: "plain", Peers: []Peer{{Name: "onednn", Absent: "not here"}},
		Lines: []Line{{Model: "a", Product: "x", Format: "f32", Threads: 1, M: 4, N: 5, K: 6, Grebe: 7}}}
	for _, asJSON := range []bool{false, true} {
		var b bytes.Buffer
		tb := newTable(&b, asJSON, &r)
		tb.line(&r.Lines[0])
		if err := tb.finish(&r); err != nil {
			t.Fatal(err)
		}
		if asJSON {
			var back Report
			if err := json.Unmarshal(b.Bytes(), &back); err != nil || back.Lines[0].Grebe != 7 {
				t.Errorf("JSON %s: %v", b.String(), err)
			}
		} else if !strings.Contains(b.String(), "onednn is absent: not here") {
			t.Errorf("table does not name the absent peer:\n%s", b.String())
		}
	}
}

func TestRunRefuses(t *testing.T) {
	if _, err := Run(context.Background(), Options{Models: []string{"none"}}, &bytes.Buffer{}); err == nil {
		t.Error("an unknown model was measured")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Run(ctx, Options{Rows: []int{1}, Models: []string{"qwen2-0.5b"}}, &bytes.Buffer{}); err == nil {
		t.Error("a canceled run went on")
	}
}

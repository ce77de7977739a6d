package gemm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"grebe/bench/report"
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
	for _, dt := range []compute.DType{compute.BF16, compute.F32, compute.INT8} {
		for threads := 1; threads <= 2; threads++ {
			l, err := runOne(context.Background(), &Options{Rounds: 1}, libs, dt, d, threads, 37)
			if err != nil {
				t.Fatalf("%v with %d threads: %v", dt, threads, err)
			}
			if !(l.Grebe > 0) || l.Rounds != 1 || libs.onednn.ready() && !(l.Ratio > 0) ||
				(dt == compute.INT8) != (l.OverBF16 > 0) {
				t.Errorf("%v with %d threads: line %+v", dt, threads, l)
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

// stub is a contender that only has a name.
type stub struct{ contender }

func (stub) name() string { return "stub" }

func TestRatioOfRounds(t *testing.T) {
	// Each round has its own pace, and one of the peer's turns was held up.
	rs := rounds{cs: []contender{stub{}, stub{}}, times: [][]float64{{1, 10, 2, 4, 3}, {2, 20, 400, 8, 6}}}
	if mid, low, high := rs.ratio(1); mid != 2 || low != 2 || high != 200 {
		t.Errorf("ratio %v in [%v, %v], want 2 in [2, 200]", mid, low, high)
	}
	if rs.certain() {
		t.Error("a wide interval is taken for narrow")
	}
	rs.times[1][2] = 4.01
	if !rs.certain() {
		t.Error("a narrow interval is taken for wide")
	}
	var l Line
	l.M, l.N, l.K, l.Peers = 1, 1, 5e8, map[string]float64{}
	rs.fill(&l, nil)
	if l.Grebe != 1./3 || l.Peers["stub"] != 1./6 || l.Ratio != 2 || l.Rounds != 5 || l.Ceiling != 0 {
		t.Errorf("line %+v", l)
	}
}

// In many draws the interval holds the median that they were drawn from in at least 95 of 100.
func TestInterval(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{11, 12, 25, 60} {
		const draws = 4000
		held := 0
		for range draws {
			v := make([]float64, n)
			for i := range v {
				v[i] = r.ExpFloat64()
			}
			slices.Sort(v)
			if low, high := report.Interval(v); low <= math.Ln2 && math.Ln2 <= high {
				held++
			}
		}
		if share := float64(held) / draws; share < 0.945 {
			t.Errorf("%d values: the interval holds the median in %.3f of all draws", n, share)
		}
	}
}

func TestOrderIsFair(t *testing.T) {
	const contenders = 3
	var before [contenders][contenders]int
	for n := range 2 * contenders {
		o := order(contenders, n)
		for i, a := range o {
			for _, b := range o[i+1:] {
				before[a][b]++
			}
		}
	}
	for a := range contenders {
		for b := range a {
			if before[a][b] != contenders || before[b][a] != contenders {
				t.Errorf("%d is %d times before %d and %d times after it", a, before[a][b], b, before[b][a])
			}
		}
	}
}

func TestVerdict(t *testing.T) {
	good := Line{Model: "a", Product: "x", Format: "f32", Threads: 1, Ratio: 0.95}
	bad := Line{Model: "a", Product: "x", Format: "bf16", Threads: 2, Ratio: 0.999}
	r := Report{Lines: []Line{good}}
	r.Summary = summarize(r.Lines)
	if got := r.verdict(); r.check() != nil || got != "pass: worst f32 on 1: 0.950 of 0.95" {
		t.Errorf("%v, %q", r.check(), got)
	}
	r.Lines = append(r.Lines, bad)
	r.Summary = summarize(r.Lines)
	if got := r.verdict(); !errors.Is(r.check(), ErrBelow) ||
		got != "FAIL: worst f32 on 1: 0.950 of 0.95; bf16 on 2: 0.999 of 1.00" {
		t.Errorf("%v, %q", r.check(), got)
	}
	own := Line{Model: "a", Product: "x", Format: "int8", Threads: 1, Ratio: 1.01, OverBF16: 1.6}
	r = Report{Lines: []Line{own}, Summary: summarize([]Line{own})}
	if err := r.check(); err != nil {
		t.Errorf("int8 over both bars: %v", err)
	}
	for _, l := range []Line{{Format: "int8", Ratio: 1.01, OverBF16: 1.49}, {Format: "int8", Ratio: 0.99,
		OverBF16: 1.6}} {
		if r.Summary = summarize([]Line{l}); !errors.Is(r.check(), ErrBelow) {
			t.Errorf("a line below its bar passes: %+v", l)
		}
	}
	if (&Report{}).check() == nil {
		t.Error("a run without peers passes")
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
		if err := tb.finish(&r, false); err != nil {
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

package simcheck

import (
	"bytes"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"grebe/bench/profile"
	"grebe/sim"
)

func TestFigures(t *testing.T) {
	all := []sim.Ended{
		{At: 0, Took: time.Hour, Answered: true, Tokens: 1, Computed: 1}, // warm-up
		{At: 10 * time.Second, Took: 10 * time.Millisecond, Queue: 2 * time.Millisecond, Compute: 6 * time.Millisecond,
			Answered: true,
			Tokens:   100, Computed: 80},
		{At: 11 * time.Second},
		{At: 12 * time.Second, Took: 30 * time.Millisecond, Queue: 4 * time.Millisecond, Compute: 8 * time.Millisecond,
			Answered: true,
			Tokens:   300, Computed: 20},
	}
	f := figures(all, 5*time.Second)
	if f.Requests != 3 || f.Refused != 1 || f.Hits != .75 || f.Mean != 20 || f.Queue != 3 || f.Compute != 7 ||
		f.P99 != 30 {
		t.Errorf("%+v", f)
	}
	if want := 2 / 2.03; f.Throughput < want-1e-9 || f.Throughput > want+1e-9 {
		t.Errorf("throughput %v, want %v", f.Throughput, want)
	}
}

// Each figure outside its bar is named, and a figure that is not a number is outside.
func TestJudge(t *testing.T) {
	good := Figures{Throughput: 10, Hits: .5, P50: 100, P99: 200, Spread: []float64{.4, .3, .3}, User: .5}
	for _, c := range []struct {
		change func(*Figures)
		device string
		want   []string
	}{
		{func(f *Figures) {}, "cpu", nil},
		{func(f *Figures) { f.P50, f.P99, f.Hits = 109, 300, .509 }, "cpu", nil},
		{func(f *Figures) { f.P50 = 111 }, "cpu", []string{"P50"}},
		{func(f *Figures) { f.P50 = 89 }, "cpu", []string{"P50"}},
		{func(f *Figures) { f.P50 = 106 }, "gpu", []string{"P50"}},
		{func(f *Figures) { f.P99 = 221 }, "gpu", []string{"P99"}},
		{func(f *Figures) { f.Hits, f.Throughput = .48, 9.4 }, "cpu", []string{"throughput", "hits"}},
		{func(f *Figures) { f.Spread = []float64{.44, .3, .26} }, "none", nil},
		{func(f *Figures) { f.Spread = []float64{.5, .4, .1} }, "none", []string{"mix"}},
		{func(f *Figures) { f.Spread = []float64{.6, .4} }, "none", []string{"mix"}},
		{func(f *Figures) { f.User = .6 }, "none", []string{"mix"}},
	} {
		r, b := Rate{Nodes: 3, Server: good, Sim: good}, bars(c.device)
		c.change(&r.Sim)
		if r.judge(&b); !slices.Equal(r.Failed, c.want) {
			t.Errorf("%+v on a %s: outside are %v, want %v", r.Sim, c.device, r.Failed, c.want)
		}
	}
	b := bars("none")
	falls := Rate{Nodes: 3, Server: good, Sim: good, ServerFall: .8, SimFall: .86}
	if falls.judge(&b); !slices.Equal(falls.Failed, []string{"fall"}) {
		t.Errorf("a cluster computes 0.8 of one node's tokens and sim says 0.86: outside are %v", falls.Failed)
	}
	var none Rate
	b = bars("cpu")
	if none.judge(&b); !slices.Contains(none.Failed, "P50") {
		t.Error("a run without answers passes")
	}
}

// The same seed draws the same requests. Customers return, and their histories only grow.
func TestDraw(t *testing.T) {
	home, err := profile.NewShop(filepath.Join(t.TempDir(), "shop"), "demo")
	if err != nil {
		t.Fatal(err)
	}
	a, err := draw(home.Model, 200, 30, time.Second, 3)
	if err != nil {
		t.Fatal(err)
	}
	b, err := draw(home.Model, 200, 30, time.Second, 3)
	if err != nil {
		t.Fatal(err)
	}
	tokens, grown := map[uint64]int32{}, 0
	var r sim.Request
	for i := range a.all {
		if !bytes.Equal(a.all[i].body, b.all[i].body) || !a.Next(&r) {
			t.Fatalf("request %d differs", i)
		}
		if r.UserTokens < tokens[r.User] {
			t.Errorf("the history of user %d has %d tokens, and had %d", r.User, r.UserTokens, tokens[r.User])
		}
		if last := tokens[r.User]; last > 0 && r.UserTokens > last {
			grown++
		}
		tokens[r.User] = r.UserTokens
	}
	if a.Next(&r) || grown < 5 {
		t.Errorf("%d histories grew", grown)
	}
}

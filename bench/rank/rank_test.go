package rank

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"grebe/bench/load"
	"grebe/internal/toybpe"
	"grebe/schedule"
)

// A whole comparison on a tiny model: every policy answers, accounts add up, and the report says what
// the brief tables of the paper would.
func TestRun(t *testing.T) {
	var out bytes.Buffer
	r, err := Run(t.Context(), Options{
		Workloads: []string{"Beauty"}, Requests: 90, Blocks: 3, Tokens: 0.1, Memory: 0.3, Sweep: []float64{0, 1}, Open: 0.5,
		Seconds: 0.1,
		Clients: 1, // at a time, as the bound has it
		Model:   "tiny", Dir: filepath.Join(t.TempDir(), "m"), Threads: 1, JSON: true,
	}, &out)
	if err != nil {
		t.Fatal(err)
	}
	var read Report
	if err := json.Unmarshal(out.Bytes(), &read); err != nil || len(read.Workloads) != 1 {
		t.Fatalf("the JSON does not read back: %v", err)
	}
	w := r.Workloads[0]
	if len(w.Policies) != 6 || len(w.Sweep) != 2 {
		t.Fatalf("%d policies and %d sizes of memory", len(w.Policies), len(w.Sweep))
	}
	for _, p := range w.Policies {
		if p.Saturated.Answered != 60 || p.PromptTokens != w.Policies[0].PromptTokens || p.Open == nil {
			t.Errorf("%s answered %d requests of %.1f tokens, want 60 of %.1f", p.Name, p.Saturated.Answered, p.PromptTokens,
				w.Policies[0].PromptTokens)
		}
		if got := 1 - p.ComputedTokens/p.PromptTokens; math.Abs(got-p.Reused) > 1e-9 {
			t.Errorf("%s: computed %.1f of %.1f, but %.3f reused", p.Name, p.ComputedTokens, p.PromptTokens, p.Reused)
		}
		if w.MemoryBound < w.Bound || p.PoolBytes > w.Bytes || p.ComputedTokens < w.Bound {
			t.Errorf("%s: %d bytes of %d, %.1f tokens computed, bound %.1f", p.Name, p.PoolBytes, w.Bytes, p.ComputedTokens,
				w.Bound)
		}
	}
	re, ip := w.policy("RE"), w.policy("IP")
	if re.Reused != 0 || ip.UserFirst != 0 || ip.Indexed < w.Items*9/10 {
		t.Errorf("RE reused %v; IP put the user first in %v and indexed %d of %d items", re.Reused, ip.UserFirst, ip.Indexed,
			w.Items)
	}
	if small, large := w.Sweep[0].Computed["auto"], w.Sweep[1].Computed["auto"]; large > small {
		t.Errorf("auto computes %.1f tokens with all memory and %.1f with little", large, small)
	}
}

// Policies of the cache are compared at equal memory, on caches that were warmed up without computing, and each
// one's rate is searched for in bounded time.
func TestPressure(t *testing.T) {
	var out, progress bytes.Buffer
	r, err := Run(t.Context(), Options{
		Workloads: []string{"beauty"}, CachePolicies: []string{"lru", "default"}, Requests: 600, Warmup: .9, DryWarmup: true,
		Blocks: 3,
		Tokens: 0.1, Memory: 0.1, Open: 0.5, Seconds: 0.1, Search: true, SearchTime: 100 * time.Millisecond, Repeats: 1,
		Model: "tiny", Dir: filepath.Join(t.TempDir(), "m"), Threads: 1, Progress: &progress,
	}, &out)
	if err != nil {
		t.Fatal(err)
	}
	w := r.Workloads[0]
	if len(w.Policies) != 2 || w.Policies[1].Name != "UP default" || w.Policies[1].Evicts != "default" {
		t.Fatalf("policies %+v", w.Policies)
	}
	for _, p := range w.Policies {
		if p.Saturated.Answered != r.Blocks*r.BlockRequests || p.Open == nil || p.Found == nil || p.EvictedUsers == 0 ||
			p.PoolBytes > w.Bytes || p.Reused == 0 {
			t.Errorf("%s answered %d, evicted %d users, holds %d of %d bytes, reused %v", p.Name, p.Saturated.Answered,
				p.EvictedUsers, p.PoolBytes, w.Bytes, p.Reused)
		}
	}
	for _, want := range []string{"over UP lru", "sustained rate"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if !strings.Contains(progress.String(), "requests warm each cache up") {
		t.Errorf("progress:\n%s", progress.String())
	}
}

// A user is kept while that is cheaper than computing it again.
func TestLeastCost(t *testing.T) {
	visits := []visit{{0, 40, false}, {10, 40, true}, {20, 30, true}}
	for _, c := range []struct{ price, want float64 }{
		{0, 40 + 30},                // kept from the warm-up on: only items are computed
		{.01, 40 + 30 + .01*100*15}, // held since the warm-up ended, at 5 s
		{1, 100 + 100},              // too dear to hold: items first
		{.04, 40 + 30 + .04*100*15}, // 130, still cheaper
		{.12, 40 + .12*100*5 + 100}, // held for one return, or not at all: 200 both
	} {
		if got := leastCost(100, visits, c.price, 5); math.Abs(got-min(c.want, 200)) > 1e-9 {
			t.Errorf("at a price of %v the user costs %v, want %v", c.price, got, c.want)
		}
	}
}

// Counting without computing finds what one client's requests would compute.
func TestDryCountsAlike(t *testing.T) {
	o := Options{Requests: 60, Blocks: 2, Tokens: 0.1, Memory: 0.1, Model: "tiny", Dir: filepath.Join(t.TempDir(), "m"),
		Threads: 1}
	if err := o.setDefaults(); err != nil {
		t.Fatal(err)
	}
	sys, err := open(&o)
	if err != nil {
		t.Fatal(err)
	}
	defer sys.close()
	spec, _, err := o.spec("books")
	if err != nil {
		t.Fatal(err)
	}
	src, err := newSource(spec, sys.model.Vocab())
	if err != nil {
		t.Fatal(err)
	}
	memory := newBudget(src.w, &sys.shape, o.Memory)
	for _, p := range []schedule.Policy{schedule.User, schedule.Item, schedule.BAT} { // which do not go by time
		var got [2]tally
		for i, times := range []*schedule.PrefillModel{nil, {Row: 1}} {
			v, err := sys.newVariant(t.Context(), p, src, memory.bytes, times)
			if err != nil {
				t.Fatal(err)
			}
			for n := range 30 {
				if err := v.do(t.Context(), n); err != nil {
					t.Fatal(err)
				}
			}
			got[i] = v.tally()
			v.close()
		}
		if got[0] != got[1] || got[0].cached == 0 {
			t.Errorf("%v: computing %+v, counting %+v", p, got[0], got[1])
		}
	}
}

func TestPaperShare(t *testing.T) {
	for name, want := range map[string]float64{"games": 1, "beauty": .461, "books": .0207, "industry": .00073} {
		if got, err := paperShare(name); err != nil || math.Abs(got-want) > .01*want {
			t.Errorf("%s: room for %.4f of the users (%v), want %.4f", name, got, err, want)
		}
	}
	if _, err := paperShare("music"); err == nil {
		t.Error("a workload that the paper does not have has a share")
	}
}

func TestChecks(t *testing.T) {
	make := func(name string, auto, up, overUP, overRE float64) *Workload {
		return &Workload{Name: name, Bound: 40, Policies: []Policy{
			{Name: "RE", ComputedTokens: 200}, {Name: "UP", ComputedTokens: up},
			{Name: "auto", ComputedTokens: auto, OverUP: load.MetricRatio{Ratio: overUP},
				OverRE: load.MetricRatio{Ratio: overRE}},
		}}
	}
	good := []*Workload{make("A", 100, 98, 1.7, 1.2), make("B", 60, 90, 1.1, 2.4)}
	if c := checks(good); len(c) != 4 || !Passed(c) {
		t.Errorf("should pass: %+v", c)
	}
	if c := checks([]*Workload{make("A", 104, 100, 1.7, 2.4)}); c[0].OK || !c[1].OK || Passed(c) {
		t.Errorf("4 %% more tokens than UP should fail: %+v", c)
	}
	if c := checks([]*Workload{make("A", 90, 100, 1.5, 2.4)}); c[1].OK || !c[2].OK {
		t.Errorf("1.5 times UP should fail: %+v", c)
	}
}

func TestAssemble(t *testing.T) {
	var out bytes.Buffer
	r, err := Assemble(t.Context(), AssembleOptions{
		Models: []string{"tiny"}, Dir: filepath.Join(t.TempDir(), "m"), Items: 7, Tokens: 3, User: 40, Repeats: 3, Threads: 1,
	}, &out)
	if err != nil {
		t.Fatal(err)
	}
	l := r.Lines[0]
	// 4·64 FLOPs per key and row and layer, 2 layers, 48 rows, 21 keys.
	if want := 4 * 64 * 2 * 48 * 21 / 1e9; math.Abs(l.ExtraGFLOP-want) > 1e-12 {
		t.Errorf("%v GFLOP added, want %v", l.ExtraGFLOP, want)
	}
	if l.Alone <= 0 || l.Scattered <= 0 || l.Contiguous <= 0 {
		t.Errorf("times %+v", l)
	}
	if r.Catalog.Fragmentation >= maxFragmentation {
		t.Errorf("fragmentation %v", r.Catalog.Fragmentation)
	}
	for _, d := range r.Decision {
		if d.Allocations >= 1 {
			t.Errorf("a decision over %d candidates allocates %v times", d.Candidates, d.Allocations)
		}
	}
	if !strings.Contains(out.String(), "in one piece") {
		t.Errorf("table: %s", out.String())
	}
}

func TestKendall(t *testing.T) {
	for _, c := range []struct {
		x, y []int
		want float64
	}{
		{[]int{0, 1, 2, 3}, []int{0, 1, 2, 3}, 1},
		{[]int{0, 1, 2, 3}, []int{3, 2, 1, 0}, -1},
		{[]int{2, 0, 1}, []int{2, 1, 0}, 1. / 3},
		{[]int{0}, []int{0}, 1},
	} {
		if got := kendall(c.x, c.y); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%v and %v: tau %v, want %v", c.x, c.y, got, c.want)
		}
	}
	var a Agreement
	a.add([]int{0, 1, 2}, []int{0, 2, 1}, 2)
	if a.Top != .5 || a.Best != .5 {
		t.Errorf("half of the users, all of the top shared: %+v", a)
	}
}

// Beauty's ways to rank, on made-up titles and a toy tokenizer: auto ranks as the order it chose.
func TestBeauty(t *testing.T) {
	dir := t.TempDir()
	titles := "item_id\tasin\ttitle\n"
	for i := 1; i <= 30; i++ {
		titles += fmt.Sprintf("%d\tA%d\tred nail lacquer number %d\tx\n", i, i, i)
	}
	write(t, filepath.Join(dir, "beauty_joined.tsv"), []byte(titles))
	write(t, filepath.Join(dir, "Beauty.txt"), []byte("1 1 2 3 4 5\n2 6 7 8\n3 9\n"))
	tok, err := toybpe.Train([]string{titles}, 50).TokenizerJSON(nil)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "tokenizer.json"), tok)
	var out bytes.Buffer
	o := BeautyOptions{Data: dir, Tokenizer: filepath.Join(dir, "tokenizer.json"), Dir: filepath.Join(dir, "m"), Users: 3,
		Candidates: 12, Threads: 1}
	r, err := Beauty(t.Context(), o, &out)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Pairs) != 3 || !strings.Contains(out.String(), "The weights are random") {
		t.Fatalf("%+v\n%s", r, out.String())
	}
	if r.UserFirst == 0 && r.Pairs[len(r.Pairs)-1].Tau != 1 {
		t.Errorf("auto always put the items first, but ranks otherwise: %+v", r.Pairs)
	}
	o.Data = filepath.Join(dir, "absent")
	if _, err := Beauty(context.Background(), o, &out); !errors.Is(err, ErrNoData) {
		t.Errorf("without the data: %v", err)
	}
}

func write(t *testing.T, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(name, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

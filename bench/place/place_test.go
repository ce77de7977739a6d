package place

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"grebe/placement"
)

func options() Options {
	return Options{Parts: []string{"quality", "scale"}, Items: 3000, Edges: 60_000, Quality: 2000, Nodes: 4, Slots: 16,
		Metis: "no-such-gpmetis", Seed: 1, JSON: true, Data: "no-such-folder"}
}

// The graph is the same each time, every item has one number, and hot items have most edges.
func TestWorld(t *testing.T) {
	for _, n := range []int{1, 2, 999, 5000} {
		w := newWorld(n, 20*int64(n), 7)
		seen := make([]bool, n)
		for rank := range n {
			id := w.id(rank)
			if seen[id] {
				t.Fatalf("%d items: two have number %d", n, id)
			}
			seen[id] = true
		}
	}
	const items = 200_000
	w := newWorld(items, 20*items, 7)
	degree := make([]int, items)
	var sum, again uint64
	near := 0
	w.each(func(a, b int32, _ float32) {
		degree[a]++
		degree[b]++
		sum = sum*31 + uint64(a)<<32 + uint64(b)
	})
	w.each(func(a, b int32, _ float32) { again = again*31 + uint64(a)<<32 + uint64(b) })
	rank := make([]int, items)
	for k := range rank {
		rank[w.id(k)] = k
	}
	w.each(func(a, b int32, _ float32) {
		if groups := items / communitySize; rank[a]%groups == rank[b]%groups {
			near++
		}
	})
	slices.SortFunc(degree, func(a, b int) int { return b - a })
	top := 0
	for _, d := range degree[:items/100] {
		top += d
	}
	// The hottest 1 % by rank have 0.01^(1/3) = 21.5 % of the draws.
	if share := float64(top) / (40 * items); sum != again || share < 0.20 || share > 0.24 {
		t.Errorf("the hottest 1 %% have %.3f of the edges; drawn again the same: %v", share, sum == again)
	}
	if share := float64(near) / (20 * items); share < 0.49 || share > 0.52 {
		t.Errorf("%.3f of the edges lie within communities", share)
	}
}

func TestRun(t *testing.T) {
	var out bytes.Buffer
	if _, err := Run(t.Context(), options(), &out); err != nil {
		t.Fatal(err)
	}
	var r Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	for _, g := range []*Graph{r.Quality, r.Scale} {
		if g.Cuts[0].By != "similar" || g.Cuts[0].Cut > 0.8*g.Cuts[1].Cut || g.Cuts[0].Largest > 1.04 || g.Peak == 0 {
			t.Errorf("%+v", g)
		}
	}
	if len(r.Notes) != 1 {
		t.Errorf("notes %q, want one on METIS", r.Notes)
	}
	o := options()
	o.Parts = []string{"beauty"}
	if r, err := Run(t.Context(), o, &out); err != nil || len(r.Notes) != 2 {
		t.Errorf("without histories: %v", err)
	}
}

func TestRunStops(t *testing.T) {
	for _, slots := range []int{0, 4} {
		ctx, cancel := context.WithCancel(t.Context())
		o := options()
		o.Parts, o.Items, o.Edges, o.Slots = []string{"scale"}, 1000, 1<<22, slots
		o.Progress = func(string, int64, int64) { cancel() }
		if _, err := Run(ctx, o, &bytes.Buffer{}); !errors.Is(err, context.Canceled) {
			t.Errorf("%d slots: %v", slots, err)
		}
	}
}

// METIS's file has each edge on both sides with the same weight, and no item that is everywhere.
func TestWriteMetis(t *testing.T) {
	const items = 50
	w := newWorld(items, 500, 3)
	g, err := placement.NewGraph(items, w.each)
	if err != nil {
		t.Fatal(err)
	}
	m, err := placement.HotCold(placement.Config{Members: placement.Members(3), Items: items}, w.uses(g), 0.8)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	cold, err := writeMetis(&b, g, m, 1)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
	weight := map[[2]int]int{}
	for i, line := range lines[1:] {
		f := strings.Fields(line)
		for k := 0; k < len(f); k += 2 {
			o, _ := strconv.Atoi(f[k])
			weight[[2]int{i, o - 1}], _ = strconv.Atoi(f[k+1])
		}
	}
	if head := strings.Fields(lines[0]); head[0] != strconv.Itoa(len(cold)) || head[1] != strconv.Itoa(len(weight)/2) ||
		len(lines)-1 != len(cold) {
		t.Errorf("first line %q, %d items, %d directions", lines[0], len(cold), len(weight))
	}
	for i, a := range cold {
		for k, o := range cold {
			sum := 0
			g.Near(a, func(x int32, w float32) {
				if x == o {
					sum += int(w)
				}
			})
			if weight[[2]int{i, k}] != sum {
				t.Fatalf("edge %d–%d weighs %d, want %d", a, o, weight[[2]int{i, k}], sum)
			}
		}
	}
}

func TestMetis(t *testing.T) {
	program, err := exec.LookPath("gpmetis")
	if err != nil {
		t.Skip("METIS is not installed: ", err)
	}
	o := options()
	o.Parts, o.Metis = []string{"quality"}, program
	r, err := Run(t.Context(), o, &bytes.Buffer{})
	if err != nil {
		t.Fatal(err)
	}
	if c := r.Quality.Cuts; c[1].By != "METIS" || c[0].Cut > 1.1*c[1].Cut || c[1].Largest > 1.04 {
		t.Errorf("%+v", c)
	}
}

package place

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"grebe/cluster/coord/coordtest"
	"grebe/placement"
)

// slow is traffic of which a share may come from other nodes, of two.
func slow(remote float64) placement.Traffic {
	return placement.Traffic{Alpha: 1, Prefill: remote / 2, Bandwidth: 1000, Candidates: 10, ItemTokens: 100}
}

// report returns uses of items i0, i1, … on a node.
func report(node string, t placement.Traffic, others float64, uses ...float64) Report {
	r := Report{Node: node, Total: others, Traffic: t}
	for i, u := range uses {
		if u > 0 {
			r.Items, r.Uses, r.Total = append(r.Items, fmt.Sprint("i", i)), append(r.Uses, u), r.Total+u
		}
	}
	return r
}

// The hot set is made of what all nodes' requests name, and follows it. Few uses, a single node and nodes without
// requests make none.
func TestHotPlanner(t *testing.T) {
	var p HotPlanner
	start := time.Unix(0, 0)
	var now *Hot
	half := slow(.5)
	for _, s := range []struct {
		at      time.Duration
		nodes   int
		reports []Report
		epoch   uint64
		want    string
	}{
		{0, 2, nil, 0, ""},
		{1, 2, []Report{report("a", half, 0, 50, 10)}, 0, ""},  // few uses
		{2, 1, []Report{report("a", half, 0, 500, 10)}, 0, ""}, // one node
		// nothing is measured
		{3, 2, []Report{report("a", placement.Traffic{}, 0, 500, 10)}, 0, ""},
		// 510 of 1,100 uses are not half
		{4, 2, []Report{report("a", half, 0, 500, 10), report("b", half, 90, 0, 500)}, 1, "i1 i0"},
		{5, 2, []Report{report("a", half, 0, 500, 10), report("b", half, 90, 0, 9000)}, 1, "i1 i0"}, // too soon
		// most of the uses
		{70, 2, []Report{report("a", half, 0, 500, 10), report("b", half, 90, 0, 9000)}, 2, "i1"},
		// nothing new
		{140, 2, []Report{report("a", half, 0, 501, 10), report("b", half, 90, 0, 9000)}, 2, "i1"},
		// a does not answer
		{141, 2, []Report{report("b", half, 90, 0, 9000)}, 2, "i1"},
		// and is not counted twice
		{142, 2, []Report{report("a", half, 0, 501, 10), report("b", half, 90, 0, 9000)}, 2, "i1"},
		// a slower network
		{210, 2, []Report{report("a", slow(.01), 0, 501, 10), report("b", slow(.01), 90, 0, 9000)}, 3, "i1 i0"},
		// a started again
		{280, 2, []Report{report("a2", half, 0, 0, 0, 9e5), report("b", half, 90, 0, 9000)}, 4, "i2"},
	} {
		next := p.Next(start.Add(s.at*time.Second), now, s.reports, s.nodes)
		got, epoch := "", uint64(0)
		if next != nil {
			got, epoch = strings.Join(next.Items, " "), next.Epoch
		}
		if got != s.want || epoch != s.epoch {
			t.Fatalf("at %d s: epoch %d of %q, want %d of %q; uses %v and %v", s.at, epoch, got, s.epoch, s.want, p.uses,
				p.others)
		}
		now = next
	}
}

// A set is bounded in items and in bytes, and what is read of the coordinator too.
func TestHotSetsAreBounded(t *testing.T) {
	for _, size := range []int{8, 500} {
		var p HotPlanner
		r := Report{Node: "a", Traffic: slow(0)}
		for i := range 2 * mostHot {
			r.Items, r.Uses = append(r.Items, fmt.Sprintf("%0*d", size, i)), append(r.Uses, 10)
			r.Total += 10
		}
		h := p.Next(time.Unix(1, 0), nil, []Report{r}, 2)
		if want := min(mostHot, hotBytes/size); h == nil || len(h.Items) != want || !h.Has(r.Items[0]) ||
			h.Has(r.Items[2*mostHot-1]) {
			t.Fatalf("ids of %d bytes: %+v, want %d items", size, h, want)
		}
	}
	if (*Hot)(nil).Has("a") {
		t.Error("no set has an item")
	}
	for _, bad := range []string{"", "{", `{"items":[` + strings.Repeat(`"a",`, mostHot) + `"a"]}`} {
		if h, err := decodeHot([]byte(bad)); err == nil {
			t.Errorf("%.20q is read as %+v", bad, h)
		}
	}
}

// The leader asks the nodes and publishes, all follow. The next leader goes on where it was.
func TestHotItemsArePublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := coordtest.NewServer()
		defer s.Close()
		log := slog.New(slog.DiscardHandler)
		var mu sync.Mutex
		uses := []float64{300, 100}
		var seen *Hot
		ctx, end := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer end()
		follower := s.Open()
		wg.Go(func() {
			FollowHot(ctx, follower, log, func(model string, h *Hot) {
				mu.Lock()
				defer mu.Unlock()
				if seen = h; model != "m" {
					t.Errorf("hot items of %q", model)
				}
			})
		})
		run := func(self string) (stop func()) {
			ctx, cancel := context.WithCancel(ctx)
			done := make(chan struct{})
			j := &Job{Self: self, Coordinator: s.Open(), Models: []string{"m"}, Log: log,
				Nodes: func(string) []Node { return nodes("a", "b") },
				Heat: func(_ context.Context, model string, of []Node) []Report {
					mu.Lock()
					defer mu.Unlock()
					if model != "m" || len(of) != 2 {
						t.Errorf("heat of %q on %v", model, of)
					}
					return []Report{report("a", slow(.5), 0, uses...)}
				}}
			wg.Go(func() {
				defer close(done)
				if err := j.Run(ctx); err != nil {
					t.Error(err)
				}
			})
			return func() { cancel(); <-done }
		}
		check := func(epoch uint64, want ...string) {
			t.Helper()
			time.Sleep(3 * time.Minute)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if seen == nil || seen.Epoch != epoch || !slices.Equal(seen.Items, want) || !seen.Has(want[0]) {
				t.Fatalf("hot items %+v, want epoch %d of %v", seen, epoch, want)
			}
		}
		stop := run("p1")
		run("p2")
		check(1, "i0")
		stop()
		check(1, "i0") // another one leads
		mu.Lock()
		uses = []float64{300, 90_000}
		mu.Unlock()
		check(2, "i1")
	})
}

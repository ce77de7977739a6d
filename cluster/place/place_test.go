package place

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"grebe/cluster/coord/coordtest"
	"grebe/placement"
)

func names(m *placement.Map) (out []string) {
	for _, x := range m.Members() {
		out = append(out, x.Name)
	}
	return out
}

// nodes returns nodes of unknown size.
func nodes(ids ...string) (out []Node) {
	for _, id := range ids {
		out = append(out, Node{ID: id})
	}
	return out
}

// A map follows those who come at once and those who leave after a while. A restart, and a cluster without nodes, move
// nothing.
func TestPlanner(t *testing.T) {
	var p Planner
	var now *placement.Map
	start := time.Unix(0, 0)
	for _, s := range []struct {
		at    time.Duration
		there []string
		epoch uint64 // 0: there is no map
		want  []string
	}{
		{0, nil, 0, nil},
		{1, []string{"b"}, 1, []string{"b"}},
		{2, []string{"b", "a"}, 2, []string{"a", "b"}},
		{3, []string{"a", "b", "c"}, 3, []string{"a", "b", "c"}},
		{4, []string{"a", "c"}, 3, []string{"a", "b", "c"}},
		{20, []string{"a", "b", "c"}, 3, []string{"a", "b", "c"}}, // it came back
		{40, []string{"a", "c"}, 3, []string{"a", "b", "c"}},      // it is away from here on
		{50, []string{"a", "c", "d"}, 4, []string{"a", "b", "c", "d"}},
		{69, []string{"a", "c", "d"}, 4, []string{"a", "b", "c", "d"}},
		{70, []string{"a", "c", "d"}, 5, []string{"a", "c", "d"}},
		{80, nil, 5, []string{"a", "c", "d"}},
		{200, nil, 5, []string{"a", "c", "d"}}, // nobody is there to own anything
		{201, []string{"d"}, 6, []string{"d"}},
	} {
		next, err := p.Next(start.Add(s.at*time.Second), now, nodes(s.there...))
		if err != nil {
			t.Fatal(err)
		}
		if next == nil {
			if s.epoch != 0 {
				t.Fatalf("at %d s: no map", s.at)
			}
			continue
		}
		if got := names(next); next.Epoch != s.epoch || !slices.Equal(got, s.want) {
			t.Fatalf("at %d s: epoch %d of %v, want %d of %v", s.at, next.Epoch, got, s.epoch, s.want)
		}
		now = next
	}
	if len(p.away) != 0 {
		t.Errorf("nodes that left are remembered: %v", p.away)
	}
}

// A node more or less moves its own share of the items, and no others.
func TestANodeMovesItsShare(t *testing.T) {
	var p Planner
	three, err := p.Next(time.Time{}, nil, nodes("a", "b", "c"))
	if err != nil {
		t.Fatal(err)
	}
	four, err := p.Next(time.Time{}, three, nodes("a", "b", "c", "d"))
	if err != nil {
		t.Fatal(err)
	}
	const items = 20_000
	moved, own := 0, map[string]int{}
	for i := range items {
		id := fmt.Sprint("item-", i)
		before, after := Owner(three, id), Owner(four, id)
		if own[after]++; before != after {
			if moved++; after != "d" {
				t.Fatalf("%s moved from %s to %s when d came", id, before, after)
			}
		}
	}
	if share := float64(moved) / items; share < .22 || share > .28 {
		t.Errorf("%.3f of the items moved, want about a quarter", share)
	}
	for _, n := range names(four) {
		if real, told := float64(own[n])/items, Share(four, n); real-told > .02 || told-real > .02 || told < .22 ||
			told > .28 {
			t.Errorf("%s owns %.3f of the items, and Share says %.3f", n, real, told)
		}
	}
}

// Nodes own items in proportion to their memory. Small changes of it move nothing, also while a node is away and the
// others are upgraded from a version that does not report memory.
func TestNodesOwnByMemory(t *testing.T) {
	var p Planner
	start := time.Unix(0, 0)
	var now *placement.Map
	for _, s := range []struct {
		at    time.Duration
		there []Node
		epoch uint64
		want  map[string]float64 // shares of the items
	}{
		{0, nodes("a", "b", "c"), 1, map[string]float64{"a": 1. / 3, "b": 1. / 3, "c": 1. / 3}},
		{1, []Node{{"a", 64 << 30}, {"b", 64 << 30}}, 1, map[string]float64{"a": 1. / 3, "b": 1. / 3, "c": 1. / 3}},
		{2, []Node{{"a", 64 << 30}, {"b", 60 << 30}, {"c", 0}}, 1, map[string]float64{"a": 1. / 3, "b": 1. / 3, "c": 1. / 3}},
		{3, []Node{{"a", 64 << 30}, {"b", 64 << 30}, {"c", 16 << 30}}, 2,
			map[string]float64{"a": 4. / 9, "b": 4. / 9, "c": 1. / 9}},
		{4, []Node{{"a", 64 << 30}, {"b", 64 << 30}}, 2, map[string]float64{"a": 4. / 9, "b": 4. / 9, "c": 1. / 9}},
		{40, []Node{{"a", 64 << 30}, {"b", 64 << 30}}, 3, map[string]float64{"a": .5, "b": .5}},
		{41, []Node{{"a", 64 << 30}, {"b", 64 << 30}, {"d", 128 << 30}}, 4, map[string]float64{"a": .25, "b": .25, "d": .5}},
	} {
		var err error
		if now, err = p.Next(start.Add(s.at*time.Second), now, s.there); err != nil {
			t.Fatal(err)
		}
		if now.Epoch != s.epoch || len(now.Members()) != len(s.want) {
			t.Fatalf("at %d s: epoch %d of %v, want %d of %v", s.at, now.Epoch, now.Members(), s.epoch, s.want)
		}
		for id, want := range s.want {
			if got := Share(now, id); got < want-.03 || got > want+.03 {
				t.Errorf("at %d s: %s owns %.3f of the items, want about %.3f", s.at, id, got, want)
			}
		}
	}
}

// The leader publishes, all follow. When it dies, the next one goes on where it was. A value that is damaged is not
// used, and replaced.
func TestMapsArePublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := coordtest.NewServer()
		defer s.Close()
		log := slog.New(slog.DiscardHandler)
		var mu sync.Mutex
		there, seen, listed := []string{"a", "b"}, map[string]*placement.Map{}, 0
		ctx, end := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer end()
		follower := s.Open()
		wg.Go(func() {
			Follow(ctx, follower, log, func(model string, m *placement.Map) {
				mu.Lock()
				defer mu.Unlock()
				if old := seen[model]; old != nil && m.Epoch < old.Epoch {
					t.Errorf("epoch %d after %d", m.Epoch, old.Epoch)
				}
				seen[model] = m
			}, func() {
				mu.Lock()
				defer mu.Unlock()
				listed++
			})
		})
		synctest.Wait()
		mu.Lock()
		if listed != 1 {
			t.Errorf("the maps, of which there are none yet, were listed %d times", listed)
		}
		mu.Unlock()
		run := func(self string) (stop func()) {
			ctx, cancel := context.WithCancel(ctx)
			done := make(chan struct{})
			j := &Job{Self: self, Coordinator: s.Open(), Models: []string{"m"}, Log: log, Nodes: func(string) []Node {
				mu.Lock()
				defer mu.Unlock()
				return nodes(there...)
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
			time.Sleep(time.Minute)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if m := seen["m"]; m == nil || m.Epoch != epoch || !slices.Equal(names(m), want) {
				t.Fatalf("map %+v, want epoch %d of %v", m, epoch, want)
			}
		}
		set := func(list ...string) {
			mu.Lock()
			defer mu.Unlock()
			there = list
		}
		stop := run("p1")
		run("p2")
		check(1, "a", "b")
		set("a", "b", "c")
		check(2, "a", "b", "c")
		stop()
		check(2, "a", "b", "c") // another one leads
		set("b", "c")
		check(3, "b", "c")
		e, err := follower.Get(ctx, Key("m"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := follower.Swap(ctx, Key("m"), append(e.Data[:20:20], 'x'), e.Version, nil); err != nil {
			t.Fatal(err)
		}
		check(3, "b", "c") // the damaged one is ignored
	})
}

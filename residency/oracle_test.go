package residency

import (
	"testing"

	"grebe/evict"
	"grebe/plan"
)

// seer knows when each of three users comes next, on its own clock.
type seer struct {
	now   int64
	next  map[plan.Key]int64
	again map[plan.Key]int64 // its answers when it is asked again
	asked []plan.Key
}

func (s *seer) Now() int64              { return s.now }
func (s *seer) Next(key plan.Key) int64 { return s.next[key] }

// reviser is a seer that can be asked again.
type reviser struct{ *seer }

func (r reviser) Revise(keys []plan.Key, next []int64) {
	r.asked = append(r.asked, keys...)
	for i, k := range keys {
		next[i] = r.again[k]
	}
}

func foreseen(t *testing.T, o Oracle) *Core[int] {
	t.Helper()
	c, err := New[int](Config{
		Levels: []LevelConfig{{Tier: plan.Device, Slots: 3, Bytes: 300}}, Policy: "laru", Predict: true, Oracle: o,
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A policy follows an oracle's predictions, on the oracle's clock: the entry with the latest return is evicted first,
// and no model is trained. If an entry did not return when predicted, an oracle that can revise is asked again.
func TestOracle(t *testing.T) {
	a, b, c := item(1), item(2), item(3)
	s := &seer{
		now: 1000, next: map[plan.Key]int64{a.Key: 1200, b.Key: 5000, c.Key: evict.Never},
		again: map[plan.Key]int64{a.Key: 9000},
	}
	leaves := func(core *Core[int], want *entry) {
		t.Helper()
		h, exit := core.Need(0, free)
		if h != want || exit != Drop {
			t.Errorf("%v leaves, exit %d; want entry %d", h, exit, want.Value)
		}
	}
	core := foreseen(t, s)
	for _, h := range []*entry{a, b, c} {
		core.Publish(h, 0, false)
	}
	if tracker, _ := core.Forecasts(); tracker != nil {
		t.Error("a forecaster beside an oracle")
	}
	leaves(core, c)
	s.next[a.Key] = 6000 // a use brings a new prediction
	core.Use(a.Key, free)
	leaves(core, a)
	leaves(core, b)

	s.next[a.Key] = 1200
	core = foreseen(t, reviser{s})
	core.Publish(a, 0, false)
	core.Publish(b, 0, false)
	s.now, s.next[c.Key] = 1300, 1400
	core.Publish(c, 0, false)
	leaves(core, a) // it is late; the prediction is now 9000
	if len(s.asked) != 1 || s.asked[0] != a.Key {
		t.Errorf("asked again for %v, want the one that is late", s.asked)
	}
}

// A policy that is told of a miss before room is made keeps package evict's guarantees: the default follows an oracle
// that is always right, and counts no eviction as forced.
func TestExpect(t *testing.T) {
	for _, expect := range []bool{true, false} {
		s := &seer{next: map[plan.Key]int64{}}
		core, err := New[int](Config{Levels: []LevelConfig{{Tier: plan.Device, Slots: 8, Bytes: 800}},
			Policy: "default", Oracle: s})
		if err != nil {
			t.Fatal(err)
		}
		for range 2000 { // a loop of 12 entries
			s.now++
			h := item(int(s.now) % 12)
			s.next[h.Key] = s.now + 12
			if got, _ := core.Use(h.Key, free); got != nil {
				continue
			}
			if expect {
				core.Expect(h, 0)
			}
			if core.Full(0) {
				core.Need(0, free)
			}
			if p, _, _ := core.Publish(h, 0, false); p != Placed {
				t.Fatalf("entry %d: publication %d", h.Value, p)
			}
			if err := core.Check(func(*entry) error { return nil }); err != nil {
				t.Fatal(err)
			}
		}
		stats, _ := core.Floor()
		t.Logf("expected %v: %+v", expect, stats)
		if stats.Hits+stats.Misses != 2000*100 || stats.LRUHits != 0 {
			t.Errorf("expected %v: %+v: each request is one use, and LRU hits none", expect, stats)
		}
		if expect && stats.Forced != 0 {
			t.Errorf("%d bytes were evicted by force", stats.Forced)
		}
	}
}

package residency

import (
	"testing"

	"grebe/evict"
	"grebe/plan"
)

// seer knows of three users when they come next, by a clock of its own.
type seer struct {
	now   int64
	next  map[plan.Key]int64
	again map[plan.Key]int64 // what it says when it is asked again
	asked []plan.Key
}

func (s *seer) Now() int64              { return s.now }
func (s *seer) Next(key plan.Key) int64 { return s.next[key] }

// reviser is a seer that may be asked again.
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
		Levels: []LevelConfig{{Tier: plan.Device, Slots: 3, Bytes: 300}}, Policy: "blind", Predict: true, Oracle: o,
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// An oracle's predictions are those that a policy goes by, in the oracle's own time: what comes last leaves first, and no
// model is trained beside it. What did not come when predicted is asked for again, of an oracle that can tell.
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
	s.next[a.Key] = 6000 // a use brings another prediction
	core.Use(a.Key, free)
	leaves(core, a)
	leaves(core, b)

	s.next[a.Key] = 1200
	core = foreseen(t, reviser{s})
	core.Publish(a, 0, false)
	core.Publish(b, 0, false)
	s.now, s.next[c.Key] = 1300, 1400
	core.Publish(c, 0, false)
	leaves(core, a) // it is late: 9000 now
	if len(s.asked) != 1 || s.asked[0] != a.Key {
		t.Errorf("asked again for %v, want the one that is late", s.asked)
	}
}

// A policy that hears of a miss before it makes room does what package evict promises: the default follows an oracle that is
// right about all, and counts no eviction as forced.
func TestExpect(t *testing.T) {
	for _, expect := range []bool{true, false} {
		s := &seer{next: map[plan.Key]int64{}}
		core, err := New[int](Config{Levels: []LevelConfig{{Tier: plan.Device, Slots: 8, Bytes: 800}}, Policy: "default", Oracle: s})
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

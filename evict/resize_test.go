package evict

import (
	"math/rand/v2"
	"testing"
)

// The default's bound holds against an LRU cache that is resized at the same times.
func TestFloorHoldsWhileCapacityChanges(t *testing.T) {
	for name, adversary := range adversaries {
		r := rand.New(rand.NewPCG(21, 21))
		for range 60 {
			keys, capacity, slots := randomTrace(r, 600, 5+r.IntN(60)), 60+r.Int64N(200), 64
			size := func(k uint64) int64 { return 1 + int64(k*2654435761%19) }
			ret := adversary(r, NextUses(keys))
			c := Config{Slots: slots, Bytes: capacity}
			p, lru := NewFloor(c, FloorConfig{}), newLRU(c)
			credit := p.cfg.Credit * float64(capacity)
			ours, plain := newSized(p, slots, capacity), newSized(lru, slots, capacity)
			hits, missed := int64(0), int64(0)
			for i, k := range keys {
				if r.IntN(20) == 0 {
					capacity = 30 + r.Int64N(300)
					ours.resize(t, capacity, size)
					plain.resize(t, capacity, size)
				}
				a := Access{Key: k, Bytes: size(k), Now: int64(i), Return: ret(i)}
				if !ours.request(t, a, size) {
					missed += a.Bytes
				}
				if plain.request(t, a, size) {
					hits += a.Bytes
				}
				s := p.Stats()
				if s.LRUHits != hits || s.Misses != missed {
					t.Fatalf("%s: the shadow hit %d, LRU %d; counted %d missed, had %d", name, s.LRUHits, hits, s.Misses, missed)
				}
				if limit := float64(s.LRUMisses) + p.cfg.Loss*float64(s.LRUHits) + credit + float64(s.Lent+s.Forced); float64(s.Misses+s.Away) > limit+1e-6 {
					t.Fatalf("%s: missed %d and away %d, the bound is %.2f", name, s.Misses, s.Away, limit)
				}
			}
		}
	}
}

func (c *sized) resize(t *testing.T, capacity int64, size func(uint64) int64) {
	t.Helper()
	c.capacity = capacity
	c.p.Resize(capacity)
	for c.used > capacity {
		s, ok := c.p.Victim(nil)
		if !ok {
			t.Fatalf("no victim with %d of %d bytes used", c.used, capacity)
		}
		c.used -= size(c.keyOf[s])
		delete(c.slotOf, c.keyOf[s])
		c.free = append(c.free, s)
	}
}

// Every policy goes on serving when its capacity shrinks and grows.
func TestPoliciesResize(t *testing.T) {
	for _, name := range Names() {
		r := rand.New(rand.NewPCG(22, 22))
		p, err := New(name, Config{Slots: 64, Bytes: 64})
		if err != nil {
			t.Fatal(err)
		}
		one := func(uint64) int64 { return 1 }
		c := newSized(p, 64, 64)
		for i, k := range randomTrace(r, 3000, 100) {
			if i%100 == 99 {
				c.resize(t, 1+r.Int64N(64), one)
			}
			c.request(t, Access{Key: k, Bytes: 1, Now: int64(i), Return: int64(i) + r.Int64N(100)}, one)
			if int64(len(c.slotOf)) > c.capacity {
				t.Fatalf("%s: %d entries in a cache of %d", name, len(c.slotOf), c.capacity)
			}
		}
	}
}

// laru-cost equals LARU if all entries save the same per byte, and among equal returns keeps the entries that save
// more.
func TestLARUCost(t *testing.T) {
	r := rand.New(rand.NewPCG(23, 23))
	for range 200 {
		keys, k := randomTrace(r, 300, 3+r.IntN(40)), 1+r.IntN(16)
		next := NextUses(keys)
		perfect := func(i int) int64 { return next[i] }
		if got, want := replay(t, make1(t, "laru-cost", k), keys, k, perfect), Optimal(keys, k); got != want {
			t.Fatalf("cache of %d: %d hits at equal costs, the optimum has %d", k, got, want)
		}
	}
	p := newLARUCost(Config{Slots: 2, Bytes: 2})
	for s, cost := range []float64{9, 1} {
		a := Access{Key: uint64(s), Bytes: 1, Now: int64(s), Return: 100, Cost: cost}
		p.Miss(a)
		p.Insert(Slot(s), a)
	}
	p.Miss(Access{Key: 5, Bytes: 1, Now: 3})
	if s, _ := p.Victim(nil); s != 1 {
		t.Fatalf("evicted slot %d, which saves nine times as much", s)
	}
}

// A prediction that arrives after the request has the same effect as one that came with it.
func TestPredictLater(t *testing.T) {
	for _, name := range []string{"blind", "laru", "laru-cost", "default"} {
		c := Config{Slots: 3, Bytes: 3}
		p := Policy(NewFloor(c, FloorConfig{Credit: 2}))
		if name != "default" {
			p, _ = New(name, c)
		}
		for s := range Slot(3) {
			a := Access{Key: uint64(s), Bytes: 1, Now: int64(s)}
			p.Miss(a)
			p.Insert(s, a)
		}
		for s, ret := range []int64{10, 500, 20} {
			p.Predict(Slot(s), ret)
		}
		p.Miss(Access{Key: 7, Bytes: 1, Now: 4})
		if s, ok := p.Victim(nil); !ok || s != 1 {
			t.Errorf("%s evicted slot %d, slot 1 returns last", name, s)
		}
	}
}

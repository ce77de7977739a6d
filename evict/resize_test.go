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
				if limit := float64(s.LRUMisses) + p.cfg.Loss*float64(s.LRUHits) + credit +
					float64(s.Lent+s.Forced); float64(s.Misses+s.Away) > limit+1e-6 {
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

// A prediction that arrives after the request has the same effect as one that came with it.
func TestPredictLater(t *testing.T) {
	for _, name := range []string{"laru", "default"} {
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

package embed

import (
	"math/rand/v2"
	"testing"

	"grebe/evict"
)

// plainSet is one set with a policy of package evict that hears of each use at once.
type plainSet struct {
	policy evict.Policy
	slots  map[uint64]evict.Slot
	keys   [setSlots]uint64
	now    int64
}

func (p *plainSet) access(h uint64) (hit bool) {
	p.now++
	a := evict.Access{Key: h, Bytes: 1, Now: p.now, Return: p.now}
	if slot, ok := p.slots[h]; ok {
		p.policy.Hit(slot, a)
		return true
	}
	p.policy.Miss(a)
	slot := evict.Slot(len(p.slots))
	if len(p.slots) == setSlots {
		slot, _ = p.policy.Victim(nil)
		delete(p.slots, p.keys[slot])
	}
	p.policy.Insert(slot, a)
	p.slots[h], p.keys[slot] = slot, h
	return false
}

// A cache of one set keeps what the policy alone keeps. That hears of hits late, and of the last one of each row.
func TestOneSetKeepsWhatItsPolicyDoes(t *testing.T) {
	for _, policy := range []string{"lru", "sieve", "laru"} {
		c := cacheOf(t, setSlots, policy)
		byHand(c)
		if c.Rows() != setSlots {
			t.Fatalf("%d rows", c.Rows())
		}
		alone, err := evict.New(policy, evict.Config{Slots: setSlots, Bytes: setSlots})
		if err != nil {
			t.Fatal(err)
		}
		plain := &plainSet{policy: alone, slots: map[uint64]evict.Slot{}}
		zipf := rand.NewZipf(rand.New(rand.NewPCG(91, 92)), 1.05, 10, 400)
		var row [testRow]byte
		hits := 0
		for n := range 20_000 {
			key := zipf.Uint64()
			hit := c.Get(key, row[:])
			if want := plain.access(mix(key)); hit != want {
				t.Fatalf("%s, lookup %d: a hit %v, want %v", policy, n, hit, want)
			}
			if hit {
				hits++
				continue
			}
			fill(row[:], key, 1)
			c.Put(key, row[:], c.Epoch(key))
		}
		if hits < 2000 || hits > 19_000 {
			t.Errorf("%s: %d hits", policy, hits)
		}
	}
}

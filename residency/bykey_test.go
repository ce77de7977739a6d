package residency

import (
	"math/rand/v2"
	"testing"

	"grebe/plan"
)

// Entries are found by their whole keys, although many keys begin alike.
func TestByKeyIsAMapOfKeys(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	b, want := newByKey[int](), map[plan.Key]*entry{}
	for range 20000 {
		key := plan.Key{0: byte(r.IntN(3)), 20: byte(r.IntN(8))} // keys with the same hash too
		switch {
		case r.IntN(2) == 0:
			b.remove(&key)
			delete(want, key)
		case want[key] == nil:
			h := &entry{Key: key}
			b.put(h)
			want[key] = h
		}
		if b.get(&key) != want[key] || b.count != len(want) {
			t.Fatalf("%v is under %v, want %v; %d entries, want %d", b.get(&key), key, want[key], b.count, len(want))
		}
	}
	seen := map[plan.Key]int{}
	for h := range b.all() {
		if seen[h.Key]++; want[h.Key] != h {
			t.Errorf("%v is not there", h.Key)
		}
	}
	if len(seen) != len(want) {
		t.Errorf("saw %d of %d entries", len(seen), len(want))
	}
}

// An entry that stays is visited once, whatever leaves meanwhile.
func TestByKeyAllVisitsWhatStays(t *testing.T) {
	for drop := range 8 {
		b := newByKey[int]()
		for i := range 16 {
			b.put(&entry{Key: plan.Key{0: byte(i % 2), 20: byte(i)}})
		}
		seen := map[plan.Key]int{}
		more := byte(100)
		for h := range b.all() {
			seen[h.Key]++
			if more < 250 {
				b.put(&entry{Key: plan.Key{0: more, 20: 1}}) // the table grows meanwhile
				more++
			}
			b.remove(&plan.Key{0: byte(drop % 2), 20: byte(drop)})
			b.remove(&plan.Key{20: 14})
		}
		for h := range b.all() {
			if n := seen[h.Key]; n > 1 || n == 0 && h.Key[0] < 100 {
				t.Errorf("%v was visited %d times", h.Key, seen[h.Key])
			}
		}
	}
}

package evicttest

import (
	"math/rand/v2"
	"testing"

	"grebe/evict"
)

// Policy checks what every policy owes its cache.
func Policy(t *testing.T, name string) {
	t.Run("pins", func(t *testing.T) { obeys(t, name) })
	t.Run("hits", func(t *testing.T) { hitsAllocateNothing(t, name) })
	t.Run("resize", func(t *testing.T) { resizes(t, name) })
}

func newPolicy(t *testing.T, name string, slots int) evict.Policy {
	t.Helper()
	p, err := evict.New(name, evict.Config{Slots: slots, Bytes: int64(slots)})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// obeys checks that a policy keeps pinned entries, finds the others, and never returns a slot twice.
func obeys(t *testing.T, name string) {
	r := rand.New(rand.NewPCG(2, 2))
	const slots = 16
	p := newPolicy(t, name, slots)
	held, pinned := map[evict.Slot]uint64{}, map[evict.Slot]bool{}
	for now := range int64(5000) {
		key := uint64(r.IntN(60))
		a := evict.Access{Key: key, Bytes: 1, Now: now, Return: now + int64(r.IntN(100))}
		if s, ok := slotWith(held, key); ok {
			p.Hit(s, a)
			pinned[s] = r.IntN(3) == 0
			continue
		}
		if s := evict.Slot(r.IntN(slots)); r.IntN(20) == 0 && held[s] != 0 {
			p.Remove(s)
			delete(held, s)
			delete(pinned, s)
		}
		p.Miss(a)
		s, free := freeSlot(held, slots)
		if !free {
			s, free = p.Victim(func(s evict.Slot) bool { return !pinned[s] })
			if free != (countTrue(pinned) < slots) {
				t.Fatalf("%s: victim found %v with %d of %d pinned", name, free, countTrue(pinned), slots)
			}
			if free && (pinned[s] || held[s] == 0) {
				t.Fatalf("%s: victim %d is pinned %v, key %d", name, s, pinned[s], held[s])
			}
		}
		if !free {
			clear(pinned)
			continue
		}
		held[s] = key + 1
		delete(pinned, s)
		p.Insert(s, a)
	}
}

func slotWith(held map[evict.Slot]uint64, key uint64) (evict.Slot, bool) {
	for s := range evict.Slot(16) {
		if held[s] == key+1 {
			return s, true
		}
	}
	return 0, false
}

func freeSlot(held map[evict.Slot]uint64, slots int) (evict.Slot, bool) {
	for s := range evict.Slot(slots) {
		if held[s] == 0 {
			return s, true
		}
	}
	return 0, false
}

func countTrue(m map[evict.Slot]bool) (n int) {
	for _, v := range m {
		if v {
			n++
		}
	}
	return n
}

func hitsAllocateNothing(t *testing.T, name string) {
	const k = 512
	p := newPolicy(t, name, k)
	for s := range evict.Slot(k) {
		a := evict.Access{Key: uint64(s), Bytes: 1, Now: int64(s), Return: int64(s) * 7}
		p.Miss(a)
		p.Insert(s, a)
	}
	now := int64(k)
	if n := testing.AllocsPerRun(5000, func() {
		s := evict.Slot(now * 37 % k)
		p.Hit(s, evict.Access{Key: uint64(s), Bytes: 1, Now: now, Return: now + now%999})
		now++
	}); n != 0 {
		t.Errorf("%s allocates %v times on a hit", name, n)
	}
}

// resizes checks that a policy goes on serving when its capacity shrinks and grows.
func resizes(t *testing.T, name string) {
	r := rand.New(rand.NewPCG(22, 22))
	steps := drawTrace("skewed", 3000)
	c := newReplayed(t, name, "near", steps)
	c.unpinned = true
	for i := range steps {
		if i%100 == 99 {
			c.resize(t, 16+r.Int64N(800))
		}
		c.serve(t, i)
		if c.used > c.room {
			t.Fatalf("%s: %d bytes in a cache of %d", name, c.used, c.room)
		}
	}
}

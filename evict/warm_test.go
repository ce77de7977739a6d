package evict

import (
	"math/rand/v2"
	"testing"
)

// Warm only reads: a policy whose entries are warmed evicts the same ones.
func TestWarmChangesNothing(t *testing.T) {
	const slots = 64
	run := func(warm bool) (victims []Slot) {
		r := rand.New(rand.NewPCG(3, 4))
		p := NewFloor(Config{Slots: slots, Bytes: slots}, FloorConfig{})
		var w Warmer = p
		slot, key := map[uint64]Slot{}, make([]uint64, slots)
		for now := range int64(5000) {
			a := Access{Key: uint64(r.ExpFloat64() * 40), Bytes: 1, Now: now}
			if r.IntN(2) == 0 {
				a.Return = now + r.Int64N(200)
			}
			for s := range Slot(slots) { // also those that are free
				if warm {
					w.Warm(s)
				}
			}
			if s, ok := slot[a.Key]; ok {
				p.Hit(s, a)
				continue
			}
			p.Miss(a)
			s := Slot(len(slot))
			if len(slot) == slots {
				s, _ = p.Victim(nil)
				victims = append(victims, s)
				delete(slot, key[s])
			}
			slot[a.Key], key[s] = s, a.Key
			p.Insert(s, a)
		}
		return victims
	}
	plain, warmed := run(false), run(true)
	if len(plain) == 0 || len(plain) != len(warmed) {
		t.Fatalf("%d and %d victims", len(plain), len(warmed))
	}
	for i := range plain {
		if plain[i] != warmed[i] {
			t.Fatalf("victim %d is %d, warmed %d", i, plain[i], warmed[i])
		}
	}
}

package sim

import "testing"

func TestItemSet(t *testing.T) {
	r := newRand(1, 2)
	s := newItemSet()
	for round := range 200 {
		want := map[int32]bool{}
		for range r.IntN(600) {
			item := int32(r.IntN(800)) << (round % 20)
			if new := s.add(item); new == want[item] {
				t.Fatalf("round %d: adding %d returns %v", round, item, new)
			}
			want[item] = true
			if other := int32(r.IntN(800)) << (round % 20); s.has(other) != want[other] {
				t.Fatalf("round %d: %d is there: %v", round, other, s.has(other))
			}
		}
		if round%50 == 49 {
			s.round = 1<<32 - 1 // the last one
		}
		s.reset()
	}
}

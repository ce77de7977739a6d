package evict

import "testing"

// Victim ends even if an entry that was evictable at first no longer is: a reader may have pinned it meanwhile.
func TestVictimEndsWhereAnswersChange(t *testing.T) {
	const k = 8
	p := NewFloor(Config{Slots: k, Bytes: k}, FloorConfig{})
	for s := range Slot(k) {
		a := Access{Key: uint64(s), Bytes: 1, Now: int64(s), Return: int64(100 - s)}
		p.Miss(a)
		p.Insert(s, a)
	}
	asked := map[Slot]int{}
	v, ok := p.Victim(func(s Slot) bool {
		if asked[s]++; asked[s] > 1000 {
			t.Fatalf("asked of slot %d without an end", s)
		}
		return asked[s] == 1
	})
	if !ok || asked[v] == 0 {
		t.Errorf("victim %d, %v, which was never offered", v, ok)
	}
	if p.Stats().Forced != 1 {
		t.Errorf("%d bytes were evicted as LRU would, want 1: the test does not reach what it is for", p.Stats().Forced)
	}
}

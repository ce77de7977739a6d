package evict

import "testing"

// A gain that chance explains earns no loan. Predictions are right while LRU hits 400 times and the cache six times
// more. Then they betray the cache once: 30 entries that are predicted to stay away are requested before LRU evicts
// them. That costs no more than what may be lost in any case.
func TestFewHitsAreNotLentOn(t *testing.T) {
	const k, far, near = 200, 600, 100
	var keys []uint64
	fresh := uint64(30_000)
	once := func(n int) {
		for range n {
			keys = append(keys, fresh)
			fresh++
		}
	}
	again := func(first, n uint64, wait int) { // requests n keys, and requests them again after wait other requests
		for range 2 {
			for i := range n {
				keys = append(keys, first+i)
			}
			once(wait)
			wait = 0
		}
	}
	for i := range uint64(40) { // LRU hits these
		again(100*i, 10, near)
	}
	once(1000)
	again(10_000, 6, far) // and misses these
	good := len(keys)
	again(20_000, 30, near)
	next := NextUses(keys)
	p := unforeseen(k)
	lead := int64(0)
	replay(t, p, keys, k, func(i int) int64 {
		if i == good {
			lead = p.stats.Hits - p.stats.LRUHits
		}
		switch {
		case i < good-far:
			return next[i]
		case keys[i] >= 30_000:
			return int64(i) + 10*far // so that the others leave first
		case i < good:
			return next[i]
		}
		return Never
	})
	s := p.Stats()
	if lead < 4 || s.LRUHits != 430 {
		t.Fatalf("the cache gained %d before it was betrayed, and LRU hit %d times: %+v", lead, s.LRUHits, s)
	}
	// Five entries and half a percent of LRU's hits.
	if lost := s.LRUHits - s.Hits + s.Away; lost > 7 {
		t.Errorf("%d hits are lost to LRU or may be, after a gain of %d: %+v", lost, lead, s)
	}
	if s.Lent != 0 {
		t.Errorf("%d entries were lent on a gain of %d", s.Lent, lead)
	}
}

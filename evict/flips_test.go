package evict

import (
	"math/rand/v2"
	"testing"
)

// counted is a policy that records which requests were misses.
type counted struct {
	Policy
	misses []bool
}

func (c *counted) Hit(s Slot, a Access) { c.misses = append(c.misses, false); c.Policy.Hit(s, a) }
func (c *counted) Miss(a Access)        { c.misses = append(c.misses, true); c.Policy.Miss(a) }

// learning predicts with models that are trained during the replay.
func learning(keys []uint64, k int) func(int) int64 {
	f := NewForecaster(k)
	return func(i int) int64 {
		ret := f.Access(keys[i], int64(i), Single(0, 1, 1, 1))
		if f.Due() {
			f.Learn(int64(i), TrainParams{})
		}
		return ret
	}
}

// Streams that reverse their order after pieces of random length, with each policy's own predictor. LARU has no bound
// against LRU: it lost up to 6.3 % of LRU's hits on such streams. It stays within its theorem in every phase: at most
// two misses per entry of the phase. The default stays within half a percent and one cache of LRU.
func TestLARUOnFlippedOrders(t *testing.T) {
	r := rand.New(rand.NewPCG(33, 33))
	lost := 0.0
	for range 3 {
		n, k := 500+r.IntN(1500), 50+r.IntN(150)
		keys := flipped(r, n, 20000)
		plain := replay(t, make1(t, "lru", k), keys, k, nil)
		c := &counted{Policy: make1(t, "laru", k)}
		hits := replay(t, c, keys, k, learning(keys, k))
		at := 0
		for _, d := range phases(keys, k) {
			seen, misses := map[uint64]bool{}, 0
			for ; at < len(keys) && (seen[keys[at]] || len(seen) < d); at++ {
				seen[keys[at]] = true
				if c.misses[at] {
					misses++
				}
			}
			if misses > 2*d {
				t.Fatalf("%d keys, cache of %d: %d misses in a phase of %d entries that ends at request %d", n, k, misses, d, at)
			}
		}
		if at != len(keys) {
			t.Fatalf("phases end at request %d of %d", at, len(keys))
		}
		lost = max(lost, 1-float64(hits)/float64(plain))
		own := replay(t, make1(t, "default", k), keys, k, learning(keys, k))
		if float64(own) < .995*float64(plain)-float64(k) {
			t.Errorf("%d keys, cache of %d: the default hits %d, LRU %d", n, k, own, plain)
		}
		t.Logf("%d keys, cache of %d: LRU hits %d, LARU %d, the default %d", n, k, plain, hits, own)
	}
	if lost > .07 {
		t.Errorf("LARU lost %.1f %% of LRU's hits, the docs say at most 6.3 %%", 100*lost)
	}
}

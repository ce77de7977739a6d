package evict

import (
	"math/rand/v2"
	"testing"
)

// Tests named after statements of the paper on learning-augmented LRU (LRU-1 in docs/explain/papers.md), section 3.

// phases cuts a trace into phases of k distinct keys and returns the distinct keys of each.
func phases(keys []uint64, k int) (out []int) {
	seen := map[uint64]bool{}
	for _, key := range keys {
		if !seen[key] && len(seen) == k {
			out = append(out, k)
			clear(seen)
		}
		seen[key] = true
	}
	return append(out, len(seen))
}

// Theorem 1, consistency: with perfect predictions LARU misses exactly what the offline optimum misses.
func TestTheorem1Consistency(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	for range 3000 {
		keys, k := randomTrace(r, 50+r.IntN(300), 3+r.IntN(40)), 1+r.IntN(16)
		next := NextUses(keys)
		p := newLARU(Config{Slots: k, Bytes: int64(k)})
		got := replay(t, p, keys, k, func(i int) int64 { return next[i] })
		if want := Optimal(keys, k); got != want {
			t.Fatalf("cache of %d, %d requests: LARU hits %d with perfect predictions, the optimum %d", k, len(keys), got, want)
		}
		if p.lambda != 1 {
			t.Fatalf("λ = %v after perfect predictions: Lemma 1 says none is found wrong", p.lambda)
		}
	}
}

// adversaries return predictions that are wrong in different ways.
var adversaries = map[string]func(r *rand.Rand, next []int64) func(int) int64{
	// The paper's noise. The default takes a return in the past as unknown; "nearest first" is its worst case.
	"negated": func(_ *rand.Rand, next []int64) func(int) int64 {
		return func(i int) int64 {
			if next[i] == Never {
				return -Never
			}
			return -next[i]
		}
	},
	"nearest first": func(_ *rand.Rand, next []int64) func(int) int64 {
		return func(i int) int64 {
			if next[i] == Never {
				return int64(i) + 1
			}
			return Never - next[i]
		}
	},
	// Over the whole trace: shorter ones would soon be overdue, which the default treats as unknown.
	"random": func(r *rand.Rand, next []int64) func(int) int64 {
		return func(i int) int64 { return int64(i) + r.Int64N(int64(len(next))) }
	},
	"most recent": func(*rand.Rand, []int64) func(int) int64 {
		return func(i int) int64 { return int64(i) + 1_000_000 }
	},
	"half negated": func(r *rand.Rand, next []int64) func(int) int64 {
		return func(i int) int64 {
			if r.IntN(2) == 0 || next[i] == Never {
				return next[i]
			}
			return Never - next[i]
		}
	},
}

// Theorem 1, robustness: whatever the predictions, a phase of d ≤ k distinct items has at most 2·d misses, so
// LARU misses at most 2·k per phase, where the optimum misses at least one.
func TestTheorem1Robustness(t *testing.T) {
	for name, adversary := range adversaries {
		r := rand.New(rand.NewPCG(6, 6))
		for range 500 {
			keys, k := randomTrace(r, 50+r.IntN(300), 3+r.IntN(40)), 1+r.IntN(16)
			misses := len(keys) - replay(t, make1(t, "laru", k), keys, k, adversary(r, NextUses(keys)))
			bound := 0
			for _, d := range phases(keys, k) {
				bound += 2 * d
			}
			if misses > bound {
				t.Fatalf("%s, cache of %d: %d misses, the bound is %d", name, k, misses, bound)
			}
		}
	}
}

// Lemma 1: a miss on an entry that a prediction evicted in the same phase makes one LRU eviction and halves λ. A new
// phase restores λ.
func TestLemma1DetectsAndHalves(t *testing.T) {
	p := newLARU(Config{Slots: 4, Bytes: 4})
	now := int64(0)
	ask := func(key uint64, ret int64) Access {
		now++
		return Access{Key: key, Bytes: 1, Now: now, Return: ret}
	}
	for s := range Slot(4) {
		a := ask(uint64(s), int64(100+s))
		p.Miss(a)
		p.Insert(s, a)
	}
	a := ask(10, 50) // a new phase begins
	p.Miss(a)
	if s, _ := p.Victim(nil); s != 3 {
		t.Fatalf("evicted slot %d, predicted farthest is 3", s)
	}
	p.Insert(3, a)
	a = ask(3, 60)
	p.Miss(a)
	if p.lambda != 0.5 {
		t.Fatalf("λ = %v after one misprediction, want 0.5", p.lambda)
	}
	if s, _ := p.Victim(nil); s != 0 {
		t.Fatalf("evicted slot %d, least recently used is 0", s)
	}
	p.Insert(0, a)
	a = ask(11, 70) // not evicted by a prediction: two candidates, slots 1 and 2
	p.Miss(a)
	if s, _ := p.Victim(nil); s != 2 {
		t.Fatalf("evicted slot %d, farthest of the two least recent is 2", s)
	}
	p.Insert(2, a)
	p.Hit(1, ask(1, 80)) // fourth distinct item
	p.Miss(ask(12, 90))
	if p.lambda != 1 {
		t.Fatalf("λ = %v in a new phase, want 1", p.lambda)
	}
}

// The tree that picks candidates agrees with a linear scan in order of recency.
func TestOrderAgreesWithAScan(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	const slots = 24
	o := newOrder(slots)
	type item struct {
		slot       Slot
		bytes, ret int64
	}
	var plain []item // least recent first
	drop := func(s Slot) {
		for i := range plain {
			if plain[i].slot == s {
				plain = append(plain[:i], plain[i+1:]...)
				return
			}
		}
	}
	for range 20000 {
		s := Slot(r.IntN(slots))
		if r.IntN(5) == 0 && o.pos[s] != unlinked {
			o.remove(s)
			drop(s)
		} else {
			bytes, ret := 1+r.Int64N(5), r.Int64N(30)
			o.use(s, bytes, ret)
			drop(s)
			plain = append(plain, item{s, bytes, ret})
		}
		budget := 1 + r.Int64N(80)
		want, found, sum := item{ret: absent}, false, int64(0)
		for _, it := range plain {
			if sum >= budget {
				break
			}
			sum += it.bytes
			if it.ret > want.ret {
				want, found = it, true
			}
		}
		if got, ok := o.farthest(o.within(budget)); ok != found || ok && got != want.slot {
			t.Fatalf("farthest within %d bytes: slot %d (%v), a scan finds %d (%v) in %v", budget, got, ok, want.slot, found,
				plain)
		}
	}
}

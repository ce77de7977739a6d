package beam

import (
	"math/rand/v2"
	"testing"
)

func TestSetsAgainstMaps(t *testing.T) {
	for seed := range uint64(12) {
		r := rng(seed)
		c := randomCatalog(r, 2, 1+r.IntN(20000), 100, false)
		ix := c.build(t)
		all := map[uint32]bool{}
		for i := range ix.Len() {
			all[uint32(i)] = true
		}
		checkEligible(t, r, ix, nil, all)
		a, in := randomSet(r, ix)
		b, inB := randomSet(r, ix)
		if r.IntN(2) == 0 {
			a.Union(b)
			for i := range inB {
				in[i] = true
			}
		} else {
			a.Intersect(b)
			for i := range in {
				if !inB[i] {
					delete(in, i)
				}
			}
		}
		if a.Len() != len(in) {
			t.Fatalf("seed %d: %d items, want %d", seed, a.Len(), len(in))
		}
		checkEligible(t, r, ix, a, in)
		a.Clear()
		if _, ok := a.next(0, uint32(ix.Len())); ok || a.Len() != 0 {
			t.Fatal("a cleared set holds items")
		}
	}
}

func randomSet(r *rand.Rand, ix *Index) (*Set, map[uint32]bool) {
	s, in := NewSet(ix), map[uint32]bool{}
	for range r.IntN(1 + ix.Len()/(1+r.IntN(2000))) {
		i := r.Uint32N(uint32(ix.Len()))
		s.Add(i)
		in[i] = true
	}
	return s, in
}

// checkEligible compares ranges of positions less random exclusions with a walk over all of them.
func checkEligible(t *testing.T, r *rand.Rand, ix *Index, set *Set, in map[uint32]bool) {
	t.Helper()
	e := &Eligible{}
	e.Reset(ix, set)
	for range r.IntN(100) + r.IntN(2)*r.IntN(2*ix.Len()) {
		i := r.Uint32N(uint32(ix.Len()))
		e.Exclude(i)
		delete(in, i)
	}
	e.seal()
	alive := make([]map[uint32]bool, ix.Depth())
	for l := range alive {
		alive[l] = map[uint32]bool{}
		for i := range in {
			alive[l][ix.nodeAt(l, ix.place[i])] = true
		}
		for node := range uint32(ix.Nodes(l)) {
			if got := e.alive(l, node); got != alive[l][node] {
				t.Fatalf("node %d of level %d: alive %v", node, l, got)
			}
		}
	}
	leaves := alive[ix.Depth()-1]
	for _, limit := range []int{0, 5, 1 << 30} {
		if got := e.leaves(limit); got != min(len(leaves), limit+1) {
			t.Fatalf("%d leaves up to %d, want %d", got, limit, len(leaves))
		}
	}
	want := func(from, to uint32) (uint32, bool) {
		for p := from; p < to; p++ {
			if in[ix.items[p]] {
				return p, true
			}
		}
		return 0, false
	}
	for range 200 {
		from := r.Uint32N(uint32(ix.Len()))
		to := from + r.Uint32N(uint32(ix.Len())-from+1)
		w, ok := want(from, to)
		if got, found := e.next(from, to); found != ok || ok && got != w {
			t.Fatalf("from %d to %d: %d, %v, want %d, %v", from, to, got, found, w, ok)
		}
	}
}

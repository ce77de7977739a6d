package beam

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"
)

// enumerate scores every eligible item the obvious way, best first, paths in order where scores are equal.
func enumerate(c catalog, eligible map[int]bool, logits func([]int32, int32) float32) []Result {
	o := &oracle{c: c, eligible: eligible, logits: logits}
	sums := map[string]float64{}
	sum := func(prefix []int32) float64 {
		key := fmt.Sprint(prefix)
		if s, ok := sums[key]; ok {
			return s
		}
		codes, _ := o.continuations(prefix)
		s := 0.0
		for _, code := range codes {
			s += math.Exp(float64(logits(prefix, code)))
		}
		sums[key] = s
		return s
	}
	var out []Result
	for i := range c.items() {
		if !eligible[i] {
			continue
		}
		r := Result{Item: uint32(i), Codes: c.path(i)}
		for l, code := range r.Codes {
			r.Score += float64(logits(r.Codes[:l], code)) - math.Log(sum(r.Codes[:l]))
		}
		out = append(out, r)
	}
	slices.SortStableFunc(out, func(a, b Result) int { return slices.Compare(a.Codes, b.Codes) })
	slices.SortStableFunc(out, func(a, b Result) int { return cmp.Compare(b.Score, a.Score) })
	return out
}

// A filter that leaves no more paths than the beam is wide makes the search exact: the result is that of
// scoring every eligible item, even where their prefixes are the least likely ones.
func TestSelectiveFiltersAreExact(t *testing.T) {
	for seed := range uint64(40) {
		r := rng(seed)
		c := randomCatalog(r, 1+int(seed)%5, 50+r.IntN(300), 2+r.IntN(30), false)
		ix := c.build(t)
		width := 1 + r.IntN(12)
		set, eligible, leaves := NewSet(ix), map[int]bool{}, map[string]bool{}
		for _, i := range r.Perm(c.items()) {
			path := fmt.Sprint(c.path(i))
			if !leaves[path] && len(leaves) == width {
				continue
			}
			leaves[path], eligible[i] = true, true
			set.Add(uint32(i))
		}
		e := &Eligible{}
		e.Reset(ix, set)
		for i := range eligible {
			if r.IntN(5) == 0 {
				e.Exclude(uint32(i))
				delete(eligible, i)
			}
		}
		n := 1 + r.IntN(2*len(leaves)+len(eligible))
		s, err := New(ix, e, Options{Width: width, TopK: 1 + r.IntN(2), N: n})
		if err != nil {
			t.Fatal(err)
		}
		if !s.Exact() {
			t.Fatalf("seed %d: %d leaves and %d beams, but not exact", seed, len(leaves), width)
		}
		model := hashed(seed)
		drive(t, s, ix, model)
		got, short := s.Results(nil, n)
		want := enumerate(c, eligible, model)
		if wantShort := len(want) < n; len(got) != min(n, len(want)) || short != wantShort {
			t.Fatalf("seed %d: %d results, short %v; want %d of %d", seed, len(got), short, n, len(want))
		}
		for i, x := range got {
			if math.Abs(x.Score-want[i].Score) > 1e-4 || x.Item != want[i].Item &&
				math.Abs(x.Score-scoreOf(want, x.Item)) > 1e-4 {
				t.Fatalf("seed %d: place %d is item %d with %v, want %d with %v", seed, i, x.Item, x.Score, want[i].Item,
					want[i].Score)
			}
		}
	}
}

func scoreOf(all []Result, item uint32) float64 {
	for _, r := range all {
		if r.Item == item {
			return r.Score
		}
	}
	return math.NaN()
}

// A wider choice is searched by beams, and every beam that is kept leads to an eligible item: as long as
// enough of them are below the beams, n come back.
func TestFiltersNeverWasteBeams(t *testing.T) {
	for seed := range uint64(40) {
		r := rng(100 + seed)
		c := randomCatalog(r, 1+int(seed)%4, 200+r.IntN(300), 5+r.IntN(30), false)
		ix := c.build(t)
		set, eligible := NewSet(ix), map[int]bool{}
		for i := range c.items() {
			if r.IntN(4) == 0 {
				eligible[i] = true
				set.Add(uint32(i))
			}
		}
		e := &Eligible{}
		e.Reset(ix, set)
		width := 1 + r.IntN(20)
		s, err := New(ix, e, Options{Width: width, N: width})
		if err != nil {
			t.Fatal(err)
		}
		drive(t, s, ix, hashed(seed))
		got, _ := s.Results(nil, width)
		if len(got) != min(width, len(eligible)) {
			t.Fatalf("seed %d: %d of %d eligible items with %d beams", seed, len(got), len(eligible), width)
		}
		for _, x := range got {
			if !eligible[int(x.Item)] {
				t.Fatalf("seed %d: item %d is not eligible", seed, x.Item)
			}
		}
	}
}

package beam

import (
	"math"
	"math/bits"
	"slices"
	"testing"
)

// walk is a search that runs elsewhere: on the arrays of Tree and Leaves, as Remote says.
func walk(ix *Index, r *Elsewhere, model func([]int32, int32) float32) []candidate {
	items := ix.Leaves()
	alive := func(level int, node uint32) bool {
		from, to := node, node+1
		for l := level + 1; l < ix.Depth(); l++ {
			starts, _ := ix.Tree(l)
			from, to = starts[from], starts[to]
		}
		for p := items[from]; p < items[to]; p++ {
			if r.Alive[p/64]>>(p%64)&1 != 0 {
				return true
			}
		}
		return false
	}
	beams := []candidate{{}}
	paths := map[uint32][]int32{0: nil}
	best := func(a, b candidate) int {
		if a.better(b) {
			return -1
		}
		return 1
	}
	for l, width := range r.Widths {
		starts, codes := ix.Tree(l)
		below := map[uint32][]int32{}
		var next []candidate
		for _, b := range beams {
			from, to := starts[b.node], starts[b.node+1]
			sum := 0.0
			for n := from; n < to; n++ {
				sum += math.Exp(float64(model(paths[b.node], int32(codes[n]))))
			}
			var own []candidate
			for n := from; n < to; n++ {
				if r.Dead != nil && slices.Contains(r.Dead[l], n) || r.Alive != nil && !alive(l, n) {
					continue
				}
				score := b.score + float64(model(paths[b.node], int32(codes[n]))) - math.Log(sum)
				own = append(own, candidate{score: score, node: n})
				below[n] = append(slices.Clone(paths[b.node]), int32(codes[n]))
			}
			slices.SortFunc(own, best)
			if r.TopK > 0 {
				own = own[:min(r.TopK, len(own))]
			}
			next = append(next, own...)
		}
		slices.SortFunc(next, best)
		next = next[:min(width, len(next))]
		slices.SortFunc(next, func(a, b candidate) int { return int(a.node) - int(b.node) })
		beams, paths = next, below
	}
	return beams
}

// A search that ran elsewhere, over the tree and with the widths it was told, has the results of one that ran here.
func TestRemoteSearchIsTheSame(t *testing.T) {
	remote, refused, limited, filtered := 0, 0, 0, 0
	var there Elsewhere
	for seed := range uint64(400) {
		r := rng(seed)
		c := randomCatalog(r, 1+int(seed)%4, 1+r.IntN(300), 1+r.IntN(20), seed%20 == 4)
		ix := c.build(t)
		opts, e, eligible := request(r, c, ix)
		s, err := New(ix, e, opts)
		if err != nil {
			t.Fatal(err)
		}
		was := s.Level()
		ok := s.Remote(&there)
		if s.Level() != was {
			t.Fatalf("seed %d: asking moved the search to level %d", seed, s.Level())
		}
		if !ok {
			refused++
			if s.Rows() == 1 && !opts.Free && opts.Rules == nil {
				t.Fatalf("seed %d: a search without rules was refused", seed)
			}
			continue
		}
		remote++
		if there.TopK > 0 {
			limited++
		}
		if there.Alive != nil {
			filtered++
		}
		model := hashed(seed)
		leaves := walk(ix, &there, model)
		leaf := func(i int) (uint32, float64) { return leaves[i].node, leaves[i].score }
		if err := s.Finish(len(leaves), leaf); err != nil {
			t.Fatal(err)
		}
		if !s.Done() {
			t.Fatalf("seed %d: the search is not done", seed)
		}
		got, short := s.Results(nil, opts.N)
		want := (&oracle{c, eligible, model, opts}).results()
		if err := sameResults(got, want); err != nil || short != (len(want) < opts.N) {
			t.Fatalf("seed %d, %+v: short %v, %v", seed, opts, short, err)
		}
	}
	if remote < 200 || min(refused, limited, filtered) < 20 {
		t.Errorf("%d searches ran elsewhere, %d with a TopK, %d with a set, and %d were refused: the draw tests too little "+
			"of one",
			remote, limited, filtered, refused)
	}
}

// Free searches and searches on their way are refused. A TopK is named only where it limits.
func TestRemoteRefuses(t *testing.T) {
	c := catalog{sizes: []int{12, 12, 12}}
	for i := range int32(400) {
		c.codes = append(c.codes, i%12, i/12%12, i%7)
	}
	ix := c.build(t)
	set := NewSet(ix)
	for i := range uint32(100) {
		set.Add(i)
	}
	all, some := &Eligible{}, &Eligible{}
	all.Reset(ix, nil)
	all.Exclude(3)
	some.Reset(ix, set)
	some.Exclude(5)
	for _, x := range []struct {
		name string
		e    *Eligible
		o    Options
		ok   bool
		topK int
	}{
		{"plain", nil, Options{Width: 8}, true, 0},
		{"an exclusion", all, Options{Width: 8}, true, 0},
		{"a set", some, Options{Width: 8}, true, 0},
		{"free", nil, Options{Width: 8, Free: true}, false, 0},
		{"a TopK as wide", nil, Options{Width: 8, TopK: 8}, true, 0},
		{"a TopK that limits", nil, Options{Width: 8, TopK: 7}, true, 7},
		{"a TopK that limits the first round alone", nil, Options{Width: 8, TopK: 7, Widths: []int{8, 7, 7}}, true, 7},
		{"a TopK that limits the last round alone", nil, Options{Width: 8, TopK: 7, Widths: []int{7, 7, 8}}, true, 7},
		{"a TopK that limits no round", nil, Options{Width: 8, TopK: 7, Widths: []int{7, 7, 7}}, true, 0},
	} {
		s, err := New(ix, x.e, x.o)
		if err != nil {
			t.Fatal(err)
		}
		var there Elsewhere
		if ok := s.Remote(&there); ok != x.ok || there.TopK != x.topK {
			t.Errorf("%s: %v, TopK %d, want %v, %d", x.name, ok, there.TopK, x.ok, x.topK)
		}
		if items := 0; there.Alive != nil {
			for _, w := range there.Alive {
				items += bits.OnesCount64(w)
			}
			if items != 99 || set.Len() != 100 {
				t.Errorf("%s: %d items of a set of %d, of which one is excluded", x.name, items, set.Len())
			}
		}
		if x.o.Free {
			continue
		}
		if err := s.Advance(make([]float32, ix.Size(0)), ix.Size(0)); err != nil {
			t.Fatal(err)
		}
		if s.Remote(&there) {
			t.Errorf("%s: after a round it may run elsewhere", x.name)
		}
	}
}

// Leaves that are not in order, or not in the index, are refused, and nothing of them stays.
func TestFinishRefuses(t *testing.T) {
	ix := catalog{sizes: []int{3, 3}, codes: []int32{0, 0, 1, 2, 2, 0}}.build(t)
	for _, leaves := range [][]uint32{{1, 0}, {1, 1}, {0, 3}, {3}} {
		s, err := New(ix, nil, Options{Width: 2, N: 3})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Finish(len(leaves), func(i int) (uint32, float64) { return leaves[i], 0 }); err == nil {
			t.Errorf("leaves %v: no error", leaves)
		}
		if got, _ := s.Results(nil, 3); len(got) != 0 {
			t.Errorf("leaves %v: results %v", leaves, got)
		}
	}
	s, err := New(ix, nil, Options{Width: 2, N: 3})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Finish(2, func(i int) (uint32, float64) { return uint32(2 * i), float64(i) }); err != nil {
		t.Fatal(err)
	}
	want := []Result{{Item: 2, Codes: []int32{2, 0}, Score: 1}, {Item: 0, Codes: []int32{0, 0}}}
	if got, short := s.Results(nil, 3); sameResults(got, want) != nil || !short {
		t.Errorf("results %v, short %v, want %v", got, short, want)
	}
}

// Eligible counts what a request may get, up to a limit.
func TestEligibleCounts(t *testing.T) {
	for seed := range uint64(100) {
		r := rng(seed)
		c := randomCatalog(r, 1+r.IntN(3), 1+r.IntN(300), 1+r.IntN(10), false)
		ix := c.build(t)
		opts, e, eligible := request(r, c, ix)
		opts.Free = false
		s, err := New(ix, e, opts)
		if err != nil {
			t.Fatal(err)
		}
		want := 0
		for _, ok := range eligible {
			if ok {
				want++
			}
		}
		for _, limit := range []int{0, 1, want - 1, want, want + 1, 1 << 30} {
			if limit < 0 {
				continue
			}
			if got := s.Eligible(limit); got != min(want, limit) {
				t.Fatalf("seed %d: %d eligible items up to %d, want %d", seed, got, limit, min(want, limit))
			}
		}
	}
}

// A Normaliser's sums are those of float64, whatever it summed before.
func TestNormaliser(t *testing.T) {
	eachKernel(t, func(t *testing.T) {
		var n Normaliser
		for seed := range uint64(300) {
			r := rng(seed)
			x := make([]float32, 1+r.IntN(1+r.IntN(blockLen*20)))
			top := math.Inf(-1)
			for i := range x {
				x[i] = float32(r.NormFloat64() * 5)
				if r.IntN(8) == 0 {
					x[i] = float32(negInf)
				}
			}
			x[r.IntN(len(x))] = float32(r.IntN(40) - 20)
			for _, v := range x {
				top = max(top, float64(v))
			}
			sum := 0.0
			for _, v := range x {
				sum += math.Exp(float64(v) - top)
			}
			if got, want := n.LogSum(x), top+math.Log(sum); !(math.Abs(got-want) <= 1e-6) {
				t.Fatalf("seed %d: %d values: %.9g, want %.9g", seed, len(x), got, want)
			}
		}
	})
}

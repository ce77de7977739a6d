package beam

import (
	"math"
	"slices"
	"testing"
)

// walk is a search that runs elsewhere: on the arrays of Tree, with the widths and the dead nodes of Remote.
func walk(ix *Index, widths []int, dead [][]uint32, model func([]int32, int32) float32) []candidate {
	beams := []candidate{{}}
	paths := map[uint32][]int32{0: nil}
	for l, width := range widths {
		starts, codes := ix.Tree(l)
		below := map[uint32][]int32{}
		var next []candidate
		for _, b := range beams {
			from, to := starts[b.node], starts[b.node+1]
			sum := 0.0
			for n := from; n < to; n++ {
				sum += math.Exp(float64(model(paths[b.node], int32(codes[n]))))
			}
			for n := from; n < to; n++ {
				if dead != nil && slices.Contains(dead[l], n) {
					continue
				}
				score := b.score + float64(model(paths[b.node], int32(codes[n]))) - math.Log(sum)
				next = append(next, candidate{score: score, node: n})
				below[n] = append(slices.Clone(paths[b.node]), int32(codes[n]))
			}
		}
		slices.SortFunc(next, func(a, b candidate) int {
			if a.better(b) {
				return -1
			}
			return 1
		})
		next = next[:min(width, len(next))]
		slices.SortFunc(next, func(a, b candidate) int { return int(a.node) - int(b.node) })
		beams, paths = next, below
	}
	return beams
}

// A search that ran elsewhere, over the tree and with the widths it was told, has the results of one that ran here.
func TestRemoteSearchIsTheSame(t *testing.T) {
	remote, refused := 0, 0
	for seed := range uint64(400) {
		r := rng(seed)
		c := randomCatalog(r, 1+int(seed)%4, 1+r.IntN(300), 1+r.IntN(20), seed%20 == 4)
		ix := c.build(t)
		opts, e, eligible := request(r, c, ix)
		s, err := New(ix, e, opts)
		if err != nil {
			t.Fatal(err)
		}
		before := []int{7}
		widths, dead, ok := s.Remote(before)
		if s.Level() != 0 && s.Rows() != 0 || !slices.Equal(widths[:1], before) {
			t.Fatalf("seed %d: asking moved the search to level %d, widths %v", seed, s.Level(), widths)
		}
		if !ok {
			refused++
			if s.Rows() == 1 && e.set == nil && opts.TopK == 0 && opts.N <= opts.Width {
				t.Fatalf("seed %d: a search without a set and a TopK was refused", seed)
			}
			continue
		}
		remote++
		model := hashed(seed)
		leaves := walk(ix, widths[1:], dead, model)
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
	if min(remote, refused) < 50 {
		t.Errorf("%d searches ran elsewhere and %d were refused: the draw tests too little of one", remote, refused)
	}
}

// What widths and dead nodes do not say runs here: free searches, sets, a TopK that limits, searches on their way.
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
	for _, x := range []struct {
		name string
		e    *Eligible
		o    Options
		ok   bool
	}{
		{"plain", nil, Options{Width: 8}, true},
		{"an exclusion", all, Options{Width: 8}, true},
		{"a set", some, Options{Width: 8}, false},
		{"free", nil, Options{Width: 8, Free: true}, false},
		{"a TopK as wide", nil, Options{Width: 8, TopK: 8}, true},
		{"a TopK that limits", nil, Options{Width: 8, TopK: 7}, false},
		{"a TopK that limits the first round alone", nil, Options{Width: 8, TopK: 7, Widths: []int{8, 7, 7}}, false},
		{"a TopK that limits the last round alone", nil, Options{Width: 8, TopK: 7, Widths: []int{7, 7, 8}}, false},
		{"a TopK that limits no round", nil, Options{Width: 8, TopK: 7, Widths: []int{7, 7, 7}}, true},
	} {
		s, err := New(ix, x.e, x.o)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, ok := s.Remote(nil); ok != x.ok {
			t.Errorf("%s: %v, want %v", x.name, ok, x.ok)
		}
		if x.o.Free {
			continue
		}
		if err := s.Advance(make([]float32, ix.Size(0)), ix.Size(0)); err != nil {
			t.Fatal(err)
		}
		if _, _, ok := s.Remote(nil); ok {
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

package beam

import (
	"testing"
)

// A free search of a catalog is the search of a catalog with every path, less the paths that no item has.
func TestFreeSearch(t *testing.T) {
	for seed := range uint64(60) {
		r := rng(seed)
		c := randomCatalog(r, 1+int(seed)%4, 1+r.IntN(40), 2+r.IntN(4), false)
		full := catalog{sizes: c.sizes}
		addAll(&full, nil)
		ix, all := c.build(t), full.build(t)
		opts := Options{Width: 1 + r.IntN(30), N: 10}
		if opts.Width >= full.items() { // nothing is cut: Exact would ignore the width
			opts.Width = full.items() - 1
		}
		if opts.Width == 0 {
			continue
		}
		model := hashed(seed)
		bound, err := New(all, nil, opts)
		if err != nil {
			t.Fatal(err)
		}
		drive(t, bound, all, model)
		opts.Free = true
		free, err := New(ix, nil, opts)
		if err != nil {
			t.Fatal(err)
		}
		drive(t, free, all, model)
		paths, valid := free.Reached()
		everything, _ := bound.Results(nil, 1000)
		var want []Result
		for _, p := range everything {
			if leaf, ok := ix.Find(p.Codes); ok {
				for _, item := range ix.Items(leaf) {
					want = append(want, Result{Item: item, Codes: p.Codes, Score: p.Score})
				}
				valid--
			}
		}
		if paths != len(everything) || valid != 0 {
			t.Fatalf("seed %d: reached %d paths, want %d; %d too many are valid", seed, paths, len(everything), valid)
		}
		got, short := free.Results(nil, opts.N)
		if err := sameResults(got, want[:min(len(want), opts.N)]); err != nil || short != (len(want) < opts.N) {
			t.Fatalf("seed %d: %v\ngot  %v\nwant %v", seed, err, got, want)
		}
	}
}

func addAll(c *catalog, path []int32) {
	if len(path) == len(c.sizes) {
		c.codes = append(c.codes, path...)
		return
	}
	for code := range c.sizes[len(path)] {
		addAll(c, append(path[:len(path):len(path)], int32(code)))
	}
}

func TestFreeSearchIsForEverything(t *testing.T) {
	c := catalog{sizes: []int{3}, codes: []int32{0, 1, 2}}
	ix := c.build(t)
	e := &Eligible{}
	e.Reset(ix, nil)
	e.Exclude(1)
	if _, err := New(ix, e, Options{Width: 2, Free: true}); err == nil {
		t.Error("a free search with an exclusion was accepted")
	}
}

package beam

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// numbered is a catalog whose items have numbers, some of which are not in use.
type numbered struct {
	sizes []int
	paths map[uint32][]int32
	next  uint32
}

func (n *numbered) build(t testing.TB) *Index {
	t.Helper()
	var codes []int32
	numbers := []uint32{}
	for number := range n.next {
		if p := n.paths[number]; p != nil {
			numbers, codes = append(numbers, number), append(codes, p...)
		}
	}
	ix, err := BuildNumbered(n.sizes, codes, numbers)
	if err != nil {
		t.Fatal(err)
	}
	return ix
}

// sameIndex compares all that a search can see.
func sameIndex(t testing.TB, got, want *Index) {
	t.Helper()
	if g, w := store(t, got), store(t, want); !slices.Equal(g, w) {
		t.Fatalf("the merged index stores as %d other bytes, want %d: items %v, want %v", len(g), len(w), got.items,
			want.items)
	}
	if !slices.Equal(got.mask, want.mask) {
		t.Fatalf("mask %x, want %x", got.mask, want.mask)
	}
	for i := range max(len(got.place), len(want.place)) {
		if got.Holds(uint32(i)) != want.Holds(uint32(i)) || got.Holds(uint32(i)) && got.place[i] != want.place[i] {
			t.Fatalf("item %d: %v, want %v", i, got.place, want.place)
		}
	}
	for l := range got.levels {
		g, w := &got.levels[l], &want.levels[l]
		if !slices.Equal(g.spans, w.spans) || !slices.Equal(g.below.rank, w.below.rank) ||
			!slices.Equal(g.below.hint, w.below.hint) {
			t.Fatalf("level %d: spans or tables differ", l)
		}
		if g.below.most < w.below.most {
			t.Fatalf("level %d: longest run %d, want %d or more", l, g.below.most, w.below.most)
		}
	}
}

// An index after any changes equals one that was built of the items that are left.
func TestMergedEqualsBuilt(outer *testing.T) {
	rapid.Check(outer, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		depth := rapid.IntRange(1, 5).Draw(t, "depth")
		c := randomCatalog(r, depth, rapid.IntRange(0, 300).Draw(t, "items"), rapid.IntRange(1, 40).Draw(t, "codes"), true)
		n := &numbered{sizes: c.sizes, paths: map[uint32][]int32{}}
		for i := range c.items() {
			n.paths[n.next] = c.path(i)
			n.next += 1 + uint32(r.IntN(3)/2)
		}
		tb := drawn{outer, t}
		ix := n.build(tb)
		for range rapid.IntRange(1, 4).Draw(t, "changes") {
			ch := n.change(r, rapid.IntRange(0, 100).Draw(t, "added"), rapid.Float64Range(0, 1).Draw(t, "removed"))
			got, err := ix.Merge(ch)
			if err != nil {
				t.Fatal(err)
			}
			sameIndex(tb, got, n.build(tb))
			ix = got
		}
		numbers := n.close()
		sameIndex(tb, ix.Renumbered(numbers, int(n.next)), n.build(tb))
	})
}

// close gives the items numbers without gaps, and returns the new number of each old one.
func (n *numbered) close() []uint32 {
	numbers, paths := make([]uint32, n.next), map[uint32][]int32{}
	for number := range n.next {
		if p := n.paths[number]; p != nil {
			numbers[number] = uint32(len(paths))
			paths[uint32(len(paths))] = p
		}
	}
	n.paths, n.next = paths, uint32(len(paths))
	return numbers
}

// change draws a change and makes it in the catalog.
func (n *numbered) change(r *rand.Rand, added int, share float64) Change {
	n.sizes = slices.Clone(n.sizes)
	if r.IntN(4) == 0 {
		n.sizes[r.IntN(len(n.sizes))] += 1 << (1 + r.IntN(16)) // perhaps codes of four bytes
	}
	ch := Change{Sizes: n.sizes, Add: []uint32{}}
	old := make([][]int32, 0, len(n.paths))
	for number := range n.next {
		p := n.paths[number]
		if p == nil {
			continue
		}
		if old = append(old, p); r.Float64() < share*share {
			ch.Remove = append(ch.Remove, number)
			delete(n.paths, number)
		}
	}
	r.Shuffle(len(ch.Remove), func(i, j int) { ch.Remove[i], ch.Remove[j] = ch.Remove[j], ch.Remove[i] })
	for range added {
		path := randomCatalog(r, len(n.sizes), 1, 1, false).codes
		for l := range path {
			path[l] = r.Int32N(int32(n.sizes[l]))
		}
		if len(old) > 0 && r.IntN(4) > 0 { // close to one that is or was there
			keep := r.IntN(len(path) + 1)
			copy(path[:keep], old[r.IntN(len(old))])
		}
		n.next += uint32(r.IntN(2))
		n.paths[n.next] = path
		ch.Add, ch.Codes = append(ch.Add, n.next), append(ch.Codes, path...)
		n.next++
	}
	return ch
}

// drawn lets helpers of testing.TB end a check of rapid.
type drawn struct {
	testing.TB
	r *rapid.T
}

func (d drawn) Fatal(args ...any)                 { d.r.Fatal(args...) }
func (d drawn) Fatalf(format string, args ...any) { d.r.Fatalf(format, args...) }

func TestMergeOfALargerCatalog(t *testing.T) {
	r := rng(8)
	c := randomCatalog(r, 3, 60000, 300, false)
	n := &numbered{sizes: c.sizes, paths: map[uint32][]int32{}}
	for i := range c.items() {
		n.paths[n.next] = c.path(i)
		n.next += 1 + uint32(i%1000/999) // some numbers are not in use
	}
	ix := n.build(t)
	for _, added := range []int{0, 1, 5, 40, 3000} {
		got, err := ix.Merge(n.change(r, added, float64(added)/20000))
		if err != nil {
			t.Fatal(err)
		}
		sameIndex(t, got, n.build(t))
		ix = got
	}
}

func TestMergeRefuses(t *testing.T) {
	ix := catalog{sizes: []int{3, 3}, codes: []int32{1, 2, 2, 0}}.build(t)
	for name, c := range map[string]Change{
		"another depth":       {Sizes: []int{3}},
		"a code too high":     {Sizes: []int{3, 3}, Add: []uint32{2}, Codes: []int32{0, 3}},
		"a number in use":     {Sizes: []int{3, 3}, Add: []uint32{1}, Codes: []int32{0, 1}},
		"numbers that fall":   {Sizes: []int{3, 3}, Add: []uint32{3, 2}, Codes: []int32{0, 1, 0, 1}},
		"a missing number":    {Sizes: []int{3, 3}, Codes: []int32{0, 1}},
		"a level too small":   {Sizes: []int{3, 2}},
		"removing what isn't": {Sizes: []int{3, 3}, Remove: []uint32{2}},
		"removing it twice":   {Sizes: []int{3, 3}, Remove: []uint32{1, 1}},
	} {
		if _, err := ix.Merge(c); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// BenchmarkMerge changes a thousand items of ten million: as many are removed as added.
func BenchmarkMerge(b *testing.B) {
	for _, kind := range []string{"uniform", "clustered"} {
		b.Run(kind, func(b *testing.B) {
			c := bigCatalog(kind, 3, 8192)
			ix := c.build(b)
			r := rng(4)
			ch := Change{Sizes: c.sizes}
			for i := range 1000 {
				ch.Remove = append(ch.Remove, uint32(i*9973))
				ch.Add = append(ch.Add, uint32(ix.Len()+i))
				path := slices.Clone(c.path(r.IntN(c.items())))
				path[2] = r.Int32N(8192)
				ch.Codes = append(ch.Codes, path...)
			}
			for b.Loop() {
				if _, err := ix.Merge(ch); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(ix.Bytes())/float64(ix.Len()), "bytes/item")
			b.ReportMetric(0, fmt.Sprintf("of-%d", ix.Len()))
		})
	}
}

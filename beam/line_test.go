package beam

import (
	"slices"
	"testing"
)

// What a line says of the items between two places is compared with a walk over them.
func TestLineAgainstWalk(t *testing.T) {
	for seed := range uint64(40) {
		r := rng(seed)
		ix := randomCatalog(r, 2, 1+r.IntN(20000), 100, false).build(t)
		items := make([]uint32, 0, ix.Len())
		for _, i := range r.Perm(ix.Len())[:r.IntN(ix.Len()+1)] {
			items = append(items, uint32(i))
		}
		twice := seed%4 == 3 && len(items) > 0
		if twice {
			items = append(items, items[r.IntN(len(items))])
		}
		l := NewLine(ix, items)
		if stepped := len(l.steps) > 1; stepped != (!twice && len(items) > minStep) {
			t.Fatalf("seed %d: %d steps for %d items, one of them twice: %v", seed, len(l.steps), len(items), twice)
		}
		for range 50 {
			ends := []int{r.IntN(len(items) + 1), r.IntN(len(items) + 1)}
			if r.IntN(4) == 0 { // at a step
				ends[0] = min(ends[0]/l.every*l.every, len(items))
			}
			slices.Sort(ends)
			got, want := l.Between(ends[0], ends[1]), NewSet(ix)
			for _, item := range items[ends[0]:ends[1]] {
				want.Add(item)
			}
			if !slices.Equal(got.words, want.words) || !slices.Equal(got.some, want.some) {
				t.Fatalf("seed %d: items %d to %d of %d: %d items, want %d", seed, ends[0], ends[1], len(items), got.Len(),
					want.Len())
			}
		}
	}
}

func BenchmarkLine(b *testing.B) {
	r := rng(1)
	ix := randomCatalog(r, 3, 1_000_000, 256, false).build(b)
	items := make([]uint32, ix.Len())
	for i, item := range r.Perm(ix.Len()) {
		items[i] = uint32(item)
	}
	l := NewLine(ix, items)
	b.Run("new", func(b *testing.B) {
		for b.Loop() {
			NewLine(ix, items)
		}
	})
	b.Run("between", func(b *testing.B) {
		for b.Loop() {
			from := r.IntN(len(items))
			l.Between(from, from+r.IntN(len(items)-from))
		}
	})
}

//go:build !noasm && !race

package embed

import (
	"math/rand/v2"
	"testing"

	"grebe/evict"
)

// Eight stamps at once are what one after the other would be, and no others are touched.
func TestMarksAgreeWithUse(t *testing.T) {
	if !hasMarks {
		t.Skip("this processor has no AVX-512")
	}
	r := rand.New(rand.NewPCG(31, 32))
	sizes := []int{255, 256, 257, 264, 300, 512, 521}
	for n := 1; n <= 130; n++ {
		sizes = append(sizes, n)
	}
	for _, rows := range []int{64, 5000, 1 << 21} {
		slab := evict.NewSlab(rows)
		for _, n := range sizes {
			sets, want := make([]set, n), make([]uint64, n*setSlots)
			now := r.Uint64N(1 << 45)
			for i := range want {
				m := slab.First(now - r.Uint64N(1+now%uint64(100*rows)))
				for range r.IntN(4) {
					m = slab.Use(m, now-r.Uint64N(1+now%uint64(rows)))
				}
				sets[i/setSlots].slots[i%setSlots].meta.Store(uint64(m))
				want[i] = uint64(m)
			}
			l := lookups{sets: make([]*set, n+2*lead), slots: make([]int, n+2*lead)}
			for i := range n {
				slot := r.IntN(setSlots+20) - 20
				l.sets[lead+i], l.slots[lead+i] = &sets[i], max(slot, stored)
				if slot >= 0 {
					at := i*setSlots + slot
					want[at] = uint64(slab.Use(evict.Stamp(want[at]), now+uint64(i)))
				}
			}
			if !l.marks(slab, 0, n, now) {
				t.Fatal("it has no vectors")
			}
			for i := range want {
				if got := sets[i/setSlots].slots[i%setSlots].meta.Load(); got != want[i] {
					t.Fatalf("%d keys: slot %d of set %d has %x, want %x (its key's slot is %d)", n, i%setSlots, i/setSlots, got,
						want[i], l.slots[lead+i/setSlots])
				}
			}
		}
	}
}

package evict

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// rows is a set in plain memory.
type rows struct {
	keys   [SlabSlots]uint64 // 0: empty
	stamps [SlabSlots]Stamp
}

func (r *rows) Stamp(slot int) Stamp     { return r.stamps[slot] }
func (r *rows) Stamps() [SlabSlots]Stamp { return r.stamps }
func (r *rows) Empty() int               { return slices.Index(r.keys[:], 0) }
func (r *rows) Key(slot int) uint64      { return r.keys[slot] }

// Rows first fill the set. Then the row of least value is evicted, and comes back with its uses. A row of less value
// than all others is declined, and its attempts count until it gets a slot.
func TestSlabSet(t *testing.T) {
	c := NewSlab(SlabSlots)
	var s SlabSet
	r := &rows{}
	place := func(key, now uint64) (int, bool) {
		slot, m, ok := s.Place(c, key, now, 1, r)
		if ok {
			r.keys[slot], r.stamps[slot] = key, m
		}
		return slot, ok
	}
	now := uint64(100)
	key := func(i int) uint64 { return uint64(i+1) << 24 }
	for i := range SlabSlots {
		now++
		if slot, ok := place(key(i), now); !ok || slot != i {
			t.Fatalf("row %d gets slot %d, %v", i, slot, ok)
		}
	}
	for range 20 { // all but row 7 are used often
		for i := range SlabSlots {
			if now++; i != 7 {
				r.stamps[i] = c.Use(r.stamps[i], now)
			}
		}
	}
	left := r.stamps[7]
	now++
	if slot, ok := place(key(100), now); !ok || slot != 7 {
		t.Fatalf("a new row gets slot %d, %v, want that of the row that was used once", slot, ok)
	}
	now++
	want, tries := left, 0
	for back := false; !back; { // each try counts as a use
		if tries++; tries > patience+1 {
			t.Fatal("a row that left does not come back")
		}
		want = c.Use(want&(1<<40-1), now)
		slot, ok := place(key(7), now)
		if back = ok; ok && r.stamps[slot] != want {
			t.Errorf("after %d tries a row comes back with stamp %x, want %x", tries, r.stamps[slot], want)
		}
	}
	for i := range SlabSlots { // now all have a higher value than a new row
		for range 30 {
			now++
			r.stamps[i] = c.Use(r.stamps[i], now)
		}
	}
	declined := 0
	for ; declined < 1000; declined++ {
		now++
		if _, ok := place(key(200), now); ok {
			break
		}
	}
	if declined == 0 || declined == 1000 {
		t.Errorf("a row is declined %d times", declined)
	}
	var fresh SlabSet
	fresh.Expect(c, key(3), left, now, 1)
	if _, m, ok := fresh.Place(c, key(3), now, 1, &rows{}); !ok || m != c.Use(left&(1<<40-1), now) {
		t.Errorf("a row that was expected comes with stamp %x, %v", m, ok)
	}
}

// When sets are added or removed, only the keys of those sets move. Visit covers every home that a key had, lowest
// first.
func TestHomes(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	const most = 48
	m := Homes(most)
	for range 2000 {
		key := r.Uint64()
		fewest := most/16 + r.IntN(most-most/16)
		var visited []int
		m.Visit(key, fewest, func(home int) { visited = append(visited, home) })
		if !slices.IsSorted(visited) || len(slices.Compact(slices.Clone(visited))) != len(visited) {
			t.Fatalf("homes %v are visited", visited)
		}
		for n := fewest; n <= most; n++ {
			home := m.Home(key, n)
			if home >= n || !slices.Contains(visited, home) {
				t.Fatalf("of %d sets the home is %d, visited are %v", n, home, visited)
			}
			if n < most {
				if next := m.Home(key, n+1); next != home && next != n {
					t.Fatalf("set %d comes, and a key moves from %d to %d", n, home, next)
				}
			}
		}
	}
}

package allocator

import (
	"math"
	"testing"

	"grebe/alloc"
	"grebe/pool"
	"grebe/workload/regime"
)

// Grains whose home changes with the number of sets miss until they are moved or fetched. Once all are moved, every
// grain that is cached is at home and found there, and none twice.
func TestRowsMoveHome(t *testing.T) {
	p, err := pool.Over(nowhere{}, 4096*piece, page)
	if err != nil {
		t.Fatal(err)
	}
	spec := &regime.Spec{Grains: 3000, Grain: piece / 1024}
	c := newRows(p.For(pool.Embeddings), &Cost{Pool: 4096 * piece, RowBytes: 1024}, spec)
	at := func(share float64) {
		p.SetBoundary(share)
		c.resize()
	}
	var g alloc.Curve
	hits := func() (n int) {
		for i := range int32(1000) {
			if c.Use(i, 1, &g) {
				n++
			}
		}
		return n
	}
	cached := func() map[uint64]int {
		all := map[uint64]int{}
		c.Check(func(key uint64, at, home int) {
			if all[key]++; home != at {
				t.Errorf("a grain of set %d is in set %d", home, at)
			}
		})
		return all
	}
	at(0.5)
	if sets, _ := c.Sets(); hits() != 0 || sets != 32 {
		t.Fatalf("hits in an empty cache of %d sets", sets)
	}
	if n := hits(); n != 1000 {
		t.Fatalf("%d hits of 1000 in a cache of twice as many", n)
	}
	at(0.75)
	if c.Settled() {
		t.Error("nothing is to be moved after the cache grew")
	}
	moved := c.Rehome(5 * piece)
	if moved != 5*piece || c.Settled() {
		t.Errorf("%d bytes moved of 5 grains", moved)
	}
	moved += c.Rehome(math.MaxInt64)
	if share := float64(moved) / (1000 * piece); !c.Settled() || share < 0.25 || share > 0.42 {
		t.Errorf("%.2f of the grains moved, want about a third", share)
	}
	if n := hits(); n != 1000 {
		t.Errorf("%d hits of 1000 after all grains moved home", n)
	}
	at(0.5)
	if n := hits(); n < 580 || n > 750 {
		t.Errorf("%d hits of 1000 after the last third of the sets was given back", n)
	}
	sets, _ := c.Sets()
	c.Resize(sets - 1)
	c.Resize(sets) // all are looked at again
	c.Rehome(math.MaxInt64)
	for key, n := range cached() {
		if n != 1 {
			t.Errorf("grain %x is cached %d times", key, n)
		}
	}
	at(0.9)
	fetched := hits() // some are fetched before they are moved
	c.Rehome(math.MaxInt64)
	if all := cached(); fetched == 1000 || len(all) != 1000 {
		t.Errorf("%d hits before, %d grains cached after", fetched, len(all))
	}
}

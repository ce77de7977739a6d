package embed

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
)

// A caller that keeps rows is told which are the table's own and which are the default, however they are gathered.
func TestGatherKnown(t *testing.T) {
	const rows = 40 * setSlots
	store := NewMemory(rows, testRow)
	defer store.Close()
	var row [testRow]byte
	for k := range uint64(rows) {
		fill(row[:], k, 1)
		if k%5 > 0 {
			if err := store.Put(t.Context(), []uint64{k}, row[:]); err != nil {
				t.Fatal(err)
			}
		}
	}
	bare, err := NewTable(store, nil, TableConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for name, table := range map[string]*Table{"near": nearTable(t, store, rows/3, "", nil),
		"far": nearTable(t, far{store}, rows/3, "", nil), "without a cache": bare} {
		r := rand.New(rand.NewPCG(1, 2))
		for _, n := range []int{1, 64, 5000, 5000} { // 5000 are looked up by several threads
			keys, out, want := make([]uint64, n), make([]float32, n*testRow/4), make([]byte, n*testRow)
			known := make([]bool, n)
			for i := range keys {
				keys[i] = r.Uint64N(rows + 50)
			}
			a := table.GatherFloats(t.Context(), keys, out, known)
			b := table.Gather(t.Context(), keys, want)
			if !bytes.Equal(Bytes(out), want) || a.Default != b.Default {
				t.Errorf("%s, %d keys: not what Gather returns", name, n)
			}
			for i, k := range keys {
				if known[i] != (k < rows && k%5 > 0) {
					t.Fatalf("%s, %d keys: key %d is known: %v", name, n, k, known[i])
				}
			}
		}
	}
}

// Listeners are told of rows that are put and deleted, when no cache has them any more, until they stop.
func TestListen(t *testing.T) {
	store := NewMemory(100, testRow)
	defer store.Close()
	table := nearTable(t, store, 64, "", nil)
	row := make([]byte, testRow)
	put := func(keys ...uint64) {
		if err := table.Put(t.Context(), keys, bytes.Repeat(row, len(keys))); err != nil {
			t.Fatal(err)
		}
	}
	put(7, 8)
	table.Gather(t.Context(), []uint64{7, 8}, make([]byte, 2*testRow))
	var heard [2][]uint64
	var stops []func()
	for i := range heard {
		stops = append(stops, table.Listen(func(keys []uint64) {
			for _, k := range keys {
				if table.Cache().Get(k, make([]byte, testRow)) {
					t.Errorf("key %d is cached when a listener hears of its change", k)
				}
			}
			heard[i] = append(heard[i], keys...)
		}))
	}
	put(7)
	stops[0]()
	if err := table.Delete(t.Context(), []uint64{8, 9}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(heard[0], []uint64{7}) || !slices.Equal(heard[1], []uint64{7, 8, 9}) {
		t.Errorf("heard of %v and of %v", heard[0], heard[1])
	}
}

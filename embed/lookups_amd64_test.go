//go:build !noasm && !race

package embed

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"grebe/pool"
)

// The assembly finds the slots and copies the rows that plain Go does: sets full of rows, whose tags meet often, sets
// that a writer is in, sets that were emptied, keys that repeat, that miss, and that were taken away between two
// stages. Every other time what misses comes from a table in memory, which has some of the rows.
func TestWideAgreesWithPlain(t *testing.T) {
	if !hasWide {
		t.Skip("this processor has no AVX-512")
	}
	for _, rowBytes := range []int{64, 128, 448, 512, 576, 1024, 1536} {
		const rows = 40 * setSlots
		p, err := pool.New((rows+setSlots)*int64(rowBytes)+1<<17, 4096)
		if err != nil {
			t.Fatal(err)
		}
		c, err := NewCache(p, Config{Rows: rows, RowBytes: rowBytes, Policy: "lru"})
		if err != nil {
			t.Fatal(err)
		}
		r, row := rand.New(rand.NewPCG(uint64(rowBytes), 1)), make([]byte, rowBytes)
		for range 4 * rows {
			k := r.Uint64N(2 * rows)
			for i := range row {
				row[i] = byte(r.Uint32())
			}
			c.Put(k, row, c.Epoch(k))
		}
		store := NewMemory(rows+rows/2, rowBytes)
		for k := uint64(0); k < rows+rows/2; k += 1 + r.Uint64N(3) {
			for i := range row {
				row[i] = byte(r.Uint32())
			}
			if err := store.Put(t.Context(), []uint64{k}, row); err != nil {
				t.Fatal(err)
			}
		}
		c.sets[3].clearAll()
		c.sets[5].begin()
		for turn, n := range []int{1, 2, 1, 2, 47, 48, 49, 63, 64, 65, 80, 81, 500, 600} {
			near := store
			if turn%2 == 1 {
				near = nil
			}
			keys := make([]uint64, n)
			for i := range keys {
				keys[i] = r.Uint64N(2 * rows)
			}
			var wide, plain lookups
			got, want := make([]byte, n*rowBytes), make([]byte, n*rowBytes)
			wide.begin(c, keys, len(c.sets), near)
			plain.begin(c, keys, len(c.sets), near)
			wide.run(c, got, -lead, 0)
			plain.runPlain(c, want, -lead, 0)
			gone := plain.slots[lead] >= 0 // found already, and not copied
			c.Remove(keys[0])
			for from := 0; from < n; from += 33 {
				wide.run(c, got, from, min(from+33, n))
				plain.runPlain(c, want, from, min(from+33, n))
			}
			if g, w := wide.slots[lead:][:n], plain.slots[lead:][:n]; !slices.Equal(g, w) {
				t.Fatalf("rows of %d bytes, %d keys: slots\n%v, want\n%v", rowBytes, n, g, w)
			}
			if near != nil && n > 100 && !slices.Contains(plain.slots[lead:][:n], stored) {
				t.Fatalf("rows of %d bytes, %d keys: nothing comes from the table", rowBytes, n)
			}
			if !bytes.Equal(got, want) {
				t.Fatalf("rows of %d bytes, %d keys: the rows differ", rowBytes, n)
			}
			if first := plain.slots[lead]; gone && first != disturbed {
				t.Fatalf("rows of %d bytes, %d keys: a row that was removed before its copy is at %d", rowBytes, n, first)
			}
		}
		c.sets[5].end()
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
		c.Close()
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

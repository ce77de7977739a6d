package embed

import (
	"context"
	"testing"

	"grebe/pool"
)

// sixteen has every row, of sixteen bytes.
type sixteen struct{ Store }

func (sixteen) RowBytes() int { return 16 }

func (sixteen) Gather(_ context.Context, keys []uint64, rows []byte, found []bool) error {
	for i, k := range keys {
		rows[16*i], found[i] = byte(k), true
	}
	return nil
}

// A cache that is put before a table later is used, and who watches is told of every batch.
func TestLateCacheAndWatcher(t *testing.T) {
	p, err := pool.New(1<<20, 4096)
	if err != nil {
		t.Fatal(err)
	}
	most := RowsIn(1<<19, 4096, 16)
	c, err := NewCache(p, Config{Rows: MinRows(most), MaxRows: most, RowBytes: 16, Policy: "lru"})
	if err != nil {
		t.Fatal(err)
	}
	table, err := NewTable(sixteen{}, nil, TableConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if err := table.SetCache(c); err != nil {
		t.Fatal(err)
	}
	var lookups, hits, misses int
	seen := map[uint64]bool{}
	table.Watch(func(b Batch) {
		lookups, hits, misses = lookups+len(b.Hashes), hits+b.Hits, misses+len(b.Missed)
		for _, h := range b.Hashes {
			seen[h] = true
		}
	})
	out := make([]byte, 3*16)
	for range 2 {
		table.Gather(t.Context(), []uint64{5, 6, 7}, out)
		if out[0] != 5 || out[16] != 6 || out[32] != 7 {
			t.Fatalf("rows %v", out)
		}
	}
	if lookups != 6 || hits != 3 || misses != 3 || len(seen) != 3 {
		t.Errorf("told of %d look-ups of %d rows, %d cached and %d missed; want 6, 3, 3 and 3", lookups, len(seen), hits,
			misses)
	}
	small, err := NewCache(p, Config{Rows: 64, RowBytes: 8})
	if err != nil {
		t.Fatal(err)
	}
	if table.SetCache(small) == nil {
		t.Error("a cache of other rows was taken")
	}
	small.Close()
	c.Close()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// A cache of RowsIn rows fits into those bytes.
func TestRowsIn(t *testing.T) {
	for _, row := range []int{8, 128, 520, 2048, 4096} {
		const page, bytes = 1 << 16, 4 << 20
		p, err := pool.New(bytes, page)
		if err != nil {
			t.Fatal(err)
		}
		n := RowsIn(bytes, page, row)
		c, err := NewCache(p, Config{Rows: n, RowBytes: row, Policy: "lru"})
		if err != nil {
			t.Fatalf("%d rows of %d bytes: %v", n, row, err)
		}
		if free := bytes - p.Stats().Used; free >= int64(c.SlabBytes()) {
			t.Errorf("rows of %d bytes: %d bytes are left over, a slab has %d", row, free, c.SlabBytes())
		}
		c.Close()
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

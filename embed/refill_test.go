package embed

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestUnmix(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 1))
	for range 10_000 {
		if k := r.Uint64(); unmix(mix(k)) != k {
			t.Fatalf("unmix(mix(%x)) = %x", k, unmix(mix(k)))
		}
	}
}

// Refill fetches what is not cached, and lookups find it. It counts neither as hits nor as misses. Rows that the store
// does not have are reported and not cached.
func TestRefill(t *testing.T) {
	for _, policy := range []string{"lru", "default", "laru"} {
		store := NewMemory(1000, testRow)
		cache := cacheOf(t, 4*setSlots, policy)
		table, err := NewTable(store, cache, TableConfig{})
		if err != nil {
			t.Fatal(err)
		}
		row := make([]byte, testRow)
		for k := range uint64(50) {
			fill(row, k, 1)
			if err := store.Put(t.Context(), []uint64{k}, row); err != nil {
				t.Fatal(err)
			}
		}
		table.Gather(t.Context(), []uint64{1}, row)
		before := cache.Stats()
		hashes := []uint64{mix(1), mix(2), mix(900), mix(3)}
		got := table.Refill(t.Context(), hashes, []float32{0.1, 0.1, 0.1, 0})
		if got.Asked != 3 || got.Found != 2 || got.Err != nil || !slices.Equal(got.Gone, []uint64{mix(900)}) {
			t.Errorf("%s: %+v, want 2 of 3 rows and that 900 is gone", policy, got)
		}
		if after := cache.Stats(); after.Hits != before.Hits || after.Misses != before.Misses {
			t.Errorf("%s: counted %+v after %+v", policy, after, before)
		}
		for _, k := range []uint64{1, 2, 3} {
			want := make([]byte, testRow)
			fill(want, k, 1)
			if !table.Cached(mix(k)) || !cache.Get(k, row) || !slices.Equal(row, want) {
				t.Errorf("%s: row %d is not cached", policy, k)
			}
		}
		if table.Cached(mix(900)) || table.Cached(mix(4)) {
			t.Errorf("%s: rows are cached that nobody fetched", policy)
		}
		if got := table.Refill(t.Context(), hashes[:2], []float32{0.1, 0.1}); got.Asked != 0 {
			t.Errorf("%s: fetched cached rows again: %+v", policy, got)
		}
	}
}

// updating is a store in which a row changes while it is fetched.
type updating struct {
	*Memory
	table *Table
}

func (s *updating) Gather(ctx context.Context, keys []uint64, rows []byte, found []bool) error {
	err := s.Memory.Gather(ctx, keys, rows, found)
	if s.table != nil {
		s.table.changed(keys)
	}
	return err
}

// A row that changes or is deleted while it is refilled is not cached.
func TestRefillIsNotOlderThanAChange(t *testing.T) {
	store := &updating{Memory: NewMemory(1000, testRow)}
	table, err := NewTable(store, cacheOf(t, 4*setSlots, "default"), TableConfig{})
	if err != nil {
		t.Fatal(err)
	}
	row := make([]byte, testRow)
	if err := table.Put(t.Context(), []uint64{7}, row); err != nil {
		t.Fatal(err)
	}
	store.table = table
	if got := table.Refill(t.Context(), []uint64{mix(7)}, []float32{0.1}); got.Found != 1 || table.Cached(mix(7)) {
		t.Errorf("%+v, cached %v: want that the row was found and not cached", got, table.Cached(mix(7)))
	}
}

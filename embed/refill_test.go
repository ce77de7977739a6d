package embed

import (
	"context"
	"errors"
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

// failing is a store that fails from some trip on.
type failing struct {
	*Memory
	trips []int // rows of each
	most  int
}

func (s *failing) Gather(ctx context.Context, keys []uint64, rows []byte, found []bool) error {
	if s.trips = append(s.trips, len(keys)); len(s.trips) > s.most {
		return errors.New("the store is away")
	}
	return s.Memory.Gather(ctx, keys, rows, found)
}

// Read has the rows that GatherFloats has, in short trips, and nobody counts it. It stops where the store fails.
func TestRead(t *testing.T) {
	for _, bf16 := range []bool{false, true} {
		store := &failing{Memory: NewMemory(1000, testRow), most: 1 << 30}
		cache := cacheOf(t, 4*setSlots, "default")
		table, err := NewTable(store, cache, TableConfig{BF16: bf16})
		if err != nil {
			t.Fatal(err)
		}
		dim := table.Dim()
		keys, rows := make([]uint64, 600), make([]float32, 600*dim)
		for i := range keys {
			keys[i] = uint64(i)
		}
		for i := range rows {
			rows[i] = float32(i % 100)
		}
		if err := table.PutFloats(t.Context(), keys[:580], rows[:580*dim]); err != nil { // others are missing
			t.Fatal(err)
		}
		clear(rows[580*dim:])
		table.CountShards(1000)
		stop := table.Watch(func(Batch) { t.Error("a read is reported") })
		before, looked := table.Stats(), cache.Stats()
		got := slices.Repeat([]float32{7}, 600*dim)
		read, err := table.Read(t.Context(), keys, got)
		if err != nil || read != 600 || !slices.Equal(got, rows) || !slices.Equal(store.trips, []int{256, 256, 88}) {
			t.Errorf("bf16 %v: %d rows in trips of %v, %v", bf16, read, store.trips, err)
		}
		stop()
		if after, now := table.Stats(), cache.Stats(); after != before || now != looked || table.Shards().seen.Load() != 0 {
			t.Errorf("counted %+v after %+v, %+v after %+v", after, before, now, looked)
		}
		store.trips, store.most = nil, 1
		clear(rows[256*dim:])
		read, err = table.Read(t.Context(), keys, got)
		if err == nil || read != 256 || !slices.Equal(got, rows) || len(store.trips) != 2 {
			t.Errorf("in an outage: %d rows in trips of %v, %v", read, store.trips, err)
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

package embed

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// A cache before a table in memory keeps what it would keep before any other store: key by key both hit alike.
func TestNearCachesWhatFarDoes(t *testing.T) {
	const rows = 24 * setSlots
	for _, policy := range []string{"lru", "default", "laru"} {
		store := NewMemory(rows, testRow)
		defer store.Close()
		straight, trips := nearTable(t, store, rows/4, policy, nil), nearTable(t, far{store}, rows/4, policy, nil)
		byHand(straight.Cache())
		byHand(trips.Cache())
		var row, got, want [testRow]byte
		for k := range uint64(rows) {
			if fill(row[:], k, 1); k%7 > 0 {
				if err := store.Put(t.Context(), []uint64{k}, row[:]); err != nil {
					t.Fatal(err)
				}
			}
		}
		zipf := rand.NewZipf(rand.New(rand.NewPCG(5, 6)), 1.1, 20, rows-1)
		hits := 0
		for n := range 12_000 {
			key := []uint64{zipf.Uint64()}
			a, b := straight.Gather(t.Context(), key, got[:]), trips.Gather(t.Context(), key, want[:])
			if a != b || got != want {
				t.Fatalf("%s, lookup %d of key %d: %+v straight, %+v in trips", policy, n, key[0], a, b)
			}
			hits += a.Hits
		}
		s, f := straight.Stats(), trips.Stats()
		if s != f || hits < 4000 || s.Cache.Evictions < 1000 {
			t.Errorf("%s: counted %+v, in trips %+v", policy, s, f)
		}
	}
}

// Where placing rows makes no hits most of them are not placed, except where there is room.
func TestNearSparesPlaces(t *testing.T) {
	const rows = 40 * setSlots
	store := NewMemory(rows, testRow)
	defer store.Close()
	table := nearTable(t, store, rows/8, "default", nil)
	byHand(table.Cache())
	table.Cache().chosen.(*valued).tuner.spare.Store(true)
	var row, got [testRow]byte
	for k := range uint64(rows) {
		fill(row[:], k, 1)
		if err := store.Put(t.Context(), []uint64{k}, row[:]); err != nil {
			t.Fatal(err)
		}
	}
	for k := range uint64(rows) {
		table.Gather(t.Context(), []uint64{k}, got[:])
		if fill(row[:], k, 1); !bytes.Equal(got[:], row[:]) {
			t.Fatalf("row %d is %x", k, got)
		}
	}
	s := table.Stats().Cache
	inside := 0
	for k := range uint64(rows) {
		inside += table.Gather(t.Context(), []uint64{k}, got[:]).Hits
	}
	if full := s.Rows; inside < full*9/10 || inside > full {
		t.Errorf("%d rows are cached, of %d that fit", inside, full)
	}
	if placed := int64(rows) - s.Declined; placed > int64(s.Rows)+rows/20 {
		t.Errorf("%d rows were placed, of %d, in a cache of %d", placed, rows, s.Rows)
	}
}

package embed

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// far hides that a store is in memory.
type far struct{ Store }

func nearTable(t *testing.T, s Store, rows int, policy string, def []byte) *Table {
	t.Helper()
	table, err := NewTable(s, cacheOf(t, rows, policy), TableConfig{Default: def})
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// Through a cache, rows straight from memory are those that a round trip gives, and are counted as those: cached or
// not, there or not, in batches of any size, by one thread or several, while rows are put and deleted.
func TestNearAgreesWithFar(t *testing.T) {
	const rows = 40 * setSlots
	for _, policy := range []string{"lru", "default", "laru"} {
		t.Run(policy, func(t *testing.T) {
			store := NewMemory(rows, testRow)
			defer store.Close()
			def := bytes.Repeat([]byte{9}, testRow)
			r := rand.New(rand.NewPCG(11, 12))
			var row [testRow]byte
			put := func(table *Table, key, version uint64) {
				fill(row[:], key, version)
				if err := table.Put(t.Context(), []uint64{key}, row[:]); err != nil {
					t.Fatal(err)
				}
			}
			straight, trips := nearTable(t, store, rows/3, policy, def), nearTable(t, far{store}, rows/3, policy, def)
			for k := range uint64(rows) {
				if k%5 > 0 {
					put(straight, k, 1)
				}
			}
			for turn, n := range []int{1, 7, 64, 129, 500, 3000, 5000, 3000, 64, 5000} {
				keys, got, want := make([]uint64, n), make([]byte, n*testRow), make([]byte, n*testRow)
				for i := range keys {
					keys[i] = r.Uint64N(rows + 50)
				}
				a, b := straight.Gather(t.Context(), keys, got), trips.Gather(t.Context(), keys, want)
				if !bytes.Equal(got, want) {
					t.Fatalf("turn %d: the rows differ", turn)
				}
				if a.Default != b.Default || a.Hits+a.Fetched != b.Hits+b.Fetched || a.Hits+a.Fetched+a.Default != n ||
					a.Err != nil {
					t.Fatalf("turn %d: gathered %+v straight, %+v in trips", turn, a, b)
				}
				for range 200 {
					k := r.Uint64N(rows)
					put(straight, k, uint64(turn+2))
					trips.Cache().Remove(k)
				}
			}
			if s, f := straight.Stats(), trips.Stats(); s.Lookups != f.Lookups || s.Missing != f.Missing || s.Cache.Hits == 0 ||
				s.Cache.Evictions == 0 {
				t.Errorf("counted %+v, want as with trips: %+v", s, f)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			keys, out := []uint64{1, 2, 3, 4}, make([]byte, 4*testRow)
			if g := straight.Gather(ctx, keys, out); g.Outage+g.Hits != 4 {
				t.Errorf("nobody waits any more: gathered %+v", g)
			}
		})
	}
}

// A row of a mapped file that is not of finite numbers is the default, and not cached.
func TestNearBrokenRow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rows")
	data := make([]byte, 8*testRow)
	binary.LittleEndian.PutUint32(data[3*testRow+8:], math.Float32bits(float32(math.NaN())))
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	store, err := OpenFile(path, testRow)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	def := bytes.Repeat([]byte{1}, testRow)
	table := nearTable(t, store, setSlots, "default", def)
	out := make([]byte, 3*testRow)
	for range 2 {
		g := table.Gather(t.Context(), []uint64{2, 3, 99}, out)
		if g.Broken != 1 || g.Default != 2 || g.Hits+g.Fetched != 1 || !bytes.Equal(out[testRow:2*testRow], def) {
			t.Errorf("gathered %+v, row %x", g, out[testRow:])
		}
	}
	if s := table.Stats(); s.Broken != 2 || s.Missing != 2 {
		t.Errorf("counted %+v", s)
	}
}

// Rows that are put while others gather are seen by who gathers afterwards, and no row is torn or another's. Where most
// rows are left out, too.
func TestNearWhileRowsChange(t *testing.T) {
	const rows, batch = 6 * setSlots, 3000
	store := NewMemory(rows, testRow)
	defer store.Close()
	table := nearTable(t, store, rows/2, "default", nil)
	var row [testRow]byte
	for k := range uint64(rows) {
		fill(row[:], k, 1)
		if err := table.Put(t.Context(), []uint64{k}, row[:]); err != nil {
			t.Fatal(err)
		}
	}
	byHand(table.Cache())
	table.Cache().chosen.(*valued).tuner.spare.Store(true)
	done := make(chan struct{})
	var readers sync.WaitGroup
	for n := range uint64(2) {
		readers.Go(func() {
			r := rand.New(rand.NewPCG(n, 21))
			keys, out := make([]uint64, batch), make([]byte, batch*testRow)
			for {
				select {
				case <-done:
					return
				default:
				}
				for i := range keys {
					keys[i] = r.Uint64N(rows)
				}
				table.Gather(context.Background(), keys, out)
				for i, k := range keys {
					if w, whole := words64(out[i*testRow:][:testRow]); !whole || w>>32 != k {
						t.Errorf("row %d is %x", k, out[i*testRow:][:testRow])
						return
					}
				}
			}
		})
	}
	r, out := rand.New(rand.NewPCG(3, 22)), make([]byte, testRow)
	for version := range uint64(300) {
		k := r.Uint64N(rows)
		fill(row[:], k, version+2)
		if err := table.Put(t.Context(), []uint64{k}, row[:]); err != nil {
			t.Fatal(err)
		}
		if table.Gather(t.Context(), []uint64{k}, out); !bytes.Equal(out, row[:]) {
			t.Fatalf("row %d is %x after %x was put", k, out, row)
		}
	}
	close(done)
	readers.Wait()
}

package embed

import (
	"math/rand/v2"
	"sync"
	"testing"

	"grebe/pool"
)

// resizable is a cache of slabs of one set, from a pool with room for twice as many.
func resizable(t testing.TB, policy string, sets, most int) (*Cache, *pool.Pool) {
	t.Helper()
	p, err := pool.New(int64(2*most*setSlots*testRow), setSlots*testRow)
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewCache(p, Config{Rows: sets * setSlots, MaxRows: most * setSlots, RowBytes: testRow, Policy: policy})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return c, p
}

// A row is the latest, whatever sizes the cache had since it was put, updated or removed.
func TestResizedCacheAgreesWithAMap(t *testing.T) {
	for _, policy := range policies {
		t.Run(policy, func(t *testing.T) {
			c, p := resizable(t, policy, 4, 16)
			r, latest := rand.New(rand.NewPCG(1, 5)), map[uint64]uint64{}
			var row [testRow]byte
			hits, steps := 0, 60_000
			if raceBuild { // it runs alone: there is nothing to find
				steps = 6_000
			}
			for step := range uint64(steps) {
				key := r.Uint64N(40) * r.Uint64N(40)
				switch r.IntN(40) {
				case 0:
					c.Grow(1 + r.IntN(4))
				case 1:
					c.Shrink(1 + r.IntN(4))
				case 2:
					c.Rehome(r.IntN(30))
				case 3, 4:
					latest[key] = step
					c.Remove(key) // as after a change in the store
				case 5, 6:
					c.Remove(key)
					if c.Get(key, row[:]) {
						t.Fatalf("step %d: row %d is there after it was removed", step, key)
					}
				default:
					if !c.Get(key, row[:]) {
						fill(row[:], key, latest[key])
						c.Put(key, row[:], c.Epoch(key))
						continue
					}
					hits++
					if w, whole := words64(row[:]); !whole || w != key<<32|latest[key] {
						t.Fatalf("step %d: row %d is %x, want version %d", step, key, row, latest[key])
					}
				}
				if now, least, most := c.Slabs(); now < least || now > most || p.Stats().Used != int64(now*c.SlabBytes()) {
					t.Fatalf("step %d: %d slabs of %d to %d, the pool has %d bytes in use", step, now, least, most, p.Stats().Used)
				}
			}
			if hits < steps/6 {
				t.Errorf("only %d hits", hits)
			}
		})
	}
}

// Readers and writers go on while slabs come, go, and are written to by their next owner.
func TestResizeBesideReaders(t *testing.T) {
	c, p := resizable(t, "default", 4, 32)
	const keys = 4000
	table, err := NewTable(filledMemory(t, keys), c, TableConfig{})
	if err != nil {
		t.Fatal(err)
	}
	var users sync.WaitGroup
	done := make(chan struct{})
	for n := range uint64(3) {
		users.Go(func() { readAll(t, table, keys, n, done) })
	}
	r := rand.New(rand.NewPCG(6, 6))
	for range 400 {
		c.Grow(r.IntN(8))
		c.Rehome(100)
		c.Shrink(r.IntN(8))
		var others []pool.Run
		for range 8 {
			run, err := p.Alloc(c.SlabBytes())
			if err != nil {
				break
			}
			for i := range run.Bytes {
				run.Bytes[i] = 0xEE
			}
			others = append(others, run)
		}
		for _, run := range others {
			p.Free(run)
		}
	}
	close(done)
	users.Wait()
	if now, _, _ := c.Slabs(); p.Stats().Used != int64(now*c.SlabBytes()) {
		t.Errorf("%d slabs, and %d bytes of the pool are in use: want %d", now, p.Stats().Used, now*c.SlabBytes())
	}
}

func filledMemory(t *testing.T, keys uint64) *Memory {
	m := NewMemory(int(keys), testRow)
	var row [testRow]byte
	for k := range keys {
		fill(row[:], k, 7)
		if err := m.Put(t.Context(), []uint64{k}, row[:]); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func readAll(t *testing.T, table *Table, keys, seed uint64, done chan struct{}) {
	r := rand.New(rand.NewPCG(seed, 8))
	batch := make([]uint64, 100)
	out := make([]byte, len(batch)*testRow)
	for {
		select {
		case <-done:
			return
		default:
		}
		for i := range batch {
			batch[i] = r.Uint64N(keys)
		}
		table.Gather(t.Context(), batch, out)
		for i, k := range batch {
			if w, whole := words64(out[i*testRow : (i+1)*testRow]); !whole || w != k<<32|7 {
				t.Errorf("row %d read as %x", k, out[i*testRow:(i+1)*testRow])
				return
			}
		}
	}
}

// A set that comes takes its share of the keys, and no key moves between others; homes finds every home.
func TestHomes(t *testing.T) {
	c, _ := resizable(t, "lru", 4, 64)
	c.fewest.Store(int64(c.least))
	r := rand.New(rand.NewPCG(4, 4))
	moved, keys := 0, 20_000
	for range keys {
		h := r.Uint64()
		seen := map[int]bool{}
		c.homes(h, func(home int) { seen[home] = true })
		for n := c.least; n < len(c.sets); n++ {
			a, b := c.home(h, n), c.home(h, n+1)
			if a != b && b != n {
				t.Fatalf("with %d sets the home is %d, with one more %d", n, a, b)
			}
			if !seen[a] || !seen[b] {
				t.Fatalf("homes %d and %d, known are %v", a, b, seen)
			}
			if n == 40 && a != b {
				moved++
			}
		}
	}
	if share := float64(moved) / float64(keys) * 41; share < 0.8 || share > 1.2 {
		t.Errorf("the 41st set has %.2f of its share", share)
	}
}

// A row that is moved to its new home while it is removed is in none of its homes afterwards.
func TestRemovedWhileItMoves(t *testing.T) {
	c, _ := resizable(t, "lru", 4, 64)
	var row [testRow]byte
	for behind := range 3 {
		for key := range uint64(200) {
			c.Shrink(60)
			c.Put(key, row[:], c.Epoch(key))
			if _, err := c.Grow(60); err != nil {
				t.Fatal(err)
			}
			h, visited := mix(key), 0
			c.homes(h, func(home int) { // as Remove does
				c.forget(h, home)
				if visited++; visited == behind+1 {
					c.Rehome(1 << 20) // by another thread, before the next home is visited
				}
			})
			if c.Get(key, row[:]) {
				t.Fatalf("row %d is there after it was removed: it moved behind visit %d", key, behind)
			}
		}
	}
}

// Growing and shrinking by slabs of sets; go test -bench Resize prints the time per slab.
func BenchmarkResize(b *testing.B) {
	const rows, bytes = 1 << 16, 512
	p, err := pool.New(rows*bytes, setSlots*bytes)
	if err != nil {
		b.Fatal(err)
	}
	c, err := NewCache(p, Config{Rows: rows / 2, MaxRows: rows, RowBytes: bytes, Policy: "lru"})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	const slabs = 40
	for b.Loop() {
		if n, err := c.Grow(slabs); n != slabs {
			b.Fatal(err)
		}
		c.Shrink(slabs)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/(2*slabs), "ns/slab")
}

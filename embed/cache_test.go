package embed

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"sync"
	"testing"

	"grebe/pool"
)

const testRow = 64

func cacheOf(t testing.TB, rows int, policy string) *Cache {
	t.Helper()
	p, err := pool.New(int64(rows+setSlots)*testRow, 4096)
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewCache(p, Config{Rows: rows, RowBytes: testRow, Policy: policy})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// byHand lets the test decide when the cache learns.
func byHand(c *Cache) {
	if c.stop != nil {
		c.stop()
		c.listens.done = make(chan struct{})
	}
}

// fill makes a row whose words all say key and version.
func fill(row []byte, key, version uint64) {
	for i := 0; i < len(row); i += 8 {
		binary.NativeEndian.PutUint64(row[i:], key<<32|version)
	}
}

func words64(row []byte) (first uint64, whole bool) {
	first = binary.NativeEndian.Uint64(row)
	for i := 8; i < len(row); i += 8 {
		if binary.NativeEndian.Uint64(row[i:]) != first {
			return first, false
		}
	}
	return first, true
}

var policies = []string{"lru", "default", "laru", "sieve"}

// A cached row is the one that was last put or updated, whatever the policy; what was removed is gone.
func TestCacheAgreesWithAMap(t *testing.T) {
	for _, policy := range policies {
		t.Run(policy, func(t *testing.T) {
			c := cacheOf(t, 3*setSlots, policy)
			r, latest := rand.New(rand.NewPCG(1, 2)), map[uint64]uint64{}
			var row [testRow]byte
			hits := 0
			for step := range uint64(60_000) {
				key := r.Uint64N(20) * r.Uint64N(20) // 0 is a key as any other
				switch r.IntN(20) {
				case 0:
					latest[key] = step
					c.Remove(key) // as after a change in the store
				case 1:
					c.Remove(key)
					if c.Get(key, row[:]) {
						t.Fatalf("row %d is there after it was removed", key)
					}
				default:
					if c.Get(key, row[:]) {
						hits++
						if w, whole := words64(row[:]); !whole || w != key<<32|latest[key] {
							t.Fatalf("row %d is %x, want version %d", key, row, latest[key])
						}
						continue
					}
					fill(row[:], key, latest[key])
					c.Put(key, row[:], c.Epoch(key))
				}
			}
			if hits < 20_000 {
				t.Errorf("only %d hits", hits)
			}
		})
	}
}

// Within a set "lru" is LRU.
func TestLRUInASet(t *testing.T) {
	for _, policy := range []string{"lru"} {
		c := cacheOf(t, setSlots, policy)
		r := rand.New(rand.NewPCG(5, 6))
		var model []uint64 // the most recent last
		var row [testRow]byte
		for step := range 50_000 {
			key := uint64(math.Exp(r.Float64() * math.Log(300)))
			at := slices.Index(model, key)
			if got := c.Get(key, row[:]); got != (at >= 0) {
				t.Fatalf("%s, step %d: hit is %v, LRU's is %v", policy, step, got, at >= 0)
			}
			if at >= 0 {
				model = slices.Delete(model, at, at+1)
			} else {
				c.Put(key, row[:], c.Epoch(key))
				if len(model) == setSlots {
					model = model[1:]
				}
			}
			model = append(model, key)
		}
	}
}

// A row fetched before an update and offered after it must not hide the update.
func TestSlowFetchDoesNotUndoAnUpdate(t *testing.T) {
	c := cacheOf(t, setSlots, "lru")
	var row [testRow]byte
	epoch := c.Epoch(1)
	c.Remove(1) // the store had the new one before
	fill(row[:], 1, 1)
	c.Put(1, row[:], epoch)
	if c.Get(1, row[:]) {
		t.Errorf("the old row is cached: %x", row)
	}
}

// Readers beside writers that put, update and evict see whole rows of the key that they asked for.
func TestNoTornReads(t *testing.T) {
	for _, policy := range []string{"lru", "default", "laru"} {
		t.Run(policy, func(t *testing.T) {
			c := cacheOf(t, setSlots, policy)
			const keys = 2 * setSlots
			var readers, writers sync.WaitGroup
			done := make(chan struct{})
			for range 3 {
				readers.Go(func() {
					var row [testRow]byte
					r := rand.New(rand.NewPCG(8, 9))
					for {
						select {
						case <-done:
							return
						default:
						}
						key := r.Uint64N(keys)
						if !c.Get(key, row[:]) {
							continue
						}
						if w, whole := words64(row[:]); !whole || w>>32 != key {
							t.Errorf("row %d read as %x", key, row)
							return
						}
					}
				})
			}
			for n := range uint64(2) {
				writers.Go(func() {
					var row [testRow]byte
					r := rand.New(rand.NewPCG(10, n))
					for version := range uint64(20_000) {
						key := r.Uint64N(keys)
						fill(row[:], key, version)
						switch r.IntN(4) {
						case 0, 1:
							c.Remove(key)
						default:
							c.Put(key, row[:], c.Epoch(key))
						}
					}
				})
			}
			writers.Wait()
			close(done)
			readers.Wait()
		})
	}
}

func TestHitsDoNotAllocate(t *testing.T) {
	for _, policy := range policies {
		t.Run(policy, func(t *testing.T) { hitsDoNotAllocate(t, policy) }) // each ends its cache's learner
	}
}

func hitsDoNotAllocate(t *testing.T, policy string) {
	c := cacheOf(t, setSlots, policy)
	var row [testRow]byte
	c.Put(1, row[:], c.Epoch(1))
	if n := testing.AllocsPerRun(1000, func() { c.Get(1, row[:]) }); n != 0 {
		t.Errorf("a hit allocates %v times", n)
	}
	if raceBuild { // sync.Pool forgets on purpose there
		return
	}
	table, err := NewTable(NewMemory(1, testRow), c, TableConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if c.listens != nil { // it would train meanwhile, and that allocates; accesses are lost when it is behind
		c.listens.mu.Lock()
		defer c.listens.mu.Unlock()
	}
	keys, out := slices.Repeat([]uint64{1}, 100), make([]byte, 100*testRow)
	if n := testing.AllocsPerRun(100, func() { table.Gather(t.Context(), keys, out) }); n > 0.5 {
		t.Errorf("a batch of hits allocates %v times", n)
	}
}

func TestConfig(t *testing.T) {
	p, err := pool.New(1<<16, 4096)
	if err != nil {
		t.Fatal(err)
	}
	for _, cfg := range []Config{{Rows: 0, RowBytes: 64}, {Rows: 64, RowBytes: 12},
		{Rows: 64, RowBytes: 64, Policy: "best"}, {Rows: 1 << 20, RowBytes: 64}} {
		if _, err := NewCache(p, cfg); err == nil {
			t.Errorf("%+v: no error", cfg)
		}
	}
	if err := p.Close(); err != nil {
		t.Errorf("a cache that could not be made kept pages: %v", err)
	}
}

// skewed draws keys by Zipf's law.
func skewed(n int, seed uint64) func() uint64 {
	r, sum := rand.New(rand.NewPCG(seed, 1)), 0.0
	cdf := make([]float64, n)
	for i := range cdf {
		sum += math.Pow(float64(i+1), -0.99)
		cdf[i] = sum
	}
	return func() uint64 { return uint64(sort.SearchFloat64s(cdf, r.Float64()*sum)) }
}

// recent draws a key by how long ago it was used last, whatever it is: LRU is right.
func recent(seed uint64) func() uint64 {
	const depth = 4096
	r, stack := rand.New(rand.NewPCG(seed, 3)), make([]uint64, depth)
	fresh := uint64(0)
	return func() uint64 {
		at := int(math.Exp(r.Float64() * math.Log(1.5*depth)))
		key := uint64(0)
		if at >= depth {
			fresh++
			at, key = depth-1, fresh
		} else {
			key = stack[at]
		}
		copy(stack[1:at+1], stack[:at])
		stack[0] = key
		return key
	}
}

// replay returns the hit rate of the second half of a trace; the cache tunes itself in step with it.
func replay(t *testing.T, policy string, next func() uint64) float64 {
	t.Helper()
	const all = 400_000
	c := cacheOf(t, 2048, policy)
	byHand(c)
	var row [testRow]byte
	hits := 0
	for i := range all {
		if v, ok := c.chosen.(*valued); ok && i%8192 == 0 {
			v.tuner.turn()
		}
		key := next()
		if c.Get(key, row[:]) {
			if i >= all/2 {
				hits++
			}
			continue
		}
		c.Put(key, row[:], c.Epoch(key))
	}
	return float64(hits) / (all / 2)
}

// On a skewed trace the default has a tenth more hits than LRU; where LRU is right it finds that out.
func TestDefaultAndItsFloor(t *testing.T) {
	if raceBuild {
		t.Skip("one goroutine, and minutes under the race detector")
	}
	lru, ours := replay(t, "lru", skewed(100_000, 3)), replay(t, "default", skewed(100_000, 3))
	if ours < 1.1*lru {
		t.Errorf("hit rate %.4f on a skewed trace, LRU's is %.4f: want a tenth more", ours, lru)
	}
	t.Logf("skewed: LRU %.4f, default %.4f", lru, ours)
	lru, ours = replay(t, "lru", recent(4)), replay(t, "default", recent(4))
	if ours < 0.99*lru {
		t.Errorf("hit rate %.4f where LRU is right, LRU's is %.4f: want 99 %% of it", ours, lru)
	}
	t.Logf("recent: LRU %.4f, default %.4f", lru, ours)
}

// Rows may be put before anything was looked up.
func TestPutFirst(t *testing.T) {
	for _, policy := range policies {
		c := cacheOf(t, setSlots, policy)
		var row [testRow]byte
		for k := range uint64(3 * setSlots) {
			c.Put(k, row[:], c.Epoch(k))
		}
	}
}

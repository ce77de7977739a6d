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
	if c.learner != nil {
		c.learner.stop()
		c.learner.done = make(chan struct{})
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

var policies = []string{"lru", "default", "laru", "sieve", "blind"}

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
					fill(row[:], key, step)
					c.Update(key, row[:])
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

// Within a set "lru" is LRU; so is "default" while it has learned nothing.
func TestLRUInASet(t *testing.T) {
	for _, policy := range []string{"lru", "default"} {
		c := cacheOf(t, setSlots, policy)
		byHand(c)
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
	fill(row[:], 1, 2)
	c.Update(1, row[:]) // the store had it before
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
						case 0:
							c.Update(key, row[:])
						case 1:
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
	if raceEnabled { // sync.Pool forgets on purpose there
		return
	}
	table, err := NewTable(NewMemory(1, testRow), c, TableConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if c.learner != nil { // it would train meanwhile, and that allocates; accesses are lost when it is behind
		c.learner.mu.Lock()
		defer c.learner.mu.Unlock()
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
	for _, cfg := range []Config{{Rows: 0, RowBytes: 64}, {Rows: 64, RowBytes: 12}, {Rows: 64, RowBytes: 64, Policy: "best"}, {Rows: 1 << 20, RowBytes: 64}} {
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

// replay returns the hit rate of the second half of a skewed trace; the cache learns in step with it, and after
// teaching the table of predictions is passed through spoil.
func replay(t *testing.T, policy string, spoil func(*forecast) *forecast) (float64, *Cache) {
	t.Helper()
	const all = 600_000
	c, next := cacheOf(t, 2048, policy), skewed(100_000, 3)
	byHand(c)
	var row [testRow]byte
	hits := 0
	for i := range all {
		if c.learner != nil && i%8192 == 0 && c.learner.study() && spoil != nil {
			c.learner.table.Store(spoil(c.learner.table.Load()))
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
	return float64(hits) / (all / 2), c
}

// On a skewed trace the predictions are worth a tenth of LRU's hits; negated, the floor holds.
func TestPredictionsAndFloor(t *testing.T) {
	if raceEnabled {
		t.Skip("one goroutine, and minutes under the race detector")
	}
	lru, _ := replay(t, "lru", nil)
	learned, c := replay(t, "default", nil)
	if c.Stats().Learned == 0 || learned < 1.1*lru {
		t.Errorf("hit rate %.4f with %d lessons, LRU's is %.4f: want a tenth more", learned, c.Stats().Learned, lru)
	}
	negated, c := replay(t, "default", func(f *forecast) *forecast {
		g := *f
		for i := range g {
			g[i] = -g[i]
		}
		return &g
	})
	if !c.Stats().Floored || negated < 0.95*lru {
		t.Errorf("hit rate %.4f under negated predictions, floored %v, LRU's is %.4f: want 95 %% of it", negated, c.Stats().Floored, lru)
	}
	t.Logf("LRU %.4f, predictions %.4f, negated %.4f", lru, learned, negated)
}

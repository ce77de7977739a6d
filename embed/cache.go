package embed

import (
	"errors"
	"fmt"
	"math/bits"
	"sync/atomic"
	"unsafe"

	"grebe/evict"
	"grebe/pool"
)

// Config sizes a cache.
type Config struct {
	Rows     int    // rows that it holds, rounded up to whole sets of 64; at least 64
	RowBytes int    // bytes of a row, a multiple of 8
	Policy   string // "default", "lru", or another name that evict.New knows, such as "laru"; "" is the default
}

// Validate says what is wrong with c.
func (c Config) Validate() error {
	if c.RowBytes <= 0 || c.RowBytes%8 != 0 || c.RowBytes > 1<<20 {
		return fmt.Errorf("embed: rows of %d bytes: want a multiple of 8, at most a MiB", c.RowBytes)
	}
	if c.Rows < 1 || c.Rows > 1<<32 {
		return fmt.Errorf("embed: a cache of %d rows: want between 1 and 2³²", c.Rows)
	}
	_, err := evict.New(c.Policy, evict.Config{Slots: setSlots, Bytes: setSlots})
	return err
}

// Cache holds rows by key. Get takes no lock and writes no memory that others wait for; Put, Update and
// Remove lock one set. All are safe for concurrent use.
type Cache struct {
	pool     *pool.Pool
	runs     []pool.Run
	rows     [][]byte // per set
	sets     []set
	rowBytes int
	policy   string
	chosen   chooser
	learner  *learner
	clock    atomic.Uint32 // accesses; wraps around

	hits, misses, evictions, declined, retries counter
}

// counter stands alone on its cache line.
type counter struct {
	atomic.Int64
	_ [56]byte
}

// Stats counts what a cache did since it was made.
type Stats struct {
	Hits, Misses int64
	Evictions    int64
	Declined     int64 // rows that were not worth the place of another
	Retries      int64 // reads that a writer disturbed
	Learned      int64 // times that predictions were renewed
	Floored      bool  // predictions do worse than LRU: LRU chooses
}

// NewCache takes pages of p, memory that the host sees, for all rows. The caller MUST Close it.
func NewCache(p *pool.Pool, cfg Config) (*Cache, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	n := (cfg.Rows + setSlots - 1) / setSlots
	c := &Cache{pool: p, sets: make([]set, n), rows: make([][]byte, n), rowBytes: cfg.RowBytes, policy: cfg.Policy}
	for i := range n {
		r, err := p.Alloc(setSlots * cfg.RowBytes)
		if err == nil && r.Bytes == nil {
			p.Free(r)
			err = errors.New("memory that the host cannot see")
		}
		if err != nil {
			c.free()
			return nil, fmt.Errorf("embed: take pages for set %d of %d: %w", i, n, err)
		}
		c.runs = append(c.runs, r)
		c.rows[i] = r.Bytes[:setSlots*cfg.RowBytes]
	}
	if err := c.choose(cfg.Policy); err != nil {
		c.free()
		return nil, err
	}
	return c, nil
}

func (c *Cache) choose(policy string) error {
	if policy != "lru" {
		c.learner = newLearner(len(c.sets) * setSlots)
	}
	switch policy {
	case "lru":
		c.chosen = oldest{}
	case "", "default":
		c.chosen = newForecasts(len(c.sets), c.learner)
	default:
		a, err := newAdapted(policy, len(c.sets), c.learner)
		if err != nil {
			return err
		}
		c.chosen = a
	}
	if c.learner != nil {
		c.learner.start()
	}
	return nil
}

// Close gives the pages back. Nobody may use the cache any more.
func (c *Cache) Close() {
	if c.learner != nil {
		c.learner.stop()
	}
	c.free()
}

func (c *Cache) free() {
	for _, r := range c.runs {
		c.pool.Free(r)
	}
	c.runs, c.rows = nil, nil
}

// RowBytes returns the size of a row.
func (c *Cache) RowBytes() int { return c.rowBytes }

// Rows returns how many rows the cache can hold.
func (c *Cache) Rows() int { return len(c.sets) * setSlots }

// Overhead returns the bytes that the cache takes per row beside the row.
func (c *Cache) Overhead() float64 {
	return float64(setBytes+c.chosen.setBytes()) / setSlots
}

// Stats returns the counters.
func (c *Cache) Stats() Stats {
	s := Stats{Hits: c.hits.Load(), Misses: c.misses.Load(), Evictions: c.evictions.Load(), Declined: c.declined.Load(), Retries: c.retries.Load()}
	if c.learner != nil {
		s.Learned = c.learner.trained.Load()
	}
	if f, ok := c.chosen.(*forecasts); ok {
		s.Floored = f.lost.Load()
	}
	return s
}

// mix spreads a key over 64 bits (the finaliser of SplitMix64); different keys stay different.
func mix(key uint64) uint64 {
	key = (key ^ key>>30) * 0xBF58476D1CE4E5B9
	key = (key ^ key>>27) * 0x94D049BB133111EB
	return key ^ key>>31
}

func (c *Cache) home(h uint64) int {
	hi, _ := bits.Mul64(h, uint64(len(c.sets)))
	return int(hi)
}

// tick reserves n moments of the cache's clock and returns the first.
func (c *Cache) tick(n int) uint32 { return c.clock.Add(uint32(n)) - uint32(n) }

// Get copies the row of a key to dst. False when it is not cached.
func (c *Cache) Get(key uint64, dst []byte) bool {
	h := mix(key)
	now := c.tick(1)
	ok := c.read(h, c.home(h), now, dst)
	if ok {
		c.hits.Add(1)
	} else {
		c.misses.Add(1)
	}
	if c.learner != nil && c.learner.samples(h) {
		c.learner.record([]access{{h, now}})
	}
	return ok
}

// gather is Get for many keys, whose rows go to out; those that miss are listed in s.
func (c *Cache) gather(keys []uint64, out []byte, s *scratch) {
	s.at = c.tick(len(keys))
	for first := 0; first < len(keys); first += ahead {
		block := keys[first:min(first+ahead, len(keys))]
		var hashes [ahead]uint64
		for i, k := range block {
			hashes[i] = mix(k)
			prefetch(unsafe.Pointer(&c.sets[c.home(hashes[i])]), setHead)
		}
		for _, h := range hashes[:len(block)] {
			c.prefetch(h)
		}
		for i, h := range hashes[:len(block)] {
			at := first + i
			now := s.at + uint32(at)
			if !c.read(h, c.home(h), now, out[at*c.rowBytes:(at+1)*c.rowBytes]) {
				s.misses = append(s.misses, int32(at))
			}
			if c.learner != nil && c.learner.samples(h) {
				s.watched = append(s.watched, access{h, now})
			}
		}
	}
	c.hits.Add(int64(len(keys) - len(s.misses)))
	c.misses.Add(int64(len(s.misses)))
	if len(s.watched) > 0 {
		c.learner.record(s.watched)
	}
}

// ahead is how many keys' memory is asked for at once: waiting for one after the other would take most of the time.
const ahead = 16

// prefetch asks for what read will need, if the first equal tag is the key's.
func (c *Cache) prefetch(h uint64) {
	home := c.home(h)
	s := &c.sets[home]
	if slot := s.candidate(h); slot >= 0 {
		prefetch(unsafe.Pointer(&s.keys[slot]), 8)
		prefetch(unsafe.Pointer(&s.meta[slot]), 8)
		prefetch(unsafe.Pointer(&c.rows[home][slot*c.rowBytes]), c.rowBytes)
	}
}

// read is Get without the books. A row that a writer may have changed meanwhile is copied again.
func (c *Cache) read(h uint64, home int, now uint32, dst []byte) bool {
	s := &c.sets[home]
	for {
		v := s.version.Load()
		if v&1 == 0 {
			slot := s.find(h)
			if slot >= 0 {
				copyRow(dst[:c.rowBytes], c.row(home, slot))
			}
			if s.version.Load() == v {
				if slot >= 0 { // should another row take the slot just now, it seems a little more used than it is
					mark(&s.meta[slot], c.uses(stamp(s.meta[slot].Load()), now))
				}
				return slot >= 0
			}
		}
		c.retries.Add(1)
		pause()
	}
}

func (c *Cache) uses(m stamp, now uint32) stamp {
	if c.learner == nil {
		return m.at(now)
	}
	return c.learner.scale.use(m, now)
}

func (c *Cache) row(home, slot int) []byte {
	return c.rows[home][slot*c.rowBytes : (slot+1)*c.rowBytes]
}

// Epoch is what Put wants to know of the time before a row was fetched.
func (c *Cache) Epoch(key uint64) uint32 { return c.sets[c.home(mix(key))].updates.Load() }

// Put offers a row that was missed and fetched. It is dropped when the row's set was updated since Epoch,
// since it may be older than the update, or when the policy has no place for it.
func (c *Cache) Put(key uint64, row []byte, epoch uint32) {
	h := mix(key)
	c.put(h, c.home(h), c.clock.Load()-1, row, epoch) // the time of the latest access
}

func (c *Cache) put(h uint64, home int, now uint32, row []byte, epoch uint32) {
	s := &c.sets[home]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.updates.Load() != epoch || s.find(h) >= 0 {
		return
	}
	slot, ok := c.chosen.place(home, s, h, now)
	if !ok {
		c.declined.Add(1)
		return
	}
	if s.tag(slot) != 0 {
		c.evictions.Add(1)
	}
	s.begin()
	s.set(slot, h)
	writeRow(c.row(home, slot), row[:c.rowBytes])
	s.end()
}

// Update replaces a row where it is cached; call it after the store has the new one.
func (c *Cache) Update(key uint64, row []byte) {
	h := mix(key)
	home := c.home(h)
	s := &c.sets[home]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.updates.Add(1)
	if slot := s.find(h); slot >= 0 {
		s.begin()
		writeRow(c.row(home, slot), row[:c.rowBytes])
		s.end()
	}
}

// Remove forgets a row; call it after the store has.
func (c *Cache) Remove(key uint64) {
	h := mix(key)
	home := c.home(h)
	s := &c.sets[home]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.updates.Add(1)
	if slot := s.find(h); slot >= 0 {
		c.chosen.removed(home, s, slot)
		s.begin()
		s.clear(slot)
		s.end()
	}
}

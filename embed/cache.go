package embed

import (
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"grebe/evict"
	"grebe/internal/offheap"
	"grebe/pool"
)

// Config sizes a cache.
type Config struct {
	Rows     int    // rows that it holds, rounded up to whole slabs of sets of 64; at least 64
	MaxRows  int    // rows that it may grow to, at most 16 times Rows; Rows when less
	RowBytes int    // bytes of a row, a multiple of 8
	Policy   string // "default", "lru", or another name that evict.New knows, such as "laru"; "" is the default
}

// Validate says what is wrong with c.
func (c Config) Validate() error {
	if c.RowBytes <= 0 || c.RowBytes%8 != 0 || c.RowBytes > 1<<20 {
		return fmt.Errorf("embed: rows of %d bytes: want a multiple of 8, at most a MiB", c.RowBytes)
	}
	if c.Rows < 1 || max(c.Rows, c.MaxRows) > 1<<32 {
		return fmt.Errorf("embed: a cache of %d to %d rows: want between 1 and 2³²", c.Rows, c.MaxRows)
	}
	_, err := evict.New(c.Policy, evict.Config{Slots: setSlots, Bytes: setSlots})
	return err
}

// Cache holds rows by key. Get takes no lock and writes no memory that others wait for; Put and
// Remove lock one set. All are safe for concurrent use, also while the cache grows and shrinks.
type Cache struct {
	pool     *pool.Pool
	books    []*offheap.Block // of the sets
	sets     []set            // all that there may be; the first n are in use
	n        atomic.Int64     // sets in use
	fewest   atomic.Int64     // that were ever in use
	origin   unsafe.Pointer   // of the rows' places
	rowBytes int
	perSlab  int // sets of a slab
	least    int // slabs that it keeps
	policy   string
	chosen   chooser
	listens  *listener     // nil: nobody does
	stop     func()        // who listens
	clock    atomic.Uint64 // accesses
	gate     gate

	closing  sync.RWMutex // a store may still tell of changes while the cache is closed
	resizing sync.Mutex   // held before a set's
	slabs    []pool.Run
	moving   int // the next set that Rehome looks at

	hits, misses, evictions, declined, retries counter
}

// counter stands alone on its cache line.
type counter struct {
	atomic.Int64
	_ [56]byte
}

// Stats counts what a cache did since it was made.
type Stats struct {
	Rows         int // that fit
	Hits, Misses int64
	Evictions    int64
	Declined     int64 // rows that were not worth the place of another
	Retries      int64 // reads that a writer disturbed
	Learned      int64 // times that predictions were renewed, or the mode was looked at
	Mode         int   // of the default policy, 0: LRU
}

// NewCache takes pages of p, memory that the host sees, for all rows. The caller MUST Close it.
func NewCache(p *pool.Pool, cfg Config) (*Cache, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	c := &Cache{pool: p, rowBytes: cfg.RowBytes, policy: cfg.Policy}
	c.perSlab = max(1, p.Stats().Page/(setSlots*cfg.RowBytes))
	slabRows := c.perSlab * setSlots
	slabs := (cfg.Rows + slabRows - 1) / slabRows
	most := max(slabs, (cfg.MaxRows+slabRows-1)/slabRows)
	c.least = (most + leastShare - 1) / leastShare
	if slabs < c.least {
		return nil, fmt.Errorf("embed: a cache of %d rows cannot grow to %d: want at most %d times as many", cfg.Rows,
			cfg.MaxRows, leastShare)
	}
	sets, block, err := makeBooks[set](most * c.perSlab)
	if err != nil {
		return nil, fmt.Errorf("embed: records of %d rows: %w", most*slabRows, err)
	}
	c.sets, c.books = sets, append(c.books, block)
	c.slabs = make([]pool.Run, 0, most)
	c.fewest.Store(int64(slabs * c.perSlab))
	c.clock.Store(1) // so that there is a time before the first access
	if err := c.choose(cfg.Policy, slabs*slabRows); err != nil {
		block.Free()
		return nil, fmt.Errorf("embed: records of %d rows: %w", most*slabRows, err)
	}
	if got, err := c.Grow(slabs); got < slabs {
		c.Close()
		return nil, fmt.Errorf("embed: take pages for %d slabs of %d bytes: %w", slabs, c.SlabBytes(), err)
	}
	return c, nil
}

func (c *Cache) choose(policy string, rows int) error {
	switch policy {
	case "lru":
		c.chosen = oldest{}
	case "", "default":
		v, block, err := newValued(len(c.sets), rows)
		if err != nil {
			return err
		}
		c.books = append(c.books, block)
		c.chosen, c.listens, c.stop = v, &v.tuner.listener, v.tuner.stop
		v.tuner.start()
	default:
		l := newLearner(rows)
		c.chosen, c.listens, c.stop = newAdapted(policy, len(c.sets), l), &l.listener, l.stop
		l.start()
	}
	return nil
}

// makeBooks takes memory outside the heap, with huge pages, because a look-up goes to any place of it. The race
// detector knows locks on the heap only.
func makeBooks[T any](n int) ([]T, *offheap.Block, error) {
	if raceBuild {
		return make([]T, n), &offheap.Block{}, nil
	}
	var v T
	block, err := offheap.Alloc(n * int(unsafe.Sizeof(v)))
	if err != nil {
		return nil, nil, err
	}
	return offheap.Slice[T](block.Bytes, n), block, nil
}

// Close gives the pages back. Nobody may use the cache any more.
func (c *Cache) Close() {
	if c.stop != nil {
		c.stop()
	}
	c.closing.Lock()
	defer c.closing.Unlock()
	c.gate.close(c.pool)
	for _, r := range c.slabs {
		c.pool.Free(r)
	}
	c.slabs, c.sets = nil, nil
	for _, b := range c.books {
		b.Free()
	}
}

// RowBytes returns the size of a row.
func (c *Cache) RowBytes() int { return c.rowBytes }

// Rows returns how many rows the cache can hold.
func (c *Cache) Rows() int { return int(c.n.Load()) * setSlots }

// Overhead returns the bytes that the cache takes per row beside the row.
func (c *Cache) Overhead() float64 {
	return float64(setBytes+c.chosen.setBytes()) / setSlots
}

// Stats returns the counters.
func (c *Cache) Stats() Stats {
	s := Stats{Rows: c.Rows(), Hits: c.hits.Load(), Misses: c.misses.Load(), Evictions: c.evictions.Load(),
		Declined: c.declined.Load(), Retries: c.retries.Load()}
	switch p := c.chosen.(type) {
	case *adapted:
		s.Learned = p.learner.trained.Load()
	case *valued:
		s.Learned, s.Mode = p.tuner.turns.Load(), int(p.tuner.mode.Load())
	}
	return s
}

// tick reserves n moments of the cache's clock and returns the first.
func (c *Cache) tick(n int) uint64 { return c.clock.Add(uint64(n)) - uint64(n) }

// Get copies the row of a key to dst. False when it is not cached.
func (c *Cache) Get(key uint64, dst []byte) bool {
	h := mix(key)
	now := c.tick(1)
	e := c.gate.enter(int(h))
	ok := c.read(h, &c.sets[c.home(h, int(c.n.Load()))], now, dst)
	c.gate.leave(e, int(h), c.pool)
	if ok {
		c.hits.Add(1)
	} else {
		c.misses.Add(1)
	}
	if c.listens != nil && c.listens.hears(h) {
		c.listens.record([]access{{h, now}})
	}
	return ok
}

// read is Get without the books. A row that a writer may have changed meanwhile is copied again.
func (c *Cache) read(h uint64, s *set, now uint64, dst []byte) bool {
	for {
		v := s.version.Load()
		if v&1 == 0 {
			slot := s.find(h)
			if slot >= 0 {
				copyRow(dst[:c.rowBytes], c.row(s, slot))
			}
			if s.version.Load() == v {
				if slot >= 0 {
					c.mark(s, slot, now)
				}
				return slot >= 0
			}
		}
		c.retries.Add(1)
		pause()
	}
}

// mark stamps a use. Should another row take the slot just now, it seems a little more used than it is.
func (c *Cache) mark(s *set, slot int, now uint64) {
	p := &s.slots[slot].meta
	if v, ok := c.chosen.(*valued); ok {
		mark(p, v.use(p.Load(), now))
		return
	}
	mark(p, c.chosen.use(p.Load(), now))
}

func (c *Cache) row(s *set, slot int) []byte {
	return unsafe.Slice((*byte)(unsafe.Add(c.origin, int(s.rows.Load())+slot*c.rowBytes)), c.rowBytes)
}

// Epoch is what Put wants to know of the time before a row was fetched.
type Epoch struct {
	sets    int // in use
	updates uint32
}

// Epoch returns a key's as it is.
func (c *Cache) Epoch(key uint64) Epoch {
	n := int(c.n.Load())
	return Epoch{n, c.sets[c.home(mix(key), n)].updates.Load()}
}

// Put offers a row that was missed and fetched. It is dropped when the row's set was updated since Epoch,
// since it may be older than the update, when the cache was resized, or when the policy has no place for it.
func (c *Cache) Put(key uint64, row []byte, e Epoch) {
	h := mix(key)
	c.put(h, c.home(h, e.sets), c.clock.Load()-1, row, e) // the time of the latest access
}

func (c *Cache) put(h uint64, home int, now uint64, row []byte, e Epoch) {
	s := &c.sets[home]
	s.mu.Lock()
	defer s.mu.Unlock()
	if !c.lacks(s, h, e) {
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
	c.write(s, slot, h, row)
}

// Remove forgets a row, wherever it is, and what was fetched of it before; call it after the store has changed it.
func (c *Cache) Remove(key uint64) {
	h := mix(key)
	c.homes(h, func(home int) { c.forget(h, home) })
}

// forget is Remove in one of a row's homes.
func (c *Cache) forget(h uint64, home int) {
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

// changed forgets rows that others changed in the store; nil: all.
func (c *Cache) changed(keys []uint64) {
	c.closing.RLock()
	defer c.closing.RUnlock()
	if c.sets == nil {
		return
	}
	for _, k := range keys {
		c.Remove(k)
	}
	if keys == nil {
		c.Clear()
	}
}

// Clear forgets all rows, and those that are being fetched.
func (c *Cache) Clear() {
	for home := range c.sets {
		s := &c.sets[home]
		s.mu.Lock()
		s.updates.Add(1)
		for slot := range setSlots {
			if s.tag(slot) != 0 {
				c.chosen.removed(home, s, slot)
			}
		}
		s.clearAll()
		s.mu.Unlock()
	}
}

package allocator

import (
	"math/rand/v2"
	"slices"

	"grebe/alloc"
	"grebe/evict"
	"grebe/pool"
	"grebe/workload/regime"
)

// rows caches grains of embedding rows as package embed caches rows: in sets of 64 slots, each on pages of the pool.
// evict.Homes says which set a grain belongs to, evict.SlabSet which slot of the set it gets, in the order of use. The cache
// grows and shrinks by whole sets.
type rows struct {
	pool   *pool.Pool
	slab   evict.Slab
	homes  evict.Homes
	sets   []rowSet // all that there may be
	n      int      // that there are
	moving int      // sets before this one have no grain of another home
	ghost  *alloc.Ghost
	keys   []uint64   // by grain
	runs   []pool.Run // per of them a set
	per    int
	bytes  int   // of a grain
	total  int64 // of the pool
	now    uint64
}

// rowSet is a set of grains, by their keys; 0: the slot is empty.
type rowSet struct {
	places evict.SlabSet
	keys   [evict.SlabSlots]uint64
	stamps [evict.SlabSlots]evict.Stamp
}

// The methods are for the SlabSet.
func (s *rowSet) Stamp(slot int) evict.Stamp           { return s.stamps[slot] }
func (s *rowSet) Stamps() [evict.SlabSlots]evict.Stamp { return s.stamps }
func (s *rowSet) Empty() int                           { return s.find(0) }
func (s *rowSet) Key(slot int) uint64                  { return s.keys[slot] }

func (s *rowSet) find(key uint64) int { return slices.Index(s.keys[:], key) }

func newRows(p *pool.Pool, cost *Cost, spec *regime.Spec) *rows {
	c := &rows{pool: p, bytes: int(cost.RowBytes) * spec.Grain, total: cost.Pool, keys: make([]uint64, spec.Grains)}
	most := int(cost.Pool / int64(c.setBytes()))
	c.per = max(1, c.setBytes()/piece)
	c.homes, c.sets = evict.Homes(most), make([]rowSet, most)
	c.slab = evict.NewSlab(most * evict.SlabSlots)
	c.ghost = alloc.NewGhost(most * evict.SlabSlots)
	r := rand.New(rand.NewPCG(64, 64))
	for i := range c.keys {
		c.keys[i] = max(r.Uint64(), 1)
	}
	return c
}

func (c *rows) setBytes() int { return evict.SlabSlots * c.bytes }

// settled reports whether every grain is at home.
func (c *rows) settled() bool { return c.moving >= c.n }

// resize takes pages for more sets, or gives sets back with what is in them, as the boundary says. A set stands for many, so
// it needs no longer runs of pages than KV does.
func (c *rows) resize() {
	want := min(int(c.pool.Stats().Total)/c.setBytes(), len(c.sets))
	if want > c.n {
		c.runs = c.pool.AllocRuns(c.runs, c.setBytes()/c.per, want*c.per-len(c.runs))
		want = len(c.runs) / c.per
		c.moving = 0
	}
	for i := want; i < c.n; i++ {
		for _, key := range c.sets[i].keys {
			if key != 0 {
				c.ghost.Evicted(key, int64(c.bytes))
			}
		}
		c.sets[i] = rowSet{}
	}
	c.n = want
	c.pool.FreeRuns(c.runs[want*c.per:])
	c.runs = c.runs[:want*c.per]
}

// use looks a grain up and caches it. A miss that a larger cache would not have had saves ms there.
func (c *rows) use(grain int32, ms float64, g *alloc.Curve) bool {
	c.now++
	key := c.keys[grain]
	s := &c.sets[c.homes.Home(key, c.n)]
	if slot := s.find(key); slot >= 0 {
		s.stamps[slot] = c.slab.Use(s.stamps[slot], c.now)
		return true
	}
	if depth, ok := c.ghost.Missed(key); ok {
		g.Add(depth, c.total, ms)
	}
	c.place(s, key)
	return false
}

// place puts a grain into its set.
func (c *rows) place(s *rowSet, key uint64) {
	slot, m, ok := s.places.Place(c.slab, key, c.now, evict.LRU, s)
	if !ok {
		return
	}
	if left := s.keys[slot]; left != 0 {
		c.ghost.Evicted(left, int64(c.bytes))
	}
	s.keys[slot], s.stamps[slot] = key, m
}

// rehome moves grains whose home is a new set there, of at most so many bytes. It returns how many.
func (c *rows) rehome(most int64) (moved int64) {
	for ; c.moving < c.n; c.moving++ {
		s := &c.sets[c.moving]
		for slot, key := range s.keys {
			home := c.moving
			if key != 0 {
				home = c.homes.Home(key, c.n)
			}
			if home == c.moving {
				continue
			}
			if moved+int64(c.bytes) > most {
				return moved
			}
			s.keys[slot] = 0
			to := &c.sets[home]
			if to.find(key) >= 0 { // it was fetched meanwhile
				continue
			}
			to.places.Expect(c.slab, key, s.stamps[slot], c.now, evict.LRU)
			c.place(to, key)
			moved += int64(c.bytes)
		}
	}
	return moved
}

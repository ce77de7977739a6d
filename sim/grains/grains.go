// Package grains caches embedding rows in virtual time, as package embed caches them: in sets of 64 slots. evict.Homes
// says which set a grain of rows belongs to, evict.SlabSet which slot of the set it gets, in the order of use. The
// cache grows and shrinks by whole sets.
package grains

import (
	"math/rand/v2"
	"slices"

	"grebe/alloc"
	"grebe/evict"
)

// Cache is a cache of grains. Its owner has the memory. It is not safe for concurrent use.
type Cache struct {
	slab   evict.Slab
	homes  evict.Homes
	sets   []set // all that there may be
	n      int   // that there are
	moving int   // sets before this one have no grain of another home
	ghost  *alloc.Ghost
	keys   []uint64 // by grain
	bytes  int      // of a grain
	total  int64    // of the memory that the cache is a part of
	now    uint64
}

// set is a set of grains, by their keys; 0: the slot is empty.
type set struct {
	places evict.SlabSet
	keys   [evict.SlabSlots]uint64
	stamps [evict.SlabSlots]evict.Stamp
}

// The methods are for the SlabSet.
func (s *set) Stamp(slot int) evict.Stamp           { return s.stamps[slot] }
func (s *set) Stamps() [evict.SlabSlots]evict.Stamp { return s.stamps }
func (s *set) Empty() int                           { return s.find(0) }
func (s *set) Key(slot int) uint64                  { return s.keys[slot] }

func (s *set) find(key uint64) int { return slices.Index(s.keys[:], key) }

// MostSets returns how many sets of grains of so many bytes fit.
func MostSets(bytes int, total int64) int { return int(total / int64(evict.SlabSlots*bytes)) }

// New returns an empty cache for grains of so many bytes, of most sets at most, in memory of total bytes. It MUST NOT
// have less than a sixteenth of its sets for long: see evict.Homes.
func New(grains, bytes, most int, total int64) *Cache {
	c := &Cache{bytes: bytes, total: total, keys: make([]uint64, grains)}
	c.homes, c.sets = evict.Homes(most), make([]set, most)
	c.slab = evict.NewSlab(most * evict.SlabSlots)
	c.ghost = alloc.NewGhost(most * evict.SlabSlots)
	r := rand.New(rand.NewPCG(64, 64))
	for i := range c.keys {
		c.keys[i] = max(r.Uint64(), 1)
	}
	return c
}

// SetBytes returns the size of a set.
func (c *Cache) SetBytes() int { return evict.SlabSlots * c.bytes }

// Sets returns how many sets there are, and how many there may be.
func (c *Cache) Sets() (are, most int) { return c.n, len(c.sets) }

// Settled reports whether every grain is at home.
func (c *Cache) Settled() bool { return c.moving >= c.n }

// Resize sets the number of sets. Sets that are given up lose what is in them.
func (c *Cache) Resize(sets int) {
	if sets > c.n {
		c.moving = 0
	}
	for i := sets; i < c.n; i++ {
		for _, key := range c.sets[i].keys {
			if key != 0 {
				c.ghost.Evicted(key, int64(c.bytes))
			}
		}
		c.sets[i] = set{}
	}
	c.n = sets
}

// Use looks a grain up and caches it. A miss that a larger cache would not have had saves ms there.
func (c *Cache) Use(grain int32, ms float64, g *alloc.Curve) bool {
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

// Has reports whether a grain is cached. It does not count as a use.
func (c *Cache) Has(grain int32) bool {
	key := c.keys[grain]
	return c.n > 0 && c.sets[c.homes.Home(key, c.n)].find(key) >= 0
}

// place puts a grain into its set.
func (c *Cache) place(s *set, key uint64) {
	slot, m, ok := s.places.Place(c.slab, key, c.now, evict.LRU, s)
	if !ok {
		return
	}
	if left := s.keys[slot]; left != 0 {
		c.ghost.Evicted(left, int64(c.bytes))
	}
	s.keys[slot], s.stamps[slot] = key, m
}

// Rehome moves grains whose home is a new set there, of at most so many bytes. It returns how many.
func (c *Cache) Rehome(most int64) (moved int64) {
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

// Check calls f with each cached grain's key, the set that has it and its home.
func (c *Cache) Check(f func(key uint64, at, home int)) {
	for i := range c.sets {
		for _, key := range c.sets[i].keys {
			if key != 0 {
				f(key, i, c.homes.Home(key, max(c.n, 1)))
			}
		}
	}
}

package alloc

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// cache is a model of a scenario: an LRU cache of users' entries within the limit of its claim.
type cache struct {
	claim Claim
	name  string
	users int
	entry int64
	cost  float64 // milliseconds of computing an entry
	rate  float64 // requests per epoch
	scan  bool    // nobody comes twice

	due   float64
	next  int
	last  map[int]int // user to the number of the last use
	uses  int
	hits  int
	asked int
	ghost *Ghost
	rand  *rand.Rand
}

func newCache(name string, users int, entry int64, cost float64) *cache {
	return &cache{
		name: name, users: users, entry: entry, cost: cost, last: map[int]int{},
		ghost: NewGhost(1 << 12), rand: rand.New(rand.NewPCG(1, uint64(name[0]))),
	}
}

// trim evicts until bytes more are within the limit.
func (c *cache) trim(bytes int64) bool {
	for c.used()+bytes > c.claim.Limit {
		oldest := -1
		for u, at := range c.last {
			if oldest < 0 || at < c.last[oldest] {
				oldest = u
			}
		}
		if oldest < 0 {
			return false
		}
		delete(c.last, oldest)
		c.ghost.Evicted(uint64(oldest+1), c.entry)
	}
	return true
}

func (c *cache) used() int64 { return int64(len(c.last)) * c.entry }

// epoch serves the requests of an epoch.
func (c *cache) epoch(pool int64) {
	for c.due += c.rate; c.due >= 1; c.due-- {
		u := c.rand.IntN(c.users)
		if c.scan {
			u = c.users + c.next
			c.next++
		}
		c.uses++
		c.asked++
		if _, ok := c.last[u]; ok {
			c.claim.Saved += c.cost
			c.hits++
			c.last[u] = c.uses
			continue
		}
		if !c.trim(c.entry) {
			c.claim.Entry = c.entry
			continue
		}
		c.last[u] = c.uses
		c.claim.Kept += c.entry
		c.claim.Entry = c.entry
		if depth, ok := c.ghost.Missed(uint64(u + 1)); ok && depth+c.used() <= pool {
			c.claim.Lost += c.cost
		}
	}
}

// compete runs epochs and prints what each cache may own, the most and the least of the last third, and its hits.
func compete(b *Budget, caches []*cache, seconds int, out *strings.Builder) {
	epochs := int(float64(seconds) / BudgetEpoch)
	claims := make([]*Claim, len(caches))
	low, high := make([]int64, len(caches)), make([]int64, len(caches))
	for i, c := range caches {
		claims[i] = &c.claim
		low[i] = b.Bytes
		c.hits, c.asked = 0, 0
	}
	for n := range epochs {
		for _, c := range caches {
			c.epoch(b.Bytes)
			c.claim.Used = c.used()
		}
		b.Decide(claims)
		for i, c := range caches {
			c.trim(0)
			c.claim.Saved, c.claim.Kept, c.claim.Entry, c.claim.Lost = 0, 0, 0, 0
			if n >= epochs*2/3 {
				low[i], high[i] = min(low[i], c.claim.Limit), max(high[i], c.claim.Limit)
			}
		}
	}
	percent := func(n int64) float64 { return 100 * float64(n) / float64(b.Bytes) }
	fmt.Fprintf(out, "%ds:", seconds)
	for i, c := range caches {
		fmt.Fprintf(out, " %s %.0f%% (%.0f to %.0f)", c.name, percent(c.claim.Limit), percent(low[i]), percent(high[i]))
		if c.asked > 0 {
			fmt.Fprintf(out, " hits %.0f%%", 100*float64(c.hits)/float64(c.asked))
		}
	}
	fmt.Fprintln(out)
}

package embed

import "grebe/evict"

// leastShare bounds how far a cache shrinks: it has at least one of so many sets, so that the home of a key is found in
// few draws: see evict.Homes.
const leastShare = 16

// mix spreads a key over 64 bits (the finaliser of SplitMix64); different keys stay different.
func mix(key uint64) uint64 {
	key = (key ^ key>>30) * 0xBF58476D1CE4E5B9
	key = (key ^ key>>27) * 0x94D049BB133111EB
	return key ^ key>>31
}

// home of a key among n sets.
func (c *Cache) home(h uint64, n int) int { return evict.Homes(len(c.sets)).Home(h, n) }

// homes calls visit for every set that may have been the key's home since the cache was made, the lowest first: Rehome
// moves rows to higher sets, and one that is on its way meets the visitor at one of its ends.
func (c *Cache) homes(h uint64, visit func(home int)) {
	evict.Homes(len(c.sets)).Visit(h, int(c.fewest.Load()), visit)
}

package embed

import (
	"math/bits"
	"slices"
)

// A key's home is the first of a sequence of draws from the most sets that the cache may have that is one of the sets
// it has. So when a set comes, some keys move to it and all others stay; when it goes, its keys go to other sets and
// all others stay. A cache that has all its sets takes the first draw.
//
// Over time a key may have had several homes: the draws that are lower than all before them. A row that was left
// behind in one of them would be found again when the cache shrinks, so updates visit them all.

// draws bounds the sequence. A cache has at least one set in leastShare, so that practically none is that long.
const (
	draws      = 256
	leastShare = 16
)

// mix spreads a key over 64 bits (the finaliser of SplitMix64); different keys stay different.
func mix(key uint64) uint64 {
	key = (key ^ key>>30) * 0xBF58476D1CE4E5B9
	key = (key ^ key>>27) * 0x94D049BB133111EB
	return key ^ key>>31
}

// draw is a set by its hash, and the hash of the next draw.
func draw(x, most uint64) (set int, next uint64) {
	hi, _ := bits.Mul64(x, most)
	return int(hi), x*0xD1342543DE82EF95 + 0x9E3779B97F4A7C15
}

// home of a key among n sets.
func (c *Cache) home(h uint64, n int) int {
	if hi, _ := bits.Mul64(h, uint64(len(c.sets))); int(hi) < n {
		return int(hi)
	}
	return c.later(h, n)
}

func (c *Cache) later(x uint64, n int) int {
	set := 0
	for range draws {
		if set, x = draw(x, uint64(len(c.sets))); set < n {
			return set
		}
	}
	return 0
}

// homes calls visit for every set that may have been the key's home since the cache was made, the lowest first: Rehome moves rows to higher
// sets, and one that is on its way meets the visitor at one of its ends.
func (c *Cache) homes(x uint64, visit func(home int)) {
	var few [16]int
	all := few[:0]
	least, lowest := len(c.sets), int(c.fewest.Load())
	for i := 0; i < draws && least >= lowest; i++ {
		set := 0
		if set, x = draw(x, uint64(len(c.sets))); set < least {
			least = set
			all = append(all, set)
		}
	}
	if least >= lowest && least > 0 {
		all = append(all, 0)
	}
	for _, home := range slices.Backward(all) {
		visit(home)
	}
}

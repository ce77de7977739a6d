package evict

import (
	"math/bits"
	"slices"
)

// Homes maps keys to the sets of a cache. Its value is the largest number of sets. Keys are hashes.
//
// Each key has a sequence of draws from all possible sets. Its home is the first draw that is a set the cache has. So
// when a set is added, some keys move to it and all others stay. When a set is removed, its keys move to other sets and
// all others stay. A cache with all its sets takes the first draw.
//
// As the cache is resized, a key may have had several homes: the draws that are lower than all before them. A row left
// behind in one of them would be found again when the cache shrinks, so updates visit all of them.
type Homes int

// draws bounds the sequence. A cache has at least one sixteenth of its sets, so in practice no sequence is that long.
const draws = 256

// draw returns the set for a hash, and the hash of the next draw.
func (m Homes) draw(x uint64) (set int, next uint64) {
	hi, _ := bits.Mul64(x, uint64(m))
	return int(hi), x*0xD1342543DE82EF95 + 0x9E3779B97F4A7C15
}

// Home returns the set of a key while the cache has n sets.
func (m Homes) Home(key uint64, n int) int {
	if hi, _ := bits.Mul64(key, uint64(m)); int(hi) < n {
		return int(hi)
	}
	return m.later(key, n)
}

func (m Homes) later(x uint64, n int) int {
	set := 0
	for range draws {
		if set, x = m.draw(x); set < n {
			return set
		}
	}
	return 0
}

// Visit calls visit for every set that may have been a key's home, lowest first, if the cache never had fewer than
// fewest sets.
func (m Homes) Visit(key uint64, fewest int, visit func(home int)) {
	var few [16]int
	all := few[:0]
	x, least := key, int(m)
	for i := 0; i < draws && least >= fewest; i++ {
		set := 0
		if set, x = m.draw(x); set < least {
			least = set
			all = append(all, set)
		}
	}
	if least >= fewest && least > 0 {
		all = append(all, 0)
	}
	for _, home := range slices.Backward(all) {
		visit(home)
	}
}

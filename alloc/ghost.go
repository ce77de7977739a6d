package alloc

import "math/bits"

// Ghost remembers the last evictions of a cache. For a miss, it returns how much larger the cache would have
// to be for a hit. Its size is fixed, and it sometimes forgets a key because two keys need the same place. It
// allocates nothing after NewGhost.
type Ghost struct {
	keys    []uint64 // 0: free
	at      []int64  // bytes evicted before the key
	ring    []uint64 // keys by time of eviction
	head    int      // place of the next key
	evicted int64    // bytes evicted in total
}

// NewGhost returns a ghost of the last n evictions.
func NewGhost(n int) *Ghost {
	size := 1 << bits.Len(uint(max(n, 1)*2))
	return &Ghost{keys: make([]uint64, size), at: make([]int64, size), ring: make([]uint64, max(n, 1))}
}

// place returns the place of a key, or the one for a new key: of two neighbours, the one with the older eviction.
func (g *Ghost) place(key uint64) (int, bool) {
	hi, lo := bits.Mul64(key, 0x9E3779B97F4A7C15)
	i := int((hi ^ lo) & uint64(len(g.keys)-1))
	j := i ^ 1
	switch {
	case g.keys[i] == key:
		return i, true
	case g.keys[j] == key:
		return j, true
	case g.keys[i] == 0 || g.keys[j] != 0 && g.at[i] < g.at[j]:
		return i, false
	}
	return j, false
}

// Evicted notes that a key was evicted. The key must not be 0.
func (g *Ghost) Evicted(key uint64, bytes int64) {
	if old := g.ring[g.head]; old != 0 {
		if i, ok := g.place(old); ok {
			g.keys[i] = 0
		}
	}
	g.ring[g.head] = key
	g.head = (g.head + 1) % len(g.ring)
	i, _ := g.place(key)
	g.keys[i], g.at[i] = key, g.evicted
	g.evicted += bytes
}

// Missed forgets a key that is about to be cached again. It returns the bytes that were evicted after the key, its own
// included: a cache that is larger by as much would have had a hit. It returns false for a key that it does not know.
func (g *Ghost) Missed(key uint64) (depth int64, ok bool) {
	i, ok := g.place(key)
	if !ok {
		return 0, false
	}
	g.keys[i] = 0
	return g.evicted - g.at[i], true
}

// Recent returns the key of the i-th last eviction, counted from 0. It returns false if the key was cached again or
// there was no such eviction.
func (g *Ghost) Recent(i int) (uint64, bool) {
	if i >= len(g.ring) {
		return 0, false
	}
	key := g.ring[(g.head-1-i+2*len(g.ring))%len(g.ring)]
	if key == 0 {
		return 0, false
	}
	_, ok := g.place(key)
	return key, ok
}

// Len returns the most evictions that are remembered.
func (g *Ghost) Len() int { return len(g.ring) }

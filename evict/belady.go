package evict

// NextUses returns, for each request of a trace, the index of the next request for its key, or Never. As Access.Return
// these are perfect predictions.
func NextUses(keys []uint64) []int64 {
	next, last := make([]int64, len(keys)), make(map[uint64]int64, len(keys)/4)
	for i := len(keys) - 1; i >= 0; i-- {
		next[i] = Never
		if j, ok := last[keys[i]]; ok {
			next[i] = j
		}
		last[keys[i]] = int64(i)
	}
	return next
}

// Optimal returns how many requests of a trace the offline optimum (Belady) hits with k entries of one size. It knows
// the future and is for benchmarks.
func Optimal(keys []uint64, k int) (hits int) {
	next := NextUses(keys)
	slotOf := make(map[uint64]Slot, k)
	keyOf := make([]uint64, k)
	h := newHeap(k, make([]int32, k))
	for i, key := range keys {
		s, ok := slotOf[key]
		switch {
		case ok:
			hits++
			h.remove(s)
		case len(slotOf) < k:
			s = Slot(len(slotOf))
		default:
			s, _ = h.top()
			h.remove(s)
			delete(slotOf, keyOf[s])
		}
		slotOf[key], keyOf[s] = s, key
		h.push(s, next[i])
	}
	return hits
}

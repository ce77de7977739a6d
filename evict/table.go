package evict

import "math/bits"

// table maps keys to small integers ≥ 0 by linear probing. It grows when three quarters full.
type table struct {
	keys []uint64
	vals []int32 // −1: free
	used int
}

func newTable(n int) table {
	size := 1 << bits.Len(uint(max(n, 4)*4/3))
	t := table{keys: make([]uint64, size), vals: make([]int32, size)}
	t.clear()
	return t
}

func (t *table) clear() {
	for i := range t.vals {
		t.vals[i] = -1
	}
	t.used = 0
}

func (t *table) home(key uint64) int {
	hi, lo := bits.Mul64(key^0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93)
	return int((hi ^ lo) & uint64(len(t.vals)-1))
}

// find returns where key is, or the free place where it would go.
func (t *table) find(key uint64) int {
	mask := len(t.vals) - 1
	i := t.home(key)
	for t.vals[i] >= 0 && t.keys[i] != key {
		i = (i + 1) & mask
	}
	return i
}

func (t *table) get(key uint64) (int32, bool) {
	v := t.vals[t.find(key)]
	return v, v >= 0
}

func (t *table) put(key uint64, v int32) {
	if (t.used+1)*4 > len(t.vals)*3 {
		t.grow()
	}
	i := t.find(key)
	if t.vals[i] < 0 {
		t.used++
	}
	t.keys[i], t.vals[i] = key, v
}

func (t *table) grow() {
	old := *t
	t.keys, t.vals, t.used = make([]uint64, 2*len(old.keys)), make([]int32, 2*len(old.vals)), 0
	t.clear()
	for i, v := range old.vals {
		if v >= 0 {
			t.put(old.keys[i], v)
		}
	}
}

// remove closes the gap it makes, so that no probe ends early.
func (t *table) remove(key uint64) {
	gap := t.find(key)
	if t.vals[gap] < 0 {
		return
	}
	mask := len(t.vals) - 1
	for i := (gap + 1) & mask; t.vals[i] >= 0; i = (i + 1) & mask {
		if (i-t.home(t.keys[i]))&mask >= (i-gap)&mask {
			t.keys[gap], t.vals[gap] = t.keys[i], t.vals[i]
			gap = i
		}
	}
	t.vals[gap] = -1
	t.used--
}

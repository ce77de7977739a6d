package evict

import (
	"math/bits"
	"unsafe"
)

// table maps keys to small integers ≥ 0 by linear probing. It grows when three quarters full. The cell at which a
// search begins grows with the hash, so that growing reads and writes the cells in order.
type table struct {
	cells []cell
	shift int // from a hash to the cell where its search begins
	used  int
}

type cell struct {
	key uint64
	val int32 // −1: free
}

// firstKeys is the number of keys that a new table has room for at most. A table as large as the cache would be slower:
// its few keys lie far apart in memory.
const firstKeys = 1 << 10

// newTable makes a table for about n keys.
func newTable(n int) table {
	log := bits.Len(uint(min(max(n, 4), firstKeys) * 4 / 3))
	t := table{cells: make([]cell, 1<<log), shift: 64 - log}
	t.clear()
	return t
}

func (t *table) clear() {
	for i := range t.cells {
		t.cells[i].val = -1
	}
	t.used = 0
}

func (t *table) home(key uint64) int {
	hi, lo := bits.Mul64(key^0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93)
	return int((hi ^ lo) >> t.shift)
}

// prefetch prefetches the memory that find reads.
func (t *table) prefetch(key uint64) { prefetch(unsafe.Pointer(&t.cells[t.home(key)])) }

// find returns the index of key, or the free index where it belongs.
func (t *table) find(key uint64) int {
	mask := len(t.cells) - 1
	i := t.home(key)
	for t.cells[i].val >= 0 && t.cells[i].key != key {
		i = (i + 1) & mask
	}
	return i
}

func (t *table) get(key uint64) (int32, bool) {
	v := t.cells[t.find(key)].val
	return v, v >= 0
}

func (t *table) put(key uint64, v int32) {
	if (t.used+1)*4 > len(t.cells)*3 {
		t.grow()
	}
	i := t.find(key)
	if t.cells[i].val < 0 {
		t.used++
	}
	t.cells[i] = cell{key, v}
}

func (t *table) grow() {
	old := *t
	t.cells, t.shift = make([]cell, 2*len(old.cells)), t.shift-1
	t.clear()
	for _, c := range old.cells {
		if c.val >= 0 {
			t.put(c.key, c.val)
		}
	}
}

// remove closes the gap that it leaves, so that no probe ends early.
func (t *table) remove(key uint64) {
	gap := t.find(key)
	if t.cells[gap].val < 0 {
		return
	}
	mask := len(t.cells) - 1
	for i := (gap + 1) & mask; t.cells[i].val >= 0; i = (i + 1) & mask {
		if (i-t.home(t.cells[i].key))&mask >= (i-gap)&mask {
			t.cells[gap] = t.cells[i]
			gap = i
		}
	}
	t.cells[gap].val = -1
	t.used--
}

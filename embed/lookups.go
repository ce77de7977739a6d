package embed

import (
	"math/bits"
	"unsafe"
)

// A gather takes many keys through stages at once, because waiting for one key's memory after the other's would take
// most of the time. A key's set is asked for; some keys later its tags are compared and the keys of slots that match
// are asked for; some keys later these are compared and the row is asked for; some keys later it is copied. Rows are
// asked for into the second cache, which has more requests under way than the first: with so many rows ahead random
// ones come as fast as contiguous ones. The distances to the copy, in keys, were measured.
const (
	setAhead = 80
	tagAhead = 64
	rowAhead = 48
	lead     = setAhead // places before and behind the keys, of sets without rows
)

// lookups are keys under way. Key i is at i+lead. With a table in memory the rows of those that miss take the same way.
type lookups struct {
	keys   []uint64
	near   *Memory // nil: what misses is not looked for
	hashes []uint64
	sets   []*set
	masks  []uint64 // slots that have the key's tag
	slots  []int    // the key's, −1: none, or disturbed
}

// disturbed marks a key whose row a writer may have changed during its copy.
const disturbed = -2

// stored marks a key that is not cached and whose row is in the table in memory.
const stored = -3

// nowhere has no row of any key.
var nowhere set

// begin prepares for keys, at their homes among n sets.
func (l *lookups) begin(c *Cache, keys []uint64, n int, near *Memory) {
	all := len(keys) + 2*lead
	l.keys, l.near = keys, near
	l.hashes, l.sets, l.masks, l.slots = grown(l.hashes, all), grown(l.sets, all), grown(l.masks, all), grown(l.slots, all)
	for i := range lead {
		l.sets[i], l.sets[all-1-i] = &nowhere, &nowhere
		l.masks[i], l.slots[i] = 0, -1
	}
	hashes, sets := l.hashes[lead:][:len(keys)], l.sets[lead:][:len(keys)]
	for i, k := range keys {
		h := mix(k)
		hashes[i], sets[i] = h, &c.sets[c.home(h, n)]
	}
}

// runPlain takes keys from … to−1 through their last stage and those that follow through the stages before.
func (l *lookups) runPlain(c *Cache, out []byte, from, to int) {
	for i := from + lead; i < to+lead; i++ {
		prefetch(unsafe.Pointer(l.sets[i+setAhead]), setHead)
		l.compareTags(i + tagAhead)
		l.compareKeys(c, i+rowAhead)
		switch slot := l.slots[i]; {
		case slot >= 0:
			l.take(c, i, out[(i-lead)*c.rowBytes:][:c.rowBytes])
		case slot == stored:
			copyBytes(out[(i-lead)*c.rowBytes:][:c.rowBytes], l.near.row(l.keys[i-lead]))
		}
	}
}

func (l *lookups) compareTags(i int) {
	s := l.sets[i]
	m := s.match(tagOf(l.hashes[i]))
	l.masks[i] = m
	for ; m != 0; m &= m - 1 {
		prefetch(unsafe.Pointer(&s.slots[bits.TrailingZeros64(m)]), 16)
	}
}

func (l *lookups) compareKeys(c *Cache, i int) {
	l.slots[i] = -1
	s := l.sets[i]
	for m := l.masks[i]; m != 0; m &= m - 1 {
		if slot := bits.TrailingZeros64(m); s.slots[slot].key.Load() == l.hashes[i] {
			l.slots[i] = slot
			prefetchFar(unsafe.Pointer(unsafe.SliceData(c.row(s, slot))), c.rowBytes)
			return
		}
	}
	if k := i - lead; l.near != nil && k >= 0 && k < len(l.keys) && l.near.has(l.keys[k]) {
		l.slots[i] = stored
		prefetchFar(unsafe.Pointer(unsafe.SliceData(l.near.row(l.keys[k]))), c.rowBytes)
	}
}

// take copies a row if it is still there.
func (l *lookups) take(c *Cache, i int, dst []byte) {
	s, slot, h := l.sets[i], l.slots[i], l.hashes[i]
	v := s.version.Load()
	if v&1 == 0 && s.slots[slot].key.Load() == h && s.tag(slot) == tagOf(h) {
		copyRow(dst, c.row(s, slot))
		if s.version.Load() == v {
			return
		}
	}
	l.slots[i] = disturbed
}

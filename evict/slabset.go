package evict

import "unsafe"

// SlabSet decides for one set of SlabSlots slots which slot a missed row gets and thus which row it replaces, or that
// it gets none. It remembers rows that were evicted or declined. The owner holds the rows and carries out the
// decisions. The zero value is an empty set. The queue comes first and fills a cache line.
type SlabSet struct {
	queue Queue
	_     [64 - unsafe.Sizeof(Queue{})]byte
	ghost Ghost
}

// Rows gives access to the rows of a set.
type Rows interface {
	Stamps
	Empty() int          // a slot without a row, or -1
	Key(slot int) uint64 // key of the row in a slot
}

// Place decides about a missed row. It returns its slot and stamp, or false if it gets no slot.
func (t *SlabSet) Place(c Slab, key, now uint64, mode Mode, of Rows) (slot int, m Stamp, ok bool) {
	m = t.ghost.Take(c, key, now)
	if slot = of.Empty(); slot >= 0 {
		return slot, m, true
	}
	if slot, ok = c.Place(&t.queue, m, now, mode, of); !ok {
		t.ghost.Put(c, key, m, now, mode)
		return 0, 0, false
	}
	t.ghost.Put(c, of.Key(slot), of.Stamp(slot), now, mode)
	return slot, m, true
}

// Expect announces that a row with stamp m is moving here from another set.
func (t *SlabSet) Expect(c Slab, key uint64, m Stamp, now uint64, mode Mode) {
	t.ghost.Put(c, key, m, now, mode)
}

// Ask returns memory that Place reads for a row, for prefetching. Place also reads the first cache line of the set.
func (t *SlabSet) Ask(key uint64) *uint64 { return t.ghost.Ask(key) }

// Waiting returns the slots whose rows are evicted next unless they are used, the first victim last.
func (t *SlabSet) Waiting() []uint8 { return t.queue.Waiting() }

// Next returns the slot that Place would take in a full set, or false if Place would have to scan the set.
func (t *SlabSet) Next(c Slab, of Stamps) (slot int, ok bool) { return c.Next(&t.queue, of) }

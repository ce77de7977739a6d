package evict

import "unsafe"

// SlabSet decides for one set of SlabSlots slots: which slot a missed row gets, whose row leaves for it, or that the
// row is not worth the place of any. It remembers rows that left and rows that were declined. The owner has the rows
// and does what it says. The zero value is that of an empty set. It begins with a cache line for the queue.
type SlabSet struct {
	queue Queue
	_     [64 - unsafe.Sizeof(Queue{})]byte
	ghost Ghost
}

// Rows are those of a set.
type Rows interface {
	Stamps
	Empty() int          // a slot without a row, -1 when there is none
	Key(slot int) uint64 // of the row in a slot
}

// Place decides for a missed row: the slot that it gets, and its stamp. False says that it gets none.
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

// Expect tells that a row with that stamp is coming from another set.
func (t *SlabSet) Expect(c Slab, key uint64, m Stamp, now uint64, mode Mode) {
	t.ghost.Put(c, key, m, now, mode)
}

// Ask returns memory that Place looks at for a row, beside the first line of the set's own.
func (t *SlabSet) Ask(key uint64) *uint64 { return t.ghost.Ask(key) }

// Waiting returns the slots whose rows go next, the next one last, as long as they are not used.
func (t *SlabSet) Waiting() []uint8 { return t.queue.Waiting() }

// Next returns the slot that Place would take in a full set, or false when it would look at all.
func (t *SlabSet) Next(c Slab, of Stamps) (slot int, ok bool) { return c.Next(&t.queue, of) }

package residency

import "grebe/plan"

// MaxTries is the number of failed writes after which an entry is no longer written.
const MaxTries = 3

// soil lists an entry as dirty, unless it is on disk, is being written, or has failed too often.
func (l *level[V]) soil(h *Held[V]) {
	if l.dirty == nil || h.clean || h.writing || h.dirty || h.tries >= MaxTries {
		return
	}
	h.dirty = true
	l.count++
	l.dirty.add(h.slot)
}

// cleaned removes an entry from the list of dirty ones.
func (l *level[V]) cleaned(h *Held[V]) {
	if h.dirty {
		h.dirty = false
		l.count--
		l.dirty.remove(h.slot)
	}
}

// begin marks a write as under way. Until it ends the entry is not listed as dirty.
func (c *Core[V]) begin(h *Held[V]) {
	c.did(DidWrite, h, plan.Disk)
	h.writing = true
	if h.level != nil {
		h.level.cleaned(h)
	}
}

// Dirty returns the least recently used entry of a level that is not on disk, and marks its write as begun. It returns
// nil when there is none.
func (c *Core[V]) Dirty(level int) *Held[V] {
	l := c.levels[level]
	slot := l.dirty.oldest()
	if slot == l.dirty.end() {
		return nil
	}
	h := l.bySlot[slot]
	c.begin(h)
	return h
}

// DirtyCount returns the number of entries of a level that are not on disk.
func (c *Core[V]) DirtyCount(level int) int { return c.levels[level].count }

// Written reports the end of a write. An entry that was not written stays dirty, until MaxTries writes have failed.
func (c *Core[V]) Written(h *Held[V], written, failed bool) {
	h.writing, h.clean = false, written
	if failed {
		h.tries++
	}
	if !written && h.level != nil {
		h.level.soil(h)
	}
}

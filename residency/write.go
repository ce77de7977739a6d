package residency

import "grebe/plan"

// MaxTries is how many writes of an entry may fail before it is not written any more.
const MaxTries = 3

// soil lists an entry of the level as dirty, unless it is below already, on its way there, or not worth trying again.
func (l *level[V]) soil(h *Held[V]) {
	if l.dirty == nil || h.clean || h.writing || h.dirty || h.tries >= MaxTries {
		return
	}
	h.dirty = true
	l.count++
	l.dirty.add(h.slot)
}

// cleaned takes an entry of the level off the list of dirty ones.
func (l *level[V]) cleaned(h *Held[V]) {
	if h.dirty {
		h.dirty = false
		l.count--
		l.dirty.remove(h.slot)
	}
}

// begin begins a write: while it is under way the entry is not listed as dirty.
func (c *Core[V]) begin(h *Held[V]) {
	c.did(DidWrite, h, plan.Disk)
	h.writing = true
	if h.level != nil {
		h.level.cleaned(h)
	}
}

// Dirty returns the entry of a level that is to be written below next, the least recently used one, and begins its
// write; nil when all are there.
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

// DirtyCount returns how many entries of a level are to be written below.
func (c *Core[V]) DirtyCount(level int) int { return c.levels[level].count }

// Written tells how the write of an entry ended. What was not written is tried later, what failed a few times more.
func (c *Core[V]) Written(h *Held[V], written, failed bool) {
	h.writing, h.clean = false, written
	if failed {
		h.tries++
	}
	if !written && h.level != nil {
		h.level.soil(h)
	}
}

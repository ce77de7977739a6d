package residency

import (
	"fmt"
	"maps"
)

// Check verifies the books and returns the first error. It calls each with every entry of every level. It is slow and
// meant for tests.
func (c *Core[V]) Check(each func(*Held[V]) error) error {
	for h := range c.held.all() {
		switch {
		case c.held.get(&h.Key) != h || h.Run:
			return fmt.Errorf("residency: an entry is under another key than its own")
		case h.level != nil && h.level.bySlot[h.slot] != h:
			return fmt.Errorf("residency: slot %d holds another entry than the one that has it", h.slot)
		}
	}
	for _, l := range c.levels {
		if err := l.check(c, each); err != nil {
			return err
		}
	}
	return c.checkOwned()
}

// checkOwned recounts the keys of each owner.
func (c *Core[V]) checkOwned() error {
	owned := map[uint32]int{}
	for h := range c.held.all() {
		owned[h.Owner]++
	}
	for key, e := range c.below {
		switch h := c.held.get(&key); {
		case h == nil:
			owned[e.Owner]++
		case h.Owner != e.Owner:
			return fmt.Errorf("residency: an entry has owner %d in memory and %d on disk", h.Owner, e.Owner)
		}
	}
	if !maps.Equal(owned, c.owned) {
		return fmt.Errorf("residency: the owners' keys are %v, recorded are %v", owned, c.owned)
	}
	return nil
}

func (l *level[V]) check(c *Core[V], each func(*Held[V]) error) error {
	held, dirty := 0, 0
	var counts [kinds]Counts
	for slot, h := range l.bySlot[:l.most] {
		if h == nil {
			continue
		}
		if held++; h.level != l || int(h.slot) != slot || !h.Run && c.held.get(&h.Key) != h {
			return fmt.Errorf("residency: slot %d of level %d holds an entry that does not know it", slot, l.index)
		}
		if h.dirty {
			dirty++
		}
		counts[h.Kind].Entries++
		counts[h.Kind].Bytes += h.Bytes
		if err := each(h); err != nil {
			return err
		}
	}
	for k := range counts {
		if is, books := &counts[k], &l.counts[k]; is.Entries != books.Entries || is.Bytes != books.Bytes {
			return fmt.Errorf("residency: counted %d entries of %d bytes, recorded are %d of %d", is.Entries, is.Bytes,
				books.Entries, books.Bytes)
		}
	}
	if held+len(l.free) != len(l.bySlot) {
		return fmt.Errorf("residency: %d slots held and %d free, of %d", held, len(l.free), len(l.bySlot))
	}
	listed := 0
	for slot := l.dirty.oldest(); slot != l.dirty.end(); slot = l.dirty[slot].newer {
		if h := l.bySlot[slot]; h == nil || !h.dirty || h.clean || listed >= l.count {
			return fmt.Errorf("residency: slot %d is among the dirty ones, but holds nothing that is dirty", slot)
		}
		listed++
	}
	if listed != l.count || dirty != l.count {
		return fmt.Errorf("residency: %d dirty entries are listed and %d marked, recorded are %d", listed, dirty, l.count)
	}
	return nil
}

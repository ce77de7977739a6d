//go:build invariants

package kv

import "fmt"

// check goes over the books after every change. Called with mu held.
func (s *Store) check() {
	onBooks := 0
	for _, l := range s.levels {
		var count [kinds]Stats
		held := 0
		for slot, p := range l.bySlot {
			if p == nil {
				continue
			}
			held++
			if s.index[p.key] != p || p.level != l || int(p.slot) != slot {
				panic(fmt.Sprintf("kv: slot %d holds an entry that is not where it should be", slot))
			}
			count[p.kind].Entries++
			count[p.kind].Bytes += p.entry.bytes
			for _, c := range p.entry.chunks {
				if c.level != l || c.refs.Load() < 1 {
					panic("kv: an entry has a chunk of another level, or one that was freed")
				}
			}
			if p.entry.refs.Load() < 1 {
				panic("kv: a published entry has no reference")
			}
		}
		for k := range count {
			if count[k].Entries != l.stats[k].Entries || count[k].Bytes != l.stats[k].Bytes {
				panic(fmt.Sprintf("kv: counted %+v, the books say %+v", count[k], l.stats[k]))
			}
		}
		recent := 0
		for slot := l.recency.oldest(); slot != l.recency.end(); slot = l.recency.newer[slot] {
			if recent++; l.bySlot[slot] == nil || recent > held {
				panic(fmt.Sprintf("kv: slot %d is among the recent ones, but holds nothing", slot))
			}
		}
		if held+len(l.free) != len(l.bySlot) || recent != held {
			panic(fmt.Sprintf("kv: %d slots held, %d free, %d recent, of %d", held, len(l.free), recent, len(l.bySlot)))
		}
		onBooks += held
	}
	moving := 0
	for _, p := range s.index {
		if p.level == nil {
			moving++
		}
	}
	if onBooks+moving != len(s.index) {
		panic(fmt.Sprintf("kv: %d entries in levels, %d being moved, %d in the index", onBooks, moving, len(s.index)))
	}
}

//go:build invariants

package kv

import "fmt"

// check goes over the books after every change. Called with mu held.
func (s *Store) check() {
	held := map[*level]int{}
	count := map[*level]*[kinds]Stats{}
	for _, l := range s.levels {
		count[l] = new([kinds]Stats)
	}
	for key, p := range s.index {
		if p.entry.refs.Load() < 1 || p.key != key {
			panic("kv: a published entry has no reference, or another key")
		}
		l := p.level
		if l == nil {
			continue // being moved
		}
		if l.bySlot[p.slot] != p {
			panic(fmt.Sprintf("kv: slot %d holds another entry than the one that has it", p.slot))
		}
		for _, c := range p.entry.chunks {
			if c.level != l || c.refs.Load() < 1 {
				panic("kv: an entry has a chunk of another level, or one that was freed")
			}
		}
		held[l]++
		count[l][p.kind].Entries++
		count[l][p.kind].Bytes += p.entry.bytes
	}
	for _, l := range s.levels {
		for k := range kinds {
			if is, books := count[l][k], l.stats[k]; is.Entries != books.Entries || is.Bytes != books.Bytes {
				panic(fmt.Sprintf("kv: counted %+v, the books say %+v", is, books))
			}
		}
		recent := 0
		for slot := l.recency.oldest(); slot != l.recency.end(); slot = l.recency.newer[slot] {
			if recent++; l.bySlot[slot] == nil || recent > held[l] {
				panic(fmt.Sprintf("kv: slot %d is among the recent ones, but holds nothing", slot))
			}
		}
		if held[l]+len(l.free) != len(l.bySlot) || recent != held[l] {
			panic(fmt.Sprintf("kv: %d slots held, %d free, %d recent, of %d", held[l], len(l.free), recent, len(l.bySlot)))
		}
	}
}

//go:build invariants

package kv

import (
	"fmt"

	"grebe/evict"
)

// reuseViews says whether released views are used again: here not, so that one released too often is found.
const reuseViews = false

// checks counts changes that were not checked yet.
type checks struct{ unchecked int }

// checkedAlways is how many entries a store may have to be checked after every change.
const checkedAlways = 1024

// check goes over the books after a change. Called with mu held. It looks at every entry, so a store of more than checkedAlways is
// checked after every 32nd part of its entries has changed: a fault in the books stays there, and is found some changes later.
func (s *Store) check() {
	n := len(s.index)
	if s.checks.unchecked++; n > checkedAlways && s.checks.unchecked < n/32 {
		return
	}
	s.checks.unchecked = 0
	s.checkAll()
}

func (s *Store) checkAll() {
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
	s.checkKnown(func(p *published) {
		held[s.top]++
		count[s.top][p.kind].Entries++
		count[s.top][p.kind].Bytes += p.entry.bytes
	})
	for _, l := range s.levels {
		for k := range kinds {
			if is, books := count[l][k], l.stats[k]; is.Entries != books.Entries || is.Bytes != books.Bytes {
				panic(fmt.Sprintf("kv: counted %+v, the books say %+v", is, books))
			}
		}
		recent := 0
		for slot := l.recency.oldest(); slot != l.recency.end(); slot = l.recency.after(slot) {
			if recent++; l.bySlot[slot] == nil || recent > held[l] {
				panic(fmt.Sprintf("kv: slot %d is among the recent ones, but holds nothing", slot))
			}
		}
		dirty := 0
		for slot := l.dirty.oldest(); slot != l.dirty.end(); slot = l.dirty.after(slot) {
			if dirty++; l.bySlot[slot] == nil || !l.bySlot[slot].dirty || l.bySlot[slot].clean || dirty > l.unclean {
				panic(fmt.Sprintf("kv: slot %d is among the dirty ones, but holds nothing that is dirty", slot))
			}
		}
		if dirty != l.unclean {
			panic(fmt.Sprintf("kv: %d dirty entries are listed, the books say %d", dirty, l.unclean))
		}
		if held[l]+len(l.free) != len(l.bySlot) || recent != held[l] {
			panic(fmt.Sprintf("kv: %d slots held, %d free, %d recent, of %d", held[l], len(l.free), recent, len(l.bySlot)))
		}
	}
}

// checkKnown goes over the known prefixes and calls f with each.
func (s *Store) checkKnown(f func(p *published)) {
	if err := s.known.Check(); err != nil {
		panic(err)
	}
	s.known.All(func(n *node) {
		p := n.Value
		switch chunks := (len(n.Tokens()) + ChainTokens - 1) / ChainTokens; {
		case p.node != n || p.entry.len != len(n.Tokens()) || len(p.entry.chunks) != chunks:
			panic(fmt.Sprintf("kv: a known run of %d tokens has %d chunks for %d", len(n.Tokens()), len(p.entry.chunks), p.entry.len))
		case p.level != s.top || s.top.bySlot[p.slot] != p || p.entry.refs.Load() != 1:
			panic("kv: a known run is not on the books, or is retained as a whole")
		}
		for _, c := range p.entry.chunks {
			if c.level != s.top || c.refs.Load() < 1 || c.tokens != ChainTokens {
				panic("kv: a known run has a chunk of another level or length, or one that was freed")
			}
		}
		f(p)
	})
}

// after returns the slot that was used next; end when there is none.
func (r recency) after(s evict.Slot) evict.Slot { return r[s].newer }

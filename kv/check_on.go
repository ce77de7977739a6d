//go:build invariants

package kv

import (
	"errors"
	"fmt"
)

// reuseViews says whether released views are used again: here not, so that one released too often is found.
const reuseViews = false

// checks counts changes that were not checked yet.
type checks struct{ unchecked int }

// checkedAlways is how many entries a store may have to be checked after every change.
const checkedAlways = 1024

// run goes over the books after a change. Called with mu held. It looks at every entry, so a store of more than checkedAlways is
// checked after every 32nd part of its entries has changed: a fault in the books stays there, and is found some changes later.
func (c *checks) run(s *Store) {
	n := s.books.Len()
	if c.unchecked++; n > checkedAlways && c.unchecked < n/32 {
		return
	}
	c.unchecked = 0
	s.checkAll()
}

func (s *Store) checkAll() {
	s.books.All(func(p *published) {
		if p.Value.entry.refs.Load() < 1 {
			panic("kv: a published entry has no reference")
		}
	})
	runs := 0
	if err := s.books.Check(func(p *published) error {
		if p.Run {
			runs++
		}
		for _, c := range p.Value.entry.chunks {
			if c.level.index != p.Level() || c.refs.Load() < 1 {
				return errors.New("kv: an entry has a chunk of another level, or one that was freed")
			}
		}
		return nil
	}); err != nil {
		panic(err)
	}
	s.known.All(func(*node) { runs-- })
	if runs != 0 {
		panic(fmt.Sprintf("kv: %d runs more on the books than known", runs))
	}
	s.checkKnown()
}

// checkKnown goes over the known prefixes.
func (s *Store) checkKnown() {
	if err := s.known.Check(); err != nil {
		panic(err)
	}
	s.known.All(func(n *node) {
		p := n.Value
		e := p.Value.entry
		switch chunks := (len(n.Tokens()) + ChainTokens - 1) / ChainTokens; {
		case p.Value.node != n || e.len != len(n.Tokens()) || len(e.chunks) != chunks:
			panic(fmt.Sprintf("kv: a known run of %d tokens has %d chunks for %d", len(n.Tokens()), len(e.chunks), e.len))
		case p.Level() != s.top.index || e.refs.Load() != 1:
			panic("kv: a known run is not on the books, or is retained as a whole")
		}
		for _, c := range e.chunks {
			if c.level != s.top || c.refs.Load() < 1 || c.tokens != ChainTokens {
				panic("kv: a known run has a chunk of another level or length, or one that was freed")
			}
		}
	})
}

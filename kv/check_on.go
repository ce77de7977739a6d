//go:build invariants

package kv

import (
	"errors"
	"fmt"
)

// reuseViews is false here, so that a view that is released too often is found.
const reuseViews = false

// checks counts the changes since the last check.
type checks struct{ unchecked int }

// checkedAlways is the most entries of a store that is checked after every change.
const checkedAlways = 1024

// run verifies the books after a change. It is called with mu held. It visits every entry, so a store with more than
// checkedAlways entries is checked only when 1/32 of them have changed. An error in the books stays there until then.
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

// checkKnown verifies the known prefixes.
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

package beam

import (
	"math/bits"
	"slices"
)

// Set is a set of an index's items, for a filter: built once per filter or per request, read by many.
// It takes a bit per item, in the order of the paths, so that the items below a node are neighbours.
type Set struct {
	ix    *Index
	words []uint64
	some  []uint64 // which words are not zero
}

// NewSet returns the empty set of items of an index.
func NewSet(ix *Index) *Set {
	n := wordsFor(uint32(ix.Len()))
	return &Set{ix: ix, words: make([]uint64, n), some: make([]uint64, wordsFor(uint32(n)))}
}

// Add puts an item into the set.
func (s *Set) Add(item uint32) { s.set(s.ix.place[item]) }

// set adds the item at a position.
func (s *Set) set(p uint32) {
	s.words[p/64] |= 1 << (p % 64)
	s.some[p/4096] |= 1 << (p / 64 % 64)
}

func (s *Set) setAll(positions []uint32) {
	for _, p := range positions {
		s.set(p)
	}
}

func (s *Set) unsetAll(positions []uint32) {
	for _, p := range positions {
		if s.words[p/64] &^= 1 << (p % 64); s.words[p/64] == 0 {
			s.some[p/4096] &^= 1 << (p / 64 % 64)
		}
	}
}

// Has reports whether an item is in the set.
func (s *Set) Has(item uint32) bool { return s.at(s.ix.place[item]) }

// at reports whether the item at a position is in the set.
func (s *Set) at(p uint32) bool { return s.words[p/64]>>(p%64)&1 != 0 }

// Clear empties the set.
func (s *Set) Clear() {
	clear(s.words)
	clear(s.some)
}

// Union adds what another set of the same index holds.
func (s *Set) Union(o *Set) {
	for i, w := range o.words {
		s.words[i] |= w
	}
	for i, w := range o.some {
		s.some[i] |= w
	}
}

// Intersect keeps what another set of the same index holds too.
func (s *Set) Intersect(o *Set) {
	clear(s.some)
	for i, w := range o.words {
		if s.words[i] &= w; s.words[i] != 0 {
			s.some[i/64] |= 1 << (i % 64)
		}
	}
}

// Subtract removes what another set of the same index holds.
func (s *Set) Subtract(o *Set) {
	clear(s.some)
	for i, w := range o.words {
		if s.words[i] &^= w; s.words[i] != 0 {
			s.some[i/64] |= 1 << (i % 64)
		}
	}
}

// subtracted makes the set that of some words less others.
func (s *Set) subtracted(words, others []uint64) {
	for i := range s.some {
		words := words[64*i : min(64*i+64, len(words))]
		out, others, some := s.words[64*i:][:len(words)], others[64*i:][:len(words)], uint64(0)
		for j, w := range words {
			w &^= others[j]
			out[j] = w
			some = some>>1 | (w|-w)&(1<<63) // the top bit of w|-w is set unless w is 0
		}
		s.some[i] = some >> (64 - len(words))
	}
}

// Fill puts all items of the index into the set.
func (s *Set) Fill() {
	n := s.ix.Len()
	for i := range s.words {
		s.words[i] = ^uint64(0)
	}
	if n%64 != 0 {
		s.words[len(s.words)-1] = 1<<(n%64) - 1
	}
	for i := range s.some {
		s.some[i] = ^uint64(0)
	}
	if n := len(s.words); n%64 != 0 {
		s.some[len(s.some)-1] = 1<<(n%64) - 1
	}
}

// Clone returns a copy of the set.
func (s *Set) Clone() *Set {
	return &Set{ix: s.ix, words: slices.Clone(s.words), some: slices.Clone(s.some)}
}

// Len returns the number of items in the set.
func (s *Set) Len() int {
	n := 0
	for _, w := range s.words {
		n += bits.OnesCount64(w)
	}
	return n
}

// next returns the first position in the set from p on and before to.
func (s *Set) next(p, to uint32) (uint32, bool) {
	if p >= to {
		return 0, false
	}
	w := p / 64
	if x := s.words[w] >> (p % 64); x != 0 {
		p += uint32(bits.TrailingZeros64(x))
		return p, p < to
	}
	w++
	for i := w / 64; int(i) < len(s.some) && i*4096 < to; i++ {
		x := s.some[i]
		if i == w/64 {
			x &= ^uint64(0) << (w % 64)
		}
		if x != 0 {
			w = i*64 + uint32(bits.TrailingZeros64(x))
			p = w*64 + uint32(bits.TrailingZeros64(s.words[w]))
			return p, p < to
		}
	}
	return 0, false
}

package beam

import (
	"cmp"
	"slices"
)

// A free search lets any code follow any other, as a search without a catalog does. It exists to measure
// what the constraint costs and what it prevents: its paths are looked up in the index at the end, and
// those that no item has are dropped and counted. Nodes are numbered by row and code, so the order of
// beams is the same.

// freeRow is row i of a free round.
func (s *Search) freeRow(i int, b candidate, logits []float32) selectorRow {
	size := s.ix.Size(s.level)
	return selectorRow{logits: logits, n: size, first: uint32(i * size), score: b.score, row: b.row}
}

// layFree makes the chosen continuations of a free round the new beams.
func (s *Search) layFree(chosen []candidate) {
	size, depth := s.ix.Size(s.level), s.ix.Depth()
	s.beams, s.parents, s.codes = s.beams[:0], s.parents[:0], s.codes[:0]
	s.taken, s.before = s.before[:0], s.taken
	for i, c := range chosen {
		code := int32(c.node) % int32(size)
		path := s.before[:0]
		if s.level > 0 {
			path = s.before[int(c.row)*depth:][:s.level]
		}
		s.taken = append(append(s.taken, path...), code)
		s.taken = slices.Grow(s.taken, depth)[:(i+1)*depth]
		s.parents, s.codes = append(s.parents, c.row), append(s.codes, code)
		s.beams = append(s.beams, candidate{score: c.score, node: uint32(i), row: int32(i)})
	}
	s.level++
	if s.level == depth {
		s.drop()
	}
}

// drop keeps the beams of a free search whose paths are in the index, by their leaves.
func (s *Search) drop() {
	depth := s.ix.Depth()
	s.reached = len(s.beams)
	kept := s.beams[:0]
	for i, b := range s.beams {
		if leaf, ok := s.ix.Find(s.taken[i*depth:][:depth]); ok {
			kept = append(kept, candidate{score: b.score, node: leaf, row: -1})
		}
	}
	slices.SortFunc(kept, func(a, b candidate) int { return cmp.Compare(a.node, b.node) })
	s.beams, s.parents, s.codes = kept, s.parents[:0], s.codes[:0]
}

// Reached returns how many paths the last round of a search kept, and how many of them are in the index:
// all of them unless the search is free.
func (s *Search) Reached() (paths, valid int) {
	if !s.opts.Free {
		return len(s.beams), len(s.beams)
	}
	return s.reached, len(s.beams)
}

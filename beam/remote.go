package beam

import "errors"

// Tree returns a level of the tree as arrays of its own: the children of node n of the level before are
// the nodes starts[n] … starts[n+1]-1, with these codes. The first level continues the empty prefix.
func (ix *Index) Tree(level int) (starts, codes []uint32) {
	c := &ix.levels[level].codes
	codes = make([]uint32, c.Len())
	for i := range codes {
		codes[i] = uint32(c.At(i))
	}
	if level == 0 {
		return []uint32{0, uint32(len(codes))}, codes
	}
	below := &ix.levels[level-1].below
	starts = make([]uint32, 0, below.count()+1)
	for i := range below.n {
		if below.words[i/64]>>(i%64)&1 != 0 {
			starts = append(starts, i)
		}
	}
	return append(starts, below.n), codes
}

// Remote says how a search that was just reset runs elsewhere, over the same tree: how many beams each
// level keeps, appended to widths, and the nodes of each level that are left out, ascending; nil where
// none are. It is not ok where that does not say all: for free searches, rules, sets, and a TopK that limits.
// The lists are valid until what is eligible changes.
func (s *Search) Remote(widths []int) (all []int, dead [][]uint32, ok bool) {
	if s.opts.Free || s.opts.Rules != nil || s.level != 0 || s.Rows() != 1 || s.eligible != nil && s.eligible.set != nil {
		return widths, nil, false
	}
	if s.eligible != nil {
		dead = s.eligible.dead
	}
	for s.level = range s.ix.Depth() {
		width, topK := s.cut()
		ok = topK >= width && (ok || s.level == 0)
		widths = append(widths, width)
	}
	s.level = 0
	return widths, dead, ok
}

// Finish ends a search with the n leaves that it kept elsewhere, in the order of their nodes.
func (s *Search) Finish(n int, leaf func(i int) (node uint32, score float64)) error {
	last := -1
	s.beams, s.parents, s.codes, s.spans = s.beams[:0], s.parents[:0], s.codes[:0], s.spans[:0]
	for i := range n {
		node, score := leaf(i)
		if int(node) <= last || int(node) >= s.ix.Nodes(s.ix.Depth()-1) {
			s.beams = s.beams[:0]
			return errors.New("beam: leaves that a search cannot have found")
		}
		last = int(node)
		s.beams = append(s.beams, candidate{score: score, node: node, row: -1})
	}
	s.level = s.ix.Depth()
	return nil
}

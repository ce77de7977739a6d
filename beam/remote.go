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
	return ix.levels[level-1].below.starts(), codes
}

// Leaves returns the first item below each leaf, in the order of the leaves, and their number at the end.
func (ix *Index) Leaves() []uint32 { return ix.levels[len(ix.levels)-1].below.starts() }

// Elsewhere says how a search runs elsewhere, over the same tree.
type Elsewhere struct {
	Widths []int      // beams that each level keeps
	TopK   int        // most continuations of one beam that compete; 0: all
	Dead   [][]uint32 // nil, or the nodes of each level that are left out, ascending
	Alive  []uint64   // nil, or a bit for each item in the order of the leaves; nodes without one below are left out
}

// Remote fills r for a search that was just reset. It returns false where Elsewhere cannot say all: for free searches
// and those with rules. The lists are valid until what is eligible changes.
func (s *Search) Remote(r *Elsewhere) bool {
	if s.opts.Free || s.opts.Rules != nil || s.level != 0 || s.Rows() != 1 {
		return false
	}
	r.Widths, r.TopK, r.Dead, r.Alive = r.Widths[:0], 0, nil, nil
	if e := s.eligible; e != nil && e.set != nil {
		r.Alive = e.bits()
	} else if e != nil {
		r.Dead = e.dead
	}
	for s.level = range s.ix.Depth() {
		width, topK := s.cut()
		r.Widths = append(r.Widths, width)
		if topK < width {
			r.TopK = topK
		}
	}
	s.level = 0
	return true
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

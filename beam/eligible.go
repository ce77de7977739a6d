package beam

import "slices"

// Eligible says which items a request may get: those of a set, or all, less those excluded.
//
// Without a set, what is excluded is lifted: the few nodes that lose all their items are listed by level.
// That costs x·log x for x excluded items, and log x per question whether a node is alive.
//
// With a set nothing is lifted. The items below a node are consecutive positions, so whether it is alive
// is one question about a range, which ends at the first position that is in the set and not excluded.
// Where the set's items below a beam are few against its continuations, the search goes through those
// items instead of the continuations.
type Eligible struct {
	ix     *Index
	set    *Set       // nil: all
	out    []uint32   // excluded positions
	dead   [][]uint32 // without a set: nodes of each level with nothing eligible below
	sealed bool
	left   []uint64 // memory of bits
}

// Reset makes all items of an index eligible, or those of a set of it.
func (e *Eligible) Reset(ix *Index, set *Set) {
	e.ix, e.set, e.out, e.sealed = ix, set, e.out[:0], false
}

// Exclude removes an item.
func (e *Eligible) Exclude(item uint32) {
	e.out = append(e.out, e.ix.place[item])
	e.sealed = false
}

// bits returns the set less what is excluded, which may be the set's own words: they MUST NOT be changed.
func (e *Eligible) bits() []uint64 {
	if len(e.out) == 0 {
		return e.set.words
	}
	e.left = append(e.left[:0], e.set.words...)
	for _, p := range e.out {
		e.left[p/64] &^= 1 << (p % 64)
	}
	return e.left
}

// has reports whether the item at a position is eligible.
func (e *Eligible) has(position uint32) bool {
	_, ok := e.next(position, position+1)
	return ok
}

// alive reports whether an eligible item lies below a node.
func (e *Eligible) alive(level int, node uint32) bool {
	if e.set == nil {
		_, dead := slices.BinarySearch(e.dead[level], node)
		return !dead
	}
	from, to := e.ix.positions(level, node)
	_, ok := e.next(from, to)
	return ok
}

// next returns the first eligible position from p on and before to.
func (e *Eligible) next(p, to uint32) (uint32, bool) {
	if e.set == nil && (len(e.out) == 0 || p > e.out[len(e.out)-1]) {
		return p, p < to
	}
	i, _ := slices.BinarySearch(e.out, p)
	for p < to {
		if e.set != nil {
			q, ok := e.set.next(p, to)
			if !ok {
				return 0, false
			}
			p = q
		}
		for i < len(e.out) && e.out[i] < p {
			i++
		}
		if i == len(e.out) || e.out[i] != p {
			return p, true
		}
		p++
	}
	return 0, false
}

// few reports whether at most limit positions of a range are in the set.
func (e *Eligible) few(from, to uint32, limit int) bool {
	if e.set == nil {
		return false
	}
	for range limit + 1 {
		p, ok := e.set.next(from, to)
		if !ok {
			return true
		}
		from = p + 1
	}
	return false
}

// leaves counts the leaves with an eligible item, up to limit+1.
func (e *Eligible) leaves(limit int) int {
	last := &e.ix.levels[len(e.ix.levels)-1].below
	if e.set == nil {
		return min(int(last.count())-len(e.dead[len(e.dead)-1]), limit+1)
	}
	n := 0
	for p, ok := e.next(0, last.n); ok && n <= limit; n++ {
		_, end := last.bounds(last.of(p))
		p, ok = e.next(end, last.n)
	}
	return n
}

// seal ends the exclusions.
func (e *Eligible) seal() {
	if e.sealed {
		return
	}
	e.sealed = true
	slices.Sort(e.out)
	e.out = slices.Compact(e.out)
	if e.set == nil {
		e.lift()
	}
}

// lift lists the dead nodes: a node is dead if all below it are, which stand together in their list.
func (e *Eligible) lift() {
	depth := len(e.ix.levels)
	e.dead = slices.Grow(e.dead[:0], depth)[:depth]
	gone := e.out
	for l := depth - 1; l >= 0; l-- {
		below := &e.ix.levels[l].below
		nodes := e.dead[l][:0]
		for i := 0; i < len(gone); {
			node := below.of(gone[i])
			from, to := below.bounds(node)
			n, _ := slices.BinarySearch(gone[i:], to)
			if n == int(to-from) {
				nodes = append(nodes, node)
			}
			i += n
		}
		e.dead[l], gone = nodes, nodes
	}
}

package beam

import "slices"

// Eligible says which items a request may get: those of a set, or all, less those excluded.
//
// Nothing is lifted to inner nodes beforehand. The items below a node are consecutive positions, so
// whether a node is alive is one question about a range: is there a position that is in the set and not
// excluded? Excluding x items costs x·log x once and log x per question; a set costs what it costs to
// make it, and a question ends at the first hit. Where the eligible items below a beam are few
// against its continuations, the search goes through those items instead of the continuations.
type Eligible struct {
	ix     *Index
	set    *Set     // nil: all
	out    []uint32 // excluded positions
	sorted bool
}

// Reset makes all items of an index eligible, or those of a set of it.
func (e *Eligible) Reset(ix *Index, set *Set) {
	e.ix, e.set, e.out, e.sorted = ix, set, e.out[:0], true
}

// Exclude removes an item.
func (e *Eligible) Exclude(item uint32) {
	e.out = append(e.out, e.ix.place[item])
	e.sorted = false
}

// has reports whether the item at a position is eligible.
func (e *Eligible) has(position uint32) bool {
	_, ok := e.next(position, position+1)
	return ok
}

// alive reports whether an eligible item lies below a node.
func (e *Eligible) alive(level int, node uint32) bool {
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
	if e.set == nil && int(last.count())-len(e.out) > limit {
		return limit + 1
	}
	n := 0
	for p, ok := e.next(0, last.n); ok && n <= limit; n++ {
		_, end := last.bounds(last.of(p))
		p, ok = e.next(end, last.n)
	}
	return n
}

func (e *Eligible) seal() {
	if !e.sorted {
		slices.Sort(e.out)
		e.out = slices.Compact(e.out)
		e.sorted = true
	}
}

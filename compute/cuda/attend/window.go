package attend

import (
	"slices"

	"grebe/compute"
)

// bounded reports whether rows of HSTU do not see all that segments say: there is a window, or there are
// context rows, which see all of their segment.
func (p *plan) bounded() bool {
	return p.pointwise != nil && (p.pointwise.Window > 0 || p.pointwise.Context > 0)
}

// cutBounded adds the rows of segment i to the last tile, if it may and they fit, and to new ones. Rows of a
// tile see the same of other segments; of their own, each has its first and last slot. It reports whether the
// last tile may be joined.
func (p *plan) cutBounded(i int, tokens int, joinable bool) bool {
	g := &p.batch.Segments[i]
	for t := g.Cached; t < g.Len; {
		p.mine = append(p.mine[:0], p.boundedView(g, t)...)
		n := 1
		for n < tokens && t+n < g.Len && slices.Equal(p.mine, p.boundedView(g, t+n)) {
			n++
		}
		p.addBounded(i, t, n, tokens, joinable)
		joinable = g.Len < short
		t += n
	}
	return joinable
}

// addBounded adds rows t … t+n−1 of segment i, which see p.mine besides their own.
func (p *plan) addBounded(i, t, n, tokens int, joinable bool) {
	g := &p.batch.Segments[i]
	added := tile{row: int32(g.First + t - g.Cached), tokens: int32(n)}
	for k := range n {
		low, high := p.ownRange(i, t+k)
		p.low, p.high = append(p.low, low), append(p.high, high)
		if k == 0 {
			added.window, added.maxLow, added.minSlot = span{low, high + 1}, low, high
		}
		added.window = span{min(added.window.start, low), max(added.window.end, high+1)}
		added.maxLow, added.minSlot = max(added.maxLow, low), min(added.minSlot, high)
	}
	if joinable && p.joinBounded(&added, tokens) {
		return
	}
	added.spans = p.addSpans(p.mine)
	p.addTile(added)
}

// joinBounded adds a tile's rows to the last one, if that sees the same and it pays.
func (p *plan) joinBounded(t *tile, tokens int) bool {
	last := &p.tiles[len(p.tiles)-1]
	if int(last.tokens+t.tokens) > tokens || !slices.Equal(p.spans[last.spans.start:last.spans.end], p.mine) {
		return false
	}
	alone := steps(t.window)
	for _, v := range p.mine {
		alone += steps(v)
	}
	window := span{min(last.window.start, t.window.start), max(last.window.end, t.window.end)}
	more := steps(window) - steps(last.window)
	if more > alone {
		return false
	}
	last.tokens += t.tokens
	last.steps += more
	last.window = window
	last.maxLow, last.minSlot = max(last.maxLow, t.maxLow), min(last.minSlot, t.minSlot)
	return true
}

// firstSeen returns the first position that a row at a position sees for the window, if it hides any.
func (p *plan) firstSeen(position int) (int, bool) {
	w := p.pointwise
	if position < w.Context || w.Window == 0 {
		return 0, false
	}
	place := w.Place(position) - w.Window
	if place <= 0 {
		return 0, false
	}
	return place + position - w.Place(position), true
}

// ownRange returns the first and the last slot of its own segment i that the row of token t sees.
func (p *plan) ownRange(i, t int) (low, high int32) {
	g, first := &p.batch.Segments[i], p.first[i]
	low, high = first, first+int32(t)
	if from, ok := p.firstSeen(g.Start + t); ok {
		low += int32(max(0, from-g.Start))
	}
	if g.Start+t < p.pointwise.Context {
		high = first + int32(g.Len) - 1
	}
	return low, high
}

// boundedView is view for the row of token t of a segment.
func (p *plan) boundedView(g *compute.Segment, t int) []span {
	from, hidden := p.firstSeen(g.Start + t)
	p.views = p.views[:0]
	for _, j := range g.Sees {
		s := &p.batch.Segments[j]
		v := span{p.first[j], p.first[j] + int32(s.Len)}
		if hidden {
			v.start += int32(min(s.Len, max(0, from-s.Start)))
		}
		if v.start < v.end {
			p.views = append(p.views, v)
		}
	}
	return merge(p.views)
}

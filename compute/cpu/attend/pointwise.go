package attend

import (
	"unsafe"

	"grebe/compute"
)

// pointwiseTile is what a tile of pointwise attention knows besides.
type pointwiseTile struct {
	positions [lanes]int32 // of the lanes' tokens
	from      int          // keys of the run before this one are seen by no lane; a multiple of blockKeys
	closed    int          // as in walk
}

var pointwiseParts = float32Parts{productPlain, pointwisePlain, rescalePlain}

// pointwisePlain turns scores into SiLU(scale·score), and 0 where a lane does not see the key.
func pointwisePlain(s unsafe.Pointer, st *state, keys, cols, first, masked int, scale float32) {
	rows := rowsOf(s, keys)
	for i := range rows {
		for l := range cols * lanes / 2 {
			if key := int32(first + i); masked != 0 && (key > st.limits[l] || key < st.lows[l]) {
				rows[i][l] = 0
				continue
			}
			z := max(float32(rows[i][l]*scale), lowestSiLU)
			rows[i][l] = z / (1 + exp2(float32(z*-log2E)))
		}
	}
}

const (
	log2E      = 1.44269504088896340736
	lowestSiLU = -83 // nothing is left of SiLU there, and the power of two is a number
)

// startPointwise prepares lanes of a tile, from lane on, for the queries first … end-1 of segment g: outputs
// are divided by the sums, so these are the inverse of the scale.
func (a *Attention) startPointwise(t *tile, g *compute.Segment, lane, first, end int) int {
	inverse := 1 / a.shape.Pointwise.ScaleOf(g)
	t.walk.state.changed = 0
	for l := lane; l < lanes; l++ {
		token := min(first+l-lane, end-1) / a.group
		t.walk.state.sums[l], t.pointwise.positions[l] = inverse, int32(g.Start+token)
	}
	return lane + end - first
}

// startSiblings is startPointwise for the segments of a unit.
func (a *Attention) startSiblings(t *tile, u *unit) {
	lane := 0
	for i := u.segment; i < u.segment+u.siblings; i++ {
		g := &a.plan.batch.Segments[i]
		lane = a.startPointwise(t, g, lane, g.Cached*a.group, g.Len*a.group)
	}
}

// narrow opens a tile's own run to context rows, and hides what lies before the window of a run, which is one
// segment then.
func (a *Attention) narrow(t *tile, r *run, own bool) {
	p, st := a.shape.Pointwise, t.walk.state
	g := &a.plan.batch.Segments[a.plan.members[r.first]]
	if own && g.Start < p.Context {
		a.openContext(t, g)
	}
	t.pointwise.from, t.pointwise.closed = 0, 0
	if p.Window == 0 {
		clear(st.lows[:])
		return
	}
	lowest := r.keys
	for l := range lanes {
		low := firstSeen(p, int(t.pointwise.positions[l]), g.Start)
		st.lows[l] = int32(low)
		lowest, t.pointwise.closed = min(lowest, low), max(t.pointwise.closed, low)
	}
	t.pointwise.from = lowest / blockKeys * blockKeys
	if lowest >= r.keys {
		t.keys = 0
	}
}

// openContext lets context rows see all of their segment.
func (a *Attention) openContext(t *tile, g *compute.Segment) {
	for l, position := range t.pointwise.positions {
		if int(position) < a.shape.Pointwise.Context {
			t.walk.state.limits[l], t.keys = int32(g.Len-1), g.Len
		}
	}
}

// narrowSibling is narrow for the lanes first … end-1 of a segment among siblings, whose limits say that they
// see its tokens up to their own.
func (a *Attention) narrowSibling(t *tile, g *compute.Segment, first, end int) {
	p, st := a.shape.Pointwise, t.walk.state
	t.pointwise.from, t.pointwise.closed = 0, 0
	for l := first; l < end; l++ {
		position := int(t.pointwise.positions[l])
		st.lows[l] = 0
		if p.Window > 0 {
			st.lows[l] = int32(firstSeen(p, position, g.Start))
		}
		if position < p.Context {
			st.limits[l] = int32(g.Len - 1)
		}
	}
}

// firstSeen returns the first token of a segment that starts at start which the window leaves to a row at
// position; it may lie beyond the segment's end.
func firstSeen(p *compute.Pointwise, position, start int) int {
	least := p.Place(position) - p.Window
	if position < p.Context || least <= 0 {
		return 0
	}
	return max(0, least+max(p.Context, 1)-1-start)
}

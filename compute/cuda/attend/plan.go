package attend

import (
	"slices"

	"grebe/compute"
)

const (
	tileRows  = 128 // (token, query head of one KV head) pairs of a tile
	stepKeys  = 128 // keys of a step of the softmax
	short     = 64  // segments of fewer tokens share tiles
	pieceSize = 64  // most tokens that are copied as one
)

// span is a range of slots.
type span struct{ start, end int32 }

// piece are cached tokens that lie in one chunk and are copied to the scratch.
type piece struct {
	home         uint64 // of the chunk, where addr is elsewhere
	addr         uint64
	room         int32 // tokens the chunk has room for
	token        int32 // first token of the piece in the chunk
	tokens, slot int32
}

// tile is what one block of queries sees: consecutive rows of one segment, or of several that see the
// same segments besides themselves.
type tile struct {
	row, tokens int32
	spans       span  // in plan.spans: ranges that all of its rows see in full
	window      span  // slots of which every row sees its own part, from its low to itself
	maxLow      int32 // in the window from here on, every row has begun,
	minSlot     int32 // and up to here, no row has ended
	steps       int32
}

// plan is the work of a batch. Its slices are reused from batch to batch.
type plan struct {
	batch     *compute.Batch
	left      []int32            // rows of the batch that are computed; nil: all
	held      Held               // what need not be gathered of the others
	next      int                // of left: not placed yet
	pointwise *compute.Pointwise // of the shape
	slots     int32              // used

	first  []int32 // per segment the slot of its first token
	rows   []span  // per segment its rows, counted without those that are not computed
	slot   []int32 // per row
	low    []int32 // per row its first slot in the window
	high   []int32 // per row its last one there, where that is not always its own
	mine   []span  // what the rows see that are being cut
	views  []span  // of all tiles: ranges in p.spans are equal where views are
	spans  []span
	tiles  []tile
	pieces []piece
	lost   []span                      // of a segment's tokens: not computed, and not held
	scales []float32                   // per row what the result is multiplied by, for HSTU only
	locate func(*compute.Chunk) uint64 // as Config.Locate
	cut
}

// build cuts the batch into tiles of up to tokens tokens. left are the rows that are computed, ascending, nil: all.
// What others would have written to their chunks is there, or in the scratch.
func (p *plan) build(b *compute.Batch, left []int32, held Held, tokens int) {
	p.batch, p.left, p.held, p.next, p.slots = b, left, held, 0, 0
	p.first, p.rows, p.slot, p.low, p.high = p.first[:0], p.rows[:0], p.slot[:0], p.low[:0], p.high[:0]
	p.spans, p.tiles, p.pieces, p.scales = p.spans[:0], p.tiles[:0], p.pieces[:0], p.scales[:0]
	for i := range b.Segments {
		p.place(&b.Segments[i])
	}
	joinable := false // the last tile is of short segments
	for i := range b.Segments {
		g := &b.Segments[i]
		if p.rows[i].start == p.rows[i].end {
			continue
		}
		if p.bounded() {
			joinable = p.cutBounded(i, tokens, joinable)
			continue
		}
		view := p.view(g)
		if g.Len >= short {
			p.cutLong(i, view, tokens)
			joinable = false
			continue
		}
		p.cutShort(i, view, tokens, joinable)
		joinable = true
	}
}

// place gives a segment's tokens their slots and lists what is to be copied.
func (p *plan) place(g *compute.Segment) {
	p.first = append(p.first, p.slots)
	first := int32(len(p.slot))
	p.lost = p.lost[:0]
	if !p.held.Cached {
		p.lose(0, int32(g.Cached))
	}
	for t := g.Cached; t < g.Len; t++ {
		row := g.First + t - g.Cached
		if !p.computed(row) {
			if p.held.Rows == nil || !p.held.Rows[row] {
				p.lose(int32(t), int32(t)+1)
			}
			continue
		}
		p.slot = append(p.slot, p.slots+int32(t))
		if p.pointwise != nil {
			p.scales = append(p.scales, p.pointwise.ScaleOf(g))
		}
	}
	p.rows = append(p.rows, span{first, int32(len(p.slot))})
	if p.held.Rows == nil && len(p.slot)-int(first) < g.Rows() {
		p.lost = append(p.lost[:0], span{0, int32(g.Len)}) // few long pieces; those that are computed are overwritten
	}
	p.gather(g)
	p.slots += int32(g.Len)
}

// lose has tokens of a segment gathered, behind those that are so far.
func (p *plan) lose(from, to int32) {
	if n := len(p.lost); n > 0 && p.lost[n-1].end == from {
		p.lost[n-1].end = to
		return
	}
	if from < to {
		p.lost = append(p.lost, span{from, to})
	}
}

// gather lists the pieces of what a segment lost.
func (p *plan) gather(g *compute.Segment) {
	next, start := 0, int32(0) // of lost; of the chunk
	for c := 0; next < len(p.lost); c++ {
		ch := &g.Chunks[c]
		end := start + int32(ch.Tokens)
		at := uint64(0)
		for next < len(p.lost) && p.lost[next].start < end {
			if at == 0 {
				at = p.located(ch)
			}
			from, to := max(start, p.lost[next].start), min(end, p.lost[next].end)
			for t := from; t < to; t += pieceSize {
				p.pieces = append(p.pieces, piece{addr: at, home: ch.Addr, room: int32(ch.Tokens), token: t - start,
					tokens: min(pieceSize, to-t), slot: p.slots + t})
			}
			if p.lost[next].end > end {
				break
			}
			next++
		}
		start = end
	}
}

// located says where a chunk is gathered from.
func (p *plan) located(ch *compute.Chunk) uint64 {
	if p.locate == nil {
		return ch.Addr
	}
	return p.locate(ch)
}

// computed reports whether a row is; it is asked for each, in order.
func (p *plan) computed(row int) bool {
	if p.left == nil {
		return true
	}
	if p.next < len(p.left) && int(p.left[p.next]) == row {
		p.next++
		return true
	}
	return false
}

// view returns the slots that a segment sees besides its own, as few ranges in order. It is valid
// until the next call.
func (p *plan) view(g *compute.Segment) []span {
	p.views = p.views[:0]
	for _, j := range g.Sees {
		if n := p.batch.Segments[j].Len; n > 0 {
			p.views = append(p.views, span{p.first[j], p.first[j] + int32(n)})
		}
	}
	return merge(p.views)
}

// merge sorts ranges, and joins those that touch.
func merge(views []span) []span {
	slices.SortFunc(views, func(a, b span) int { return int(a.start - b.start) })
	merged := views[:0]
	for _, v := range views {
		if n := len(merged); n > 0 && merged[n-1].end == v.start {
			merged[n-1].end = v.end
			continue
		}
		merged = append(merged, v)
	}
	return merged
}

// cutLong adds the tiles of segment i by itself. A range that ends where the segment begins becomes
// part of its window: a user behind its items is then as one causal sequence.
func (p *plan) cutLong(i int, view []span, tokens int) {
	low := p.first[i]
	if n := len(view); n > 0 && view[n-1].end == low {
		low, view = view[n-1].start, view[:n-1]
	}
	p.addRows(p.rows[i], low, p.addSpans(view), tokens)
	for range p.rows[i].end - p.rows[i].start {
		p.low = append(p.low, low)
	}
}

// addRows adds tiles of rows that see from slot low up to themselves, and spans.
func (p *plan) addRows(rows span, low int32, spans span, tokens int) {
	for r := rows.start; r < rows.end; r += int32(tokens) {
		n := min(int32(tokens), rows.end-r)
		p.addTile(tile{row: r, tokens: n, spans: spans, window: span{low, p.slot[r+n-1] + 1}, maxLow: low,
			minSlot: p.slot[r]})
	}
}

// cutShort adds the rows of segment i to the last tile, as far as there is room and it pays, and to
// new ones.
func (p *plan) cutShort(i int, view []span, tokens int, joinable bool) {
	rows := p.rows[i]
	for range rows.end - rows.start {
		p.low = append(p.low, p.first[i])
	}
	if joinable {
		rows.start += p.join(i, view, tokens)
	}
	if rows.start < rows.end {
		p.addRows(rows, p.first[i], p.addSpans(view), tokens)
	}
}

// join adds rows of the short segment i to the last tile and returns how many. It adds none when the
// tile sees something else, or when the keys that lie between make a tile of its own cheaper.
func (p *plan) join(i int, view []span, tokens int) int32 {
	g, rows, last := &p.batch.Segments[i], p.rows[i], &p.tiles[len(p.tiles)-1]
	n := min(int32(tokens)-last.tokens, rows.end-rows.start)
	if n <= 0 || !slices.Equal(p.spans[last.spans.start:last.spans.end], view) {
		return 0
	}
	window := span{last.window.start, p.slot[rows.start+n-1] + 1}
	alone := steps(span{p.first[i], p.first[i] + int32(g.Len)})
	for _, v := range view {
		alone += steps(v)
	}
	if more := steps(window) - steps(last.window); more > alone {
		return 0
	}
	last.tokens += n
	last.steps += steps(window) - steps(last.window)
	last.window = window
	last.maxLow = p.first[i]
	return n
}

func (p *plan) addSpans(view []span) span {
	from := int32(len(p.spans))
	p.spans = append(p.spans, view...)
	return span{from, int32(len(p.spans))}
}

func (p *plan) addTile(t tile) {
	t.steps = steps(t.window)
	for _, v := range p.spans[t.spans.start:t.spans.end] {
		t.steps += steps(v)
	}
	p.tiles = append(p.tiles, t)
}

// steps returns how many steps it takes through the keys of s.
func steps(s span) int32 { return (s.end - s.start + stepKeys - 1) / stepKeys }

package attend

import (
	"slices"
	"unsafe"

	"grebe/compute"
)

const (
	lanes     = 32  // queries of a tile
	blockKeys = 128 // keys of a step of the softmax, and of a task of packing
	packKeys  = 32  // keys packed at a time; runs are padded to a multiple
	longRun   = 64  // a segment of so many tokens is a run of its own

	unitTiles = 4       // most tiles of a unit
	spanKeys  = 1024    // keys of a run that the tiles of a unit share while they are in the cache
	cacheSize = 1 << 20 // bytes of keys and values that a unit of one tile may go through
)

// run is a sequence of keys: the tokens of one or several segments.
type run struct {
	first, last int // its segments: plan.members[first:last]
	keys        int
	offset      int // in the scratch of a KV head
}

func (r *run) padded() int { return roundUp(r.keys, packKeys) }

// piece is a part of a run that lies in one chunk.
type piece struct {
	data      unsafe.Pointer
	room      int // tokens the chunk has room for
	start, n  int // keys of the run
	transient bool
}

// block is a task of packing: up to blockKeys keys of a run.
type block struct{ run, key, piece int32 }

// unit is one tile of queries or some: 32 (token, head of the group) pairs each of a segment, from
// lane on. Or it is a tile of several small segments, one after the other, that see the same runs.
type unit struct{ segment, lane, tiles, siblings int32 }

// queries are the rows of a segment that are computed. Lanes of the segment count (token, head of the group)
// pairs from its first token on, cached or not, where all rows are computed; else from the first row kept.
type queries struct {
	row  int // of the first
	n    int
	skip int // tokens before the first
}

// plan is the work of a batch. Its slices are reused from batch to batch.
type plan struct {
	batch   *compute.Batch
	rows    int
	queries []queries // per segment
	kept    []int32   // token of each row within its segment, where some were dropped; else empty
	keys    int       // of all runs, padded
	bytes   int       // of all runs for one KV head
	heads   int       // KV heads done at a time
	keySize int       // bytes of a packed key, and of a packed value
	apart   bool      // every segment is a run of its own: what a window hides of it is its beginning

	runs    []run
	members []int32 // segments of runs
	// gathered finds the run of a list of short segments by its hash; a hash that is taken by another
	// list is followed by the next.
	gathered map[uint64]int32
	alone    []int32 // per segment its own run, or −1
	pieces   []piece
	blocks   []block
	units    []unit
	views    []int32 // runs seen by the segments, one segment after the other
	viewEnd  []int32 // per segment the end of its part of views
}

// all makes queries of all of the batch's rows.
func (p *plan) all(b *compute.Batch) {
	p.batch, p.rows = b, len(b.Tokens)
	p.queries, p.kept = p.queries[:0], p.kept[:0]
	for i := range b.Segments {
		g := &b.Segments[i]
		p.queries = append(p.queries, queries{g.First, g.Rows(), g.Cached})
	}
}

// some makes queries of some of the batch's rows, ascending.
func (p *plan) some(b *compute.Batch, rows []int32) {
	p.batch, p.rows = b, len(rows)
	p.queries, p.kept = p.queries[:0], p.kept[:0]
	for i := range b.Segments {
		g, first := &b.Segments[i], len(p.kept)
		for ; len(rows) > 0 && int(rows[0]) < g.First+g.Rows(); rows = rows[1:] {
			p.kept = append(p.kept, rows[0]-int32(g.First-g.Cached))
		}
		p.queries = append(p.queries, queries{row: first, n: len(p.kept) - first})
	}
}

// token returns the token of the segment whose query is in lane.
func (p *plan) token(segment int32, lane, group int) int {
	if len(p.kept) == 0 {
		return lane / group
	}
	return int(p.kept[p.queries[segment].row+lane/group])
}

// build cuts the batch into runs, blocks and units for the queries.
func (p *plan) build(group, keySize int) {
	b := p.batch
	p.keySize = keySize
	p.keys, p.bytes = 0, 0
	clear(p.pieces) // do not keep chunks of former batches alive
	p.runs, p.members, p.pieces, p.blocks = p.runs[:0], p.members[:0], p.pieces[:0], p.blocks[:0]
	p.units, p.views, p.viewEnd, p.alone = p.units[:0], p.views[:0], p.viewEnd[:0], p.alone[:0]
	if p.gathered == nil {
		p.gathered = map[uint64]int32{}
	}
	clear(p.gathered)
	for range b.Segments {
		p.alone = append(p.alone, -1)
	}
	for i := range b.Segments {
		if p.queries[i].n > 0 {
			p.view(int32(i))
		}
		p.viewEnd = append(p.viewEnd, int32(len(p.views)))
		if p.queries[i].n > 0 && !p.join(int32(i), group) {
			p.cutQueries(int32(i), group)
		}
	}
}

// view lists the runs that segment i sees, its own last.
func (p *plan) view(i int32) {
	from := len(p.members)
	for _, j := range p.batch.Segments[i].Sees {
		switch n := p.batch.Segments[j].Len; {
		case n == 0:
		case n >= longRun || p.apart:
			p.addGathered(from)
			p.views = append(p.views, p.single(j))
			from = len(p.members)
		default:
			p.members = append(p.members, j)
		}
	}
	p.addGathered(from)
	p.views = append(p.views, p.single(i))
}

// single returns the run of segment i alone.
func (p *plan) single(i int32) int32 {
	if p.alone[i] < 0 {
		p.members = append(p.members, i)
		p.alone[i] = p.addRun(len(p.members) - 1)
	}
	return p.alone[i]
}

// addGathered adds the run of the segments that were put behind members[from:], if any, to the view
// that is being built. Equal lists share a run.
func (p *plan) addGathered(from int) {
	list := p.members[from:]
	switch len(list) {
	case 0:
		return
	case 1:
		i := list[0]
		p.members = p.members[:from]
		p.views = append(p.views, p.single(i))
		return
	}
	hash := uint64(14695981039346656037) // FNV-1a
	for _, i := range list {
		hash = (hash ^ uint64(i)) * 1099511628211
	}
	id, known := p.gathered[hash]
	for ; known; hash, id, known = hash+1, p.gathered[hash+1], p.has(hash+1) {
		if r := &p.runs[id]; slices.Equal(p.members[r.first:r.last], list) {
			p.members = p.members[:from]
			p.views = append(p.views, id)
			return
		}
	}
	p.gathered[hash] = p.addRun(from)
	p.views = append(p.views, p.gathered[hash])
}

func (p *plan) has(hash uint64) bool {
	_, ok := p.gathered[hash]
	return ok
}

// addRun adds the run of the segments members[first:] and its blocks.
func (p *plan) addRun(first int) int32 {
	r := run{first: first, last: len(p.members), offset: p.bytes}
	piece := len(p.pieces)
	for _, i := range p.members[first:] {
		g := &p.batch.Segments[i]
		left := g.Len
		for c := 0; left > 0; c++ {
			ch := &g.Chunks[c]
			n := min(left, ch.Tokens)
			p.pieces = append(p.pieces, newPiece(ch, r.keys, n))
			r.keys += n
			left -= n
		}
	}
	id := int32(len(p.runs))
	for key := 0; key < r.keys; key += blockKeys {
		for p.pieces[piece].start+p.pieces[piece].n <= key {
			piece++
		}
		p.blocks = append(p.blocks, block{id, int32(key), int32(piece)})
	}
	p.runs = append(p.runs, r)
	p.keys += r.padded()
	p.bytes += 2 * r.padded() * p.keySize
	return id
}

func newPiece(c *compute.Chunk, start, n int) piece {
	return piece{unsafe.Pointer(&c.Bytes[0]), c.Tokens, start, n, c.Transient}
}

// join adds segment i to the unit of the segments before it, if that has room and they see the same:
// items behind a user, or beams behind a prompt, then go through the shared keys together. Lanes do
// not touch each other, so no result changes.
func (p *plan) join(i int32, group int) bool {
	if len(p.units) == 0 || len(p.viewOf(i)) < 2 {
		return false
	}
	u := &p.units[len(p.units)-1]
	if u.tiles != 1 || u.segment+u.siblings != i {
		return false
	}
	used := p.queries[i].n * group
	for j := u.segment; j < i; j++ {
		used += p.queries[j].n * group
	}
	shared, mine := p.viewOf(u.segment), p.viewOf(i)
	if used > lanes || !slices.Equal(shared[:len(shared)-1], mine[:len(mine)-1]) {
		return false
	}
	u.siblings++
	return true
}

// cutQueries adds the units of segment i. Tiles are anchored at its first lane, computed or not, and the
// long ones come first so that threads end together. Tiles that go through more keys than the cache
// holds are joined, if there are many: how they are does not change results.
func (p *plan) cutQueries(i int32, group int) {
	q := &p.queries[i]
	keys := 0
	for _, r := range p.views[p.viewStart(i):] {
		keys += p.runs[r].keys
	}
	first, last := q.skip*group/lanes*lanes, ((q.skip+q.n)*group-1)/lanes*lanes
	most := 1
	if 2*keys*p.keySize > cacheSize && last-first >= 16*unitTiles*lanes {
		most = unitTiles
	}
	for last >= first {
		n := min(most, (last-first)/lanes+1)
		last -= n * lanes
		p.units = append(p.units, unit{i, int32(last + lanes), int32(n), 1})
	}
}

// viewStart returns where the part of segment i begins in views.
func (p *plan) viewStart(i int32) int32 {
	if i == 0 {
		return 0
	}
	return p.viewEnd[i-1]
}

// viewOf returns the runs that segment i sees, its own last.
func (p *plan) viewOf(i int32) []int32 { return p.views[p.viewStart(i):p.viewEnd[i]] }

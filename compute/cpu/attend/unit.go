package attend

import (
	"fmt"
	"math"
	"unsafe"

	"grebe/compute"
	"grebe/compute/internal/fp8"
	"grebe/internal/offheap"
)

// lowest is the maximum before the first key: finite, so that differences of maxima are numbers.
const lowest = -1e30

// state is what the online softmax keeps per lane. The kernels know its layout.
type state struct {
	maxes   [lanes]float32 // largest score so far, scaled, or a little less
	sums    [lanes]float32
	factors [lanes]float32 // what the last step multiplies former sums and outputs by
	limits  [lanes]int32   // last key of the run that the lane sees
	changed int64          // not 0 if a factor is not 1
	lows    [lanes]int32   // first key of the run that the lane sees; pointwise only
}

// sources are rows of K and V to pack; those behind the end of a run are zeros.
type sources struct{ k, v [packKeys]unsafe.Pointer }

// tile is 32 queries on their way through their runs.
type tile struct {
	walk       walk
	first, end int // lanes in use, counted from the segment's first token
	keys       int // keys of the run that the tile goes through
	open       int // those that all its lanes see
	pointwise  pointwiseTile
}

// worker is the private memory of a thread.
type worker struct {
	memory *offheap.Block
	tiles  [unitTiles]tile
	src    sources
	rows   [lanes]unsafe.Pointer
	zeros  unsafe.Pointer // a row of zeros
	waste  unsafe.Pointer // a row to write to
	unit   unit           // of weighing, under way
	sums   unsafe.Pointer // of weighKeys keys, by lanes of a column
	wide   []uint16       // bf16 of packKeys keys and as many values, where chunks have another format
}

func newWorker(dims, padded int) (*worker, error) {
	const scores = blockKeys * lanes * 4
	perTile := roundUp(int(unsafe.Sizeof(state{})), 64) + 2*padded*lanes*4
	wide := 2 * packKeys * dims * 2
	m, err := offheap.Alloc(unitTiles*perTile + 2*scores + 2*roundUp(4*dims, 64) + roundUp(wide, 64) + weighKeys*lanes/2*4)
	if err != nil {
		return nil, fmt.Errorf("attend: memory of a worker: %w", err)
	}
	used := 0
	take := func(n int) unsafe.Pointer {
		p := unsafe.Pointer(&m.Bytes[used])
		used += roundUp(n, 64)
		return p
	}
	w := &worker{memory: m}
	s, p := take(scores), take(scores)
	w.zeros, w.waste, w.sums = take(4*dims), take(4*dims), take(weighKeys*lanes/2*4)
	w.wide = unsafe.Slice((*uint16)(take(wide)), wide/2)
	for i := range w.tiles {
		w.tiles[i].walk = walk{s: s, p: p, dims: padded, state: (*state)(take(int(unsafe.Sizeof(state{})))),
			q: take(padded * lanes * 4), o: take(padded * lanes * 4)}
	}
	return w, nil
}

// packTask packs a block of keys for one head.
func (a *Attention) packTask(worker, task int) {
	w := a.workers[worker]
	slot, b := task/len(a.plan.blocks), a.plan.blocks[task%len(a.plan.blocks)]
	r, piece, key := &a.plan.runs[b.run], int(b.piece), int(b.key)
	keySize := a.plan.keySize
	n := min(blockKeys, r.padded()-key)
	k := unsafe.Add(a.keysAt(r, slot), key*keySize)
	v := unsafe.Add(a.valuesAt(r, slot), key*keySize)
	for i := 0; i < n; i += packKeys {
		piece = a.locate(w, r, key+i, piece, a.head+slot)
		a.kern.pack(unsafe.Add(k, i*keySize), unsafe.Add(v, i*a.kern.valueStep(a.padded)), &w.src,
			a.shape.HeadDim, a.padded, n*a.kern.panelKey)
	}
}

// locate finds the rows of packKeys keys of run r from key on, in pieces from piece on, and returns
// the piece to go on with.
func (a *Attention) locate(w *worker, r *run, key, piece, head int) int {
	s, src := &a.shape, &w.src
	rowBytes := s.HeadDim * s.KV.Size()
	for i := 0; i < packKeys; {
		if key >= r.keys {
			src.k[i], src.v[i] = w.zeros, w.zeros
			i++
			continue
		}
		p := &a.plan.pieces[piece]
		if key >= p.start+p.n {
			piece++
			continue
		}
		layer := a.layer
		if p.transient {
			layer = 0
		}
		k := unsafe.Add(p.data, s.TokenAt(layer, head, key-p.start, p.room))
		toV, from := s.KVHeads*s.HeadBytes(p.room), i
		for end := p.start + p.n; key < end && i < packKeys; i, key = i+1, key+1 {
			src.k[i], src.v[i] = k, unsafe.Add(k, toV)
			k = unsafe.Add(k, rowBytes)
		}
		if s.KV == compute.FP8 {
			first := unsafe.Add(p.data, s.TokenAt(layer, head, 0, p.room)-s.ScaleBytes())
			w.widen(src.k[from:i], from, *(*float32)(first), s.HeadDim)
			w.widen(src.v[from:i], packKeys+from, *(*float32)(unsafe.Add(first, toV)), s.HeadDim)
		}
	}
	return piece
}

// widen turns rows of e4m3 with a scale into bf16, which holds them exactly, in the worker's rows from at on.
func (w *worker) widen(rows []unsafe.Pointer, at int, scale float32, dims int) {
	for i := range rows {
		to := w.wide[(at+i)*dims:][:dims]
		for d, b := range unsafe.Slice((*byte)(rows[i]), dims) {
			to[d] = uint16(math.Float32bits(scale*fp8.Decode(b)) >> 16)
		}
		rows[i] = unsafe.Pointer(&to[0])
	}
}

// unitTask computes some tiles of queries of one head, taking turns over spans of keys that stay in
// the cache.
func (a *Attention) unitTask(worker, task int) {
	w := a.workers[worker]
	slot, u := task/len(a.plan.units), &a.plan.units[task%len(a.plan.units)]
	if u.siblings > 1 {
		a.siblings(w, u, slot)
		return
	}
	tiles := w.tiles[:u.tiles]
	for i := range tiles {
		a.begin(w, &tiles[i], u, i, slot)
	}
	view := a.plan.viewOf(u.segment)
	for i, id := range view {
		r, longest := &a.plan.runs[id], 0
		for j := range tiles {
			a.enter(&tiles[j], u.segment, r.keys, i == len(view)-1)
			if a.shape.Pointwise != nil {
				a.narrow(&tiles[j], r, i == len(view)-1)
			}
			longest = max(longest, tiles[j].keys)
		}
		for from := 0; from < longest; from += spanKeys {
			for j := range tiles {
				a.through(&tiles[j], r, slot, from)
			}
		}
	}
	for i := range tiles {
		t := &tiles[i]
		a.setRows(w, a.out, u, t, slot, w.waste)
		a.kern.storeO(t.walk.o, t.walk.state, &w.rows, a.shape.HeadDim, t.walk.cols)
		a.weigh.save(a, t, &w.rows, t.end-t.first)
	}
}

// siblings computes a tile of several segments: through the runs they share together, then through
// each one's own with the lanes of the others closed.
func (a *Attention) siblings(w *worker, u *unit, slot int) {
	t := &w.tiles[0]
	n := a.siblingRows(w, a.q, u, slot, w.zeros)
	t.walk.start(roundUp(n, lanes/2)/(lanes/2), a.scale)
	if a.shape.Pointwise != nil {
		a.startSiblings(t, u)
	}
	a.kern.loadQ(t.walk.q, &w.rows, a.shape.HeadDim, t.walk.cols)
	view := a.plan.viewOf(u.segment)
	for _, id := range view[:len(view)-1] {
		r := &a.plan.runs[id]
		a.enter(t, u.segment, r.keys, false)
		if a.shape.Pointwise != nil {
			a.narrow(t, r, false)
		}
		for from := 0; from < t.keys; from += spanKeys {
			a.through(t, r, slot, from)
		}
	}
	limits, lane := &t.walk.state.limits, 0
	for l := range limits {
		limits[l] = -1
	}
	for i := u.segment; i < u.segment+u.siblings; i++ {
		g, q, first := &a.plan.batch.Segments[i], &a.plan.queries[i], lane
		for end := lane + q.n*a.group; lane < end; lane++ {
			limits[lane] = int32(a.plan.token(i, q.skip*a.group+lane-first, a.group))
		}
		r := &a.plan.runs[a.plan.alone[i]]
		t.keys, t.open = g.Len, 0
		if a.shape.Pointwise != nil {
			a.narrowSibling(t, g, first, lane)
		}
		for from := 0; from < t.keys; from += spanKeys {
			a.through(t, r, slot, from)
		}
		for l := first; l < lane; l++ {
			limits[l] = -1
		}
	}
	a.siblingRows(w, a.out, u, slot, w.waste)
	a.kern.storeO(t.walk.o, t.walk.state, &w.rows, a.shape.HeadDim, t.walk.cols)
	a.weigh.save(a, t, &w.rows, n)
}

// siblingRows points the worker's rows at those of the siblings' lanes in x, and the others at spare,
// and returns the number of lanes in use.
func (a *Attention) siblingRows(w *worker, x []float32, u *unit, slot int, spare unsafe.Pointer) int {
	d, n := a.shape.HeadDim, 0
	for i := u.segment; i < u.segment+u.siblings; i++ {
		q := &a.plan.queries[i]
		for row := q.row; row < q.row+q.n; row++ {
			for h := range a.group {
				w.rows[n] = unsafe.Pointer(&x[(row*a.shape.Heads+(a.head+slot)*a.group+h)*d])
				n++
			}
		}
	}
	for l := n; l < lanes; l++ {
		w.rows[l] = spare
	}
	return n
}

// begin loads the queries of tile i of unit u.
func (a *Attention) begin(w *worker, t *tile, u *unit, i, slot int) {
	q := &a.plan.queries[u.segment]
	lane := int(u.lane) + i*lanes
	t.first = max(lane, q.skip*a.group) // lanes before are cached
	t.end = min(lane+lanes, (q.skip+q.n)*a.group)
	t.walk.start(roundUp(t.end-t.first, lanes/2)/(lanes/2), a.scale)
	if a.shape.Pointwise != nil {
		a.startPointwise(t, &a.plan.batch.Segments[u.segment], 0, t.first, t.end)
	}
	a.setRows(w, a.q, u, t, slot, w.zeros)
	a.kern.loadQ(t.walk.q, &w.rows, a.shape.HeadDim, t.walk.cols)
}

// start prepares for a new tile.
func (w *walk) start(cols int, scale float32) {
	w.cols, w.scale, w.started = cols, scale, 0
	for l := range lanes {
		w.state.maxes[l], w.state.sums[l] = lowest, 0
	}
}

// enter prepares a segment's tile for a run of keys keys: all lanes see all of it, or, if it is their own
// segment, each the keys up to its token. How far the tile goes depends on where it is anchored, not on what
// is cached.
func (a *Attention) enter(t *tile, segment int32, keys int, own bool) {
	limits := &t.walk.state.limits
	if !own {
		t.keys, t.open = keys, keys
		for l := range limits {
			limits[l] = int32(keys - 1)
		}
		return
	}
	for l := range limits {
		limits[l] = int32(a.plan.token(segment, min(t.first+l, t.end-1), a.group))
	}
	t.keys, t.open = int(limits[lanes-1])+1, int(limits[0])+1
}

// through goes through a span of run r.
func (a *Attention) through(t *tile, r *run, slot, from int) {
	end := min(from+spanKeys, t.keys)
	if from = max(from, t.pointwise.from); from >= end {
		return
	}
	w, at := &t.walk, from*a.plan.keySize
	w.k, w.v = unsafe.Add(a.keysAt(r, slot), at), unsafe.Add(a.valuesAt(r, slot), at)
	w.keys, w.first = roundUp(end-from, a.kern.keyStep), from
	w.open, w.room, w.closed = t.open, r.padded()-from, t.pointwise.closed
	a.kern.walk(w)
}

// setRows points the worker's rows at those of the tile's lanes in x, and the others at spare.
func (a *Attention) setRows(w *worker, x []float32, u *unit, t *tile, slot int, spare unsafe.Pointer) {
	q := &a.plan.queries[u.segment]
	row, g := q.row-q.skip+t.first/a.group, t.first%a.group
	d := a.shape.HeadDim
	p := unsafe.Pointer(&x[(row*a.shape.Heads+(a.head+slot)*a.group+g)*d])
	for l := range w.rows {
		if t.first+l >= t.end {
			w.rows[l] = spare
			continue
		}
		if g == a.group { // on to the next token
			g, p = 0, unsafe.Add(p, 4*d*(a.shape.Heads-a.group))
		}
		w.rows[l] = p
		g, p = g+1, unsafe.Add(p, 4*d)
	}
}

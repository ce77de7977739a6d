package attend

import (
	"fmt"
	"unsafe"

	"grebe/internal/offheap"
)

// lowest is the maximum before the first key: finite, so that differences of maxima are numbers.
const lowest = -1e30

// state is what the online softmax keeps per lane. The kernels know its layout.
type state struct {
	maxes   [lanes]float32 // largest score so far, scaled
	sums    [lanes]float32
	factors [lanes]float32 // what the last step multiplies former sums and outputs by
	limits  [lanes]int32   // last key of the run that the lane sees
	changed int64          // not 0 if a factor is not 1
}

// sources are rows of K and V to pack; those behind the end of a run are zeros.
type sources struct{ k, v [packKeys]unsafe.Pointer }

// worker is the private memory of a thread.
type worker struct {
	memory *offheap.Block
	walk   walk
	src    sources
	rows   [lanes]unsafe.Pointer
	zeros  unsafe.Pointer // a row of zeros
	waste  unsafe.Pointer // a row to write to
}

func newWorker(dims, padded int) (*worker, error) {
	sizes := []int{int(unsafe.Sizeof(state{})), padded * lanes * 4, blockKeys * lanes * 4, blockKeys * lanes * 4, padded * lanes * 4, dims * 4, dims * 4}
	total := 0
	for i, n := range sizes {
		sizes[i] = roundUp(n, 64)
		total += sizes[i]
	}
	m, err := offheap.Alloc(total)
	if err != nil {
		return nil, fmt.Errorf("attend: memory of a worker: %w", err)
	}
	next := 0
	take := func() unsafe.Pointer {
		p := unsafe.Pointer(&m.Bytes[0])
		for _, n := range sizes[:next] {
			p = unsafe.Add(p, n)
		}
		next++
		return p
	}
	w := &worker{memory: m}
	w.walk = walk{state: (*state)(take()), q: take(), s: take(), p: take(), o: take(), dims: padded}
	w.zeros, w.waste = take(), take()
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
		piece = a.locate(&w.src, r, key+i, piece, a.head+slot, w.zeros)
		a.kern.pack(unsafe.Add(k, i*keySize), unsafe.Add(v, i*a.kern.valueStep(a.padded)), &w.src,
			a.shape.HeadDim, a.padded, n*a.kern.panelKey)
	}
}

// locate finds the rows of packKeys keys of run r from key on, in pieces from piece on, and returns
// the piece to go on with.
func (a *Attention) locate(src *sources, r *run, key, piece, head int, zeros unsafe.Pointer) int {
	s := &a.shape
	rowBytes := s.HeadDim * s.KV.Size()
	for i := 0; i < packKeys; {
		if key >= r.keys {
			src.k[i], src.v[i] = zeros, zeros
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
		k := unsafe.Add(p.data, ((layer*2*s.KVHeads+head)*p.room+key-p.start)*rowBytes)
		toV := s.KVHeads * p.room * rowBytes
		for end := p.start + p.n; key < end && i < packKeys; i, key = i+1, key+1 {
			src.k[i], src.v[i] = k, unsafe.Add(k, toV)
			k = unsafe.Add(k, rowBytes)
		}
	}
	return piece
}

// unitTask computes a tile of queries of one head.
func (a *Attention) unitTask(worker, task int) {
	w := a.workers[worker]
	slot, u := task/len(a.plan.units), a.plan.units[task%len(a.plan.units)]
	g := &a.plan.batch.Segments[u.segment]
	end := min(int(u.lane)+lanes, g.Len*a.group) // of the anchored tile
	first := max(int(u.lane), g.Cached*a.group)  // lanes before are cached
	cols := roundUp(end-first, lanes/2) / (lanes / 2)
	row0 := g.First - g.Cached // token t is row row0+t

	a.setRows(&w.rows, a.q, row0, first, end, a.head+slot, w.zeros)
	a.kern.loadQ(w.walk.q, &w.rows, a.shape.HeadDim, cols)
	w.walk.start(cols, a.scale)
	view := a.plan.viewOf(u.segment)
	own := len(view) - 1
	for _, id := range view[:own] {
		r := &a.plan.runs[id]
		for l := range w.walk.state.limits {
			w.walk.state.limits[l] = int32(r.keys - 1)
		}
		a.through(&w.walk, r, slot, r.keys, r.keys)
	}
	for l := range w.walk.state.limits {
		w.walk.state.limits[l] = int32(min(first+l, end-1) / a.group)
	}
	a.through(&w.walk, &a.plan.runs[view[own]], slot, (end-1)/a.group+1, first/a.group+1)

	a.setRows(&w.rows, a.out, row0, first, end, a.head+slot, w.waste)
	a.kern.storeO(w.walk.o, w.walk.state, &w.rows, a.shape.HeadDim, cols)
}

// start prepares for a new tile.
func (w *walk) start(cols int, scale float32) {
	w.cols, w.scale, w.started = cols, scale, 0
	for l := range lanes {
		w.state.maxes[l], w.state.sums[l] = lowest, 0
	}
}

// through walks through the first keys keys of run r, of which all lanes see the first open ones.
func (a *Attention) through(w *walk, r *run, slot, keys, open int) {
	w.k, w.v = a.keysAt(r, slot), a.valuesAt(r, slot)
	w.keys, w.first, w.open, w.room = roundUp(keys, a.kern.keyStep), 0, open, r.padded()
	a.kern.walk(w)
}

// setRows points rows of the lanes first … end−1 at their place in x, and the others at spare.
func (a *Attention) setRows(rows *[lanes]unsafe.Pointer, x []float32, row0, first, end, head int, spare unsafe.Pointer) {
	d, token, g := a.shape.HeadDim, first/a.group, first%a.group
	at := ((row0+token)*a.shape.Heads + head*a.group + g) * d
	next, skip := 4*d, 4*d*(a.shape.Heads-a.group)
	p := unsafe.Pointer(&x[at])
	for l := range rows {
		if first+l >= end {
			rows[l] = spare
			continue
		}
		if g == a.group {
			g, p = 0, unsafe.Add(p, skip)
		}
		rows[l] = p
		g, p = g+1, unsafe.Add(p, next)
	}
}

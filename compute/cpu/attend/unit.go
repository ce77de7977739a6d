package attend

import (
	"fmt"
	"math"
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
	state  *state
	q      unsafe.Pointer // queries, packed
	s      unsafe.Pointer // scores [blockKeys][lanes]
	p      unsafe.Pointer // probabilities, packed; the scores themselves for f32
	o      unsafe.Pointer // outputs [dim][lanes]
	zeros  unsafe.Pointer // a row of zeros
	waste  unsafe.Pointer // a row to write to
	src    sources
	rows   [lanes]unsafe.Pointer
}

func newWorker(k *kernels, dims, padded int) (*worker, error) {
	sizes := []int{int(unsafe.Sizeof(state{})), padded * lanes * 4, blockKeys * lanes * 4, blockKeys * lanes * 2, padded * lanes * 4, dims * 4, dims * 4}
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
	w := &worker{memory: m, state: (*state)(take()), q: take(), s: take(), p: take(), o: take(), zeros: take(), waste: take()}
	if k.size == 4 {
		w.p = w.s
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
	end := min(int(u.lane)+lanes, g.Len*a.group) // lanes of the anchored tile
	first := max(int(u.lane), g.Cached*a.group)  // those before are cached
	cols := roundUp(end-first, lanes/2) / (lanes / 2)
	dims := a.shape.HeadDim

	row0 := g.First - g.Cached // row of token t is row0 + t
	w.setRows(a.q, a, row0, first, end, a.head+slot, w.zeros)
	a.kern.loadQ(w.q, &w.rows, dims, cols)
	clear(unsafe.Slice((*float32)(w.o), a.padded*lanes))
	for i := range lanes {
		w.state.maxes[i], w.state.sums[i] = lowest, 0
	}
	started := false
	view := a.plan.viewOf(u.segment)
	for i, id := range view {
		r := &a.plan.runs[id]
		keys, open := r.keys, r.keys // keys to go through; those before open are seen by all lanes
		if i == len(view)-1 {
			keys, open = (end-1)/a.group+1, first/a.group+1
			for l := range lanes {
				w.state.limits[l] = int32(min(first+l, end-1) / a.group)
			}
		} else {
			for l := range lanes {
				w.state.limits[l] = int32(keys - 1)
			}
		}
		k, v := a.keysAt(r, slot), a.valuesAt(r, slot)
		for key := 0; key < keys; key += blockKeys {
			n := roundUp(min(blockKeys, keys-key), a.kern.keyStep)
			at := key * a.plan.keySize
			panel := min(blockKeys, r.padded()-key) * a.kern.panelKey
			a.step(w, unsafe.Add(k, at), unsafe.Add(v, at), key, n, panel, cols, key+n > open, started)
			started = true
		}
	}
	w.setRows(a.out, a, row0, first, end, a.head+slot, w.waste)
	a.kern.storeO(w.o, w.state, &w.rows, dims, cols)
}

// step goes through n keys of a run from key on.
func (a *Attention) step(w *worker, k, v unsafe.Pointer, key, n, panel, cols int, masked, started bool) {
	edge := 0
	if masked {
		edge = 1
	}
	a.kern.scores(w.s, k, w.q, n, a.padded, cols)
	a.kern.softmax(w.s, w.p, w.state, n, cols, key, edge, a.scale)
	if started && w.state.changed != 0 {
		a.kern.rescale(w.o, w.state, a.padded, cols)
	}
	a.kern.values(w.o, v, w.p, n, a.padded, panel, cols)
}

// setRows points the lanes first … end−1 at their rows in x, and the others at spare.
func (w *worker) setRows(x []float32, a *Attention, row0, first, end, head int, spare unsafe.Pointer) {
	d := a.shape.HeadDim
	token, g := first/a.group, first%a.group
	for l := range w.rows {
		if first+l >= end {
			w.rows[l] = spare
			continue
		}
		w.rows[l] = unsafe.Pointer(&x[((row0+token)*a.shape.Heads+head*a.group+g)*d])
		if g++; g == a.group {
			token, g = token+1, 0
		}
	}
}

// exp2Coefficients is the polynomial of 2^f for f in [0, 1), highest power first; its relative error
// is 8e-8, and it is 1 at 0.
var exp2Coefficients = [...]float32{
	math.Float32frombits(0x3af4ba83), math.Float32frombits(0x3c13bc29), math.Float32frombits(0x3d648e74),
	math.Float32frombits(0x3e75edab), math.Float32frombits(0x3f31725d), 1,
}

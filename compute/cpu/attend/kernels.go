package attend

import (
	"unsafe"

	"grebe/compute"
)

// kernels are the inner loops of one level. Lanes, the queries of a tile, run along vectors, so that
// maxima and sums are vertical. cols is the number of columns of 16 lanes in use, 1 or 2; rows of
// scores, outputs and state always have 32 lanes.
//
// In float32 (size 4) keys are packed in panels [8 keys][dim][8], values, per block of 128 keys, in
// panels [8 dims][key][8], queries as [dim][lane]; probabilities replace the scores. All products
// are then c[8·panels][lane] (+)= Σ a[panel][depth][8]·b[depth][lane].
//
// For AMX (size 2) all four are tiles of 1 KiB: keys [16 keys][32 dims], values [32 keys][16 dims]
// as rows of dims, queries [32 dims][column] and probabilities [32 keys][column] as rows of pairs.
type kernels struct {
	size     int // bytes of a packed value
	dimStep  int // dims are padded to a multiple of it
	keyStep  int // as are the keys that a step goes through
	panelKey int // bytes that a key adds to a panel of values; 0 for tiles

	// pack packs packKeys keys and values.
	pack func(k, v unsafe.Pointer, src *sources, dims, padded, vPanel int)
	// loadQ packs queries.
	loadQ func(dst unsafe.Pointer, rows *[lanes]unsafe.Pointer, dims, cols int)
	// walk goes through keys of a run.
	walk func(w *walk)
	// scores sets those of the walk's block of keys, and weigh adds the probabilities that they are, times the
	// state's factors, to the keys' sums; its maxima are final.
	scores func(w *walk)
	weigh  func(s unsafe.Pointer, st *state, sums unsafe.Pointer, keys, cols, first, masked int, scale float32)
	// storeO divides outputs by the sums and writes them to rows.
	storeO func(o unsafe.Pointer, st *state, rows *[lanes]unsafe.Pointer, dims, cols int)
}

// walk is the way of a tile of queries through keys of a run. The kernels know its layout, and move
// it on.
type walk struct {
	q       unsafe.Pointer // queries, packed
	s       unsafe.Pointer // scores [blockKeys][lanes]
	p       unsafe.Pointer // probabilities in tiles, or a second buffer of scores
	o       unsafe.Pointer // outputs [dim][lanes]
	state   *state
	k, v    unsafe.Pointer // the next keys and values, packed
	keys    int            // to go through, rounded up to keyStep
	first   int            // index of the next key in the run
	open    int            // keys before this one are seen by all lanes
	started int            // 0 as long as there are no outputs
	dims    int            // padded
	block   int            // keys of the block under way
	scale   float32
	cols    int
	room    int // keys from first on that the run has room for
	closed  int // keys before this one may be hidden from some lanes; pointwise only
}

// valueStep returns the bytes from a packed value to the next inside a block.
func (k *kernels) valueStep(padded int) int {
	if k.panelKey > 0 {
		return k.panelKey
	}
	return padded * k.size
}

// float32Parts are the inner loops of the float32 kernels.
type float32Parts struct {
	// product sets or adds to c[panel·panels][lane] the product aᵀ·b.
	product func(c, a, b unsafe.Pointer, panels, depth, panelBytes, cols, add int)
	// softmax turns scores of keys first, first+1, … of a run into probabilities, not normalised.
	softmax func(s unsafe.Pointer, st *state, keys, cols, first, masked int, scale float32)
	// rescale multiplies rows of outputs by the factors of the state.
	rescale func(o unsafe.Pointer, st *state, rows int)
}

const panel = 8 // rows of a panel

// float32Kernels returns kernels made of parts; packing is plain Go.
func float32Kernels(kv compute.DType, parts float32Parts) *kernels {
	k := &kernels{
		size: 4, dimStep: 16, keyStep: panel, panelKey: 4 * panel,
		pack: packF32Plain, loadQ: loadQPlain, storeO: storeOPlain, walk: parts.walk,
		scores: parts.scores, weigh: parts.weigh,
	}
	if kv == compute.BF16 {
		k.pack = packBF16Plain
	}
	return k
}

func (f *float32Parts) scores(w *walk) {
	f.product(w.s, w.k, w.q, w.block/panel, w.dims, 4*panel*w.dims, w.cols, 0)
}

// weigh adds up lanes in the order in which weigh512 does.
func (f *float32Parts) weigh(s unsafe.Pointer, st *state, sums unsafe.Pointer, keys, cols, first, masked int,
	scale float32) {
	factors := st.factors
	f.softmax(s, st, keys, cols, first, masked, scale)
	st.factors = factors // which softmax changes
	to := unsafe.Slice((*[lanes / 2]float32)(sums), keys)
	for i, row := range rowsOf(s, keys) {
		for l, p := range row[:cols*lanes/2] {
			to[i][l%(lanes/2)] += p * factors[l]
		}
	}
}

func (f *float32Parts) walk(w *walk) {
	for w.keys > 0 {
		w.block = min(blockKeys, w.keys)
		masked := 0
		if w.first+w.block > w.open || w.first < w.closed {
			masked = 1
		}
		f.scores(w)
		f.softmax(w.s, w.state, w.block, w.cols, w.first, masked, w.scale)
		if w.started != 0 && w.state.changed != 0 {
			f.rescale(w.o, w.state, w.dims)
		}
		f.product(w.o, w.v, w.s, w.dims/panel, w.block, 4*panel*min(blockKeys, w.room), w.cols, w.started)
		w.k, w.v = unsafe.Add(w.k, 4*w.block*w.dims), unsafe.Add(w.v, 4*w.block*w.dims)
		w.first, w.keys, w.room, w.started = w.first+w.block, w.keys-w.block, w.room-w.block, 1
	}
}

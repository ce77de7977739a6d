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
	// scores sets s[key][lane] = k·q.
	scores func(s, k, q unsafe.Pointer, keys, dims, cols int)
	// softmax turns scores of keys first, first+1, … of a run into probabilities, not normalised.
	softmax func(s, p unsafe.Pointer, st *state, keys, cols, first, masked int, scale float32)
	// rescale multiplies outputs by the factors of the state.
	rescale func(o unsafe.Pointer, st *state, dims, cols int)
	// values adds v·p to the outputs.
	values func(o, v, p unsafe.Pointer, keys, dims, vPanel, cols int)
	// storeO divides outputs by the sums and writes them to rows.
	storeO func(o unsafe.Pointer, st *state, rows *[lanes]unsafe.Pointer, dims, cols int)
}

// valueStep returns the bytes from a packed value to the next inside a block.
func (k *kernels) valueStep(padded int) int {
	if k.panelKey > 0 {
		return k.panelKey
	}
	return padded * k.size
}

// product is the matrix product of the float32 kernels.
type product func(c, a, b unsafe.Pointer, panels, depth, panelBytes, cols, add int)

const panel = 8 // rows of a panel

// float32Kernels returns kernels around a product; parts that are missing are plain Go.
func float32Kernels(kv compute.DType, mul product) *kernels {
	k := &kernels{
		size: 4, dimStep: 16, keyStep: 8, panelKey: 4 * panel,
		pack: packF32Plain, loadQ: loadQPlain, softmax: softmaxPlain, rescale: rescalePlain, storeO: storeOPlain,
		scores: func(s, k, q unsafe.Pointer, keys, dims, cols int) {
			mul(s, k, q, keys/panel, dims, 4*panel*dims, cols, 0)
		},
		values: func(o, v, p unsafe.Pointer, keys, dims, vPanel, cols int) {
			mul(o, v, p, dims/panel, keys, vPanel, cols, 1)
		},
	}
	if kv == compute.BF16 {
		k.pack = packBF16Plain
	}
	return k
}

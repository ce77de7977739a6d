//go:build !noasm

package evict

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

// wide says that the processor compares 16 samples, or nodes, at once. It is a variable for tests.
var wide = cpu.X86.HasAVX512F && cpu.X86.HasAVX512CD

const (
	wideDepth  = 5
	wideNodes  = 32 // nodes of a tree, counted from 1 by levels
	lanes      = partials
	mostGroups = 16 // groups of 16 trees, for one sample
)

// wideTrees are a model's trees in the layout of the assembly, all of depth five. Shallower trees are filled up with
// nodes that send every sample left.
type wideTrees struct {
	trees    int
	keys     []int32   // 32 per tree
	features []uint8   // 32 per tree
	offsets  []uint16  // of each feature's column, in bytes
	leaves   []float32 // 32 per tree
}

// columns are the features of a batch, transposed: one row of integers per feature, ordered as the floats are.
type columns [Features][batch]int32

// spread transposes up to 64 samples. It writes columns in whole vectors of 16.
//
//go:noescape
func spread(x *columns, samples *Sample, n, features int)

// score adds up the trees' leaves for one, two or four vectors of 16 samples. A tree takes 31 comparisons. Each removes
// the leaves that can no longer be reached; the first leaf that remains is the result.
//
//go:noescape
func score(sums *[partials][batch]float32, x *columns, keys *int32, offsets *uint16, leaves *float32, trees,
	vectors int)

// scoreOne returns the sum of the trees' leaves for one sample, over groups of 16 trees.
//
//go:noescape
func scoreOne(x *Sample, keys *int32, features *uint8, leaves *float32, groups int) float32

// widen returns m's trees in the layout of the assembly, or nil if it does not support them.
func widen(m *Model) *wideTrees {
	n := len(m.leaf) >> m.depth
	if !wide || m.depth > wideDepth || n == 0 {
		return nil
	}
	all := (n + lanes - 1) / lanes * lanes * wideNodes
	w := &wideTrees{trees: n, keys: make([]int32, all), features: make([]uint8, all), offsets: make([]uint16, all),
		leaves: make([]float32, all)}
	for i := range w.keys {
		w.keys[i] = nobody
	}
	inner, leaves, apart := 1<<m.depth-1, 1<<m.depth, wideDepth-m.depth
	for t := range n {
		at := t * wideNodes
		for i, c := range m.nodes[t*inner : (t+1)*inner] {
			w.keys[at+1+i], w.features[at+1+i], w.offsets[at+1+i] = c.key, uint8(c.feature), uint16(c.feature*batch*4)
		}
		for i, v := range m.leaf[t*leaves : (t+1)*leaves] {
			w.leaves[at+i<<apart] = v
		}
	}
	return w
}

// nobody is a key that no feature exceeds.
const nobody = 1<<31 - 1

// predict returns the same as predictPlain.
func (m *Model) predict(samples []Sample, out []float32) {
	w := m.wide
	switch {
	case w == nil || len(samples) == 0:
		m.predictPlain(samples, out)
		return
	case len(samples) == 1:
		out[0] = m.one(&samples[0])
		return
	}
	var x columns
	var sums [partials][batch]float32
	vectors := (len(samples) + lanes - 1) / lanes
	if vectors == 3 {
		vectors = 4
	}
	spread(&x, &samples[0], len(samples), Features)
	score(&sums, &x, &w.keys[0], &w.offsets[0], &w.leaves[0], w.trees, vectors)
	for half := partials / 2; half > 0; half /= 2 {
		for p := range half {
			a, b := sums[p][:len(out)], sums[p+half][:len(out)]
			for i := range a {
				a[i] += b[i]
			}
		}
	}
	for i := range out {
		out[i] = m.base + sums[0][i]
	}
}

// one returns the same as onePlain.
func (m *Model) one(s *Sample) float32 {
	w := m.wide
	if w == nil || w.trees > mostGroups*lanes {
		return m.onePlain(s)
	}
	return m.base + scoreOne(s, &w.keys[0], &w.features[0], &w.leaves[0], len(w.keys)/(lanes*wideNodes))
}

// prefetch loads memory that is about to be read into the processor's cache.
//
//go:noescape
func prefetch(p unsafe.Pointer)

// prefetchHistory prefetches a whole entry.
//
//go:noescape
func prefetchHistory(h *history)

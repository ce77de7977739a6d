package evict

import (
	"encoding/json"
	"fmt"
	"math"
)

// Features is the number of features of an access; Tracker lists them.
const Features = 36

// Sample is the feature vector of one access.
type Sample [Features]float32

// Model is a sum of regression trees of one depth. It is immutable and safe for concurrent use. It marshals to JSON and
// back.
type Model struct {
	depth     int
	base      float32
	feature   []uint8       // per tree 2^depth−1 inner nodes, heap order
	threshold []float32     // go right when the feature is larger
	leaf      []float32     // per tree 2^depth
	nodes     []compareNode // feature and threshold in the layout of predictPlain
	trees     []tree        // the same and leaves in the layout of onePlain
	wide      *wideTrees    // the same in the layout of the assembly; nil without it
}

const (
	batch  = 64
	padded = 64 // Features rounded up to a power of two: an index modulo padded needs no bounds check

	partials = 16 // partial sums that trees are added to in turn, so that 16 trees can be walked side by side
)

// Predict writes the prediction for each sample into out, which MUST be at least as long. It does not allocate.
func (m *Model) Predict(samples []Sample, out []float32) {
	for len(samples) > batch {
		m.predict(samples[:batch], out[:batch])
		samples, out = samples[batch:], out[batch:]
	}
	m.predict(samples, out[:len(samples)])
}

// predictPlain predicts for one batch. It compares integers that are ordered as the floats are, so that no branch
// depends on data. The outer loop is over trees and the inner over samples, so that a tree stays in the first-level
// cache.
func (m *Model) predictPlain(samples []Sample, out []float32) {
	var keys [batch][padded]int32
	var sums [batch][partials]float32
	for i := range samples {
		for f, v := range &samples[i] {
			keys[i%batch][f] = sortable(v)
		}
	}
	inner, leaves := 1<<m.depth-1, 1<<m.depth
	for t := 0; t*leaves < len(m.leaf); t++ {
		nodes, leaf := m.nodes[t*inner:(t+1)*inner], m.leaf[t*leaves:(t+1)*leaves]
		for i := range out {
			x, n := &keys[i%batch], 0
			for range m.depth {
				n = below(nodes, n, x)
			}
			sums[i%batch][t%partials] += leaf[n-inner]
		}
	}
	for i := range out {
		out[i] = m.base + together(&sums[i%batch])
	}
}

// onePlain predicts for a single sample. Without a batch to fill the time in which a comparison waits for the one
// before, it walks four trees at a time.
func (m *Model) onePlain(s *Sample) float32 {
	var x [padded]int32
	for f, v := range s {
		x[f] = sortable(v)
	}
	var sums [partials]float32
	trees, at := m.trees, 0
	for ; len(trees) >= 4; trees = trees[4:] {
		t0, t1, t2, t3 := &trees[0], &trees[1], &trees[2], &trees[3]
		n0, n1, n2, n3 := 1, 1, 1, 1
		for range m.depth {
			n0, n1, n2, n3 = t0.below(n0, &x), t1.below(n1, &x), t2.below(n2, &x), t3.below(n3, &x)
		}
		four := (*[4]float32)(sums[at%partials:])
		four[0] += t0.leaf(n0, m.depth)
		four[1] += t1.leaf(n1, m.depth)
		four[2] += t2.leaf(n2, m.depth)
		four[3] += t3.leaf(n3, m.depth)
		at += 4
	}
	for t := range trees {
		n := 1
		for range m.depth {
			n = trees[t].below(n, &x)
		}
		sums[(at+t)%partials] += trees[t].leaf(n, m.depth)
	}
	return m.base + together(&sums)
}

// together adds up the partial sums, pairwise by halves.
func together(sums *[partials]float32) float32 {
	for half := partials / 2; half > 0; half /= 2 {
		for i := range half {
			sums[i] += sums[i+half]
		}
	}
	return sums[0]
}

// tree is a tree in the layout of onePlain, of a fixed size that no index can exceed. The root is node 1. The children
// of n are 2n and 2n+1; those after the last node are leaves.
type tree struct {
	nodes  [1 << maxDepth]compareNode
	leaves [1 << maxDepth]float32
}

func (t *tree) below(n int, x *[padded]int32) int {
	c := t.nodes[n&(len(t.nodes)-1)]
	return 2*n + int(uint64(int64(c.key)-int64(x[c.feature%padded]))>>63)
}

func (t *tree) leaf(n, depth int) float32 { return t.leaves[(n-1<<depth)&(len(t.leaves)-1)] }

// below returns the child of node n that a sample goes to.
func below(nodes []compareNode, n int, x *[padded]int32) int {
	c := nodes[n]
	return 2*n + 1 + int(uint64(int64(c.key)-int64(x[c.feature%padded]))>>63)
}

// compareNode sends a sample right when its feature's key is larger.
type compareNode struct {
	key     int32
	feature uint32
}

// sortable maps floats to integers with the same order.
func sortable(v float32) int32 {
	b := int32(math.Float32bits(v + 0)) // turns negative zero into zero
	return b ^ b>>31&math.MaxInt32
}

// index makes nodes from features and thresholds.
func (m *Model) index() {
	m.nodes = make([]compareNode, len(m.feature))
	for i, f := range m.feature {
		m.nodes[i] = compareNode{sortable(m.threshold[i]), uint32(f)}
	}
	inner, leaves := 1<<m.depth-1, 1<<m.depth
	m.trees = make([]tree, len(m.leaf)/leaves)
	for t := range m.trees {
		copy(m.trees[t].nodes[1:], m.nodes[t*inner:(t+1)*inner])
		copy(m.trees[t].leaves[:], m.leaf[t*leaves:(t+1)*leaves])
	}
	m.wide = widen(m)
}

// average returns the mean of several models of the same depth.
func average(models []*Model) *Model {
	if len(models) == 1 {
		return models[0]
	}
	m, share := &Model{depth: models[0].depth}, 1/float32(len(models))
	for _, o := range models {
		m.base += share * o.base
		m.feature, m.threshold = append(m.feature, o.feature...), append(m.threshold, o.threshold...)
		for _, v := range o.leaf {
			m.leaf = append(m.leaf, share*v)
		}
	}
	m.index()
	return m
}

// rescale multiplies all leaves.
func (m *Model) rescale(by float32) {
	for i := range m.leaf {
		m.leaf[i] *= by
	}
	m.index()
}

type modelJSON struct {
	Depth     int       `json:"depth"`
	Base      float32   `json:"base"`
	Feature   []uint8   `json:"feature"`
	Threshold []float32 `json:"threshold"`
	Leaf      []float32 `json:"leaf"`
}

// MarshalJSON writes the model.
func (m *Model) MarshalJSON() ([]byte, error) {
	return json.Marshal(modelJSON{m.depth, m.base, m.feature, m.threshold, m.leaf})
}

// UnmarshalJSON reads a model and checks that it can be evaluated.
func (m *Model) UnmarshalJSON(data []byte) error {
	var j modelJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return fmt.Errorf("evict: read model: %w", err)
	}
	if j.Depth < 1 || j.Depth > maxDepth {
		return fmt.Errorf("evict: read model: depth %d is not between 1 and %d", j.Depth, maxDepth)
	}
	trees := len(j.Leaf) >> j.Depth
	inner := trees * (1<<j.Depth - 1)
	if trees<<j.Depth != len(j.Leaf) || len(j.Feature) != inner || len(j.Threshold) != inner {
		return fmt.Errorf("evict: read model: %d leaves, %d features and %d thresholds make no trees of depth %d",
			len(j.Leaf), len(j.Feature), len(j.Threshold), j.Depth)
	}
	for _, f := range j.Feature {
		if f >= Features {
			return fmt.Errorf("evict: read model: feature %d of %d", f, Features)
		}
	}
	*m = Model{depth: j.Depth, base: j.Base, feature: j.Feature, threshold: j.Threshold, leaf: j.Leaf}
	m.index()
	return nil
}

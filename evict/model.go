package evict

import (
	"encoding/json"
	"fmt"
	"math"
)

// Features is how many numbers describe an access; Tracker says which.
const Features = 31

// Sample is the description of one access.
type Sample [Features]float32

// Model is a sum of regression trees of one depth. It is immutable: any number of readers may share it.
// It marshals to JSON and back.
type Model struct {
	depth     int
	base      float32
	feature   []uint8       // per tree 2^depth−1 inner nodes, heap order
	threshold []float32     // go right when the feature is larger
	leaf      []float32     // per tree 2^depth
	nodes     []compareNode // feature and threshold, as predict wants them
}

const (
	batch  = 64
	padded = 32 // Features up to a power of two: an index cut to it needs no check
)

// Predict writes the prediction for each sample into out, which is at least as long. It allocates nothing.
func (m *Model) Predict(samples []Sample, out []float32) {
	for len(samples) > batch {
		m.predict(samples[:batch], out[:batch])
		samples, out = samples[batch:], out[batch:]
	}
	m.predict(samples, out[:len(samples)])
}

// predict takes one batch. Comparisons are of integers in the order of the floats, so that no branch depends on
// data; trees are outside and samples inside, so that a tree stays in the first-level cache.
func (m *Model) predict(samples []Sample, out []float32) {
	var keys [batch][padded]int32
	for i := range samples {
		for f, v := range &samples[i] {
			keys[i%batch][f] = sortable(v)
		}
		out[i] = m.base
	}
	inner, leaves := 1<<m.depth-1, 1<<m.depth
	for t := 0; t*leaves < len(m.leaf); t++ {
		nodes, leaf := m.nodes[t*inner:(t+1)*inner], m.leaf[t*leaves:(t+1)*leaves]
		for i := range out {
			x, n := &keys[i%batch], 0
			for range m.depth {
				n = below(nodes, n, x)
			}
			out[i] += leaf[n-inner]
		}
	}
}

// one predicts for a single sample, as predict does: with no batch to go on with while a comparison waits for the one before, four
// trees are walked at a time.
func (m *Model) one(s *Sample) float32 {
	var x [padded]int32
	for f, v := range s {
		x[f] = sortable(v)
	}
	y := m.base
	inner, leaves := 1<<m.depth-1, 1<<m.depth
	nodes, leaf := m.nodes, m.leaf
	for ; len(leaf) >= 4*leaves; nodes, leaf = nodes[4*inner:], leaf[4*leaves:] {
		t0, t1, t2, t3 := nodes[:inner], nodes[inner:2*inner], nodes[2*inner:3*inner], nodes[3*inner:4*inner]
		n0, n1, n2, n3 := 0, 0, 0, 0
		for range m.depth {
			n0, n1, n2, n3 = below(t0, n0, &x), below(t1, n1, &x), below(t2, n2, &x), below(t3, n3, &x)
		}
		y += leaf[n0-inner]
		y += leaf[n1-inner+leaves]
		y += leaf[n2-inner+2*leaves]
		y += leaf[n3-inner+3*leaves]
	}
	for ; len(leaf) > 0; nodes, leaf = nodes[inner:], leaf[leaves:] {
		n := 0
		for range m.depth {
			n = below(nodes, n, &x)
		}
		y += leaf[n-inner]
	}
	return y
}

// below returns the node that a sample goes to from node n.
func below(nodes []compareNode, n int, x *[padded]int32) int {
	c := nodes[n]
	return 2*n + 1 + int(uint64(int64(c.key)-int64(x[c.feature%padded]))>>63)
}

// compareNode sends a sample right when its feature's key is larger.
type compareNode struct {
	key     int32
	feature uint32
}

// sortable maps floats to integers of the same order.
func sortable(v float32) int32 {
	b := int32(math.Float32bits(v + 0)) // no negative zero
	return b ^ b>>31&math.MaxInt32
}

// index makes nodes from features and thresholds.
func (m *Model) index() {
	m.nodes = make([]compareNode, len(m.feature))
	for i, f := range m.feature {
		m.nodes[i] = compareNode{sortable(m.threshold[i]), uint32(f)}
	}
}

// rescale multiplies all that trees add.
func (m *Model) rescale(by float32) {
	for i := range m.leaf {
		m.leaf[i] *= by
	}
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

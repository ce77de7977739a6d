package evict

import (
	"encoding/json"
	"fmt"
)

// Features is how many numbers describe an access; Tracker says which.
const Features = 24

// Sample is the description of one access.
type Sample [Features]float32

// Model is a sum of regression trees of one depth. It is immutable: any number of readers may share it.
// It marshals to JSON and back.
type Model struct {
	depth     int
	base      float32
	feature   []uint8   // per tree 2^depth−1 inner nodes, heap order
	threshold []float32 // go right when the feature is larger
	leaf      []float32 // per tree 2^depth
}

// Predict writes the prediction for each sample into out, which is at least as long. It allocates nothing.
func (m *Model) Predict(samples []Sample, out []float32) {
	out = out[:len(samples)]
	for i := range out {
		out[i] = m.base
	}
	inner, leaves := 1<<m.depth-1, 1<<m.depth
	// Trees outside, samples inside: a tree stays in the first-level cache for the whole batch.
	for t := 0; t*leaves < len(m.leaf); t++ {
		feature, threshold := m.feature[t*inner:(t+1)*inner], m.threshold[t*inner:(t+1)*inner]
		leaf := m.leaf[t*leaves : (t+1)*leaves]
		for i := range samples {
			n := 0
			for range m.depth {
				right := 0
				if samples[i][feature[n]%Features] > threshold[n] {
					right = 1
				}
				n = 2*n + 1 + right
			}
			out[i] += leaf[n-inner]
		}
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
	*m = Model{j.Depth, j.Base, j.Feature, j.Threshold, j.Leaf}
	return nil
}

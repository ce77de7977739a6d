package split

import (
	"encoding/json"
	"fmt"
	"math"
)

// stored is a model on disk. Names of the features guard against a model of other features.
type stored struct {
	Features string    `json:"features"`
	Weights  []float64 `json:"weights"`
	Report   Report    `json:"report"`
}

const featureNames = "launch, steps, units, parts, merged, mean steps"

// Encode returns the model as JSON.
func (m *Model) Encode() ([]byte, error) {
	return json.Marshal(stored{Features: featureNames, Weights: m.weights[:], Report: m.report})
}

// Decode reads what Encode wrote.
func Decode(data []byte) (*Model, error) {
	var s stored
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("split: read a model: %w", err)
	}
	if s.Features != featureNames || len(s.Weights) != features {
		return nil, fmt.Errorf("split: a model of %d features (%s), want %d (%s)", len(s.Weights), s.Features, features,
			featureNames)
	}
	m := &Model{report: s.Report}
	sum := 0.0
	for i, w := range s.Weights {
		if !(w >= 0) || math.IsInf(w, 0) {
			return nil, fmt.Errorf("split: weight %d of a model is %v", i, w)
		}
		m.weights[i] = w
		sum += w
	}
	if sum == 0 {
		return nil, fmt.Errorf("split: a model without weights")
	}
	return m, nil
}

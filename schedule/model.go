package schedule

import (
	"fmt"
	"math"
)

// PrefillModel predicts the milliseconds of a batch. Every coefficient is at least 0, so the prediction never falls as
// a batch grows. The zero value predicts 0; Fit returns a measured one.
type PrefillModel struct {
	Fixed   float64 `json:"fixed_ms"`   // per batch: shared by its requests
	Row     float64 `json:"row_ms"`     // per token computed
	Square  float64 `json:"square_ms"`  // per token computed, squared: makes larger batches slower per token
	Key     float64 `json:"key_ms"`     // per key attended, summed over the rows
	Request float64 `json:"request_ms"` // per request in the batch

	Quality Quality `json:"quality"`
}

// Quality describes the data and the fit of a model.
type Quality struct {
	Samples     int     `json:"samples"`
	R2          float64 `json:"r2"`           // explained share of the variance of measured times
	MaxRelative float64 `json:"max_relative"` // largest |predicted-measured|/measured
	Largest     Sample  `json:"largest"`      // largest value of each field; predictions beyond it extrapolate
}

// Sample is one measured batch.
type Sample struct {
	Rows     int     `json:"rows"`     // tokens computed
	Keys     int     `json:"keys"`     // keys attended, summed over the rows
	Requests int     `json:"requests"` // requests in the batch
	Ms       float64 `json:"ms"`
}

// Predict returns the time of a batch in milliseconds; 0 for an empty one.
func (m *PrefillModel) Predict(rows, keys, requests int) float64 {
	if requests == 0 {
		return 0
	}
	r := float64(rows)
	return m.Fixed + r*(m.Row+r*m.Square) + float64(keys)*m.Key + float64(requests)*m.Request
}

// Rows returns the token budget for a time: the most rows of a batch that is predicted to take at most ms. A row
// attends to keysPerRow keys, and a request has rowsPerRequest rows. It is 0 if nothing fits, and math.MaxInt if the
// model has no limit.
func (m *PrefillModel) Rows(ms, keysPerRow, rowsPerRequest float64) int {
	left := ms - m.Fixed
	if !(left > 0) {
		return 0
	}
	slope := m.Row + keysPerRow*m.Key
	if rowsPerRequest > 0 {
		slope += m.Request / rowsPerRequest
	}
	// The positive root of Square·r² + slope·r = left, in the form that avoids cancellation.
	denominator := slope + math.Sqrt(slope*slope+4*m.Square*left)
	if rows := 2 * left / denominator; rows < math.MaxInt64/2 {
		return int(rows)
	}
	return math.MaxInt
}

// Validate returns an error for an invalid coefficient.
func (m *PrefillModel) Validate() error {
	for i, c := range m.coefficients() {
		if !(c >= 0) || math.IsInf(c, 1) {
			return fmt.Errorf("schedule: prefill model: coefficient %s is %v", features[i], c)
		}
	}
	return nil
}

// The model is linear in five features of a batch.
const numFeatures = 5

var features = [numFeatures]string{"fixed", "row", "square", "key", "request"}

type vector [numFeatures]float64

func (s *Sample) features() vector {
	r := float64(s.Rows)
	return vector{1, r, r * r, float64(s.Keys), float64(s.Requests)}
}

func (m *PrefillModel) coefficients() vector {
	return vector{m.Fixed, m.Row, m.Square, m.Key, m.Request}
}

func (m *PrefillModel) setCoefficients(c vector) {
	m.Fixed, m.Row, m.Square, m.Key, m.Request = c[0], c[1], c[2], c[3], c[4]
}

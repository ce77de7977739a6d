package schedule

import (
	"fmt"
	"math"
)

const (
	// anchor is the weight of the first model, in samples of the largest batch. That is enough to decide what traffic
	// does not show, as when all its batches are alike, and little compared with what it shows.
	anchor = 1
	// surprise limits how far one sample may be from the prediction. A stall is cut down to it. A lasting change gets
	// through, because the prediction follows.
	surprise = 4
)

// Tuner keeps a model up to date while it serves. Recent batches count, older ones fade exponentially, and the measured
// model it started with never fades completely. Its memory is fixed; it does not allocate.
type Tuner struct {
	model  PrefillModel
	unit   vector
	first  moments
	recent moments
	fade   float64
}

// NewTuner starts from a fitted model. memory is the number of batches after which one counts 1/e.
func NewTuner(m PrefillModel, memory int) (*Tuner, error) {
	if err := m.Validate(); err != nil {
		return nil, err
	}
	largest := m.Quality.Largest
	reference := m.Predict(largest.Rows, largest.Keys, largest.Requests)
	if memory < 1 || !(reference > 0) {
		return nil, fmt.Errorf("schedule: tune prefill model: memory of %d batches, %v ms for its largest sample", memory,
			reference)
	}
	t := &Tuner{model: m, unit: largest.units(), fade: math.Exp(-1 / float64(memory))}
	weight := anchor / (reference * reference)
	for i, c := range m.coefficients() {
		c *= t.unit[i]
		t.first.a[i][i] = weight
		t.first.b[i] = weight * c
		t.first.yy += weight * c * c
	}
	return t, nil
}

// Model returns the model as of the last sample.
func (t *Tuner) Model() PrefillModel { return t.model }

// Observe refines the model by a measured batch. Impossible samples are ignored.
func (t *Tuner) Observe(s Sample) {
	if s.Rows < 1 || s.Keys < 0 || s.Requests < 1 || !(s.Ms > 0) {
		return
	}
	expected := t.model.Predict(s.Rows, s.Keys, s.Requests)
	ms := min(max(s.Ms, expected/surprise), expected*surprise)
	if !(ms > 0) {
		return
	}
	t.recent.scale(t.fade)
	t.recent.add(s.relative(t.unit, ms))
	sums := t.recent
	for i := range sums.a {
		sums.a[i][i] += t.first.a[i][i]
		sums.b[i] += t.first.b[i]
	}
	sums.yy += t.first.yy
	c, ok := sums.solve()
	if !ok {
		return
	}
	for i := range c {
		c[i] /= t.unit[i]
	}
	t.model.setCoefficients(c)
}

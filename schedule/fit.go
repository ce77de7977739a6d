package schedule

import (
	"errors"
	"fmt"
	"math"
)

// ErrDegenerate is returned by Fit for samples that do not determine a model.
var ErrDegenerate = errors.New("samples do not determine a prefill model")

// minRowCounts is the number of different row counts needed to separate fixed, linear and quadratic cost.
const minRowCounts = 3

// Fit finds the model with the least sum of squared relative errors over measured batches. Samples
// should be medians of repeated runs and cover the batches that will be served.
func Fit(samples []Sample) (PrefillModel, error) {
	var largest Sample
	rowCounts := map[int]bool{}
	for i, s := range samples {
		if s.Rows < 1 || s.Keys < 0 || s.Requests < 1 || !(s.Ms > 0) || math.IsInf(s.Ms, 1) {
			return PrefillModel{}, fmt.Errorf("schedule: fit prefill model: sample %d is %+v", i, s)
		}
		rowCounts[s.Rows] = true
		largest = Sample{max(largest.Rows, s.Rows), max(largest.Keys, s.Keys),
			max(largest.Requests, s.Requests), max(largest.Ms, s.Ms)}
	}
	if len(samples) < numFeatures || len(rowCounts) < minRowCounts {
		return PrefillModel{}, fmt.Errorf("schedule: fit prefill model: %d samples with %d different row counts, want %d "+
			"with %d: %w",
			len(samples), len(rowCounts), numFeatures, minRowCounts, ErrDegenerate)
	}
	unit := largest.units()
	var sums moments
	for i := range samples {
		sums.add(samples[i].relative(unit, samples[i].Ms))
	}
	c, ok := sums.solve()
	if !ok {
		return PrefillModel{}, fmt.Errorf("schedule: fit prefill model: no solution: %w", ErrDegenerate)
	}
	var m PrefillModel
	for i := range c {
		c[i] /= unit[i]
	}
	m.setCoefficients(c)
	if m.Row+m.Square+m.Key == 0 {
		return PrefillModel{}, fmt.Errorf("schedule: fit prefill model: time does not grow with rows or keys: %w",
			ErrDegenerate)
	}
	m.Quality = m.quality(samples, largest)
	return m, nil
}

// units returns the features of the largest sample, by which all features are divided so that sums stay well
// conditioned.
func (s *Sample) units() vector {
	u := s.features()
	for i := range u {
		u[i] = max(u[i], 1)
	}
	return u
}

// relative returns the features in units, divided by a time.
func (s *Sample) relative(unit vector, ms float64) vector {
	x := s.features()
	for i := range x {
		x[i] /= unit[i] * ms
	}
	return x
}

func (m *PrefillModel) quality(samples []Sample, largest Sample) Quality {
	mean := 0.0
	for _, s := range samples {
		mean += s.Ms / float64(len(samples))
	}
	q := Quality{Samples: len(samples), Largest: largest}
	residual, total := 0.0, 0.0
	for _, s := range samples {
		e := m.Predict(s.Rows, s.Keys, s.Requests) - s.Ms
		residual += e * e
		total += (s.Ms - mean) * (s.Ms - mean)
		q.MaxRelative = max(q.MaxRelative, math.Abs(e)/s.Ms)
	}
	if total > 0 {
		q.R2 = 1 - residual/total
	}
	return q
}

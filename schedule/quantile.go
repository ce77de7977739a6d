package schedule

import "math"

// Quantile follows a quantile of positive numbers as they come. A number above the estimate raises it, one below lowers
// it, in the ratio that keeps the wanted share below. Fixed memory, no allocation.
type Quantile struct {
	value, share float64
}

// pace is how far the estimate moves by a number, as a logarithm: some twenty numbers double it.
const pace = .05

// NewQuantile starts from an estimate above 0. Share is in (0, 1).
func NewQuantile(first, share float64) Quantile { return Quantile{value: first, share: share} }

// Observe takes in a number. What is not above 0 counts as very small.
func (q *Quantile) Observe(v float64) {
	if v > q.value {
		q.value *= math.Exp(pace * q.share)
	} else {
		q.value *= math.Exp(-pace * (1 - q.share))
	}
}

// Value is the estimate.
func (q *Quantile) Value() float64 { return q.value }

package schedule

import "slices"

// window is the number of values that a Quantile remembers.
const window = 128

// Quantile is a quantile of the latest values. Its memory is fixed; it does not allocate.
type Quantile struct {
	share float64
	last  [window]float64
	next  int
	value float64
	stale bool
}

// NewQuantile makes a Quantile as if all earlier values had been first. share is in (0, 1).
func NewQuantile(first, share float64) Quantile {
	q := Quantile{share: share, value: first}
	for i := range q.last {
		q.last[i] = first
	}
	return q
}

// Observe adds a value and forgets the oldest one.
func (q *Quantile) Observe(v float64) {
	q.last[q.next] = v
	q.next = (q.next + 1) % window
	q.stale = true
}

// Value returns the smallest value that at least share of the latest values do not exceed.
func (q *Quantile) Value() float64 {
	if q.stale {
		sorted := q.last
		slices.Sort(sorted[:])
		q.value, q.stale = sorted[min(window-1, int(q.share*window))], false
	}
	return q.value
}

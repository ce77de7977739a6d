package schedule

import "slices"

// window is how many numbers a Quantile remembers.
const window = 128

// Quantile is a quantile of the last numbers. Fixed memory, no allocation.
type Quantile struct {
	share float64
	last  [window]float64
	next  int
	value float64
	stale bool
}

// NewQuantile starts as if all numbers before had been first. Share is in (0, 1).
func NewQuantile(first, share float64) Quantile {
	q := Quantile{share: share, value: first}
	for i := range q.last {
		q.last[i] = first
	}
	return q
}

// Observe takes in a number and forgets the oldest one.
func (q *Quantile) Observe(v float64) {
	q.last[q.next] = v
	q.next = (q.next + 1) % window
	q.stale = true
}

// Value is the smallest number that at least the share of the last ones do not exceed.
func (q *Quantile) Value() float64 {
	if q.stale {
		sorted := q.last
		slices.Sort(sorted[:])
		q.value, q.stale = sorted[min(window-1, int(q.share*window))], false
	}
	return q.value
}

package schedule

import "slices"

// window is the number of values that a Quantile remembers.
const window = 128

// Quantile is a quantile of the latest values. Its memory is fixed; it does not allocate.
type Quantile struct {
	share  float64
	last   [window]float64
	sorted [window]float64
	next   int
}

// NewQuantile makes a Quantile as if all earlier values had been first. share is in (0, 1).
func NewQuantile(first, share float64) Quantile {
	q := Quantile{share: share}
	for i := range q.last {
		q.last[i], q.sorted[i] = first, first
	}
	return q
}

// Observe adds a value and forgets the oldest one.
func (q *Quantile) Observe(v float64) {
	old, _ := slices.BinarySearch(q.sorted[:], q.last[q.next])
	at, _ := slices.BinarySearch(q.sorted[:], v)
	if at > old {
		at-- // the oldest one leaves before it
		copy(q.sorted[old:at], q.sorted[old+1:])
	} else {
		copy(q.sorted[at+1:old+1], q.sorted[at:])
	}
	q.sorted[at], q.last[q.next] = v, v
	q.next = (q.next + 1) % window
}

// Value returns the smallest value that at least share of the latest values do not exceed.
func (q *Quantile) Value() float64 { return q.sorted[min(window-1, int(q.share*window))] }

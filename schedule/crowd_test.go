package schedule

import (
	"testing"
	"time"
)

// While others use the device, predictions are at least doubled. What was learned stays, and another Admission takes it
// over.
func TestACrowdDoublesPredictions(t *testing.T) {
	b, err := NewBatcher(DefaultBatcher(10, time.Second),
		PrefillModel{Row: 1, Quality: Quality{Largest: Sample{Rows: 100, Requests: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	a := NewAdmission(b, 1)
	for range window {
		a.Measured(13, 10)
		a.Woke(4)
	}
	check := func(a *Admission, margin, factor float64) {
		t.Helper()
		m, answer := a.Slack()
		if f := a.Node(time.Second).Factor; m < margin-1e-9 || m > margin+1e-9 || f != factor ||
			answer != 10*time.Millisecond {
			t.Errorf("margin %v, factor %v, %v for an answer; want %v, %v and 10 ms", m, f, answer, margin, factor)
		}
	}
	check(a, .3, 1+leastDelay)
	a.Crowd(1)
	a.Crowd(1)
	check(a, 1, 2)
	a.Crowd(-1)
	check(a, 1, 2)
	next := NewAdmission(b, 1)
	next.Learn(a)
	check(next, .3, 1+leastDelay) // the crowd is not its own
	a.Crowd(-1)
	check(a, .3, 1+leastDelay)
}

package schedule

import "testing"

// A quantile follows the latest values: at once when several grow, and completely after a window of them.
func TestQuantileFollowsTheLastNumbers(t *testing.T) {
	q := NewQuantile(1, .95)
	if q.Value() != 1 {
		t.Errorf("at first %v", q.Value())
	}
	for i := range window / 10 { // a tenth of them
		q.Observe(float64(5 + i))
	}
	if got := q.Value(); got < 5 || got > 16 {
		t.Errorf("with a tenth of the numbers above 5: %v", got)
	}
	for i := range window {
		q.Observe(float64(i + 1))
	}
	if got := q.Value(); got != 122 {
		t.Errorf("the 95th percentile of 1 to 128 is %v, want 122", got)
	}
	for range window {
		q.Observe(2)
	}
	if got := q.Value(); got != 2 {
		t.Errorf("after a window of twos: %v", got)
	}
	if n := testing.AllocsPerRun(100, func() { q.Observe(3); q.Value() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

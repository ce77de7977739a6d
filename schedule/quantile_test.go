package schedule

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

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

// Values stay sorted whatever comes: equal ones, NaN and infinity too.
func TestQuantileIsThatOfSortedValues(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	q := NewQuantile(1, .9)
	odd := []float64{math.NaN(), math.Inf(1), math.Inf(-1), 0, 1, 2, 2, 3}
	for range 5000 {
		if r.IntN(4) == 0 {
			q.Observe(odd[r.IntN(len(odd))])
		} else {
			q.Observe(r.NormFloat64())
		}
		sorted := q.last
		slices.Sort(sorted[:])
		if got, want := q.Value(), sorted[115]; got != want && !(math.IsNaN(got) && math.IsNaN(want)) {
			t.Fatalf("%v, want %v", got, want)
		}
	}
}

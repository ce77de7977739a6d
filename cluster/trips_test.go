package cluster

import (
	"testing"
	"time"
)

func TestShortestTripCounts(t *testing.T) {
	var x trips
	for i, c := range []struct {
		at       time.Duration
		ms, want float64
	}{
		{1 * time.Second, 2, 2}, {2 * time.Second, 5, 2}, {3 * time.Second, 1, 1}, // one span
		{7 * time.Second, 50, 1}, {10 * time.Second, 60, 1}, // the shortest one of the span before still counts
		{12 * time.Second, 55, 50}, {13 * time.Second, 51, 50}, {18 * time.Second, .5, .5},
		{60 * time.Second, 9, 9}, // what was long ago does not
	} {
		if got := x.add(c.ms, c.at); got != c.want {
			t.Errorf("step %d: %v ms at %v counts as %v, want %v", i, c.ms, c.at, got, c.want)
		}
	}
	if x.old(65*time.Second) || !x.old(70*time.Second) {
		t.Error("a trip is old after 10 s")
	}
}

// A few round trips do not show that a node is a little further away than others: they show only that it is much
// further.
func TestFewTripsShowLittle(t *testing.T) {
	var x trips
	for i := range enough {
		ms := x.add(2, time.Duration(i+1)*time.Millisecond)
		if want := i+1 == enough; x.sure(ms, .5) != want {
			t.Errorf("%d round trips of 2 ms show that the node is not as near as another one at 0.5 ms: %v", i+1, !want)
		}
		if !x.sure(50, .5) {
			t.Errorf("%d round trips do not show that a node is 50 ms away", i+1)
		}
	}
}

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

package simcheck

import (
	"math"
	"strings"
	"testing"

	"grebe/bench/profile"
	"grebe/sim"
)

// A quarter of the batches is summed up with what the profile predicts for each of them.
func TestSizes(t *testing.T) {
	p := &sim.Profile{Batches: &sim.Batches{Row: .01, Segment: .1}, Slowdown: 2}
	var batches []profile.Measured
	for i := range 11 {
		m := profile.Measured{Work: sim.Work{Requests: 1, Rows: 100 * (i + 1), Segments: 10}}
		m.Ms = 2 * p.Predict(&m.Work) / (.5 + float64(i)/10)
		batches = append(batches, m)
	}
	x := sizeOf(p, batches)
	if x.Batches != 11 || math.Abs(x.Rows-600) > 1e-9 || math.Abs(x.Segments-10) > 1e-9 ||
		math.Abs(x.Predicted-2*7) > 1e-9 ||
		math.Abs(x.Low-.6) > .11 || math.Abs(x.High-1.4) > .11 {
		t.Errorf("%+v", x)
	}
	var out strings.Builder
	w := Where{Sizes: []Size{x}, Left: 3, Alone: 1.25}
	if err := w.write(&out, 7); err != nil || !strings.Contains(out.String(), "1.250 times") ||
		!strings.Contains(out.String(), "7.0/s") {
		t.Errorf("%v: %s", err, &out)
	}
}

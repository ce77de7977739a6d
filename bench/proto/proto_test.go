package proto

import (
	"bytes"
	"math"
	"strings"
	"testing"
)

func TestDifferByHand(t *testing.T) {
	relative, cosine := differ([]float32{3, 4}, []float32{3, 0})
	if math.Abs(relative-0.8) > 1e-12 || math.Abs(cosine-0.6) > 1e-12 {
		t.Errorf("error %v, cosine %v; want 0.8 and 0.6", relative, cosine)
	}
}

// Two matches in two layers of one number each for K and V: one is right, the other one's V is the opposite.
func TestSums(t *testing.T) {
	s := &sums{layers: make([]Layer, 2), natural: 3, runs: 1}
	is := row{1, 2, 3, 4}
	s.add(is, row{1, 2, 3, 4}, 0.1)
	s.add(is, row{1, 2, 3, -4}, 0.9)
	s.addStatic(is, row{1, 2, -3, -4})
	r := &Report{Tokens: 10}
	s.report(r)
	if r.Natural != 0.3 || r.Matched != 0.2 || r.Runs != 2 || r.Near != 0.5 || r.NearStatic != 0 {
		t.Errorf("%+v", r)
	}
	if l := r.Layers[1]; l.K != 0 || l.V != 1 || l.VCos != 0 || l.StaticK != 2 || l.StaticV != 2 {
		t.Errorf("%+v", l)
	}
	if q := r.Drift[3]; q.Drift != float64(float32(0.9)) || math.Abs(q.Error-math.Sqrt2) > 1e-12 {
		t.Errorf("the quarter with the largest drift has %+v", q)
	}
	if math.Abs(r.Within-0.5) > 1e-12 || r.Served != 0 {
		t.Errorf("%v of the matches are served, with an error of %v; want the half that is right", r.Within, r.Served)
	}
	var out bytes.Buffer
	if err := r.Text(&out); err != nil || !strings.Contains(out.String(), "50.0 % of matches") {
		t.Errorf("%v\n%s", err, &out)
	}
}

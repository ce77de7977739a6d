package engine

import (
	"math/rand/v2"
	"testing"

	"grebe/blend"
	"grebe/compute"
	"grebe/compute/ref"
	"grebe/plan"
)

// Tokens are chosen by the attention in the last layer that computes all of them; a layer is always left, and a batch
// takes the most layers of its jobs.
func TestBlendLayers(t *testing.T) {
	e := newTinyOf(t, ref.New(), "f32", Options{}, 3)
	o := newOrdinary(t, e, rand.New(rand.NewPCG(6, 6)))
	budget := blend.Budget{Items: 0.4}
	job := func(layers int) *Job { return o.job(&Blend{Parts: o.parts(), Budget: budget, Layers: layers}) }
	by := func(layer int) []float32 {
		t.Helper()
		rule := &Rule{Layer: layer, Received: true, Score: func(score, received []float32, _ []plan.Source,
			_ []compute.Segment) {
			blend.ByAttention(score, received, nil, 0)
		}}
		r, err := e.Do(t.Context(), o.job(&Blend{Parts: o.parts(), Budget: budget, Rule: rule}))
		if err != nil {
			t.Fatal(err)
		}
		return r.Logits[0]
	}
	first, second := by(0), by(1)
	if distance(first, second) == 0 {
		t.Fatal("both layers choose alike: the test says nothing")
	}
	for layers, want := range [][]float32{first, first, second, second} {
		got, err := e.Do(t.Context(), job(layers))
		if err != nil {
			t.Fatal(err)
		}
		if d := distance(got.Logits[0], want); d != 0 {
			t.Errorf("%d layers: the answer is off by %g", layers, d)
		}
	}
	out := make([]Outcome, 2)
	e.Run([]*Job{job(1), job(2)}, out)
	for i := range out {
		if out[i].Err != nil || distance(out[i].Logits[0], second) > 1e-5 {
			t.Errorf("job %d of a batch with 1 and 2 layers: %v, or not as with 2", i, out[i].Err)
		}
	}
}

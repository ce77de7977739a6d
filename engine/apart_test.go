package engine

import (
	"math/rand/v2"
	"testing"

	"grebe/blend"
	"grebe/compute/ref"
)

// A part that is not where its job says fails that job alone, and the others of its batch are answered as without it.
func TestOneBadPartFailsItsOwnJob(t *testing.T) {
	e := newTiny(t, ref.New(), "f32", Options{Multiple: 1})
	r := rand.New(rand.NewPCG(8, 8))
	budget := blend.Budget{Items: 0.3}
	one, bad, two := newOrdinary(t, e, r), newOrdinary(t, e, r), newOrdinary(t, e, r)
	wrong := bad.parts()
	wrong[1].First = 5 // behind it the entry has fewer tokens than the part
	jobs := []*Job{one.job(&Blend{Parts: one.parts(), Budget: budget}), bad.job(&Blend{Parts: wrong, Budget: budget}),
		two.job(nil)}
	out := make([]Outcome, len(jobs))
	e.Run(jobs, out)
	if out[1].Err == nil {
		t.Error("a part that is not in its entry gives an answer")
	}
	for _, i := range []int{0, 2} {
		if out[i].Err != nil {
			t.Errorf("job %d beside it: %v", i, out[i].Err)
			continue
		}
		alone, err := e.Do(t.Context(), jobs[i])
		if err != nil {
			t.Fatal(err)
		}
		if d := distance(alone.Logits[0], out[i].Logits[0]); d != 0 {
			t.Errorf("job %d beside it: logits are off by %v", i, d)
		}
	}
}

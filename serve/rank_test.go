package serve

import (
	"slices"
	"testing"
)

// Scores of a model of events are weighted sums of tasks. Two scores may differ only in digits that the rounded logit
// loses.
func TestScoresThatRoundToOneLogit(t *testing.T) {
	scores := []float64{900.00001, 900.00002, 900.00001, 900.5}
	r := &ranking{scores: scores, tasks: make([]map[string]float64, len(scores))}
	for _, s := range scores {
		r.logits = append(r.logits, float32(s))
	}
	if r.logits[0] != r.logits[1] {
		t.Fatalf("logits %v: want some that are rounded to one", r.logits)
	}
	if got, want := r.best(0), []int{3, 1, 0, 2}; !slices.Equal(got, want) {
		t.Errorf("order %v of the scores %v, want %v", got, scores, want)
	}
}

package blend

import (
	"math"
	"slices"
	"testing"

	"grebe/plan"
)

// A token's importance is the mean over where it was seen, drawn to that of all where it was seen seldom; prompts count
// alike, and identifiers are one.
func TestTally(t *testing.T) {
	m := NewTally(8, func(token int32) bool { return token >= 6 })
	m.Add([]int32{0, 1, 0, 6}, []float64{40, 10, 20, 10}) // over the mean, 20: 2, 0.5, 1, 0.5
	m.Add([]int32{0, 1, 7, 2}, []float64{2, 1, 3, 2})     // over the mean, 2: 1, 0.5, 1.5, 1
	m.Add([]int32{3, 3}, []float64{0, 0})                 // says nothing
	m.Add(nil, nil)
	m.Add([]int32{3, 4}, []float64{math.Inf(1), 1})
	m.Add([]int32{3, 4}, []float64{math.NaN(), 1})
	mean := (2 + 0.5 + 1 + 1 + 0.5 + 1) / 6.0 // of the words
	want := []float64{(4 + mean) / 4, (1 + mean) / 3, (1 + mean) / 2, mean, mean, mean, 1, 1}
	got := m.Importance()
	for token, v := range want {
		if math.Abs(float64(got.Of(int32(token)))-v) > 1e-6 {
			t.Errorf("token %d: %v, want %v", token, got.Of(int32(token)), v)
		}
	}
	if m.Prompts() != 2 || got.Of(-1) != 1 || got.Of(8) != 1 || len(got.Tokens()) != 8 {
		t.Errorf("%d prompts, beyond the vocabulary %v and %v", m.Prompts(), got.Of(-1), got.Of(8))
	}
	for token, v := range NewTally(2, nil).Importance().Tokens() {
		if v != 1 {
			t.Errorf("token %d is %v though nothing was seen", token, v)
		}
	}
}

// Scores of blocks are those of their tokens; prototypes stay in their order; both have a mean of 1.
func TestImportanceScore(t *testing.T) {
	m := NewImportance([]float32{1, 3, 0})
	score := []float32{7, 100, 200, 300, 50, 9}
	const own, block, proto = plan.Computed, plan.Block, plan.Prototype
	m.Score(score, []int32{0, 0, 1, 2, 1, 0}, []plan.Source{own, proto, proto, block, block, own})
	if want := []float32{100 * 2 / 300., 200 * 2 / 300., 0, 2}; !slices.Equal(score[1:5], want) {
		t.Errorf("scores %v, want %v", score[1:5], want)
	}
	nothing := []float32{0, 0}
	m.Score(nothing, []int32{2, 2}, []plan.Source{plan.Block, plan.Prototype})
	if !slices.Equal(nothing, []float32{0, 0}) {
		t.Errorf("where nothing matters scores are %v", nothing)
	}
}

package blend

import (
	"math"

	"grebe/plan"
)

// Importance says how much it matters that a token of a block is computed again: the attention that it receives in the
// layers behind the whole ones, times how far its keys and values there are off when its block stands in. It is learned
// by token, from prompts that were computed whole: a price or the end of a line draws attention, and depends on what
// stands before it, in whatever prompt. The mean over the tokens of a prompt's blocks is about 1.
type Importance struct{ of []float32 }

// NewImportance takes the importance of every token of a vocabulary.
func NewImportance(of []float32) *Importance { return &Importance{of} }

// Of returns that of a token; of one beyond the vocabulary, 1.
func (m *Importance) Of(token int32) float32 {
	if token < 0 || int(token) >= len(m.of) {
		return 1
	}
	return m.of[token]
}

// Tokens returns that of all.
func (m *Importance) Tokens() []float32 { return m.of }

// Score sets the scores of tokens of blocks, and leaves those of prototypes, which ByAttention set, as they are to each
// other: each over its mean, since rounding compares the two.
func (m *Importance) Score(score []float32, tokens []int32, from []plan.Source) {
	var sum [plan.NumSources]float32
	var n [plan.NumSources]int
	for i, s := range from {
		if s == plan.Block {
			score[i] = m.Of(tokens[i])
		}
		sum[s] += score[i]
		n[s]++
	}
	for i, s := range from {
		if sum[s] > 0 {
			score[i] *= float32(n[s]) / sum[s]
		}
	}
}

// Tally adds up what prompts say of tokens.
type Tally struct {
	sum, count []float64
	alike      func(token int32) bool
	prompts    int
}

// NewTally is for a vocabulary of so many tokens. Those of which alike says so, the identifiers of items, are too many
// to be seen and differ in nothing that matters here: they count as one.
func NewTally(vocab int, alike func(token int32) bool) *Tally {
	return &Tally{sum: make([]float64, vocab), count: make([]float64, vocab), alike: alike}
}

// Add adds the tokens of a prompt's blocks, of which matters says how much each matters there. Prompts count alike,
// whatever their scale.
func (t *Tally) Add(tokens []int32, matters []float64) {
	mean := 0.0
	for _, m := range matters {
		mean += m / float64(len(matters))
	}
	if !(mean > 0) || math.IsInf(mean, 1) {
		return // nothing is off, or numbers are broken
	}
	for i, token := range tokens {
		t.sum[token] += matters[i] / mean
		t.count[token]++
	}
	t.prompts++
}

// Prompts returns how many said anything.
func (t *Tally) Prompts() int { return t.prompts }

// Importance returns what was learned. A token that was seen seldom is taken for one like all, as if it had been seen
// once more.
func (t *Tally) Importance() *Importance {
	var sum, count [2]float64 // of plain tokens and of those that are alike
	for i := range t.sum {
		c := t.class(i)
		sum[c] += t.sum[i]
		count[c] += t.count[i]
	}
	mean := [2]float64{1, 1}
	for c := range mean {
		if count[c] > 0 {
			mean[c] = sum[c] / count[c]
		}
	}
	of := make([]float32, len(t.sum))
	for i := range of {
		if c := t.class(i); c == 0 {
			of[i] = float32((t.sum[i] + mean[0]) / (t.count[i] + 1))
		} else {
			of[i] = float32(mean[c])
		}
	}
	return NewImportance(of)
}

func (t *Tally) class(token int) int {
	if t.alike != nil && t.alike(int32(token)) {
		return 1
	}
	return 0
}

package blend

import "grebe/plan"

// DriftWeight is how much a prototype that is nothing like its token counts beside the attention that an average
// token receives. Tokens of a history receive many times that, so it is large.
const DriftWeight = 64

// DriftLimit is how far a prototype may be from the token that it stands in for: farther ones are none, and their
// tokens are computed. Drift is the error of keys and values, relative to their length, that a match is expected to
// have: at 1 it is as wrong as nothing at all. So one limit does for all models and pools.
const DriftLimit = 0.6

// WholeLayers is how many layers compute all tokens before some are chosen. RcLLM takes one: but where attention goes
// in that is decided by words and places alone, and says little of where it goes later. By the second, a third of the
// budget is as good.
const WholeLayers = 2

// ByAttention sets score to RcLLM's importance: the attention that a token received in a layer and, of a prototype, how
// far it is from the token that it stands in for. Received sums over all rows behind a token, of which an early one has
// more: it is divided by their number, so that scores compare over the prompt. Drift may be nil.
func ByAttention(score, received, drift []float32, weight float32) {
	n := len(received)
	mean := float32(0)
	for i, r := range received {
		score[i] = r / float32(n-i)
		mean += score[i] / float32(n)
	}
	if drift == nil {
		return
	}
	for i, d := range drift {
		score[i] += weight * mean * d
	}
}

// AddDeviation adds to score, which ByAttention set, how far K and V of tokens that have a source are from what would
// stand in for them: each of the two over its mean of these tokens. What much attention goes to and what is far off
// both count; a product would leave out tokens that are far off and that little attention goes to yet.
func AddDeviation(score, deviated []float32, from []plan.Source) {
	var attention, deviation float32
	for i, s := range from {
		if s != plan.Computed {
			attention, deviation = attention+score[i], deviation+deviated[i]
		}
	}
	if attention == 0 || deviation == 0 {
		return
	}
	for i, d := range deviated {
		score[i] = score[i]/attention + d/deviation
	}
}

// ByPlace sets score to EPIC's rule: the first tokens of every block count most. Begins says where blocks begin.
func ByPlace(score []float32, from []plan.Source, begins []bool) {
	at := 0
	for i := range from {
		if begins[i] || i > 0 && from[i] != from[i-1] {
			at = 0
		}
		score[i] = -float32(at)
		at++
	}
}

package serve

import (
	"fmt"
	"strings"
	"testing"

	grebev1 "grebe/api/grebe/v1"
)

// sharedTokens returns a counter of tokens that were computed once, from the server's metrics.
func (w *cacheWorld) sharedTokens(t *testing.T, kind string) (n int) {
	t.Helper()
	_, after, found := strings.Cut(exposed(t, w.cached), fmt.Sprintf("grebe_shared_tokens_total{kind=%q} ", kind))
	if _, err := fmt.Sscan(after, &n); err != nil || !found {
		t.Fatalf("no counter of shared tokens: %v", err)
	}
	return n
}

// Candidates with equal tokens are computed once, in every layout: of five with two texts, two items and, item by item, two
// questions. With prefix none each is computed.
func TestEqualCandidatesAreComputedOnce(t *testing.T) {
	for _, pointwise := range []bool{false, true} {
		for _, prefix := range []string{"user", "item", "none"} {
			w := newCacheWorld(t, 2, pointwise)
			req := &grebev1.RankRequest{Prefix: prefix, User: &grebev1.User{Tokens: w.tokens(40)}, Explain: true}
			texts := [][]int32{w.tokens(7), w.tokens(9)}
			for i, k := range []int{0, 1, 0, 0, 1} {
				id := int32(230 + i)
				req.Candidates = append(req.Candidates, &grebev1.Item{Tokens: texts[k], Identifier: &id})
			}
			want := 7 + 7 + 9
			if pointwise {
				want += 3 * 2 // tokens of a question
			}
			if prefix == "none" {
				want = 0
			}
			w.compare(t, 0, req)
			if got := w.sharedTokens(t, "request"); got != want {
				t.Errorf("prefix %s, pointwise %v: %d tokens shared, want %d", prefix, pointwise, got, want)
			}
			if computed := w.counted(t, "rank", "computed"); computed+want != w.countedAll(t, "rank") {
				t.Errorf("prefix %s, pointwise %v: %d tokens computed of %d", prefix, pointwise, computed, w.countedAll(t, "rank"))
			}
		}
	}
}

// Equal documents are scored once, and all have the score.
func TestEqualDocumentsAreScoredOnce(t *testing.T) {
	w := newCacheWorld(t, 2, true)
	one, other := w.tokens(7), w.tokens(9)
	for _, itemFirst := range []bool{false, true} {
		before := w.sharedTokens(t, "request")
		req := &grebev1.ScoreRequest{Query: &grebev1.Input{Tokens: w.tokens(40)}, LabelTokenIds: []int32{11, 12}, ItemFirst: itemFirst}
		for _, tokens := range [][]int32{one, other, one, one} {
			req.Items = append(req.Items, &grebev1.Input{Tokens: tokens})
		}
		w.sameScores(t, "equal documents", req)
		want := 2 * (7 + 2) // two items, and their questions
		if itemFirst {
			want += 2 * 40 // the query is part of the question
		}
		if got := w.sharedTokens(t, "request") - before; got != want {
			t.Errorf("item first %v: %d tokens shared, want %d", itemFirst, got, want)
		}
	}
}

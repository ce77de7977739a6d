package server

import (
	"fmt"
	"testing"

	grebev1 "grebe/api/grebe/v1"
)

// A recommendation explains where the KV of its prompt came from, as a ranking does: over HTTP and in the message that
// gRPC has. A popular one has no prompt.
func TestRecommendExplains(t *testing.T) {
	r := newRecommender(t)
	if got := r.recommend(t, `"user": {"id": "u1"}, "n": 3`); got.Parts != nil {
		t.Errorf("nobody asked for %v", got.Parts)
	}
	again := r.recommend(t, `"user": {"id": "u1"}, "n": 3, "explain": true`)
	u := again.Usage
	want := fmt.Sprintf("[{preamble %d %[1]d host} {user %d %[2]d host} {instruction %d 0 }]", len(preamble), u.User,
		len(instruction))
	if got := fmt.Sprint(again.Parts); got != want || u.Cached != len(preamble)+u.User || u.User == 0 {
		t.Errorf("parts %s, want %s; usage %+v", got, want, u)
	}
	fresh := r.recommend(t, `"user": {"tokens": [9, 8, 7]}, "n": 3, "explain": true`)
	want = fmt.Sprintf("[{preamble %d %[1]d host} {user 3 0 } {instruction %d 0 }]", len(preamble), len(instruction))
	if got := fmt.Sprint(fresh.Parts); got != want {
		t.Errorf("of a user who is new: parts %s, want %s", got, want)
	}
	resp, err := r.Service.Recommend(t.Context(), &grebev1.RecommendRequest{Model: "m",
		User: &grebev1.User{Id: "nobody"}, Fallback: "popular", Explain: true})
	must(t, err)
	if resp.Parts != nil || resp.Fallback == "" {
		t.Errorf("popular items: %v", resp)
	}
	resp, err = r.Service.Recommend(t.Context(), &grebev1.RecommendRequest{Model: "bare",
		User: &grebev1.User{Id: "u1"}, Explain: true})
	must(t, err)
	if len(resp.Parts) == 0 || resp.Parts[0].Cached != 0 { // it keeps no KV
		t.Errorf("of a model without a cache: %v", resp)
	}
}

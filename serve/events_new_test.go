package serve

import (
	"fmt"
	"math"
	"slices"
	"testing"

	grebev1 "grebe/api/grebe/v1"
	"grebe/catalog"
	"grebe/model/hstu/hstutest"
)

// A user of the catalog with new events in the request gets the scores of one whose request has all of these events,
// to the bit, whatever was cached and however the stored history grows. New events are not stored.
func TestEventsThatFollowStoredOnes(t *testing.T) {
	dir := t.TempDir()
	must(t, hstutest.Write(dir, hstutest.Spec{Hidden: 48, Layers: 2, Heads: 2, HeadDim: 16, Items: 300, MaxSeqLen: 300,
		Seed: 1}))
	w := newEventWorld(t, dir, "bf16", 4000)
	stored := map[string][]*grebev1.Event{}
	reused := 0
	for step := range 60 {
		id := fmt.Sprint("u", w.rand.IntN(4))
		if len(stored[id]) == 0 || w.rand.IntN(3) == 0 {
			more := w.events(1 + w.rand.IntN(60))
			for i := range more { // so that they are stored in this order
				more[i].Time = int64(1_600_000_000 + len(stored[id]) + i)
			}
			must(t, w.catalog.Apply([]catalog.Op{{AppendEvents: &grebev1.AppendEventsRequest{Id: id, Events: more}}})[0].Err)
			stored[id] = append(stored[id], more...)
		}
		fresh := w.events(w.rand.IntN(30))
		if w.rand.IntN(8) == 0 {
			fresh = append(fresh, &grebev1.Event{Item: "unknown"})
		}
		byID := &grebev1.User{Id: id, NewEvents: fresh}
		whole := &grebev1.User{Id: id, Events: slices.Concat(stored[id], fresh)}
		if w.rand.IntN(3) == 0 {
			got, err := w.cached.Recommend(t.Context(), &grebev1.RecommendRequest{User: byID, N: 20, ExcludeSeen: true})
			must(t, err)
			want, err := w.plain.Recommend(t.Context(), &grebev1.RecommendRequest{User: whole, N: 20, ExcludeSeen: true})
			must(t, err)
			for i, b := range want.Results {
				if a := got.Results[i]; a.Id != b.Id || math.Float64bits(a.Score) != math.Float64bits(b.Score) {
					t.Fatalf("step %d: recommendation %d is %v, want %v", step, i, a, b)
				}
			}
			continue
		}
		req := &grebev1.RankRequest{User: byID}
		for range 1 + w.rand.IntN(20) {
			req.Candidates = append(req.Candidates, &grebev1.Item{Id: fmt.Sprintf("i%d", w.rand.IntN(w.model.Items()))})
		}
		got, err := w.cached.Rank(t.Context(), req)
		must(t, err)
		want, err := w.plain.Rank(t.Context(), &grebev1.RankRequest{User: whole, Candidates: req.Candidates})
		must(t, err)
		reused += int(got.Usage.CachedTokens)
		if got.Usage.PromptTokens != want.Usage.PromptTokens {
			t.Fatalf("step %d: %d tokens, want %d", step, got.Usage.PromptTokens, want.Usage.PromptTokens)
		}
		for i, b := range want.Results {
			a := got.Results[i]
			if a.Index != b.Index || math.Float64bits(a.Score) != math.Float64bits(b.Score) || a.Tasks["buy"] != b.Tasks["buy"] {
				t.Fatalf("step %d: result %d is %v, want %v", step, i, a, b)
			}
		}
	}
	if reused == 0 {
		t.Error("nothing was ever reused")
	}
	for id, events := range stored {
		if u, ok := w.catalog.User(id); !ok || len(u.Events) != len(events) {
			t.Errorf("%s has %d events, want the %d that were appended", id, len(u.GetEvents()), len(events))
		}
	}
}

// New events cannot be stored, and cannot follow tokens.
func TestNewEventsThatNobodyReads(t *testing.T) {
	events := []*grebev1.Event{{Item: "i1"}}
	if _, err := catalog.New(catalog.Options{}).PutUser(&grebev1.User{Id: "u", NewEvents: events}); err == nil {
		t.Error("a user with new events was stored")
	}
	s := newFake(t)
	req := &grebev1.RankRequest{Model: "id", User: &grebev1.User{Tokens: []int32{1}, NewEvents: events},
		Candidates: []*grebev1.Item{{Tokens: []int32{2}}}}
	if _, err := s.Rank(t.Context(), req); AsError(err).Field() != "user.new_events" {
		t.Errorf("tokens and new events: %v", err)
	}
}

package serve

import (
	"encoding/json"
	"testing"
	"time"

	grebev1 "grebe/api/grebe/v1"
	"grebe/blend"
	"grebe/internal/wire"
	"grebe/plan"
	"grebe/reuse"
	"grebe/schedule"
)

// An answer says which order was used, and why. Orders that a model does not list are used only if a request names
// them.
func TestAnswersSayWhyTheyHaveTheirOrder(t *testing.T) {
	w := newCacheWorld(t, 3, false)
	serve := func(orders schedule.Orders, cached bool) *Service {
		m := w.model
		m.Orders, m.Cache = orders, nil
		if cached {
			m.Cache = reuse.New(m.Prompt, reuse.Options{
				Store: w.store, Pool: w.pool, Load: m.Runner.(reuse.Load), Shape: w.shape, Orders: orders,
				Shared: reuse.Share(w.store),
			})
		}
		s, err := New(Config{Models: []Model{m}, SLO: time.Hour})
		must(t, err)
		return s
	}
	user, item := schedule.Of(plan.UserFirst), schedule.Of(plan.ItemFirst)
	req := w.request("")
	for _, c := range []struct {
		orders        schedule.Orders
		cached        bool
		prefix        string
		want, wantWhy string
	}{
		{orders: user, cached: true, prefix: "auto", want: "user", wantWhy: "only"},
		{orders: item, cached: true, prefix: "", want: "item", wantWhy: "only"},
		{orders: user, cached: true, prefix: "item", want: "item", wantWhy: "requested"},
		{orders: item, cached: true, prefix: "none", want: "none", wantWhy: "requested"},
		{orders: item, prefix: "auto", want: "item", wantWhy: "no-cache"},
		{orders: user, prefix: "auto", want: "user", wantWhy: "no-cache"},
		{orders: user | item, prefix: "auto", want: "user", wantWhy: "no-cache"},
	} {
		req.Prefix = c.prefix
		got, err := serve(c.orders, c.cached).Rank(t.Context(), req)
		must(t, err)
		if got.Prefix != c.want || got.PrefixReason != c.wantWhy {
			t.Errorf("orders %b, cached %v, prefix %q: got %s because %s, want %s because %s",
				c.orders, c.cached, c.prefix, got.Prefix, got.PrefixReason, c.want, c.wantWhy)
		}
	}
	req.Prefix = "auto"
	got, err := w.cached.Rank(t.Context(), req)
	must(t, err)
	switch got.PrefixReason {
	case "cheaper", "invest", "deadline":
	default:
		t.Errorf("a free choice was made because %q", got.PrefixReason)
	}
}

// A budget with only one share keeps the model's value for the other.
func TestAPartialBudgetKeepsTheModelsShare(t *testing.T) {
	model := &Model{Blend: &reuse.Blend{Budget: blend.Budget{Items: 0.2, History: 0.7, Window: 3}}}
	for body, want := range map[string]blend.Budget{
		`{"items": 0.5}`:               {Items: 0.5, History: 0.7, Window: 3},
		`{"history": 0}`:               {Items: 0.2, History: 0, Window: 3},
		`{}`:                           {Items: 0.2, History: 0.7, Window: 3},
		`{"items": 0, "history": 0.1}`: {Items: 0, History: 0.1, Window: 3},
	} {
		req, err := wire.DecodeRank([]byte(`{"prefix": "blend", "budget": ` + body + `}`))
		must(t, err)
		got, err := (&call{model: &checkpoint{Model: model}}).budget(req)
		if err != nil || *got != want {
			t.Errorf("%s: budget %+v, %v, want %+v", body, got, err, want)
		}
	}
}

// Everything that a blended prompt computes is counted: tokens in all layers, tokens in the first layers only, and
// items beside the prompt.
func TestBlendedPromptsCountAllThatIsComputed(t *testing.T) {
	w := newBlendWorld(t, near, 4, false)
	req := w.request("blend")
	req.User.Id = "u"
	var items int32
	for _, it := range req.Candidates {
		items += int32(len(it.Tokens))
	}
	var u [4]*grebev1.Usage
	for i := range u {
		if i == 3 {
			req.Budget = &grebev1.Budget{Items: new(0.0)}
		}
		got, err := w.cached.Rank(t.Context(), req)
		must(t, err)
		u[i] = got.Usage
		w.store.Count(time.Second)
	}
	if u[0].BesideTokens != 0 || u[0].PartlyComputedTokens != 0 {
		t.Errorf("the first request computes %d tokens beside it, and %d partly", u[0].BesideTokens,
			u[0].PartlyComputedTokens)
	}
	if u[1].BesideTokens < items { // and the lead-in
		t.Errorf("the second request computes %d tokens beside it, want the %d of the items", u[1].BesideTokens, items)
	}
	for i := 2; i < 4; i++ {
		if u[i].BesideTokens != 0 || u[i].PartlyComputedTokens != items-u[i].BySource.Recomputed ||
			u[i].PartlyComputedTokens > u[i].CachedTokens {
			t.Errorf("request %d: %v, with %d tokens of items", i, u[i], items)
		}
	}
	if u[3].PartlyComputedTokens != items {
		t.Errorf("with nothing computed again %d tokens of items pass the first layers, want %d", u[3].PartlyComputedTokens,
			items)
	}
}

// Answers in other servers' formats report the cached tokens where their clients look for them.
func TestScoreUsageHasCachedTokens(t *testing.T) {
	w := newCacheWorld(t, 2, true)
	req := &grebev1.ScoreRequest{
		Query: &grebev1.Input{Tokens: w.tokens(300)}, Items: []*grebev1.Input{{Tokens: w.tokens(4)}},
		LabelTokenIds: []int32{11, 12}, ApplySoftmax: true,
	}
	var last *grebev1.ScoreResponse
	for range 2 {
		var err error
		last, err = w.cached.Score(t.Context(), req)
		must(t, err)
	}
	u := last.Usage
	if u.CachedTokens < 256 || u.CachedTokens > u.PromptTokens ||
		u.PromptTokensDetails.GetCachedTokens() != u.CachedTokens {
		t.Errorf("the second request's usage: %v", u)
	}
	plain, err := w.plain.Score(t.Context(), req)
	must(t, err)
	if plain.Usage.CachedTokens != 0 {
		t.Errorf("without a cache: %v", plain.Usage)
	}
	var got struct {
		Usage struct {
			Cached  int `json:"cached_tokens"`
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	must(t, json.Unmarshal(wire.EncodeScore(last), &got))
	if got.Usage.Cached != int(u.CachedTokens) || got.Usage.Details.Cached != int(u.CachedTokens) {
		t.Errorf("as JSON: %+v", got)
	}
	docs := &grebev1.RerankRequest{Query: string(make([]byte, 300)), Documents: []string{"a", "b"}}
	var reranked *grebev1.RerankResponse
	for range 2 {
		reranked, err = w.cached.Rerank(t.Context(), docs)
		must(t, err)
	}
	if reranked.Usage.CachedTokens == 0 {
		t.Errorf("the second reranking's usage: %v", reranked.Usage)
	}
}

package server

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	grebev1 "grebe/api/grebe/v1"
)

type rankedBody struct {
	Results []struct {
		ID        string  `json:"id"`
		Score     float64 `json:"score"`
		RankScore float64 `json:"rank_score"`
	} `json:"results"`
	Short  bool `json:"short"`
	Ranked *struct {
		Model      string `json:"model"`
		Prefix     string `json:"prefix"`
		Candidates int    `json:"candidates"`
		Usage      struct {
			Cached int `json:"cached_tokens"`
			User   int `json:"user_tokens"`
		} `json:"usage"`
	} `json:"ranked"`
	Fallback string `json:"fallback"`
}

// Items that were found come back as a ranking of them orders them, with the scores of both. The ranking reuses the KV
// of the user that the search left.
func TestRecommendThenRank(t *testing.T) {
	r := newRecommender(t)
	for i := range 30 { // both models score by identifier
		it := r.items[fmt.Sprint("i", i)]
		it.Identifier = new(int32(i))
		_, err := r.cat.PutItem(it)
		must(t, err)
	}
	ask := func(fields string) *rankedBody {
		t.Helper()
		rec := r.ask("POST", "/v1/recommend", `{"model": "m", `+fields+`}`)
		if rec.Code != 200 {
			t.Fatalf("%s: %d, %s", fields, rec.Code, rec.Body)
		}
		var b rankedBody
		must(t, json.Unmarshal(rec.Body.Bytes(), &b))
		return &b
	}
	// i7 and i8 share their codes: their order is that of their last change, which snapshots follow in their own time.
	const user = `"user": {"id": "u1"}, "exclude": ["i7", "i8"], `
	const whom = `"user": {"id": "u1"}, `
	got := ask(user + `"n": 4, "exclude_seen": true, "rank": {"candidates": 12}`)
	if by := got.Ranked; len(got.Results) != 4 || got.Short || by == nil || by.Model != "m" || by.Prefix != "user" ||
		by.Candidates != 12 {
		t.Fatalf("%+v", got)
	} else if by.Usage.User == 0 || by.Usage.Cached < by.Usage.User-1 {
		t.Errorf("the ranking found %d tokens cached, of a user of %d", by.Usage.Cached, by.Usage.User)
	}
	found := r.recommend(t, user+`"n": 12, "exclude_seen": true`)
	scores := map[string]float64{}
	var candidates []string
	for _, x := range found.Results {
		scores[x.ID] = x.Score
		candidates = append(candidates, fmt.Sprintf(`{"id": %q}`, x.ID))
	}
	for _, model := range []string{"m", "ranks"} {
		got := ask(user + `"n": 12, "exclude_seen": true, "rank": {"model": "` + model + `", "prefix": "user"}`)
		rec := r.ask("POST", "/v1/rank", `{"model": "`+model+`", `+whom+`"prefix": "user", "candidates": [`+
			strings.Join(candidates, ",")+`]}`)
		var want rankedBody
		must(t, json.Unmarshal(rec.Body.Bytes(), &want))
		if rec.Code != 200 || len(want.Results) != 12 || got.Ranked.Model != model {
			t.Fatalf("%d, %+v, %+v", rec.Code, want, got)
		}
		for i, x := range got.Results {
			if w := want.Results[i]; x.ID != w.ID || x.RankScore != w.Score || x.Score != scores[x.ID] {
				t.Errorf("%s: place %d is %+v, want %+v of %v", model, i, x, w, scores[x.ID])
			}
		}
	}
	ids := func(b *rankedBody) (out []string) {
		for _, x := range b.Results {
			out = append(out, x.ID)
		}
		return out
	}
	if few := ask(user + `"n": 100, "rank": {}, "filter": {"kind": ["2"]}`); !few.Short || few.Ranked == nil ||
		len(few.Results) != 5 ||
		slices.ContainsFunc(ids(few), func(id string) bool { return kind(id) != 2 }) {
		t.Errorf("of one kind: %+v", few)
	}
	if none := ask(user + `"rank": {}, "filter": {"kind": ["none"]}`); none.Ranked != nil || !none.Short {
		t.Errorf("of no items: %+v", none)
	}
	for filter, want := range map[string][]string{
		`["none"]`: {`filter.kind: no item has "none"`}, `["2", "none", "nine"]`: {`filter.kind: no item has "none", "nine"`},
		`["2"]`: nil,
	} {
		if got := r.recommend(t, user+`"n": 50, "filter": {"kind": `+filter+`}`); !slices.Equal(got.Notes, want) {
			t.Errorf("%s: notes %q, want %q", filter, got.Notes, want)
		}
	}
	if got := r.recommend(t, user+`"n": 1, "filter": {"kind": ["2", "none"]}`); got.Short || got.Notes != nil {
		t.Errorf("enough items: %+v", got)
	}
	_, err := r.cat.PutUser(&grebev1.User{Id: "w", Events: []*grebev1.Event{{Item: "i20"}, {Item: "i21"}}})
	must(t, err)
	if cold :=
		ask(`"user": {"id": "nobody"}, "n": 1, "fallback": "popular", "rank": {"candidates": 2}`); cold.Ranked != nil ||
		cold.Fallback != "popular" || len(cold.Results) != 1 || cold.Short {
		t.Errorf("a user of whom nothing is known: %+v", cold)
	}
	for _, c := range []struct {
		rank   string
		status int
		code   string
		field  string
	}{
		{`{"model": "x"}`, 404, "not_found", "rank.model"},
		{`{"prefix": "x"}`, 400, "invalid_argument", "rank.prefix"},
		{`{"candidates": 0}`, 400, "invalid_argument", "rank.candidates"},
		{`{"top_k": 1}`, 400, "invalid_argument", "rank.top_k"},
		{`true`, 400, "invalid_argument", "rank"},
	} {
		wantError(t, r.ask("POST", "/v1/recommend", `{"model": "m", `+user+`"rank": `+c.rank+`}`), c.status, c.code, c.field)
	}
}

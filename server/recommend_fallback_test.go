package server

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	grebev1 "grebe/api/grebe/v1"
	"grebe/prompt"
)

// Users fall back whose items the prompt cannot show, all of them. exclude_seen holds for these items.
func TestRecommendPopularToUnlistedUsers(t *testing.T) {
	r := recommenderOf(t, codeBuilderWith(t, prompt.Config{History: "identifier"}, len(levels), true))
	now := time.Now().Unix()
	_, err := r.cat.PutUser(&grebev1.User{Id: "w", Events: []*grebev1.Event{{Item: "i20", Time: now},
		{Item: "i21", Time: now}, {Item: "i21", Time: now}}})
	must(t, err)
	numbered := proto.CloneOf(r.items["i9"])
	numbered.Identifier = proto.Int32(7)
	r.put(t, numbered)
	for id, history := range map[string][]string{"gone": {"none", "nil"}, "bare": {"i21", "none"}, "some": {"i21", "i9"}} {
		_, err := r.cat.PutUser(&grebev1.User{Id: id, History: history})
		must(t, err)
	}
	const lack = "1 item of the history was left out: it has no identifiers of this model"
	for _, c := range []struct {
		user, note string
		want       string // the best item; "": that of a search
	}{
		{`{"id": "gone"}`, "2 items of the history were left out: they are unknown", "i21"},
		{`{"id": "bare"}`, "1 item of the history was left out: it is unknown; " + lack, "i20"},
		{`{"id": "some"}`, lack, ""},
		{`{"history": ["i21"]}`, lack, "i20"},
		{`{"events": [{"item": "i21"}]}`, lack, "i20"},
		{`{"history": ["i21", "i9"]}`, lack, ""},
		{`{"history": ["i21"], "text": "t"}`, lack, ""},
		{`{"id": "bare", "new_events": [{"item": "i20"}]}`, "", "i5"},
		{`{"id": "bare", "new_events": [{"item": "i9"}]}`, "", ""},
	} {
		rec := r.ask("POST", "/v1/recommend", `{"model": "m", "fallback": "popular", "n": 1, "exclude_seen": true, "user": `+
			c.user+`}`)
		if rec.Code != 200 {
			t.Fatalf("%s: %d, %s", c.user, rec.Code, rec.Body)
		}
		var got recommendBody
		decodeJSON(t, rec.Body, &got)
		if c.want == "" && (got.Fallback != "" || got.Usage.Prompt == 0) {
			t.Errorf("%s: %+v, want a search", c.user, got)
		}
		popular := got.Fallback == "popular" && got.Usage.Prompt == 0
		if c.want != "" && (!popular || !slices.Equal(got.ids(), []string{c.want})) {
			t.Errorf("%s: %+v, want the popular %s", c.user, got, c.want)
		}
		if c.note != "" && got.Usage.Note != c.note {
			t.Errorf("%s: note %q, want %q", c.user, got.Usage.Note, c.note)
		}
	}
	wantError(t, r.ask("POST", "/v1/recommend", `{"model": "m", "fallback": "popular", "user": {"id": "nobody",
		"new_events": [{"item": "i9"}]}}`), 400, "invalid_argument", "user.id")
}

// Users of whom nothing is known get the items with most events, under the rules of the request.
func TestRecommendPopular(t *testing.T) {
	r := newRecommender(t)
	now := time.Now().Unix()
	// i20 … i24 have one to five new events each. i9 has forty, which are a year old.
	for i := range 5 {
		for k := range i + 1 {
			u := &grebev1.User{Id: fmt.Sprint("w", i, k), Events: []*grebev1.Event{{Item: fmt.Sprint("i", 20+i), Time: now}}}
			_, err := r.cat.PutUser(u)
			must(t, err)
		}
	}
	old := &grebev1.User{Id: "old", Events: []*grebev1.Event{{Item: "gone", Time: now}}}
	for range 40 {
		old.Events = slices.Insert(old.Events, 0, &grebev1.Event{Item: "i9", Time: now - 365*24*3600})
	}
	for _, u := range []*grebev1.User{old, {Id: "silent"}} {
		_, err := r.cat.PutUser(u)
		must(t, err)
	}
	ask := func(user, fields string) *recommendBody {
		t.Helper()
		rec := r.ask("POST", "/v1/recommend", `{"model": "m", "fallback": "popular", "user": `+user+`, `+fields+`}`)
		if rec.Code != 200 {
			t.Fatalf("%s, %s: %d, %s", user, fields, rec.Code, rec.Body)
		}
		var b recommendBody
		decodeJSON(t, rec.Body, &b)
		return &b
	}
	best := []string{"i24", "i23", "i22", "i21", "i20", "i9"}
	for _, user := range []string{`{"id": "nobody"}`, `{"id": "silent"}`, `{"history": []}`} {
		got := ask(user, `"n": 6`)
		if !slices.Equal(got.ids(), best) || got.Fallback != "popular" || got.Short || got.Usage.Prompt != 0 {
			t.Errorf("%s: %+v", user, got)
		}
		for i, x := range got.Results {
			if !slices.Equal(x.Codes, r.items[x.ID].Codes) || i > 0 && x.Score > got.Results[i-1].Score || x.Score >= 0 {
				t.Errorf("%s: place %d is %+v", user, i, x)
			}
		}
	}
	for _, c := range []struct {
		fields string
		want   []string
	}{
		{`"n": 2, "exclude": ["i24", "i22"]`, []string{"i23", "i21"}},
		{`"n": 2, "filter": {"kind": ["0", "1"]}`, []string{"i21", "i20"}},
		{`"n": 3, "boost": {"kind": {"0": 9}}`, []string{"i20", "i24", "i23"}},
		{`"n": 3, "quota": {"all": 1}`, []string{"i24"}},
	} {
		if got := ask(`{"id": "nobody"}`, c.fields); !slices.Equal(got.ids(), c.want) {
			t.Errorf("%s: %v, want %v", c.fields, got.ids(), c.want)
		}
	}
	orders := map[string]bool{}
	for seed := range 20 {
		fields := fmt.Sprintf(`"n": 5, "temperature": 2, "seed": %d`, seed)
		got := ask(`{"id": "nobody"}`, fields)
		if again := ask(`{"id": "nobody"}`, fields); !slices.Equal(again.ids(), got.ids()) || got.Seed == nil ||
			*got.Seed != uint64(seed) {
			t.Errorf("seed %d: %v, then %v", seed, got.ids(), again.ids())
		}
		orders[strings.Join(got.ids(), " ")] = true
	}
	if len(orders) < 5 {
		t.Errorf("%d orders of 20 seeds", len(orders))
	}
	known, plain := ask(`{"id": "u1"}`, `"n": 5`), r.recommend(t, `"user": {"id": "u1"}, "n": 5`)
	if known.Fallback != "" || !slices.Equal(known.ids(), plain.ids()) ||
		math.Abs(known.Results[0].Score-plain.Results[0].Score) > 1e-5 {
		t.Errorf("a user with a history: %+v, without a fallback %+v", known, plain)
	}
	wantError(t, r.ask("POST", "/v1/recommend", `{"model": "m", "user": {"id": "nobody"}}`), 400, "invalid_argument",
		"user.id")
	wantError(t, r.ask("POST", "/v1/recommend", `{"model": "m", "user": {"id": "nobody"}, "fallback": "x"}`), 400,
		"invalid_argument", "fallback")
	wantError(t, r.ask("POST", "/v1/recommend", `{"model": "deep", "user": {"id": "nobody"}, "fallback": "popular"}`), 422,
		"unprocessable", "")
}

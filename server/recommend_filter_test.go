package server

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	grebev1 "grebe/api/grebe/v1"
)

// Ranges and negations leave the items that meet them, with the scores that they have without a filter.
func TestRecommendWithRanges(t *testing.T) {
	r := newRecommender(t)
	rng := rand.New(rand.NewPCG(7, 7))
	price := map[string]float64{}
	for i := range 30 {
		id := fmt.Sprint("i", i)
		price[id] = float64(rng.IntN(100)) / 2
		it := r.items[id]
		it.Attributes["price"] = &grebev1.Values{Values: []string{strconv.FormatFloat(price[id], 'f', -1, 64)}}
		it.Attributes["added"] = &grebev1.Values{Values: []string{fmt.Sprintf("2026-01-%02d", i%28+1)}}
		r.put(t, it)
	}
	r.until(t, "following", (*catalogBody).followed)
	all := r.recommend(t, `"n": 1000, "user": {"id": "u1"}`)
	kind := func(id string) string { return r.items[id].Attributes["kind"].Values[0] }
	added := func(id string) string { return r.items[id].Attributes["added"].Values[0] }
	for _, c := range []struct {
		filter string
		keep   func(id string) bool
	}{
		{`{"price": {"gte": 10, "lt": 30}}`, func(id string) bool { return price[id] >= 10 && price[id] < 30 }},
		{`{"price": {"gt": 10.5}}`, func(id string) bool { return price[id] > 10.5 }},
		{`{"price": {"lte": "25"}, "kind": {"not": ["1", "2"]}}`, func(id string) bool {
			return price[id] <= 25 && kind(id) != "1" && kind(id) != "2"
		}},
		{`{"added": {"gte": "2026-01-10", "lt": "2026-01-20T00:00:00Z"}}`, func(id string) bool {
			return added(id) >= "2026-01-10" && added(id) < "2026-01-20"
		}},
		{`{"kind": {"not": ["3"]}}`, func(id string) bool { return kind(id) != "3" }},
		{`{"kind": {"not": ["3"], "gte": 2}, "all": ["yes"]}`,
			func(id string) bool { return kind(id) == "2" || kind(id) == "4" }},
		{`{"price": {"gt": 1e9}}`, func(string) bool { return false }},
		{`{"kind": {"gte": "2026-01-01"}}`, func(string) bool { return false }},
	} {
		var want []result
		for _, x := range all.Results {
			if c.keep(x.ID) {
				want = append(want, x)
			}
		}
		for range 2 { // the second time with the sets of the first
			got := r.recommend(t, `"n": 1000, "user": {"id": "u1"}, "filter": `+c.filter)
			same := slices.EqualFunc(got.Results, want, func(a, b result) bool {
				return a.ID == b.ID && a.Score-b.Score < 1e-6 && b.Score-a.Score < 1e-6
			})
			if !same {
				t.Errorf("%s: %v, want %v", c.filter, got.Results, want)
			}
		}
	}
}

func TestFilterErrors(t *testing.T) {
	r := newRecommender(t)
	for filter, field := range map[string]string{
		`{"kind": {}}`:                                        "filter.kind",
		`{"kind": {"not": []}}`:                               "filter.kind",
		`{"kind": {"gte": "many"}}`:                           "filter.kind.gte",
		`{"kind": {"gte": 1e999}}`:                            "filter.kind.gte",
		`{"kind": {"gte": 5, "lt": 5}}`:                       "filter.kind",
		`{"kind": {"gte": 5, "lt": "2026-01-01"}}`:            "filter.kind.lt",
		`{"kind": {"above": 5}}`:                              "filter.kind.above",
		`{"price": {"gte": 5}}`:                               "filter.price",
		`{"kind": "1"}`:                                       "filter.kind",
		`{"kind": {"not": [1]}}`:                              "filter.kind.not[0]",
		`{"kind": {"lt": "` + strings.Repeat("9", 99) + `"}}`: "filter.kind.lt",
	} {
		rec := r.ask("POST", "/v1/recommend", `{"model": "m", "user": {"id": "u1"}, "filter": `+filter+`}`)
		wantError(t, rec, 400, "invalid_argument", field)
	}
}

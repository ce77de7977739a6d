package server

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	grebev1 "grebe/api/grebe/v1"
)

// ruled asks for recommendations. Their scores may rise, so recommender.check does not apply.
func (r *recommender) ruled(t *testing.T, fields string) *recommendBody {
	t.Helper()
	rec := r.ask("POST", "/v1/recommend", `{"model": "m", "user": {"id": "u1"}, `+fields+`}`)
	if rec.Code != 200 {
		t.Fatalf("%s: %d, %s", fields, rec.Code, rec.Body)
	}
	var b recommendBody
	decodeJSON(t, rec.Body, &b)
	return &b
}

// Boosts and quotas apply to all items: the answers are those of sorting the whole catalog.
func TestRecommendBoostAndQuota(t *testing.T) {
	r := newRecommender(t)
	all := r.ruled(t, `"n": 100`)
	for _, c := range []struct {
		fields  string
		boost   func(id string) float64
		quota   int // of a kind
		skipped func(id string) bool
	}{
		{`"boost": {"kind": {"1": 2.5}}`, func(id string) float64 { return on(kind(id) == 1, 2.5) }, 0, nil},
		{`"boost": {"kind": {"1": 2.5, "2": -3}, "all": {"i7": 9}}, "exclude_seen": true`, func(id string) float64 {
			return on(kind(id) == 1, 2.5) + on(kind(id) == 2, -3) + on(id == "i7", 9)
		}, 0, func(id string) bool { return id == "i3" || id == "i4" }},
		{`"quota": {"kind": 2}`, nil, 2, nil},
		{`"quota": {"kind": 1, "all": 100}, "boost": {"kind": {"3": 4}}, "filter": {"kind": ["1", "2", "3"]}`,
			func(id string) float64 { return on(kind(id) == 3, 4) }, 1,
			func(id string) bool { return kind(id) == 0 || kind(id) == 4 }},
	} {
		got := r.ruled(t, `"n": 100, `+c.fields)
		want := slices.Clone(all.Results)
		for i := range want {
			if c.boost != nil {
				want[i].Boost = c.boost(want[i].ID)
				want[i].Score += want[i].Boost
			}
		}
		slices.SortStableFunc(want, func(a, b result) int { return cmp.Compare(b.Score, a.Score) })
		taken := map[int]int{}
		want = slices.DeleteFunc(want, func(x result) bool {
			if c.skipped != nil && c.skipped(x.ID) || c.quota > 0 && taken[kind(x.ID)] == c.quota {
				return true
			}
			taken[kind(x.ID)]++
			return false
		})
		if len(got.Results) != len(want) || !got.Short || got.Reason != "catalog" || got.Seed != nil {
			t.Fatalf("%s: %d results, want %d; short %v, %q", c.fields, len(got.Results), len(want), got.Short, got.Reason)
		}
		for i, x := range got.Results {
			if w := want[i]; x.ID != w.ID || x.Boost != w.Boost || math.Abs(x.Score-w.Score) > 1e-5 {
				t.Errorf("%s: place %d is %v, want %v", c.fields, i, x, w)
			}
		}
		few := r.ruled(t, `"n": 3, `+c.fields)
		if !slices.Equal(few.ids(), got.ids()[:3]) || few.Short {
			t.Errorf("%s: three are %v, of %v", c.fields, few.ids(), got.ids())
		}
	}
}

func on(is bool, x float64) float64 {
	if is {
		return x
	}
	return 0
}

// A seed decides what is drawn. A filter only leaves items out, and scores stay those of the paths.
func TestRecommendSampled(t *testing.T) {
	r := newRecommender(t)
	scores := map[string]float64{}
	for _, x := range r.ruled(t, `"n": 100`).Results {
		scores[x.ID] = x.Score
	}
	orders := map[string]bool{}
	for seed := range 20 {
		fields := fmt.Sprintf(`"temperature": 1.5, "seed": %d, "n": `, seed)
		all := r.ruled(t, fields+"100")
		if all.Seed == nil || *all.Seed != uint64(seed) || len(all.Results) != len(scores) || all.Notes != nil {
			t.Fatalf("seed %d: %+v", seed, all)
		}
		for _, x := range all.Results {
			if math.Abs(x.Score-scores[x.ID]) > 1e-5 {
				t.Errorf("seed %d: %s has score %v, without a temperature %v", seed, x.ID, x.Score, scores[x.ID])
			}
		}
		orders[strings.Join(all.ids(), " ")] = true
		if some := r.ruled(t, fields+"4"); !slices.Equal(some.ids(), all.ids()[:4]) {
			t.Errorf("seed %d: %v of %v", seed, some.ids(), all.ids())
		}
		want := slices.DeleteFunc(all.ids(), func(id string) bool { return kind(id) != 2 && kind(id) != 3 })
		if got := r.ruled(t, fields+`100, "filter": {"kind": ["2", "3"]}`); !slices.Equal(got.ids(), want) {
			t.Errorf("seed %d: filtered %v, want %v", seed, got.ids(), want)
		}
	}
	if len(orders) < 18 {
		t.Errorf("%d orders of 20 seeds", len(orders))
	}
	drawn := r.ruled(t, `"temperature": 1.5, "n": 100`)
	if drawn.Seed == nil {
		t.Fatal("the server drew no seed")
	}
	again := r.ruled(t, fmt.Sprintf(`"temperature": 1.5, "n": 100, "seed": %d`, *drawn.Seed))
	if !slices.Equal(again.ids(), drawn.ids()) {
		t.Errorf("the seed that the server drew gives %v, then %v", drawn.ids(), again.ids())
	}
	// One beam cannot tell which of the others holds an item of the filter that comes before.
	narrow := r.ruled(t, `"temperature": 1.5, "seed": 1, "n": 3, "beam_width": 1`)
	if len(narrow.Notes) != 1 || !strings.Contains(narrow.Notes[0], "approximate") {
		t.Errorf("one beam: %+v", narrow)
	}
}

func TestRecommendRulesErrors(t *testing.T) {
	r := newRecommender(t)
	for _, c := range []struct{ fields, field string }{
		{`"quota": {"colour": 3}`, "quota.colour"},
		{`"quota": {"kind": 0}`, "quota.kind"},
		{`"boost": {"colour": {"red": 1}}`, "boost.colour"},
		{`"boost": {"kind": {}}`, "boost.kind"},
		{`"boost": {"kind": {"1": 101}}`, "boost.kind.1"},
		{`"temperature": -1`, "temperature"},
		{`"temperature": 0.0001`, "temperature"},
		{`"temperature": 101`, "temperature"},
		{`"seed": -1`, "seed"},
	} {
		body := `{"model": "m", "user": {"id": "u1"}, ` + c.fields + `}`
		wantError(t, r.ask("POST", "/v1/recommend", body), 400, "invalid_argument", c.field)
	}
	c := grebev1.NewGrebeClient(overPipe(t, r.world))
	for field, q := range map[string]*grebev1.RecommendRequest{
		"temperature":  {Temperature: math.NaN()},
		"seed":         {Temperature: 1, Seed: new(uint64(math.MaxUint64))},
		"boost.kind":   {Boost: map[string]*grebev1.Boosts{"kind": nil}},
		"boost.kind.1": {Boost: map[string]*grebev1.Boosts{"kind": {Values: map[string]float64{"1": math.Inf(1)}}}},
		"quota.kind":   {Quota: map[string]int32{"kind": -1}},
	} {
		q.Model, q.User = "m", &grebev1.User{Id: "u1"}
		_, err := c.Recommend(t.Context(), q)
		if status.Code(err) != codes.InvalidArgument || !strings.HasPrefix(status.Convert(err).Message(), field+": ") {
			t.Errorf("%s: %v", field, err)
		}
	}
	q := &grebev1.RecommendRequest{Model: "m", User: &grebev1.User{Id: "u1"}, N: 5, Temperature: 0.5, Seed: new(uint64(3)),
		Quota: map[string]int32{"kind": 2}, Boost: map[string]*grebev1.Boosts{"kind": {Values: map[string]float64{"1": 2}}}}
	got, err := c.Recommend(t.Context(), q)
	must(t, err)
	want := r.ruled(t, `"n": 5, "temperature": 0.5, "seed": 3, "quota": {"kind": 2}, "boost": {"kind": {"1": 2}}`)
	for i, x := range got.Results {
		if w := want.Results[i]; x.Id != w.ID || x.Score != w.Score || x.Boost != w.Boost {
			t.Errorf("place %d: %v, over HTTP %v", i, x, w)
		}
	}
	if len(got.Results) != 5 || got.GetSeed() != 3 {
		t.Errorf("over gRPC: %v", got)
	}
}

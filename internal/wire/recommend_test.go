package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	grebev1 "grebe/api/grebe/v1"
)

const fullRecommend = `{"model":"demo","user":{"id":"u1"},"n":10,"beam_width":128,"top_k":64,"exclude":["i3","é"],
 "exclude_seen":true,
 "filter":{"category":["toys","games"],"":[],"price":{"gte":10,"lt":5e1,"not":["12"]},
  "made":{"gt":"2026-01-31","lte":"2027-01-01T00:00:00Z"}},
 "quota":{"brand":3},"boost":{"category":{"toys":0.5,"games":-1}},"temperature":0.8,"seed":7,"fallback":"popular",
 "rank":{"model":"r","candidates":50,"prefix":"auto"},"deadline_ms":200,"request_id":"r","explain":true}`

func TestDecodeRecommend(t *testing.T) {
	got, err := DecodeRecommend([]byte(fullRecommend))
	want := &grebev1.RecommendRequest{
		Model: "demo", User: &grebev1.User{Id: "u1"}, N: 10, BeamWidth: 128, TopK: 64, Exclude: []string{"i3", "é"},
		ExcludeSeen: true, Explain: true,
		Filter: map[string]*grebev1.Condition{"category": {Values: []string{"toys", "games"}}, "": {},
			"price": {Gte: "10", Lt: "5e1", Not: []string{"12"}}, "made": {Gt: "2026-01-31", Lte: "2027-01-01T00:00:00Z"}},
		DeadlineMs: 200, RequestId: "r", Quota: map[string]int32{"brand": 3}, Temperature: 0.8, Seed: new(uint64(7)),
		Fallback: "popular",
		Rank:     &grebev1.RankFound{Model: "r", Candidates: 50, Prefix: "auto"},
		Boost:    map[string]*grebev1.Boosts{"category": {Values: map[string]float64{"toys": 0.5, "games": -1}}},
	}
	if err != nil || !proto.Equal(got, want) {
		t.Errorf("got  %v, %v\nwant %v", got, err, want)
	}
	many := `{"exclude":["a"` + strings.Repeat(`,"a"`, MaxExclude) + `]}`
	names := `{"filter":{`
	for i := range MaxFilter + 1 {
		names += `"` + strings.Repeat("a", i+1) + `":["b"],`
	}
	boosts := `{"boost":{"a":{`
	for i := range MaxBoosts + 1 {
		boosts += fmt.Sprintf(`"%d":1,`, i)
	}
	for _, c := range []struct{ in, field, problem string }{
		{`{"quota":{"a":0}}`, "quota.a", "between 1 and 10000"},
		{`{"quota":{"a":[1]}}`, "quota.a", "not a list"},
		{`{"quota":3}`, "quota", "not a number"},
		{`{"boost":{"a":1}}`, "boost.a", "not a number"},
		{`{"boost":{"a":{"b":"1"}}}`, "boost.a.b", "not a string"},
		{strings.TrimSuffix(boosts, ",") + `}}}`, "boost.a.256", "more than 256"},
		{`{"filter":{"a":{"in":["b"]}}}`, "filter.a.in", "unknown condition"},
		{`{"filter":{"a":{"gte":true}}}`, "filter.a.gte", "not true"},
		{`{"filter":{"a":{"gte":""}}}`, "filter.a.gte", "empty"},
		{`{"filter":{"a":{"gte":null}}}`, "filter.a.gte", "null"},
		{`{"filter":{"a":{"not":"b"}}}`, "filter.a.not", "not a string"},
		{`{"filter":{"a":{"gte":1,"gte":2}}}`, "filter.a.gte", "twice"},
		{`{"filter":{"a":7}}`, "filter.a", "a list of values"},
		{`{"rank":{"candidates":0}}`, "rank.candidates", "between 1 and 10000"},
		{`{"rank":{"top_k":1}}`, "rank.top_k", "unknown field"},
		{`{"temperature":"1"}`, "temperature", "not a string"},
		{`{"temperature":1e999}`, "temperature", "out of range"},
		{`{"seed":-1}`, "seed", "between"},
		{`{"seed":0.5}`, "seed", "integer"},
		{`[]`, "", "not a list"},
		{`{"N":1}`, "N", "unknown field"},
		{`{"n":0}`, "n", "between 1 and 10000"},
		{`{"n":10001}`, "n", "between"},
		{`{"n":1.5}`, "n", "integer"},
		{`{"n":null}`, "n", "null"},
		{`{"beam_width":0}`, "beam_width", "between 1 and 8192"},
		{`{"beam_width":8193}`, "beam_width", "between"},
		{`{"top_k":-1}`, "top_k", "between"},
		{`{"exclude":[1]}`, "exclude[0]", "not a number"},
		{`{"exclude":{}}`, "exclude", "not an object"},
		{`{"exclude_seen":"yes"}`, "exclude_seen", "true or false"},
		{`{"filter":[]}`, "filter", "not a list"},
		{`{"filter":{"a":"b"}}`, "filter.a", "not a string"},
		{`{"filter":{"a":["b",null]}}`, "filter.a[1]", "null"},
		{`{"filter":{"a":["b"],"a":["b"]}}`, "filter.a", "twice"},
		{`{"candidates":[]}`, "candidates", "unknown field"},
		{many, "exclude", "more than"},
		{strings.TrimSuffix(names, ",") + `}}`, "filter." + shown(strings.Repeat("a", MaxFilter+1)), "more than"},
	} {
		_, err := DecodeRecommend([]byte(c.in))
		var e *Error
		if !errors.As(err, &e) || e.Field != c.field || !strings.Contains(e.Problem, c.problem) {
			t.Errorf("%.80s: %v; want %q at %q", c.in, err, c.problem, c.field)
		}
	}
}

type stdRecommend struct {
	Model       string                  `json:"model"`
	User        *stdUser                `json:"user"`
	N           int32                   `json:"n"`
	BeamWidth   int32                   `json:"beam_width"`
	TopK        int32                   `json:"top_k"`
	Exclude     []string                `json:"exclude"`
	ExcludeSeen bool                    `json:"exclude_seen"`
	Filter      map[string]stdCondition `json:"filter"`
	DeadlineMs  int32                   `json:"deadline_ms"`
	RequestID   string                  `json:"request_id"`

	Quota       map[string]int32              `json:"quota"`
	Boost       map[string]map[string]float64 `json:"boost"`
	Temperature float64                       `json:"temperature"`
	Seed        *uint64                       `json:"seed"`
	Fallback    string                        `json:"fallback"`
	Rank        *stdRankFound                 `json:"rank"`
	Whole       bool                          `json:"whole_prompt"`
	One         bool                          `json:"one_per_path"`
	Explain     bool                          `json:"explain"`
}

type stdCondition struct {
	values, not      []string
	gte, gt, lt, lte string
}

func (c *stdCondition) UnmarshalJSON(in []byte) error {
	if bytes.HasPrefix(in, []byte("[")) {
		return json.Unmarshal(in, &c.values)
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(in, &all); err != nil {
		return err
	}
	if not, ok := all["not"]; ok {
		if err := json.Unmarshal(not, &c.not); err != nil {
			return err
		}
	}
	for key, into := range map[string]*string{"gte": &c.gte, "gt": &c.gt, "lt": &c.lt, "lte": &c.lte} {
		if raw := all[key]; bytes.HasPrefix(raw, []byte(`"`)) {
			if err := json.Unmarshal(raw, into); err != nil {
				return err
			}
		} else {
			*into = string(raw)
		}
	}
	return nil
}

type stdRankFound struct {
	Model      string `json:"model"`
	Candidates int32  `json:"candidates"`
	Prefix     string `json:"prefix"`
}

// agreeRecommend checks an accepted request against encoding/json.
func agreeRecommend(t *testing.T, in []byte, m *grebev1.RecommendRequest) {
	t.Helper()
	var std stdRecommend
	if err := json.Unmarshal(in, &std); err != nil {
		t.Fatalf("accepted %q, which encoding/json refuses: %v", in, err)
	}
	own := stdRecommend{Model: m.Model, N: m.N, BeamWidth: m.BeamWidth, TopK: m.TopK, Exclude: m.Exclude,
		ExcludeSeen: m.ExcludeSeen,
		DeadlineMs:  m.DeadlineMs, RequestID: m.RequestId, Quota: m.Quota, Temperature: m.Temperature, Seed: m.Seed,
		Fallback: m.Fallback,
		Whole:    m.WholePrompt, One: m.OnePerPath, Explain: m.Explain}
	if k := m.Rank; k != nil {
		own.Rank = &stdRankFound{k.Model, k.Candidates, k.Prefix}
	}
	if m.Boost != nil {
		own.Boost = map[string]map[string]float64{}
	}
	for name, b := range m.Boost {
		own.Boost[name] = b.Values
	}
	if m.Filter != nil {
		own.Filter = map[string]stdCondition{}
	}
	for name, c := range m.Filter {
		own.Filter[name] = stdCondition{c.Values, c.Not, c.Gte, c.Gt, c.Lt, c.Lte}
	}
	std.User = nil // as in a ranking, where it is compared
	if !reflect.DeepEqual(own, std) {
		t.Fatalf("%q\nread as      %+v\nbut json has %+v", in, own, std)
	}
}

// TestDecodeRecommendRandom mutates a request many times; FuzzDecodeRank does the same for longer.
func TestDecodeRecommendRandom(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 2))
	accepted := 0
	for range 5000 {
		in := []byte(fullRecommend)
		for range rng.IntN(3) {
			at := rng.IntN(len(in))
			if rng.IntN(2) == 0 {
				in = append(in[:at:at], in[min(len(in), at+1+rng.IntN(4)):]...)
			} else {
				in[at] = byte(rng.IntN(256))
			}
		}
		m, err := DecodeRecommend(in)
		if err == nil {
			accepted++
			agreeRecommend(t, in, m)
		} else if !utf8.ValidString(err.Error()) {
			t.Fatalf("the error %q is not UTF-8", err)
		}
	}
	if accepted < 250 || accepted > 4750 {
		t.Errorf("%d of 5000 accepted: the test tests nothing", accepted)
	}
}

func TestEncodeRecommend(t *testing.T) {
	got := string(EncodeRecommend(&grebev1.RecommendResponse{
		Model: "m", RequestId: "r", Node: "n0", Short: true, CatalogVersion: "7",
		Results:  []*grebev1.Recommended{{Id: "i9", Codes: []int32{12, 203, 7}, Score: -3.18}},
		Usage:    &grebev1.Usage{PromptTokens: 3, BeamTokens: 4},
		TimingMs: &grebev1.Timing{Total: 1.5},
	}))
	want :=
		`{"model":"m","request_id":"r","node":"n0","results":[{"id":"i9","codes":[12,203,7],"score":-3.18}],"short":true,` +
			`"catalog_version":"7","usage":{"prompt_tokens":3,"cached_tokens":0,"computed_tokens":0,"user_tokens":0,` +
			`"item_tokens":0,` +
			`"instruction_tokens":0,"by_source":{"device":0,"host":0,"disk":0,"peer":0,"prototype":0,"recomputed":0},` +
			`"beam_tokens":4},` +
			`"timing_ms":{"queue":0,"fetch":0,"compute":0,"total":1.5}}` + "\n"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	explained := string(EncodeRecommend(&grebev1.RecommendResponse{
		Parts: []*grebev1.Part{{Kind: "user", Tokens: 9, Cached: 8, Source: "host"}, {Kind: "instruction", Tokens: 2}},
		Route: &grebev1.Route{PredictedMs: 1.5, Reason: "user", PredictedCached: 8}, Notes: []string{"n"}}))
	want = `,"parts":[{"kind":"user","tokens":9,"cached":8,"source":"host"},` +
		`{"kind":"instruction","tokens":2,"cached":0}],` +
		`"route":{"predicted_ms":1.5,"reason":"user","predicted_cached":8},"notes":["n"]}`
	if !strings.Contains(explained, want) {
		t.Errorf("got  %s\nwant %s", explained, want)
	}
	if empty := string(EncodeRecommend(&grebev1.RecommendResponse{})); !strings.Contains(empty,
		`"results":[],"short":false`) {
		t.Errorf("no results: %s", empty)
	}
}

// What only models of events have is written where it is there.
func TestEncodeTasksAndNotes(t *testing.T) {
	got := string(EncodeRank(&grebev1.RankResponse{
		Results: []*grebev1.Ranked{{Id: "a", Tasks: map[string]float64{"like": 0.5, "click": 0.25}}, {Id: "b"}},
		Usage:   &grebev1.Usage{Note: "nothing is \"reused\""},
	}))
	for _, want := range []string{
		`{"index":0,"id":"a","score":0,"logit":0,"tasks":{"click":0.25,"like":0.5}},{"index":0,"id":"b","score":0,` +
			`"logit":0}]`,
		`"recomputed":0},"note":"nothing is \"reused\""}`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%s lacks %s", got, want)
		}
	}
}

package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	grebev1 "grebe/api/grebe/v1"
)

const fullRank = `{"model":"demo","user":{"id":"u\u00e9\ud83d\ude00\n","history":["i1","i2"],"text":"a \"b\" \\ \/",
 "tokens":[1,2147483647],"events":[{"item":"i1","time":1700000000,"action":-3,"features":{"x":-1.5e-3,"y":0}}]},
 "candidates":[{"id":"i17"},{"text":"é"},{"tokens":[],"identifier":0,"codes":[3,17,9],
  "attributes":{"category":["toys",""],"":[]}}],
 "top_k":10,"prefix":"auto","deadline_ms":200,"request_id":"r"}`

func TestDecodeRank(t *testing.T) {
	got, err := DecodeRank([]byte(fullRank))
	if err != nil {
		t.Fatal(err)
	}
	want := &grebev1.RankRequest{
		Model: "demo",
		User: &grebev1.User{
			Id: "ué😀\n", History: []string{"i1", "i2"}, Text: proto.String(`a "b" \ /`), Tokens: []int32{1, 2147483647},
			Events: []*grebev1.Event{{Item: "i1", Time: 1700000000, Action: -3,
				Features: map[string]float64{"x": -1.5e-3, "y": 0}}},
		},
		Candidates: []*grebev1.Item{{Id: "i17"}, {Text: proto.String("é")}, {
			Identifier: proto.Int32(0), Codes: []int32{3, 17, 9},
			Attributes: map[string]*grebev1.Values{"category": {Values: []string{"toys", ""}}, "": {}},
		}},
		TopK: 10, Prefix: "auto", DeadlineMs: 200, RequestId: "r",
	}
	if !proto.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if got.Candidates[2].Tokens == nil {
		t.Error("tokens given as an empty list are nil, as if they were not given")
	}
}

func TestDecodeRankRefuses(t *testing.T) {
	deep := strings.Repeat("[", 100) + strings.Repeat("]", 100)
	many := `{"candidates":[` + strings.Repeat(`{},`, MaxCandidates) + `{}]}`
	for _, c := range []struct{ in, field, problem string }{
		{``, "", "ends"},
		{` `, "", "ends"},
		{`null`, "", "null"},
		{`[]`, "", "not a list"},
		{`"x"`, "", "not a string"},
		{`{`, "", "want a key"},
		{`{}x`, "", "data after the end"},
		{`{}{}`, "", "data after the end"},
		{"{}\x00", "", "data after the end"},
		{"\ufeff{}", "", "not JSON"},
		{`{"model" 1}`, "", "colon"},
		{`{"model":"a",}`, "", "want a key"},
		{`{"model":"a" "top_k":1}`, "", "comma"},
		{`{model:"a"}`, "", "want a key"},
		{`{"model":1}`, "model", "not a number"},
		{`{"model":null}`, "model", "null"},
		{`{"model":true}`, "model", "not true or false"},
		{`{"model":"a","model":"b"}`, "model", "twice"},
		{`{"modle":"a"}`, "modle", "unknown field"},
		{`{"Model":"a"}`, "Model", "unknown field"},
		{`{"":1}`, `""`, "unknown field"},
		{`{"user":{"idd":"a"}}`, "user.idd", "unknown field"},
		{`{"user":[]}`, "user", "not a list"},
		{`{"user":{"history":"i1"}}`, "user.history", "not a string"},
		{`{"user":{"history":["i1",2]}}`, "user.history[1]", "not a number"},
		{`{"user":{"tokens":[1,-1]}}`, "user.tokens[1]", "between"},
		{`{"user":{"tokens":[2147483648]}}`, "user.tokens[0]", "between"},
		{`{"user":{"tokens":[99999999999999999999]}}`, "user.tokens[0]", "between"},
		{`{"user":{"tokens":[1.0]}}`, "user.tokens[0]", "integer"},
		{`{"user":{"tokens":[1e2]}}`, "user.tokens[0]", "integer"},
		{`{"user":{"tokens":[01]}}`, "user.tokens", "comma"},
		{`{"user":{"tokens":[-]}}`, "user.tokens[0]", "malformed number"},
		{`{"user":{"tokens":[1.]}}`, "user.tokens[0]", "malformed number"},
		{`{"user":{"tokens":[NaN]}}`, "user.tokens[0]", "not JSON"},
		{`{"user":{"tokens":[1,]}}`, "user.tokens[1]", "not JSON"},
		{`{"user":{"tokens":[1`, "user.tokens", "comma"},
		{`{"user":{"events":[{"features":{"a":1e999}}]}}`, "user.events[0].features.a", "out of range"},
		{`{"user":{"events":[{"features":{"a":1,"a":1}}]}}`, "user.events[0].features.a", "twice"},
		{`{"user":{"events":[{"tim":1}]}}`, "user.events[0].tim", "unknown field"},
		{`{"candidates":{}}`, "candidates", "not an object"},
		{`{"candidates":[{},{},{"idd":"a"}]}`, "candidates[2].idd", "unknown field"},
		{`{"candidates":[{},null]}`, "candidates[1]", "null"},
		{`{"candidates":["i1"]}`, "candidates[0]", "not a string"},
		{`{"candidates":[{"attributes":{"a":"b"}}]}`, "candidates[0].attributes.a", "not a string"},
		{`{"candidates":[{"identifier":-1}]}`, "candidates[0].identifier", "between"},
		{many, "candidates", "more than 10000"},
		{`{"top_k":-1}`, "top_k", "between"},
		{`{"top_k":"1"}`, "top_k", "not a string"},
		{`{"deadline_ms":1e400}`, "deadline_ms", "integer"},
		{`{"request_id":"` + "\xff" + `"}`, "request_id", "UTF-8"},
		{`{"request_id":"\n` + "\xff" + `"}`, "request_id", "UTF-8"},
		{`{"request_id":"` + "\n" + `"}`, "request_id", "control character"},
		{`{"request_id":"\ud800"}`, "request_id", "surrogate"},
		{`{"request_id":"\ud800\u0041"}`, "request_id", "surrogate"},
		{`{"request_id":"\udc00\ud800"}`, "request_id", "surrogate"},
		{`{"request_id":"\u00"}`, "request_id", "escape"},
		{`{"request_id":"\u00g0"}`, "request_id", "escape"},
		{`{"request_id":"\x"}`, "request_id", "escape"},
		{`{"request_id":"\`, "request_id", "escape"},
		{`{"request_id":"abc`, "request_id", "never closed"},
		{`{"` + strings.Repeat("k", 1000) + `":1}`, `"` + strings.Repeat("k", 64) + `"`, "unknown field"},
		{`{"x":` + deep + `}`, "x", "unknown field"},
	} {
		_, err := DecodeRank([]byte(c.in))
		var e *Error
		if !errors.As(err, &e) {
			t.Errorf("%.80s: error %v, want one about %q", c.in, err, c.problem)
			continue
		}
		if e.Field != c.field || !strings.Contains(e.Problem, c.problem) {
			t.Errorf("%.80s: field %q, problem %q; want %q, %q", c.in, e.Field, e.Problem, c.field, c.problem)
		}
	}
}

func TestDecodeLenient(t *testing.T) {
	got, _, err := DecodeScore([]byte(`{"query":"q","items":["a",[1,2],""],"label_token_ids":[9],"apply_softmax":true,
		"item_first":null,"model":null,"extra":{"a":[1,{"b":null}],"c":-1.5e3,"d":false,"d":true},"apply_softmax":false}`))
	if err != nil {
		t.Fatal(err)
	}
	want := &grebev1.ScoreRequest{
		Query:         &grebev1.Input{Text: proto.String("q")},
		Items:         []*grebev1.Input{{Text: proto.String("a")}, {Tokens: []int32{1, 2}}, {Text: proto.String("")}},
		LabelTokenIds: []int32{9},
	}
	if !proto.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got, _, err := DecodeScore([]byte(`{"items":"one"}`)); err != nil || len(got.Items) != 1 ||
		got.Items[0].GetText() != "one" {
		t.Errorf("one text as items: %v, %v", got, err)
	}
	r, _,
		err :=
		DecodeRerank(
			[]byte(
				`{"query":{"text":"q","x":1},"documents":["a",{"id":3,"text":"b"}],"top_n":2,"return_documents":false,` +
					`"max_chunks":9}`))
	wantR := &grebev1.RerankRequest{Query: "q", Documents: []string{"a", "b"}, TopN: 2, ReturnDocuments: proto.Bool(false)}
	if err != nil || !proto.Equal(r, wantR) {
		t.Errorf("got %v, %v; want %v", r, err, wantR)
	}
	for in, field := range map[string]string{
		`{"documents":[{"title":"x"}]}`:            "documents[0]",
		`{"documents":[{"text":null}]}`:            "documents[0]",
		`{"documents":[1]}`:                        "documents[0]",
		`{"documents":"a"}`:                        "documents",
		`{"x":` + strings.Repeat("[", 100):         "x" + strings.Repeat("[0]", maxDepth-1),
		`{"x":` + strings.Repeat(`{"a":`, 1000000): "x" + strings.Repeat(".a", maxDepth-1),
		`{"x":nul}`: "x",
	} {
		_, _, err := DecodeRerank([]byte(in))
		var e *Error
		if !errors.As(err, &e) || e.Field != field {
			t.Errorf("%.60s: error %v, want one of field %q", in, err, field)
		}
	}
	for _, in := range []string{`{"query":5}`, `{"query":{}}`, `{"items":[{}]}`, `{"items":5}`, `{"label_token_ids":[-1]}`,
		`{"apply_softmax":"yes"}`, `[]`} {
		if _, _, err := DecodeScore([]byte(in)); err == nil {
			t.Errorf("%s: accepted", in)
		}
	}
}

// stdRank is RankRequest as encoding/json reads it: the outside judge.
type stdRank struct {
	Model      string    `json:"model"`
	User       *stdUser  `json:"user"`
	Candidates []stdItem `json:"candidates"`
	TopK       int32     `json:"top_k"`
	Prefix     string    `json:"prefix"`
	DeadlineMs int32     `json:"deadline_ms"`
	RequestID  string    `json:"request_id"`
}

type stdUser struct {
	ID      string   `json:"id"`
	History []string `json:"history"`
	Text    *string  `json:"text"`
	Tokens  []int32  `json:"tokens"`
	Events  []struct {
		Item     string             `json:"item"`
		Time     int64              `json:"time"`
		Action   int32              `json:"action"`
		Features map[string]float64 `json:"features"`
	} `json:"events"`
}

type stdItem struct {
	ID         string              `json:"id"`
	Text       *string             `json:"text"`
	Tokens     []int32             `json:"tokens"`
	Identifier *int32              `json:"identifier"`
	Codes      []int32             `json:"codes"`
	Attributes map[string][]string `json:"attributes"`
}

// agree checks an accepted request against encoding/json.
func agree(t *testing.T, in []byte, m *grebev1.RankRequest) {
	t.Helper()
	var std stdRank
	if err := json.Unmarshal(in, &std); err != nil {
		t.Fatalf("accepted %q, which encoding/json refuses: %v", in, err)
	}
	own := stdRank{Model: m.Model, TopK: m.TopK, Prefix: m.Prefix, DeadlineMs: m.DeadlineMs, RequestID: m.RequestId}
	if m.User != nil {
		if err := json.Unmarshal(EncodeUser(m.User), &own.User); err != nil {
			t.Fatalf("EncodeUser wrote no JSON: %v", err)
		}
	}
	for _, c := range m.Candidates {
		var it stdItem
		if err := json.Unmarshal(EncodeItem(c), &it); err != nil {
			t.Fatalf("EncodeItem wrote no JSON: %v", err)
		}
		own.Candidates = append(own.Candidates, it)
	}
	a, err1 := json.Marshal(normal(own))
	b, err2 := json.Marshal(normal(std))
	if err1 != nil || err2 != nil || !bytes.Equal(a, b) {
		t.Fatalf("%q\nread as     %s\nbut json has %s", in, a, b)
	}
}

// normal makes nil and empty lists and maps equal.
func normal(r stdRank) stdRank {
	if len(r.Candidates) == 0 {
		r.Candidates = nil
	}
	for i := range r.Candidates {
		c := &r.Candidates[i]
		if len(c.Tokens) == 0 {
			c.Tokens = nil
		}
		if len(c.Codes) == 0 {
			c.Codes = nil
		}
		if len(c.Attributes) == 0 {
			c.Attributes = nil
		}
		for k, v := range c.Attributes {
			if len(v) == 0 {
				c.Attributes[k] = nil
			}
		}
	}
	if u := r.User; u != nil {
		if len(u.Tokens) == 0 {
			u.Tokens = nil
		}
		if len(u.History) == 0 {
			u.History = nil
		}
		if len(u.Events) == 0 {
			u.Events = nil
		}
		for i := range u.Events {
			if len(u.Events[i].Features) == 0 {
				u.Events[i].Features = nil
			}
		}
	}
	return r
}

func FuzzDecodeRank(f *testing.F) {
	f.Add([]byte(fullRank))
	f.Add([]byte(`{"user":{"tokens":[]},"candidates":[{"id":""}]}`))
	f.Add([]byte(`{"model":"\ud83d\ude00"}`))
	f.Add([]byte(fullRecommend))
	f.Fuzz(func(t *testing.T, in []byte) {
		if m, err := DecodeRecommend(in); err == nil {
			agreeRecommend(t, in, m)
		}
		m, err := DecodeRank(in)
		if err == nil {
			agree(t, in, m)
		} else if !utf8.ValidString(err.Error()) {
			t.Fatalf("the error %q is not UTF-8", err)
		}
		_, _, lenient := DecodeScore(in)
		_, _, rerank := DecodeRerank(in)
		if (lenient == nil || rerank == nil) && !json.Valid(in) {
			t.Fatalf("accepted %q, which is not JSON", in)
		}
	})
}

// FuzzDecodeLine reads lines of NDJSON: what is accepted is JSON, and reads back as it is written.
func FuzzDecodeLine(f *testing.F) {
	f.Add(
		[]byte(
			`{"id": "i1", "text": "a", "tokens": [1, 2], "identifier": 731, "codes": [3, 17, 9], ` +
				`"attributes": {"category": ["toys"]}}`))
	f.Add(
		[]byte(
			`{"id": "u1", "history": ["i1"], "events": [{"item": "i1", "time": 1700000000, "action": 3, "features": ` +
				`{"x": 0.5}}]}`))
	f.Add([]byte(`{"delete": "i1"}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		if it, _, err := DecodeItemLine(in); err == nil && it != nil {
			again, _, err := DecodeItemLine(EncodeItem(it))
			if err != nil || !proto.Equal(it, again) {
				t.Fatalf("%q is %v, and written and read again %v: %v", in, it, again, err)
			}
		}
		if u, _, err := DecodeUserLine(in); err == nil && u != nil {
			again, _, err := DecodeUserLine(EncodeUser(u))
			if err != nil || !proto.Equal(u, again) {
				t.Fatalf("%q is %v, and written and read again %v: %v", in, u, again, err)
			}
		}
		if _, id, err := DecodeItemLine(in); err == nil && !json.Valid(in) {
			t.Fatalf("accepted %q (deletion of %q), which is not JSON", in, id)
		}
		_, _ = DecodeAppendEvents(in)
	})
}

// TestDecodeRankRandom mutates a request many times; FuzzDecodeRank does the same for longer.
func TestDecodeRankRandom(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	pieces := []string{`"`, `\`, `{`, `}`, `[`, `]`, `,`, `:`, `null`, `1`, `-`, `.5`, `e9`, `\u00e9`, `\ud83d`, "\xff",
		"é", ` `, `"id"`, `"tokens":[1]`}
	accepted := 0
	for range 5000 {
		in := []byte(fullRank)
		for range rng.IntN(3) {
			at := rng.IntN(len(in))
			switch rng.IntN(3) {
			case 0:
				in = append(in[:at:at], in[min(len(in), at+1+rng.IntN(4)):]...)
			case 1:
				p := pieces[rng.IntN(len(pieces))]
				in = append(in[:at:at], append([]byte(p), in[at:]...)...)
			default:
				in[at] = byte(rng.IntN(256))
			}
		}
		m, err := DecodeRank(in)
		if err == nil {
			accepted++
			agree(t, in, m)
		}
	}
	if accepted < 250 || accepted > 4750 {
		t.Errorf("%d of 5000 accepted: the test tests nothing", accepted)
	}
}

func TestEncode(t *testing.T) {
	resp := &grebev1.RankResponse{
		Model: "m", RequestId: "r\"\\\n\x01\u2028<é", Prefix: "user", Node: "n0",
		Results:  []*grebev1.Ranked{{Index: 3, Id: "i17", Score: 0.213, Logit: 4.1}, {Score: 1e-300, Logit: -1e30}},
		Usage:    &grebev1.Usage{PromptTokens: 5, BySource: &grebev1.Sources{}},
		TimingMs: &grebev1.Timing{Queue: 0.8, Total: 12.6},
	}
	var got map[string]any
	if err := json.Unmarshal(EncodeRank(resp), &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"model": "m", "request_id": "r\"\\\n\x01\u2028<é", "prefix": "user", "node": "n0",
		"results": []any{
			map[string]any{"index": 3., "id": "i17", "score": 0.213, "logit": 4.1},
			map[string]any{"index": 0., "id": "", "score": 1e-300, "logit": -1e30},
		},
		"usage": map[string]any{
			"prompt_tokens": 5., "cached_tokens": 0., "computed_tokens": 0., "user_tokens": 0., "item_tokens": 0.,
			"instruction_tokens": 0.,
			"by_source": map[string]any{"device": 0., "host": 0., "disk": 0., "peer": 0., "prototype": 0.,
				"recomputed": 0.},
		},
		"timing_ms": map[string]any{"queue": 0.8, "fetch": 0., "compute": 0., "total": 12.6},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if got := string(EncodeError("not_found", `no "x"`, "")); got != `{"error":{"code":"not_found","message":"no \"x\""}}`+
		"\n" {
		t.Errorf("error body %s", got)
	}
}

func BenchmarkDecodeRank(b *testing.B) {
	in := []byte(`{"user":{"id":"u1"},"candidates":[` + strings.Repeat(`{"id":"i1234567"},`, 999) + `{"id":"x"}]}`)
	b.SetBytes(int64(len(in)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := DecodeRank(in); err != nil {
			b.Fatal(err)
		}
	}
}

func TestDeletionLines(t *testing.T) {
	for in, want := range map[string]string{
		`{"delete":"a"}`: "a", ` { "delete" : "\u0061" } `: "a", `{"id":"b","text":"x"}`: "",
		`{}`: "", `{"delete":""}`: "error", `{"delete":1}`: "error", `{"delete":"a","id":"b"}`: "error",
		`{"id":"b","delete":"a"}`: "error", `{"delete":"a"}x`: "error", `{"dele`: "error", ``: "error",
	} {
		it, id, err := DecodeItemLine([]byte(in))
		u, userID, userErr := DecodeUserLine([]byte(in))
		if (want == "error") != (err != nil) || (err != nil) != (userErr != nil) {
			t.Errorf("%s: %v, %v", in, err, userErr)
			continue
		}
		if err == nil && (id != want || userID != want || (it == nil) != (want != "") || (u == nil) != (want != "")) {
			t.Errorf("%s: item %v, user %v, deletion of %q and %q", in, it, u, id, userID)
		}
	}
}

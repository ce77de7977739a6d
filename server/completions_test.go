package server

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	grebev1 "grebe/api/grebe/v1"
	"grebe/generate"
	"grebe/prompt"
)

type completionBody struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	Model   string `json:"model"`
	Choices []struct {
		Index  int     `json:"index"`
		Text   string  `json:"text"`
		Probs  *string `json:"logprobs"`
		Reason string  `json:"finish_reason"`
		Ext    struct {
			Score float64 `json:"sequence_score"`
		} `json:"sglext"`
		Item  string  `json:"item"`
		Codes []int32 `json:"codes"`
	} `json:"choices"`
	Seed  *uint64   `json:"seed"`
	Notes []string  `json:"notes"`
	Usage usageBody `json:"usage"`
}

// complete sends a request for completions to model "m" with these further fields.
func (r *recommender) complete(t *testing.T, fields string) *completionBody {
	t.Helper()
	rec := r.ask("POST", "/v1/completions", `{"model": "m", `+fields+`}`)
	if rec.Code != 200 {
		t.Fatalf("%s: %d, %s", fields, rec.Code, rec.Body)
	}
	var b completionBody
	decodeJSON(t, rec.Body, &b)
	for i, c := range b.Choices {
		if c.Index != i || c.Reason != "stop" || c.Probs != nil || c.Text != strings.Trim(fmt.Sprint(c.Codes), "[]") {
			t.Errorf("%s: choice %d is %+v", fields, i, c)
		}
	}
	return &b
}

// paths counts the paths of the catalog. Some items share theirs.
func (r *recommender) paths() int {
	all := map[string]bool{}
	for _, it := range r.items {
		all[fmt.Sprint(it.Codes)] = true
	}
	return len(all)
}

// sameChoices checks that choices are the paths of recommended items, each path once, with their scores.
func sameChoices(t *testing.T, b *completionBody, want []result) {
	t.Helper()
	want = slices.CompactFunc(slices.Clone(want), func(a, b result) bool { return slices.Equal(a.Codes, b.Codes) })
	if len(b.Choices) != len(want) {
		t.Fatalf("%d choices, want %d", len(b.Choices), len(want))
	}
	for i, c := range b.Choices {
		if w := want[i]; c.Item != w.ID || !slices.Equal(c.Codes, w.Codes) || math.Abs(c.Ext.Score-w.Score) > 1e-5 {
			t.Errorf("choice %d is %s %v with %.7f, want %s %v with %.7f", i, c.Item, c.Codes, c.Ext.Score, w.ID, w.Codes,
				w.Score)
		}
	}
}

// A completion of the prompt that a recommendation has finds the same paths.
func TestCompletions(t *testing.T) {
	r := newRecommender(t)
	user := []int32{40, 41, 42, 43}
	tokens := func(ids ...[]int32) string {
		raw, err := json.Marshal(slices.Concat(ids...))
		must(t, err)
		return string(raw)
	}
	all := r.recommend(t, `"n": 100, "user": {"tokens": `+tokens(user)+`}`)
	whole := tokens(preamble, user, instruction)
	got := r.complete(t, `"n": 100, "max_tokens": 3, "prompt": `+whole)
	sameChoices(t, got, all.Results)
	paths := r.paths()
	if len(got.Choices) != paths {
		t.Errorf("%d choices of %d paths", len(got.Choices), paths)
	}
	n := len(preamble) + len(user) + len(instruction)
	if u := got.Usage; got.Object != "text_completion" || !strings.HasPrefix(got.ID, "cmpl-") || got.Created == 0 ||
		got.Model != "m" ||
		u.Prompt != n || u.Completion != paths*3 || u.Total != n+paths*3 || u.Cached == 0 || u.Details.Cached != u.Cached {
		t.Errorf("%+v", got)
	}
	for _, form := range []string{`[` + whole + `]`, whole} {
		one := r.complete(t, `"prompt": `+form)
		sameChoices(t, one, all.Results[:1])
	}
	wide := r.complete(t,
		`"n": 2, "best_of": 7, "temperature": 0, "stream": false, "tools": [], "top_p": 0.9, "stop": ["x"], "prompt": `+whole)
	two := r.recommend(t, `"n": 4, "beam_width": 7, "user": {"tokens": `+tokens(user)+`}`)
	sameChoices(t, wide, two.Results[:2])
	drawn := r.complete(t, `"n": 5, "temperature": 1, "seed": 9, "prompt": `+whole)
	want := r.recommendDrawn(t, `"n": 5, "temperature": 1, "seed": 9, "one_per_path": true, "user": {"tokens": `+
		tokens(user)+`}`)
	sameChoices(t, drawn, want.Results)
	if drawn.Seed == nil || *drawn.Seed != 9 {
		t.Errorf("seed %v", drawn.Seed)
	}
}

// recommendDrawn sends a request whose results are in the order in which they were drawn.
func (r *recommender) recommendDrawn(t *testing.T, fields string) *recommendBody {
	t.Helper()
	rec := r.ask("POST", "/v1/recommend", `{"model": "m", `+fields+`}`)
	if rec.Code != 200 {
		t.Fatalf("%s: %d, %s", fields, rec.Code, rec.Body)
	}
	var b recommendBody
	decodeJSON(t, rec.Body, &b)
	return &b
}

// A prompt that does not begin with the model's preamble is used as it is: as by a model without preamble and
// instruction.
func TestCompletionsOfAnotherPrompt(t *testing.T) {
	r := newRecommender(t)
	b, err := prompt.New(prompt.Config{Codes: prompt.Codes{FirstToken: []int32{300, 320, 340}, Size: levels}},
		bytesTokenizer{}, vocab)
	must(t, err)
	g := &generate.Generator{Prompt: b, Do: r.do, Shape: r.model.Shape()}
	g.Use(r.generator.Snapshot())
	for _, p := range [][]int32{{7}, {9, 8, 7, 6, 5}, slices.Concat(preamble[:1], []int32{3}), preamble, instruction,
		slices.Concat(preamble, []int32{50, 51})} {
		want, err := g.Recommend(t.Context(), &generate.Request{User: p, N: 12, Width: 128, OnePerPath: true})
		must(t, err)
		raw, err := json.Marshal(p)
		must(t, err)
		for range 2 { // the second time with what the first one left
			got := r.complete(t, `"n": 12, "prompt": `+string(raw))
			var results []result
			for _, it := range want.Items {
				results = append(results, result{ID: it.ID, Codes: it.Codes, Score: it.Score})
			}
			sameChoices(t, got, results)
			if got.Usage.Prompt != len(p) {
				t.Errorf("%v: %d tokens", p, got.Usage.Prompt)
			}
		}
	}
	byText, byTokens := r.complete(t, `"n": 3, "prompt": "hello"`),
		r.complete(t, `"n": 3, "prompt": [104, 101, 108, 108, 111, 33]`)
	if fmt.Sprint(byText.Choices) != fmt.Sprint(byTokens.Choices) {
		t.Errorf("a text: %+v, its tokens: %+v", byText.Choices, byTokens.Choices)
	}
}

// wantOpenAIError checks an error in the form of OpenAI's API.
func wantOpenAIError(t *testing.T, rec *httptest.ResponseRecorder, status int, kind, code, param string) {
	t.Helper()
	var e struct {
		Error struct {
			Message, Type, Code string
			Param               *string
		}
	}
	body := rec.Body.String()
	decodeJSON(t, strings.NewReader(body), &e)
	got := ""
	if e.Error.Param != nil {
		got = *e.Error.Param
	}
	if rec.Code != status || e.Error.Type != kind || e.Error.Code != code || got != param || e.Error.Message == "" {
		t.Errorf("status %d, body %s; want %d, %s, %s, %q", rec.Code, body, status, kind, code, param)
	}
}

func TestCompletionErrors(t *testing.T) {
	r := newRecommender(t)
	for _, c := range []struct {
		body   string
		status int
		code   string
		param  string
	}{
		{`{"model": "m"}`, 400, "invalid_argument", "prompt"},
		{`{"model": "m", "prompt": null}`, 400, "invalid_argument", "prompt"},
		{`{"model": "m", "prompt": 7}`, 400, "invalid_argument", "prompt"},
		{`{"model": "m", "prompt": []}`, 422, "unprocessable", "prompt"},
		{`{"model": "m", "prompt": ["a", "b"]}`, 400, "invalid_argument", "prompt[1]"},
		{`{"model": "m", "prompt": [1, 400]}`, 400, "invalid_argument", "prompt[1]"},
		{`{"model": "m", "prompt": [1, -2]}`, 400, "invalid_argument", "prompt[1]"},
		{`{"model": "m", "prompt": "` + "\xff" + `"}`, 400, "invalid_argument", "prompt"},
		{`{"model": "m", "prompt": "a"`, 400, "invalid_argument", ""},
		{`{"model": "gpt-4", "prompt": "a"}`, 404, "not_found", "model"},
		{`{"prompt": "a"}`, 400, "invalid_argument", "model"},
		{`{"model": "ranks", "prompt": "a"}`, 422, "unprocessable", "model"},
		{`{"model": "m", "prompt": "a", "n": 0}`, 400, "invalid_argument", "n"},
		{`{"model": "m", "prompt": "a", "n": 10001}`, 400, "invalid_argument", "n"},
		{`{"model": "m", "prompt": "a", "n": 1e9}`, 400, "invalid_argument", "n"},
		{`{"model": "m", "prompt": "a", "n": "3"}`, 400, "invalid_argument", "n"},
		{`{"model": "m", "prompt": "a", "n": 9, "best_of": 8}`, 400, "invalid_argument", "best_of"},
		{`{"model": "m", "prompt": "a", "best_of": 9000}`, 400, "invalid_argument", "best_of"},
		{`{"model": "m", "prompt": "a", "max_tokens": 2}`, 400, "invalid_argument", "max_tokens"},
		{`{"model": "m", "prompt": "a", "temperature": -1}`, 400, "invalid_argument", "temperature"},
		{`{"model": "m", "prompt": "a", "temperature": 1, "top_p": 0.5}`, 400, "invalid_argument", "top_p"},
		{`{"model": "m", "prompt": "a", "stream": true}`, 400, "invalid_argument", "stream"},
		{`{"model": "m", "prompt": "a", "tools": [{"type": "function"}]}`, 400, "invalid_argument", "tools"},
		{`{"model": "m", "prompt": "a", "logprobs": 5}`, 400, "invalid_argument", "logprobs"},
		{`{"model": "m", "prompt": "a", "echo": true}`, 400, "invalid_argument", "echo"},
		{`{"model": "m", "prompt": "a", "suffix": "z"}`, 400, "invalid_argument", "suffix"},
		{`{"model": "m", "prompt": "a", "logit_bias": {"5": 1}}`, 400, "invalid_argument", "logit_bias"},
		{`{"model": "m", "prompt": "a", "presence_penalty": 0.5}`, 400, "invalid_argument", "presence_penalty"},
		{`{"model": "m", "prompt": "a", "response_format": {"type": "json_object"}}`, 400, "invalid_argument",
			"response_format.type"},
		{`{"model": "m", "prompt": "` + strings.Repeat("long ", 300) + `"}`, 413, "too_large", ""},
	} {
		wantOpenAIError(t, r.ask("POST", "/v1/completions", c.body), c.status, "invalid_request_error", c.code, c.param)
	}
	if many := r.complete(t, `"n": 10000, "prompt": "a"`); len(many.Choices) != r.paths() {
		t.Errorf("ten thousand of %d paths: %d", r.paths(), len(many.Choices))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	req := httptest.NewRequestWithContext(ctx, "POST",
		"/v1/completions", strings.NewReader(`{"model": "m", "prompt": "a"}`))
	rec := httptest.NewRecorder()
	r.handler.ServeHTTP(rec, req)
	wantOpenAIError(t, rec, 499, "invalid_request_error", "canceled", "")
	wantOpenAIError(t, r.ask("GET", "/v1/completions", ""), 405, "invalid_request_error", "method_not_allowed", "")
}

// A request with whole_prompt has a text or tokens, and nothing of a user.
func TestWholePromptErrors(t *testing.T) {
	r := newRecommender(t)
	for user, field := range map[string]string{
		`{"id": "u1"}`:                              "user",
		`{"history": ["i1"]}`:                       "user",
		`{"id": "u1", "text": "a"}`:                 "user",
		`{"text": "a", "tokens": [1]}`:              "user",
		`{"text": "a"}, "exclude_seen": true`:       "exclude_seen",
		`{"text": "a"}, "fallback": "popular"`:      "fallback",
		`{"text": "a"}, "rank": {"candidates": 10}`: "rank",
	} {
		rec := r.ask("POST", "/v1/recommend", `{"model": "m", "whole_prompt": true, "user": `+user+`}`)
		wantError(t, rec, 400, "invalid_argument", field)
	}
	if _, err := r.Recommend(t.Context(), &grebev1.RecommendRequest{Model: "m", WholePrompt: true}); err == nil {
		t.Error("a request without a user is answered")
	}
}

// Keys decide who may ask for completions; errors have the form that the clients read.
func TestCompletionsNeedAKey(t *testing.T) {
	s, keys := guardedWorld(t)
	ask := func(name, body string) *httptest.ResponseRecorder {
		return s.ask("POST", "/v1/completions", body, "Authorization", "Bearer "+keys[name])
	}
	wantOpenAIError(t, ask("nobody", "{}"), 401, "authentication_error", "unauthenticated", "")
	wantOpenAIError(t, ask("stranger", "{}"), 401, "authentication_error", "unauthenticated", "")
	wantOpenAIError(t, ask("writes", "{}"), 403, "permission_error", "permission_denied", "")
	wantOpenAIError(t, ask("asks", `{"model": "id", "prompt": "a"}`), 422, "invalid_request_error", "unprocessable",
		"model")
	ask("hurries", "{}")
	wantOpenAIError(t, ask("hurries", "{}"), 429, "rate_limit_error", "resource_exhausted", "")
}

// A chat is the completion of its messages, joined by the model's template.
func TestChatCompletions(t *testing.T) {
	r := newRecommender(t)
	var chat struct {
		ID, Object string
		Choices    []struct {
			Message struct{ Role, Content string }
			Item    string
			Sglext  struct {
				Score float64 `json:"sequence_score"`
			}
		}
	}
	for _, end := range []string{"", "!"} { // the template's end is not added twice
		want := r.complete(t, `"n": 4, "prompt": "[system]be brief;[user]hello;[assistant]`+end+`"`)
		rec := r.ask("POST", "/v1/chat/completions", `{"model": "m", "n": 4, "max_completion_tokens": 5, "stream": false,
			"messages": [{"role": "system", "content": "be brief"},
			{"role": "user", "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]}]}`)
		if rec.Code != 200 {
			t.Fatalf("%d %s", rec.Code, rec.Body)
		}
		decode(t, rec, &chat)
		if !strings.HasPrefix(chat.ID, "chatcmpl-") || chat.Object != "chat.completion" || len(chat.Choices) != 4 {
			t.Fatalf("%+v", chat)
		}
		for i, c := range chat.Choices {
			w := want.Choices[i]
			if c.Message.Role != "assistant" || c.Message.Content != w.Text || c.Item != w.Item ||
				math.Abs(c.Sglext.Score-w.Ext.Score) > 1e-6 {
				t.Errorf("choice %d is %+v, want %+v", i, c, w)
			}
		}
	}
	for body, param := range map[string]string{
		`{"model": "m"}`:                                                                      "messages",
		`{"model": "m", "messages": []}`:                                                      "messages",
		`{"model": "m", "messages": [{"role": "user"}]}`:                                      "messages[0]",
		`{"model": "m", "messages": [{"role": "tool", "content": "x"}]}`:                      "messages[0].role",
		`{"model": "m", "messages": [{"role": "user", "content": 5}]}`:                        "messages[0].content",
		`{"model": "m", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]}`:  "messages[0].content[0]",
		`{"model": "m", "messages": "hello"}`:                                                 "messages",
		`{"model": "m", "messages": [{"role": "user", "content": "a"}], "stream": true}`:      "stream",
		`{"model": "m", "messages": [{"role": "user", "content": "a"}], "tools": [{"a": 1}]}`: "tools",
		`{"model": "m", "messages": [{"role": "user", "content": "` + "\xff" + `"}]}`:         "messages[0].content",
	} {
		wantOpenAIError(t, r.ask("POST", "/v1/chat/completions", body), 400, "invalid_request_error",
			"invalid_argument", param)
	}
	for field, param := range map[string]string{
		`"add_generation_prompt": false`:           "add_generation_prompt",
		`"chat_template": "x"`:                     "chat_template",
		`"chat_template_kwargs": {"a": []}`:        "chat_template_kwargs.a",
		`"chat_template_kwargs": {"thinks": true}`: "chat_template_kwargs", // the configuration has a template of its own
	} {
		body := `{"model": "m", "messages": [{"role": "user", "content": "a"}], ` + field + `}`
		rec := r.ask("POST", "/v1/chat/completions", body)
		wantOpenAIError(t, rec, 400, "invalid_request_error", "invalid_argument", param)
	}
	w := newWorld(t)
	wantOpenAIError(t, w.ask("POST", "/v1/chat/completions",
		`{"model": "id", "messages": [{"role": "user", "content": "a"}]}`), 422,
		"invalid_request_error", "unprocessable", "model")
	wantOpenAIError(t, r.ask("POST", "/v1/chat/completions",
		`{"model": "ranks", "messages": [{"role": "user", "content": "a"}]}`), 422,
		"invalid_request_error", "unprocessable", "model")
}

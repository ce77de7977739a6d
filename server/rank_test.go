package server

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"grebe/dispatch"
	"grebe/engine"
)

type rankBody struct {
	Model     string `json:"model"`
	RequestID string `json:"request_id"`
	Prefix    string `json:"prefix"`
	Reason    string `json:"prefix_reason"`
	Node      string `json:"node"`
	Results   []struct {
		Index int     `json:"index"`
		ID    string  `json:"id"`
		Score float64 `json:"score"`
		Logit float32 `json:"logit"`
	} `json:"results"`
	Usage struct {
		Prompt      int            `json:"prompt_tokens"`
		Cached      int            `json:"cached_tokens"`
		Computed    int            `json:"computed_tokens"`
		User        int            `json:"user_tokens"`
		Item        int            `json:"item_tokens"`
		Instruction int            `json:"instruction_tokens"`
		BySource    map[string]int `json:"by_source"`
		Note        string         `json:"note"`
	} `json:"usage"`
	Timing struct {
		Queue, Fetch, Compute, Total float64
	} `json:"timing_ms"`
}

func (w *world) rank(t *testing.T, body string) rankBody {
	t.Helper()
	rec := w.ask("POST", "/v1/rank", body)
	if rec.Code != 200 {
		t.Fatalf("%.200s: %d %s", body, rec.Code, rec.Body)
	}
	var got rankBody
	decodeJSON(t, rec.Body, &got)
	return got
}

func text(s string) []int32 { return bytesTokenizer{}.AppendEncode(nil, s) }

// checkRanking compares a response with logits in input order.
func checkRanking(t *testing.T, got rankBody, logits []float32, scores []float64, ids []string) {
	t.Helper()
	want := make([]int, len(logits))
	for i := range want {
		want[i] = i
	}
	sort.SliceStable(want, func(a, b int) bool { return logits[want[a]] > logits[want[b]] })
	if len(got.Results) != len(want) {
		t.Fatalf("%d results, want %d", len(got.Results), len(want))
	}
	for k, r := range got.Results {
		i := want[k]
		if r.Index != i || r.ID != ids[i] || r.Logit != logits[i] || math.Abs(r.Score-scores[i]) > 1e-9 {
			t.Errorf("result %d is %+v, want index %d, id %q, logit %v, score %v", k, r, i, ids[i], logits[i], scores[i])
		}
	}
}

func naiveSoftmax(logits []float32) []float64 {
	sum, out := 0.0, make([]float64, len(logits))
	for i, l := range logits {
		out[i] = math.Exp(float64(l))
		sum += out[i]
	}
	for i := range out {
		out[i] /= sum
	}
	return out
}

func TestRankByIdentifier(t *testing.T) {
	w := newWorld(t)
	items := [][]int32{text("anvil"), text("bolt"), text("crate")}
	ids := []int32{310, 311, 312}
	for _, c := range []struct {
		name, user string
		tokens     []int32
		note       string
	}{
		{"known user, a history item is gone", `{"id":"u1"}`, text("anvil|crate"),
			"1 item of the history was left out: it is unknown"},
		{"history", `{"history":["i2","i1"]}`, text("bolt|anvil"), ""},
		{"history of unknown items", `{"history":["x","y"]}`, nil, "2 items of the history were left out: they are unknown"},
		{"events as history", `{"events":[{"item":"i2"},{"item":"i2"}]}`, text("bolt|bolt"), ""},
		{"text", `{"text":"likes tools"}`, text("likes tools"), ""},
		{"text and history", `{"id":"label","text":"T","history":["i1"]}`, text("Tanvil"), ""},
		{"tokens", `{"tokens":[5,6]}`, []int32{5, 6}, ""},
		{"no tokens", `{"tokens":[]}`, nil, ""},
		{"empty text", `{"text":""}`, nil, ""},
	} {
		for _, prefix := range []string{"user", "item"} {
			got := w.rank(t,
				fmt.Sprintf(
					`{"model":"id","user":%s,"candidates":[{"id":"i1"},{"id":"i2"},{"id":"i3"}],"prefix":%q,"request_id":"r-1"}`,
					c.user, prefix))
			all := slices.Concat(preamble, c.tokens, slices.Concat(items...), instruction)
			if prefix == "item" {
				all = slices.Concat(preamble, slices.Concat(items...), c.tokens, instruction)
			}
			logits := make([]float32, len(ids))
			for i, id := range ids {
				logits[i] = logit(id, all)
			}
			checkRanking(t, got, logits, naiveSoftmax(logits), []string{"i1", "i2", "i3"})
			if got.Usage.Note != c.note {
				t.Errorf("%s: the note is %q, want %q", c.name, got.Usage.Note, c.note)
			}
			if got.Model != "id" || got.RequestID != "r-1" || got.Prefix != prefix || got.Node != "n0" {
				t.Errorf("%s: %+v", c.name, got)
			}
			u := got.Usage
			if u.Prompt != len(all) || u.User != len(c.tokens) || u.Item != 14 || u.Instruction != 3 ||
				u.User+u.Item+u.Instruction != u.Prompt || u.Cached+u.Computed != u.Prompt || len(u.BySource) != 6 {
				t.Errorf("%s: usage %+v does not add up", c.name, u)
			}
			if got.Timing.Queue != 1.5 || got.Timing.Compute != 2 || got.Timing.Fetch != 0 || got.Timing.Total <= 0 {
				t.Errorf("%s: timing %+v", c.name, got.Timing)
			}
		}
	}
}

func TestRankPrefixes(t *testing.T) {
	w := newWorld(t)
	for asked, used := range map[string]string{"auto": "user", "user": "user", "item": "item", "none": "none"} {
		got := w.rank(t, fmt.Sprintf(`{"model":"id","user":{"id":"u1"},"candidates":[{"id":"i1"}],"prefix":%q}`, asked))
		if got.Prefix != used {
			t.Errorf("prefix %q: used %q, want %q", asked, got.Prefix, used)
		}
		if len(got.RequestID) != 16 {
			t.Errorf("generated request id %q", got.RequestID)
		}
	}
}

func TestRankPointwise(t *testing.T) {
	w := newWorld(t)
	user := text("anvil|crate")
	items := [][]int32{text("anvil"), {7, 8}, text("inline"), {1}}
	body :=
		`{"model":"pw","user":{"id":"u1"},"candidates":[{"id":"i1"},{"id":"plain/1"},{"id":"mine","text":"inline"},` +
			`{"tokens":[1]}],"prefix":%q}`
	for _, prefix := range []string{"user", "item"} {
		var logits []float32
		var scores []float64
		for _, it := range items {
			seen := slices.Concat(preamble, user, it, instruction)
			if prefix == "item" {
				seen = slices.Concat(preamble, it, user, instruction)
			}
			y, n := logit(yes, seen), logit(no, seen)
			logits = append(logits, y-n)
			scores = append(scores, 1/(1+math.Exp(float64(n)-float64(y))))
		}
		got := w.rank(t, fmt.Sprintf(body, prefix))
		checkRanking(t, got, logits, scores, []string{"i1", "plain/1", "mine", ""})
		u := got.Usage
		if u.User != 11 || u.Item != 5+2+6+1 || u.Instruction != 1+4*2 || u.Prompt != u.User+u.Item+u.Instruction {
			t.Errorf("usage %+v", u)
		}
	}
}

func TestRankTopKAndTies(t *testing.T) {
	w := newWorld(t)
	// Equal candidates have equal logits in pointwise scoring.
	var c []string
	for range 50 {
		c = append(c, `{"text":"same"}`)
	}
	got := w.rank(t, `{"model":"pw","user":{"id":"u1"},"top_k":7,"candidates":[`+strings.Join(c, ",")+`]}`)
	if len(got.Results) != 7 {
		t.Fatalf("%d results, want 7", len(got.Results))
	}
	for i, r := range got.Results {
		if r.Index != i {
			t.Errorf("result %d of equal candidates is number %d", i, r.Index)
		}
	}
	for _, k := range []int{0, 50, 1000} {
		got := w.rank(t, fmt.Sprintf(`{"model":"pw","user":{"id":"u1"},"top_k":%d,"candidates":[%s]}`, k,
			strings.Join(c, ",")))
		if len(got.Results) != 50 {
			t.Errorf("top_k %d: %d results, want 50", k, len(got.Results))
		}
	}
}

func TestRankTenThousand(t *testing.T) {
	w := newWorld(t)
	c := strings.Repeat(`{"tokens":[1,2]},`, 9999) + `{"tokens":[3]}`
	got := w.rank(t, `{"model":"pw","user":{"tokens":[1]},"top_k":1,"candidates":[`+c+`]}`)
	if got.Usage.Item != 19999 || len(got.Results) != 1 {
		t.Errorf("%+v", got)
	}
	rec := w.ask("POST", "/v1/rank", `{"model":"pw","user":{"tokens":[1]},"candidates":[{"tokens":[9]},`+c+`]}`)
	wantError(t, rec, 400, "invalid_argument", "candidates")
}

func TestRankInlineIdentifier(t *testing.T) {
	w := newWorld(t)
	got := w.rank(t,
		`{"model":"id","user":{"tokens":[1]},"candidates":[{"tokens":[2],"identifier":20},{"id":"i1","identifier":21},`+
			`{"id":"i2"}]}`)
	all := slices.Concat(preamble, []int32{1}, []int32{2}, text("anvil"), text("bolt"), instruction)
	logits := []float32{logit(20, all), logit(21, all), logit(311, all)}
	checkRanking(t, got, logits, naiveSoftmax(logits), []string{"", "i1", "i2"})
	if it, _ := w.Catalog().Item("i1"); it.Identifier != 310 {
		t.Errorf("the request changed the catalog's identifier to %d", it.Identifier)
	}
}

func TestRankErrors(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		body   string
		status int
		code   string
		field  string
	}{
		{`{`, 400, "invalid_argument", ""},
		{`{"model":"id","user":{"id":"u1"}}`, 400, "invalid_argument", "candidates"},
		{`{"model":"id","user":{"id":"u1"},"candidates":[]}`, 400, "invalid_argument", "candidates"},
		{`{"model":"id","candidates":[{"id":"i1"}]}`, 400, "invalid_argument", "user"},
		{`{"model":"id","user":{},"candidates":[{"id":"i1"}]}`, 400, "invalid_argument", "user"},
		{`{"model":"id","user":{"id":""},"candidates":[{"id":"i1"}]}`, 400, "invalid_argument", "user"},
		{`{"model":"id","user":{"id":"u9"},"candidates":[{"id":"i1"}]}`, 400, "invalid_argument", "user.id"},
		{`{"model":"id","user":{"tokens":[1,400]},"candidates":[{"id":"i1"}]}`, 400, "invalid_argument", "user.tokens[1]"},
		{`{"user":{"id":"u1"},"candidates":[{"id":"i1"}]}`, 400, "invalid_argument", "model"},
		{`{"model":"nope","user":{"id":"u1"},"candidates":[{"id":"i1"}]}`, 404, "not_found", "model"},
		{`{"model":"id","user":{"id":"u1"},"candidates":[{"id":"i1"},{"id":"i999"}]}`, 400, "invalid_argument",
			"candidates[1].id"},
		{`{"model":"id","user":{"id":"u1"},"candidates":[{"id":"i1"},{}]}`, 400, "invalid_argument", "candidates[1]"},
		{`{"model":"id","user":{"id":"u1"},"candidates":[{"identifier":4}]}`, 400, "invalid_argument", "candidates[0]"},
		{`{"model":"id","user":{"id":"u1"},"candidates":[{"tokens":[],"identifier":3}]}`, 400, "invalid_argument",
			"candidates[0]"},
		{`{"model":"pw","user":{"id":"u1"},"candidates":[{"text":""}]}`, 400, "invalid_argument", "candidates[0]"},
		{`{"model":"id","user":{"id":"u1"},"candidates":[{"tokens":[400],"identifier":3}]}`, 400, "invalid_argument",
			"candidates[0].tokens[0]"},
		{`{"model":"id","user":{"id":"u1"},"candidates":[{"id":"i1"},{"id":"plain/1"}]}`, 422, "unprocessable",
			"candidates[1].identifier"},
		{`{"model":"id","user":{"id":"u1"},"candidates":[{"id":"i1"},{"id":"i2"},{"id":"i1"}]}`, 422, "unprocessable",
			"candidates[2].identifier"},
		{`{"model":"id","user":{"id":"u1"},"candidates":[{"id":"i1","identifier":400}]}`, 422, "unprocessable",
			"candidates[0].identifier"},
		{`{"model":"raw","user":{"text":"x"},"candidates":[{"id":"i1"}]}`, 422, "unprocessable", "user"},
		{`{"model":"raw","user":{"tokens":[1]},"candidates":[{"id":"i1"}]}`, 422, "unprocessable", "candidates[0]"},
		{`{"model":"pw","user":{"id":"u1"},"candidates":[{"id":"i1"}],"prefix":"blend"}`, 422, "unprocessable", "prefix"},
		{`{"model":"id","user":{"id":"u1"},"candidates":[{"id":"i1"}],"prefix":"blend","budget":{"items":2}}`, 400,
			"invalid_argument", "budget"},
		{`{"model":"id","user":{"id":"u1"},"candidates":[{"id":"i1"}],"budget":{"items":0.2}}`, 400, "invalid_argument",
			"budget"},
		{`{"model":"id","user":{"id":"u1"},"candidates":[{"id":"i1"}],"prefix":"both"}`, 400, "invalid_argument", "prefix"},
		{`{"model":"id","user":{"id":"u1"},"candidates":[{"id":"i1"}],"deadline_ms":60001}`, 400, "invalid_argument",
			"deadline_ms"},
		{`{"model":"id","user":{"id":"u1"},"candidates":[{"id":"i1"}],"deadline_ms":-5}`, 400, "invalid_argument",
			"deadline_ms"},
		{`{"model":"id","user":{"id":"u1"},"candidates":[{"id":"i1"}],"top_k":-1}`, 400, "invalid_argument", "top_k"},
		{`{"model":"id","user":{"id":"u1"},"candidates":[{"id":"i1"}],"request_id":"a\u0000b"}`, 400, "invalid_argument",
			"request_id"},
		{`{"model":"id","user":{"id":"u1"},"candidates":[{"id":"i1"}],"request_id":"` + strings.Repeat("x", 129) + `"}`, 400,
			"invalid_argument", "request_id"},
		{`{"model":"id","user":{"id":"u1"},"candidates":[{"id":"i1","idd":1}]}`, 400, "invalid_argument",
			"candidates[0].idd"},
		{`{"model":"id","user":{"text":"` + strings.Repeat("x", positions) + `"},"candidates":[{"id":"i1"}]}`, 413,
			"too_large", ""},
		{`{"model":"id","user":{"text":"` + strings.Repeat("x", 1<<20) + `"},"candidates":[{"id":"i1"}]}`, 413, "too_large",
			""},
	} {
		rec := w.ask("POST", "/v1/rank", c.body)
		wantError(t, rec, c.status, c.code, c.field)
		if t.Failed() {
			t.Fatalf("for %.300s", c.body)
		}
	}
}

// A short history may name texts that exceed the memory. It is refused before they are joined.
func TestRankHistoryOfLongItems(t *testing.T) {
	w := newWorld(t)
	if rec := w.ask("PUT", "/v1/items/long", `{"text":"`+strings.Repeat("x", 900_000)+`"}`); rec.Code != 201 {
		t.Fatalf("status %d: %s", rec.Code, rec.Body)
	}
	history := strings.Repeat(`"long",`, 99_999) + `"long"`
	rec := w.ask("POST", "/v1/rank", `{"model":"id","user":{"history":[`+history+`]},"candidates":[{"id":"i1"}]}`)
	wantError(t, rec, 413, "too_large", "user")
}

func TestRankMessageOfTheContract(t *testing.T) {
	w := newWorld(t)
	rec := w.ask("POST", "/v1/rank",
		`{"model":"id","user":{"id":"u1"},"candidates":[{"id":"i1"},{"id":"i2"},{"id":"i3"},{"id":"i999"}]}`)
	want :=
		`{"error":{"code":"invalid_argument","message":"candidates[3].id: no item \"i999\"","field":"candidates[3].id"}}` +
			"\n"
	if rec.Code != 400 || rec.Body.String() != want {
		t.Errorf("%d %s, want 400 %s", rec.Code, rec.Body, want)
	}
}

func TestOneModelNeedsNoName(t *testing.T) {
	w := newWorld(t, func(c *setup) { c.Models = c.Models[:1] })
	if got := w.rank(t, `{"user":{"id":"u1"},"candidates":[{"id":"i1"}]}`); got.Model != "id" ||
		got.Results[0].Score != 1 {
		t.Errorf("%+v", got)
	}
}

func TestEngineErrors(t *testing.T) {
	w := newWorld(t)
	const body = `{"model":"id","user":{"id":"u1"},"candidates":[{"id":"i1"}]}`
	for _, c := range []struct {
		err    error
		status int
		code   string
	}{
		{dispatch.ErrQueueFull, 429, "resource_exhausted"},
		{dispatch.ErrExpired, 504, "deadline_exceeded"},
		{context.DeadlineExceeded, 504, "deadline_exceeded"},
		{fmt.Errorf("x: %w", engine.ErrTooLarge), 413, "too_large"},
		{engine.ErrClosed, 503, "unavailable"},
		{context.Canceled, 499, "canceled"},
		{errors.New("secret of the engine"), 500, "internal"},
	} {
		w.runner.Set(func(context.Context, *engine.Job) error { return c.err })
		rec := w.ask("POST", "/v1/rank", body)
		wantError(t, rec, c.status, c.code, "")
		if retry := rec.Header().Get("Retry-After"); (retry != "") != (c.status == 429 || c.status == 503) {
			t.Errorf("%v: Retry-After %q", c.err, retry)
		}
		if strings.Contains(rec.Body.String(), "secret") {
			t.Errorf("an internal error's text got out: %s", rec.Body)
		}
	}
	w.runner.Set(func(context.Context, *engine.Job) error { panic("boom") })
	wantError(t, w.ask("POST", "/v1/rank", body), 500, "internal", "")
	w.runner.Set(nil)
	w.rank(t, body)
	if m := w.ask("GET", "/metrics", "").Body.String(); !strings.Contains(m, "grebe_panics_total 1\n") {
		t.Error("the panic was not counted")
	}
}

func TestDeadlineReachesTheEngine(t *testing.T) {
	w := newWorld(t)
	var left time.Duration
	w.runner.Set(func(ctx context.Context, _ *engine.Job) error {
		d, ok := ctx.Deadline()
		if !ok {
			return errors.New("no deadline")
		}
		left = time.Until(d)
		return nil
	})
	w.rank(t, `{"model":"id","user":{"id":"u1"},"candidates":[{"id":"i1"}],"deadline_ms":60000}`)
	if left < 30*time.Second || left > time.Minute {
		t.Errorf("%v left of 60 s", left)
	}
	w.rank(t, `{"model":"id","user":{"id":"u1"},"candidates":[{"id":"i1"}]}`)
	if left < time.Second || left > 10*time.Second {
		t.Errorf("%v left of the server's 10 s", left)
	}
	w.runner.Set(func(ctx context.Context, _ *engine.Job) error {
		<-ctx.Done()
		return ctx.Err()
	})
	wantError(t, w.ask("POST", "/v1/rank", `{"model":"id","user":{"id":"u1"},"candidates":[{"id":"i1"}],"deadline_ms":1}`),
		504, "deadline_exceeded", "")
}

func TestModelsThatMisbehave(t *testing.T) {
	w := newWorld(t, func(c *setup) {
		c.Models[0].Runner = runnerFunc(func(*engine.Job) *engine.Result {
			return &engine.Result{Logits: [][]float32{{float32(math.NaN())}}}
		})
		c.Models[1].Runner = runnerFunc(func(*engine.Job) *engine.Result { return &engine.Result{} })
	})
	for _, model := range []string{"id", "pw"} {
		rec := w.ask("POST", "/v1/rank", `{"model":"`+model+`","user":{"id":"u1"},"candidates":[{"id":"i1"}]}`)
		wantError(t, rec, 500, "internal", "")
	}
}

type runnerFunc func(*engine.Job) *engine.Result

func (f runnerFunc) Do(_ context.Context, j *engine.Job) (*engine.Result, error) { return f(j), nil }

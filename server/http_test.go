package server

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"grebe/catalog"
	"grebe/engine"
	"grebe/server/guard"
)

const goodRank = `{"model":"id","user":{"id":"u1"},"candidates":[{"id":"i1"},{"id":"i2"}]}`

func TestPathsAndMethods(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		method, path string
		status       int
		code, allow  string
	}{
		{"GET", "/nope", 404, "not_found", ""},
		{"GET", "/v1", 404, "not_found", ""},
		{"POST", "/v1/rank/", 404, "not_found", ""},
		{"POST", "//v1/rank", 404, "not_found", ""},
		{"GET", "/v1/items/", 404, "not_found", ""},
		{"GET", "/v1/items/a/b", 404, "not_found", ""},
		{"GET", "/debug/pprof/", 404, "not_found", ""},
		{"GET", "/v1/rank", 405, "method_not_allowed", "POST"},
		{"PATCH", "/v1/items/i1", 405, "method_not_allowed", "DELETE, GET, HEAD, PUT"},
		{"POST", "/v1/models", 405, "method_not_allowed", "GET, HEAD"},
		{"POST", "/metrics", 405, "method_not_allowed", "GET, HEAD"},
		{"POST", "/", 405, "method_not_allowed", "GET, HEAD"},
		{"BREW", "/v2/health/live", 405, "method_not_allowed", "GET, HEAD"},
	} {
		rec := w.ask(c.method, c.path, "")
		wantError(t, rec, c.status, c.code, "")
		if got := rec.Header().Get("Allow"); got != c.allow {
			t.Errorf("%s %s: Allow %q, want %q", c.method, c.path, got, c.allow)
		}
		says := "takes " + c.allow + ", not"
		if c.status == 404 {
			says = "/openapi.json"
		}
		if !strings.Contains(rec.Body.String(), says) {
			t.Errorf("%s %s: %s; want %s", c.method, c.path, rec.Body, says)
		}
	}
}

func TestContentTypes(t *testing.T) {
	w := newWorld(t)
	for kind, status := range map[string]int{
		"": 200, "application/json": 200, "application/json; charset=utf-8": 200, "application/vnd.x+json": 200,
		"application/x-www-form-urlencoded": 200, "text/plain": 200,
		"text/html": 415, "application/xml": 415, "multipart/form-data; boundary=x": 415, "image/png": 415, ";;;": 415,
	} {
		if rec := w.ask("POST", "/v1/rank", goodRank, "Content-Type", kind); rec.Code != status {
			t.Errorf("content type %q: %d, want %d", kind, rec.Code, status)
		}
	}
	wantError(t, w.ask("POST", "/v1/rank", goodRank, "Content-Encoding", "gzip"), 415, "unsupported_media_type", "")
}

func TestBodyLimit(t *testing.T) {
	w := newWorld(t, func(c *setup) { c.MaxBody = 100 })
	wantError(t, w.ask("POST", "/v1/rank", goodRank+strings.Repeat(" ", 100)), 413, "too_large", "")
	wantError(t, w.ask("PUT", "/v1/items/x", strings.Repeat(" ", 101)), 413, "too_large", "")
	if rec := w.ask("POST", "/v1/rank", goodRank); rec.Code != 200 {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
}

// A client that writes its whole body before it reads gets the error that it is too large. A client that sent Expect
// need not send it.
func TestBodyTooLargeIsRead(t *testing.T) {
	w := newWorld(t, func(c *setup) { c.MaxBody = 100 })
	for expect, left := range map[string]int{"": 0, "100-continue": 500} {
		body := strings.NewReader(strings.Repeat(" ", 500))
		req := httptest.NewRequest("POST", "/v1/rank", body)
		req.Header.Set("Expect", expect)
		rec := httptest.NewRecorder()
		w.Handler().ServeHTTP(rec, req)
		wantError(t, rec, 413, "too_large", "")
		if body.Len() != left {
			t.Errorf("expect %q: %d bytes of the body were not read, want %d", expect, body.Len(), left)
		}
	}
}

func TestUnknownModelsAreToldTheNames(t *testing.T) {
	w := newWorld(t)
	for _, body := range []string{`{"user":{"id":"u1"},"candidates":[{"id":"i1"}]}`,
		`{"model":"nope","user":{"id":"u1"},"candidates":[{"id":"i1"}]}`} {
		if rec := w.ask("POST", "/v1/rank", body); !strings.Contains(rec.Body.String(), `\"id\"`) {
			t.Errorf("%s: %d %s, want the names of the models", body, rec.Code, rec.Body)
		}
	}
}

func TestBodiesUnderWay(t *testing.T) {
	w := newWorld(t, func(c *setup) { c.MaxBody, c.MaxBuffered = 150, 200 })
	inside, release := make(chan struct{}), make(chan struct{})
	w.runner.Set(func(context.Context, *engine.Job) error {
		close(inside)
		<-release
		return nil
	})
	done := make(chan *httptest.ResponseRecorder)
	long := goodRank + strings.Repeat(" ", 60)
	go func() { done <- w.ask("POST", "/v1/rank", long) }()
	<-inside
	wantError(t, w.ask("POST", "/v1/rank", long), 429, "resource_exhausted", "")
	close(release)
	if rec := <-done; rec.Code != 200 {
		t.Errorf("the first request: %d %s", rec.Code, rec.Body)
	}
	w.runner.Set(nil)
	w.rank(t, long)
	if n := w.bodies.Load(); n != 0 {
		t.Errorf("%d bytes are still reserved", n)
	}
}

func TestHealth(t *testing.T) {
	w := newWorld(t)
	w.SetReady(false)
	if rec := w.ask("GET", "/v2/health/live", ""); rec.Code != 200 {
		t.Errorf("live: %d", rec.Code)
	}
	wantError(t, w.ask("GET", "/v2/health/ready", ""), 503, "unavailable", "")
	wantError(t, w.ask("POST", "/v1/rank", goodRank), 503, "unavailable", "")
	w.SetReady(true)
	for _, path := range []string{"/v2/health/live", "/v2/health/ready"} {
		if rec := w.ask("GET", path, ""); rec.Code != 200 || !json.Valid(rec.Body.Bytes()) {
			t.Errorf("%s: %d %s", path, rec.Code, rec.Body)
		}
		if rec := w.ask("HEAD", path, ""); rec.Code != 200 || rec.Body.Len() != 0 {
			t.Errorf("HEAD %s: %d %s", path, rec.Code, rec.Body)
		}
	}
}

func TestModels(t *testing.T) {
	w := newWorld(t)
	var got struct {
		Object string
		Data   []map[string]any
	}
	decodeJSON(t, w.ask("GET", "/v1/models", "").Body, &got)
	if got.Object != "list" || len(got.Data) != 3 {
		t.Fatalf("%+v", got)
	}
	want := map[string]any{"id": "id", "object": "model", "owned_by": "grebe", "architecture": "Qwen3ForCausalLM",
		"dtype":   "bf16",
		"scoring": "identifier", "vocab_size": 400., "max_model_len": 5000., "created": got.Data[0]["created"]}
	if !reflect.DeepEqual(got.Data[0], want) || got.Data[0]["created"].(float64) < 1e9 ||
		got.Data[1]["scoring"] != "pointwise" {
		t.Errorf("%v, want %v", got.Data, want)
	}
}

func TestCatalogOverHTTP(t *testing.T) {
	w := newWorld(t)
	if got, want := w.ask("GET", "/v1/catalog", "").Body.String(),
		`{"items":4,"users":1,"version":"5","digest":"`; !strings.HasPrefix(got, want) {
		t.Errorf("catalog %s, want %s…", got, want)
	}
	const item = `{"id":"a/b ☃","text":"x","tokens":[1],"identifier":7,"codes":[3,1],"attributes":{"category":["toys"]}}`
	const path = "/v1/items/a%2Fb%20%E2%98%83"
	for _, want := range []int{201, 200} {
		if rec := w.ask("PUT", path, item); rec.Code != want || strings.TrimSpace(rec.Body.String()) != item {
			t.Errorf("PUT: %d %s, want %d %s", rec.Code, rec.Body, want, item)
		}
	}
	if rec := w.ask("GET", path, ""); rec.Code != 200 || strings.TrimSpace(rec.Body.String()) != item {
		t.Errorf("GET: %d %s", rec.Code, rec.Body)
	}
	w.rank(t, `{"model":"id","user":{"id":"u1"},"candidates":[{"id":"a/b ☃"}]}`)
	if rec := w.ask("DELETE", path, ""); rec.Code != 204 || rec.Body.Len() != 0 {
		t.Errorf("DELETE: %d %s", rec.Code, rec.Body)
	}
	wantError(t, w.ask("GET", path, ""), 404, "not_found", "")
	wantError(t, w.ask("DELETE", path, ""), 404, "not_found", "")

	const user = `{"id":"u2","history":["i1"],"text":"t","tokens":[1],"events":[{"item":"i1","time":1700000000,` +
		`"action":3,"features":{"a":0.5}}]}`
	if rec := w.ask("PUT", "/v1/users/u2", user); rec.Code != 201 || strings.TrimSpace(rec.Body.String()) != user {
		t.Errorf("PUT: %d %s", rec.Code, rec.Body)
	}
	if rec := w.ask("PUT", "/v1/users/u3", `{"history":[]}`); rec.Code != 201 {
		t.Errorf("PUT without an id: %d %s", rec.Code, rec.Body)
	}
	w.rank(t, `{"model":"id","user":{"id":"u3"},"candidates":[{"id":"i1"}]}`)
	if rec := w.ask("GET", "/v1/users/u2", ""); rec.Code != 200 || strings.TrimSpace(rec.Body.String()) != user {
		t.Errorf("GET: %d %s", rec.Code, rec.Body)
	}
	if rec := w.ask("DELETE", "/v1/users/u2", ""); rec.Code != 204 {
		t.Errorf("DELETE: %d", rec.Code)
	}
	wantError(t, w.ask("GET", "/v1/users/u2", ""), 404, "not_found", "")
	wantError(t, w.ask("PUT", "/v1/users/u2", `{"id":"u3"}`), 400, "invalid_argument", "id")
	wantError(t, w.ask("PUT", "/v1/items/u2", `{"tex":"u3"}`), 400, "invalid_argument", "tex")
	wantError(t, w.ask("PUT", "/v1/items/"+strings.Repeat("x", 600), `{}`), 400, "invalid_argument", "id")
}

func TestCatalogFull(t *testing.T) {
	w := newWorld(t, func(c *setup) { c.Catalog = catalog.New(catalog.Options{MaxItems: 1, MaxUsers: 1}) })
	for _, kind := range []string{"items", "users"} {
		w.ask("PUT", "/v1/"+kind+"/a", `{}`)
		wantError(t, w.ask("PUT", "/v1/"+kind+"/b", `{}`), 429, "resource_exhausted", "")
		if rec := w.ask("PUT", "/v1/"+kind+"/a", `{}`); rec.Code != 200 {
			t.Errorf("replacing in a full catalog: %d", rec.Code)
		}
	}
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	w := newWorld(t, func(c *setup) { c.Registry = reg })
	before := w.ask("GET", "/metrics", "").Body.String()
	for _, line := range []string{ // alerts need these counters from the start
		`grebe_slo_ok_total{op="rank"} 0`, `grebe_slo_ok_total{op="recommend"} 0`,
		`grebe_requests_total{code="200",op="rank"} 0`, `grebe_requests_total{code="500",op="recommend"} 0`,
	} {
		if !strings.Contains(before, line+"\n") {
			t.Errorf("metrics of a server that was asked nothing lack %q", line)
		}
	}
	w.rank(t, goodRank)
	w.ask("POST", "/v1/rank", `{`)
	w.ask("GET", "/some/id/that/must/not/be/a/label", "")
	rec := w.ask("GET", "/metrics", "")
	if got := rec.Header().Get("Content-Type"); !strings.HasPrefix(got, "text/plain") {
		t.Errorf("content type %q", got)
	}
	text := rec.Body.String()
	for _, line := range []string{
		`grebe_requests_total{code="200",op="rank"} 1`,
		`grebe_requests_total{code="400",op="rank"} 1`,
		`grebe_requests_total{code="404",op="other"} 1`,
		`grebe_request_seconds_count{op="rank"} 2`,
		`grebe_queue_seconds_count 1`,
		`grebe_queue_seconds_sum 0.0015`,
		`grebe_slo_ok_total{op="rank"} 1`,
		`grebe_tokens_total{op="rank",source="computed"} 23`,
		`grebe_tokens_total{op="rank",source="host"} 0`,
		`grebe_prefix_choice_total{prefix="user"} 1`,
		`grebe_batch_tokens_sum 64`,
		`grebe_history_unknown_total 1`,
		`grebe_panics_total 0`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("metrics lack %q", line)
		}
	}
	if strings.Contains(text, "must/not") {
		t.Error("a path became a label")
	}
	if _, err := New(w.Service, Config{}); err == nil {
		t.Error("two servers share a registry without an error")
	}
}

// The page is escaped, all files that it loads exist, and it may load nothing else.
func TestPage(t *testing.T) {
	w := newWorld(t, func(c *setup) { c.Node, c.Version = "<n1>", "1.2" })
	rec := w.ask("GET", "/", "")
	page := rec.Body.String()
	for _, part := range []string{"&lt;n1&gt;", "1.2", `data-slo="10000"`, `href="/metrics"`} {
		if !strings.Contains(page, part) {
			t.Errorf("the page lacks %q", part)
		}
	}
	if csp := rec.Header().Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") {
		t.Errorf("the page may load what it likes: %q", csp)
	}
	files := regexp.MustCompile(`"(/assets/[^"]+)"`).FindAllStringSubmatch(page, -1)
	if len(files) < 3 {
		t.Errorf("the page names %d files", len(files))
	}
	for _, f := range files {
		rec := w.ask("GET", f[1], "")
		if rec.Code != 200 || rec.Body.Len() == 0 || strings.HasPrefix(rec.Header().Get("Content-Type"), "application/json") {
			t.Errorf("%s is %d of type %q", f[1], rec.Code, rec.Header().Get("Content-Type"))
		}
	}
	for _, path := range []string{"/assets/", "/assets/index.html", "/assets/dashboard.go", "/assets/../server.go",
		"/assets/none.js"} {
		if rec := w.ask("GET", path, ""); rec.Code != 404 {
			t.Errorf("%s is %d, want 404", path, rec.Code)
		}
	}
}

func TestAdmin(t *testing.T) {
	g, err := guard.New([]guard.Key{{Name: "a", SHA256: guard.Digest("a"), Roles: []guard.Role{guard.Serve}}})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, func(c *setup) { c.Guard = g })
	w.handler = w.AdminHandler()
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/cmdline", "/metrics", "/v2/health/ready"} {
		if rec := w.ask("GET", path, ""); rec.Code != 200 {
			t.Errorf("%s: %d", path, rec.Code)
		}
	}
	wantError(t, w.ask("GET", "/other", ""), 404, "not_found", "")
}

func TestTooManyInFlight(t *testing.T) {
	w := newWorld(t, func(c *setup) { c.MaxInFlight = 1 })
	inside, release := make(chan struct{}), make(chan struct{})
	w.runner.Set(func(context.Context, *engine.Job) error {
		close(inside)
		<-release
		return nil
	})
	done := make(chan *httptest.ResponseRecorder)
	go func() { done <- w.ask("POST", "/v1/rank", goodRank) }()
	<-inside
	rec := w.ask("POST", "/v1/rank", goodRank)
	wantError(t, rec, 429, "resource_exhausted", "")
	if rec.Header().Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	if rec := w.ask("GET", "/v2/health/ready", ""); rec.Code != 200 {
		t.Errorf("a busy server is not ready: %d", rec.Code)
	}
	close(release)
	if rec := <-done; rec.Code != 200 {
		t.Errorf("the first request: %d %s", rec.Code, rec.Body)
	}
}

// A waiting write takes no slot of a ranking, and there are as many slots for writes as for rankings.
func TestWritesHavePlacesOfTheirOwn(t *testing.T) {
	w := newWorld(t, func(c *setup) { c.MaxInFlight = 1 })
	release, err := w.admit(w.placesOf(guard.Catalog))
	must(t, err)
	w.rank(t, `{"model":"id","user":{"id":"u1"},"candidates":[{"id":"i1"}]}`)
	wantError(t, w.ask("PUT", "/v1/items/new", `{"tokens":[1]}`), 429, "resource_exhausted", "")
	release()
	if rec := w.ask("PUT", "/v1/items/new", `{"tokens":[1]}`); rec.Code != 201 {
		t.Errorf("with room again: %d %s", rec.Code, rec.Body)
	}
}

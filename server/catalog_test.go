package server

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"grebe/catalog"
)

type batchBody struct {
	Lines, Created, Replaced, Deleted, Unchanged, Failed int64
	Errors                                               []struct {
		Line                 int64
		Code, Message, Field string
	}
	Version  string
	Warnings []string
}

func (w *world) batch(t *testing.T, path, body string) batchBody {
	t.Helper()
	rec := w.ask("POST", path, body, "Content-Type", "application/x-ndjson")
	if rec.Code != 200 {
		t.Fatalf("%s: %d %s", path, rec.Code, rec.Body)
	}
	var got batchBody
	decodeJSON(t, rec.Body, &got)
	if n := got.Created + got.Replaced + got.Deleted + got.Unchanged + got.Failed; n != got.Lines {
		t.Errorf("the counts of %+v add up to %d", got, n)
	}
	return got
}

func TestBatch(t *testing.T) {
	w := newWorld(t, func(c *setup) { c.MaxBody = 200 })
	long := `{"id":"long","text":"` + strings.Repeat("x", 300) + `"}`
	huge := `{"id":"huge","text":"` + strings.Repeat("x", 200_000) + `"}`
	got := w.batch(t, "/v1/items:batch", strings.Join([]string{
		`{"id":"n1","text":"new"}`, ``, `{"id":"i1","text":"other"}`, ` {"delete": "i2"} `, `{"delete":"none"}`,
		long, `{"id":"n1","text":"new"}` + "\r", `{"idd":"x"}`, huge, `{"text":"x"}`, `{"delete":"i3","id":"i3"}`,
		`{"delete":""}`,
		`{"id":"n2"}`}, "\n"))
	type line struct {
		line  int64
		code  string
		field string
	}
	var errs []line
	for _, e := range got.Errors {
		errs = append(errs, line{e.Line, e.Code, e.Field})
	}
	want := []line{{6, "too_large", ""}, {8, "invalid_argument", "idd"}, {9, "too_large", ""},
		{11, "invalid_argument", "id"}, {12, "invalid_argument", "delete"}, {10, "invalid_argument", "id"}}
	if !reflect.DeepEqual(errs, want) {
		t.Errorf("errors %v, want %v", errs, want)
	}
	got.Errors, got.Version = nil, ""
	if want := (batchBody{Lines: 12, Created: 2, Replaced: 1, Deleted: 1, Unchanged: 2, Failed: 6}); !reflect.DeepEqual(
		got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	for id, status := range map[string]int{"n1": 200, "n2": 200, "i1": 200, "i2": 404, "i3": 200, "long": 404} {
		if rec := w.ask("GET", "/v1/items/"+id, ""); rec.Code != status {
			t.Errorf("item %s: %d, want %d", id, rec.Code, status)
		}
	}
	if got := w.batch(t, "/v1/users:batch", `{"id":"a","history":["i1"]}`+"\n"+`{"delete":"u1"}`+"\n"); got.Created != 1 ||
		got.Deleted != 1 {
		t.Errorf("users: %+v", got)
	}
	if got := w.batch(t, "/v1/users:batch", ""); got.Lines != 0 {
		t.Errorf("an empty batch: %+v", got)
	}
	wantError(t, w.ask("POST", "/v1/items:batch", "{}", "Content-Type", "text/html"), 415, "unsupported_media_type", "")
	wantError(t, w.ask("GET", "/v1/items:batch", ""), 405, "method_not_allowed", "")
	if n := w.bodies.Load(); n != 0 {
		t.Errorf("%d bytes are still reserved", n)
	}
}

// 1,000 bad lines among good ones are reported by line number, up to 100 of them.
func TestBatchOfMalformedLines(t *testing.T) {
	w := newWorld(t)
	bad := []string{"{", "[]", "null", `"x"`, `{"id":1}`, `{"id":"a","id":"b"}`, "\xff\xfe", `{"id":"a"} x`,
		`{"id":"a","tokens":[-1]}`,
		`{"id":"a","text":null}`, "\x00", `{"id":"` + strings.Repeat("y", 600) + `"}`, `{"delete":1}`, `{"delete`,
		`{"id":"\ud800"}`}
	var b strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&b, "{\"id\":\"good%d\"}\n%s\n", i, bad[i%len(bad)])
	}
	got := w.batch(t, "/v1/items:batch", b.String())
	if got.Lines != 2000 || got.Created != 1000 || got.Failed != 1000 || len(got.Errors) != 100 {
		t.Errorf("%d lines, %d created, %d failed, %d errors told", got.Lines, got.Created, got.Failed, len(got.Errors))
	}
	for _, e := range got.Errors {
		if e.Line%2 != 0 || e.Message == "" || e.Code != "invalid_argument" {
			t.Errorf("error %+v", e)
		}
	}
}

func TestBatchIntoAFullCatalog(t *testing.T) {
	w := newWorld(t, func(c *setup) { c.Catalog = catalog.New(catalog.Options{MaxItems: 1}) })
	got := w.batch(t, "/v1/items:batch", "{\"id\":\"a\"}\n{\"id\":\"b\"}\n{\"id\":\"a\",\"text\":\"t\"}\n")
	if got.Created != 1 || got.Failed != 1 || got.Replaced != 1 || got.Errors[0].Code != "resource_exhausted" ||
		got.Errors[0].Line != 2 {
		t.Errorf("%+v", got)
	}
}

func TestEvents(t *testing.T) {
	w := newWorld(t, func(c *setup) { c.Catalog = catalog.New(catalog.Options{MaxHistory: 4}) })
	post := func(id, body string, status int, want string) {
		t.Helper()
		rec := w.ask("POST", "/v1/users/"+id+"/events", body)
		if got := strings.TrimSpace(rec.Body.String()); rec.Code != status || got != want {
			t.Errorf("%d %s, want %d %s", rec.Code, got, status, want)
		}
	}
	post("n%2Few", `{"events":[{"item":"i1","time":5}]}`, 201,
		`{"id":"n/ew","created":true,"appended":1,"dropped":0,"events":1,"history":0,"version":"1","unknown_items":1,`+
			`"unknown":["i1"]}`)
	post("n%2Few", `{"events":[{"item":"i2"},{"item":"i3"}]}`, 200,
		`{"id":"n/ew","created":false,"appended":2,"dropped":0,"events":3,"history":0,"version":"2","unknown_items":2,`+
			`"unknown":["i2","i3"]}`)
	post("n%2Few", `{"events":[{"item":"i4"},{"item":"i5"}]}`, 200,
		`{"id":"n/ew","created":false,"appended":2,"dropped":2,"events":3,"history":0,"version":"3","unknown_items":2,`+
			`"unknown":["i4","i5"]}`)
	if rec := w.ask("PUT", "/v1/users/h", `{"history":["i1"]}`); rec.Code != 201 {
		t.Fatal(rec.Body)
	}
	post("h", `{"events":[{"item":"i2"}]}`, 200,
		`{"id":"h","created":false,"appended":1,"dropped":0,"events":1,"history":2,"version":"5","unknown_items":1,`+
			`"unknown":["i2"]}`)
	const want = `{"id":"h","history":["i1","i2"],"events":[{"item":"i2","time":0,"action":0,"features":{}}]}`
	if got := strings.TrimSpace(w.ask("GET", "/v1/users/h", "").Body.String()); got != want {
		t.Errorf("the user is %s, want %s", got, want)
	}
	if rec := w.ask("PUT", "/v1/items/known", `{"text":"t"}`); rec.Code != 201 {
		t.Fatal(rec.Body)
	}
	post("k",
		`{"events":[{"id":"e1","item":"known","time":9},{"id":"e1","item":"known","time":9},{"item":"known","time":4}]}`, 201,
		`{"id":"k","created":true,"appended":2,"dropped":0,"events":2,"history":0,"version":"7","duplicates":1}`)
	post("k", `{"events":[{"id":"e1","item":"known","time":9}]}`, 200,
		`{"id":"k","created":false,"appended":0,"dropped":0,"events":2,"history":0,"version":"7","duplicates":1}`)
	const ordered = `{"id":"k","events":[{"item":"known","time":4,"action":0,"features":{}},{"id":"e1",` +
		`"item":"known","time":9,"action":0,"features":{}}]}`
	if got := strings.TrimSpace(w.ask("GET", "/v1/users/k", "").Body.String()); got != ordered {
		t.Errorf("the user is %s, want %s", got, ordered)
	}
	for body, field := range map[string]string{
		`{"events":[]}`: "events", `{}`: "events", `{"events":[{"time":1}]}`: "events[0].item", `{"event":[]}`: "event",
		`{"events":[{"item":"i"},{"item":"i","action":"x"}]}`: "events[1].action", `[]`: "",
	} {
		wantError(t, w.ask("POST", "/v1/users/h/events", body), 400, "invalid_argument", field)
	}
	wantError(t, w.ask("GET", "/v1/users/h/events", ""), 405, "method_not_allowed", "")
	wantError(t, w.ask("POST", "/v1/users//events", "{}"), 404, "not_found", "")
	wantError(t, w.ask("POST", "/v1/items/h/events", "{}"), 404, "not_found", "")
}

// The catalog survives a restart: two servers on one folder, through real connections.
func TestCatalogOutlivesTheServer(t *testing.T) {
	dir := t.TempDir()
	serve := func(use func(url string)) {
		t.Helper()
		cat, err := catalog.Open(dir, catalog.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer cat.Close()
		w := newWorld(t, func(c *setup) { c.Catalog = cat })
		ts := httptest.NewServer(w.handler)
		defer ts.Close()
		use(ts.URL)
	}
	ask := func(method, url, body string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(context.Background(), method, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
	var before string
	serve(func(url string) {
		ask("PUT", url+"/v1/items/a", `{"text":"A"}`)
		ask("PUT", url+"/v1/items/b", `{"text":"B"}`)
		ask("POST", url+"/v1/items:batch", `{"id":"c","text":"C"}`+"\n"+`{"delete":"b"}`)
		ask("POST", url+"/v1/users/u/events", `{"events":[{"item":"a"},{"item":"c"}]}`)
		_, before = ask("GET", url+"/v1/catalog", "")
		if !strings.Contains(before, `"items":2,"users":1,"version":"5"`) || !strings.Contains(before, `"durable":true`) {
			t.Errorf("catalog %s", before)
		}
	})
	serve(func(url string) {
		before, _, _ := strings.Cut(before, `"memory_bytes"`) // an estimate
		if _, after := ask("GET", url+"/v1/catalog", ""); !strings.HasPrefix(after, before) {
			t.Errorf("catalog %s became %s", before, after)
		}
		for path, want := range map[string]int{"/v1/items/a": 200, "/v1/items/b": 404, "/v1/items/c": 200,
			"/v1/users/u": 200} {
			if status, body := ask("GET", url+path, ""); status != want {
				t.Errorf("%s: %d %s", path, status, body)
			}
		}
	})
	http.DefaultClient.CloseIdleConnections()
}

// Lines are applied as they arrive: early lines are in the catalog before the last one is sent. The whole batch is
// longer than a body may be.
func TestBatchIsStreamed(t *testing.T) {
	w := newWorld(t, func(c *setup) { c.MaxBody = 1024 })
	ts := httptest.NewServer(w.handler)
	defer ts.Close()
	in, out := io.Pipe()
	done := make(chan error, 1)
	var status int
	go func() {
		resp, err := http.Post(ts.URL+"/v1/items:batch", "application/x-ndjson", in)
		if err == nil {
			status = resp.StatusCode
			_, err = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		done <- err
	}()
	text := strings.Repeat("x", 900)
	for i := range 2000 {
		fmt.Fprintf(out, "{\"id\":\"s%d\",\"text\":%q}\n", i, text)
		if i == 1999 {
			for _, ok := w.Catalog().Item("s500"); !ok; _, ok = w.Catalog().Item("s500") {
				time.Sleep(time.Millisecond) // the server reads at its own pace
			}
		}
	}
	out.Close()
	if err := <-done; err != nil || status != 200 {
		t.Fatalf("%d, %v", status, err)
	}
	if _, ok := w.Catalog().Item("s1999"); !ok {
		t.Error("the last line is not there")
	}
	http.DefaultClient.CloseIdleConnections()
}

// BenchmarkBatch measures a durable batch of 10,000 items through the HTTP handler.
func BenchmarkBatch(b *testing.B) {
	cat, err := catalog.Open(b.TempDir(), catalog.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer cat.Close()
	w := newWorld(b, func(c *setup) { c.Catalog = cat })
	const lines = 10_000
	n := 0
	for b.Loop() {
		var body strings.Builder
		for range lines {
			n++
			fmt.Fprintf(&body, "{\"id\":\"i%d\",\"text\":\"some words about an item\",\"identifier\":%d}\n", n, n)
		}
		if rec := w.ask("POST", "/v1/items:batch", body.String()); rec.Code != 200 {
			b.Fatal(rec.Body)
		}
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "lines/s")
}

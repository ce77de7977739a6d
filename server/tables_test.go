package server

import (
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"grebe/embed"
	"grebe/serve"
)

// Rows can be written, changed and deleted over HTTP. Changes are visible at once, and counted.
func TestRowsOverHTTP(t *testing.T) {
	tables, err := embed.OpenTables(t.TempDir(), []embed.Spec{
		{Name: "items", Store: "pebble", Dim: 2, Cache: 1 << 16, Default: []float32{9, 9}}})
	if err != nil {
		t.Fatal(err)
	}
	defer tables.Close()
	s := newWorld(t, func(c *setup) { c.Tables = tables }).Server
	call := func(method, url, body string) (string, error) {
		r := httptest.NewRequest(method, url, strings.NewReader(body))
		rt, id := findRoute(r.URL)
		rep, err := rt.methods[method](s, r, id)
		return string(rep.body), err
	}
	for _, c := range []struct{ method, url, body, want, problem string }{
		{"POST", "/v1/tables/items", "{\"key\":1,\"row\":[1,2]}\n{\"key\":2,\"row\":[3,4]}\n", "{\"put\":2,\"deleted\":0}\n",
			""},
		{"GET", "/v1/tables/items?key=1&key=2&key=3", "",
			"{\"key\":1,\"row\":[1,2]}\n{\"key\":2,\"row\":[3,4]}\n{\"key\":3,\"row\":[9,9]}\n", ""},
		{"POST", "/v1/tables/items", "{\"key\":1,\"row\":[5,6]}\n\n{\"key\":2,\"delete\":true}\n",
			"{\"put\":1,\"deleted\":1}\n", ""},
		{"GET", "/v1/tables/items?key=1&key=2", "", "{\"key\":1,\"row\":[5,6]}\n{\"key\":2,\"row\":[9,9]}\n", ""},
		{"POST", "/v1/tables/items", "{\"key\":4,\"row\":[1,2]}\n{\"key\":1,\"row\":[5]}\n", "", "line 2"},
		{"POST", "/v1/tables/items", "{\"key\":4,\"row\":[1,null]}\n", "", "null"},
		{"GET", "/v1/tables/items?key=4", "", "{\"key\":4,\"row\":[1,2]}\n", ""},
		{"POST", "/v1/tables/items", "{\"row\":[5,1]}\n", "", "no key"},
		{"POST", "/v1/tables/items", "x\n", "", "line 1"},
		{"POST", "/v1/tables/items", "{\"key\":1,\"row\":[1,2],\"rwo\":[1,2]}\n", "", "line 1: want {\"key\""},
		{"POST", "/v1/tables/items", "{\"key\":1,\"row\":[1,2],\"delete\":true}\n", "", "line 1: want {\"key\""},
		{"POST", "/v1/tables/items", "{\"key\":1,\"delete\":3}\n", "", "line 1: want {\"key\""},
		{"POST", "/v1/tables/items", "{\"key\":1,\"row\":[1,2]} {\"key\":2}\n", "", "line 1: is not JSON"},
		{"GET", "/v1/tables/items?key=a", "", "", "whole number"},
		{"GET", "/v1/tables/items", "", "", "0 keys"},
		{"GET", "/v1/tables/others?key=1", "", "", "no table"},
	} {
		got, err := call(c.method, c.url, c.body)
		if c.problem == "" && (err != nil || got != c.want) {
			t.Errorf("%s %s %q: %q, error %v; want %q", c.method, c.url, c.body, got, err, c.want)
		}
		if c.problem != "" && (err == nil || !strings.Contains(err.Error(), c.problem)) {
			t.Errorf("%s %s %q: error %v, want %q", c.method, c.url, c.body, err, c.problem)
		}
	}
	r := httptest.NewRequest("POST", "/v1/tables/items", strings.NewReader("{\"key\":6,\"row\":[1,2]}\n"))
	r.Header.Set("Content-Type", "application/x-ndjson")
	if _, err := s.postRows(r, "items"); err != nil {
		t.Errorf("rows as application/x-ndjson, which /openapi.json declares: %v", err)
	}
	r = httptest.NewRequest("POST", "/v1/tables/items", strings.NewReader("<row/>"))
	r.Header.Set("Content-Type", "application/xml")
	if _, err := s.postRows(r, "items"); err == nil || codeOf(asError(err)) != serve.WrongMediaType {
		t.Errorf("rows as application/xml: %v, want unsupported_media_type", err)
	}
	rep, err := s.getMetrics(httptest.NewRequest(http.MethodGet, "/metrics", io.NopCloser(nil)), "")
	if err != nil || !strings.Contains(string(rep.body), "grebe_embed_hits_total{table=\"items\"}") ||
		!strings.Contains(string(rep.body), "grebe_embed_defaults_total{reason=\"missing\",table=\"items\"} 2") {
		t.Errorf("metrics, error %v:\n%s", err, rep.body)
	}
}

// Deletions that the store does not support, and answers that would be too large, are refused.
func TestTablesRefuse(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rows.f32")
	if err := os.WriteFile(file, embed.Bytes(make([]float32, 8)), 0o600); err != nil {
		t.Fatal(err)
	}
	tables, err := embed.OpenTables(t.TempDir(), []embed.Spec{
		{Name: "places", Store: "file", File: file, Dim: 4},
		{Name: "wide", Store: "pebble", Dim: 1 << 18},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer tables.Close()
	s := newWorld(t, func(c *setup) { c.Tables = tables }).Server
	r := httptest.NewRequest("POST", "/v1/tables/places", strings.NewReader("{\"key\":1,\"delete\":true}\n"))
	if _, err := s.postRows(r, "places"); err == nil || codeOf(asError(err)) != serve.Unprocessable {
		t.Errorf("delete a row of a mapped file: %v, want unprocessable", err)
	}
	r = httptest.NewRequest("GET", "/v1/tables/wide?key=1&key=2&key=3&key=4", nil)
	if _, err := s.getRows(r, "wide"); err != nil {
		t.Errorf("four rows of 262144 numbers: %v", err)
	}
	r = httptest.NewRequest("GET", "/v1/tables/wide?key=1&key=2&key=3&key=4&key=5", nil)
	if _, err := s.getRows(r, "wide"); err == nil || codeOf(asError(err)) != serve.TooLarge {
		t.Errorf("five rows of 262144 numbers: %v, want too_large", err)
	}
}

// A row that only the store can contain, such as one with NaN, is replaced by the default and counted as broken.
func TestTableOfBrokenRows(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rows.f32")
	if err := os.WriteFile(file, embed.Bytes([]float32{1, 2, float32(math.NaN()), 4}), 0o600); err != nil {
		t.Fatal(err)
	}
	tables, err := embed.OpenTables(t.TempDir(), []embed.Spec{{Name: "places", Store: "file", File: file, Dim: 2}})
	if err != nil {
		t.Fatal(err)
	}
	defer tables.Close()
	s := newWorld(t, func(c *setup) { c.Tables = tables }).Server
	rep, err := s.getRows(httptest.NewRequest("GET", "/v1/tables/places?key=0&key=1", nil), "places")
	if want := "{\"key\":0,\"row\":[1,2]}\n{\"key\":1,\"row\":[0,0]}\n"; err != nil || string(rep.body) != want {
		t.Errorf("rows %q, error %v; want %q", rep.body, err, want)
	}
	rep, err = s.getMetrics(httptest.NewRequest(http.MethodGet, "/metrics", io.NopCloser(nil)), "")
	if err != nil || !strings.Contains(string(rep.body),
		"grebe_embed_defaults_total{reason=\"broken\",table=\"places\"} 1") {
		t.Errorf("metrics, error %v:\n%s", err, rep.body)
	}
}

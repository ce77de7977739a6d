package server

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"grebe/embed"
)

// Rows are written, changed and deleted over HTTP, are seen at once, and are counted.
func TestRowsOverHTTP(t *testing.T) {
	tables, err := embed.OpenTables(t.TempDir(), []embed.Spec{{Name: "items", Store: "pebble", Dim: 2, Cache: 1 << 16, Default: []float32{9, 9}}})
	if err != nil {
		t.Fatal(err)
	}
	defer tables.Close()
	reg := prometheus.NewRegistry()
	s := &Server{cfg: Config{Tables: tables, Registry: reg, MaxBody: 1 << 20}}
	if err := reg.Register(newTableMetrics(tables)); err != nil {
		t.Fatal(err)
	}
	call := func(method, url, body string) (string, error) {
		r := httptest.NewRequest(method, url, strings.NewReader(body))
		rt, id := findRoute(r.URL)
		rep, err := rt.methods[method](s, r, id)
		return string(rep.body), err
	}
	for _, c := range []struct{ method, url, body, want, problem string }{
		{"POST", "/v1/tables/items", "{\"key\":1,\"row\":[1,2]}\n{\"key\":2,\"row\":[3,4]}\n", "{\"put\":2,\"deleted\":0}\n", ""},
		{"GET", "/v1/tables/items?key=1&key=2&key=3", "", "{\"key\":1,\"row\":[1,2]}\n{\"key\":2,\"row\":[3,4]}\n{\"key\":3,\"row\":[9,9]}\n", ""},
		{"POST", "/v1/tables/items", "{\"key\":1,\"row\":[5,6]}\n\n{\"key\":2,\"delete\":true}\n", "{\"put\":1,\"deleted\":1}\n", ""},
		{"GET", "/v1/tables/items?key=1&key=2", "", "{\"key\":1,\"row\":[5,6]}\n{\"key\":2,\"row\":[9,9]}\n", ""},
		{"POST", "/v1/tables/items", "{\"key\":4,\"row\":[1,2]}\n{\"key\":1,\"row\":[5]}\n", "", "line 2"},
		{"GET", "/v1/tables/items?key=4", "", "{\"key\":4,\"row\":[1,2]}\n", ""},
		{"POST", "/v1/tables/items", "{\"row\":[5,1]}\n", "", "no key"},
		{"POST", "/v1/tables/items", "x\n", "", "line 1"},
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
	rep, err := s.getMetrics(httptest.NewRequest(http.MethodGet, "/metrics", io.NopCloser(nil)), "")
	if err != nil || !strings.Contains(string(rep.body), "grebe_embed_hits_total{table=\"items\"}") ||
		!strings.Contains(string(rep.body), "grebe_embed_defaults_total{reason=\"missing\",table=\"items\"} 2") {
		t.Errorf("metrics, error %v:\n%s", err, rep.body)
	}
}

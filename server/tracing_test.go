package server

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"grebe/server/tracing"
)

// A ranking over HTTP reaches the collector as spans.
func TestRequestsAreTraced(t *testing.T) {
	var bytes atomic.Int64
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { bytes.Add(r.ContentLength) }))
	defer collector.Close()
	tr, err := tracing.New(t.Context(), tracing.Options{Endpoint: collector.URL + "/v1/traces", Share: 1})
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, newWorld(t, func(c *Config) { c.Tracer = tr }))
	resp, err := client(t).Post(s.url("/v1/rank"), "application/json", strings.NewReader(goodRank))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("rank is %d", resp.StatusCode)
	}
	if err := tr.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if bytes.Load() == 0 {
		t.Error("the collector got nothing")
	}
}

package server

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"

	"grebe/serve/tracing"
)

// A ranking over HTTP reaches the collector as spans.
func TestRequestsAreTraced(t *testing.T) {
	var bytes atomic.Int64
	collector := httptest.NewServer(http.HandlerFunc(
		func(_ http.ResponseWriter, r *http.Request) { bytes.Add(r.ContentLength) }))
	defer collector.Close()
	tr, err := tracing.New(t.Context(), tracing.Options{Endpoint: collector.URL + "/v1/traces", Share: 1})
	if err != nil {
		t.Fatal(err)
	}
	s := listening(t, newWorld(t, func(c *setup) { c.Tracer = tr }))
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

// A gRPC call continues its caller's trace from its metadata.
func TestGRPCPartOfATrace(t *testing.T) {
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	got := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(t.Context(),
		carrier(metadata.Pairs("traceparent", parent))))
	if got.TraceID().String() != "0af7651916cd43dd8448eb211c80319c" || got.SpanID().String() != "b7ad6b7169203331" {
		t.Errorf("got %v", got)
	}
}

// Only failures of the server are errors in a trace.
func TestFailuresInTraces(t *testing.T) {
	for status, want := range map[int]string{200: "", 429: "", 499: "", 500: "Internal Server Error",
		504: "Gateway Timeout"} {
		if got := failureOf(status); got != want {
			t.Errorf("%d: %q, want %q", status, got, want)
		}
	}
}

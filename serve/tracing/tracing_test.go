package tracing

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	sdk "go.opentelemetry.io/otel/sdk/trace"

	"grebe/engine"
)

const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// spans runs a request with one good and one failing round and returns what is told of it.
func spans(t *testing.T, share float64, header string) tracetest.SpanStubs {
	t.Helper()
	sink := tracetest.NewInMemoryExporter()
	tr := over(sdk.WithSyncer(sink), Options{Share: share})
	headers := propagation.MapCarrier{}
	if header != "" {
		headers["traceparent"] = header
	}
	ctx, end := tr.Begin(t.Context(), headers, "rank")
	Named(ctx, "r1", "demo")
	tr.Stage(ctx, "fetch", time.Now(), time.Millisecond)
	do := tr.Rounds(func(context.Context, *engine.Job) (*engine.Result, error) {
		return &engine.Result{Computed: 7, Cached: 3, Queue: time.Millisecond, Compute: 2 * time.Millisecond}, nil
	})
	if res, err := do(ctx, nil); err != nil || res.Computed != 7 {
		t.Fatalf("the job's result is lost: %v, %v", res, err)
	}
	broken := errors.New("broken")
	if _, err := tr.Rounds(func(context.Context, *engine.Job) (*engine.Result, error) { return nil, broken })(ctx,
		nil); !errors.Is(err, broken) {
		t.Fatalf("the job's error is lost: %v", err)
	}
	end(http.StatusInternalServerError, "Internal Server Error")
	return sink.GetSpans()
}

func TestSpansOfARequest(t *testing.T) {
	got := spans(t, 0, parent) // the caller decided that it is traced
	by := map[string]tracetest.SpanStub{}
	for _, s := range got {
		by[s.Name] = s
		if s.SpanContext.TraceID().String() != "0af7651916cd43dd8448eb211c80319c" {
			t.Errorf("%s is not part of the caller's trace", s.Name)
		}
	}
	for child, of := range map[string]string{"fetch": "rank", "round": "rank", "queue": "round", "compute": "round"} {
		c, p := by[child], by[of]
		if child != "queue" && child != "compute" && c.Parent.SpanID() != p.SpanContext.SpanID() {
			t.Errorf("%s is not inside %s", child, of)
		}
		if !c.Parent.IsValid() {
			t.Errorf("%s has no parent, or is missing", child)
		}
	}
	if d := by["compute"].EndTime.Sub(by["compute"].StartTime); d != 2*time.Millisecond {
		t.Errorf("compute took %v, want 2 ms", d)
	}
	if st := by["rank"].Status; st.Code != codes.Error || st.Description != "Internal Server Error" {
		t.Errorf("the failed request's span has the status %v", st)
	}
	if len(got) != 6 {
		t.Errorf("%d spans, want request, fetch, two rounds, queue, compute", len(got))
	}
}

func TestNotSampled(t *testing.T) {
	if got := spans(t, 0, ""); len(got) != 0 {
		t.Errorf("%d spans of a share of 0", len(got))
	}
	if got := spans(t, 1, ""); len(got) != 6 {
		t.Errorf("%d spans of a share of 1", len(got))
	}
}

func TestNoTracer(t *testing.T) {
	var tr *Tracer
	ctx, end := tr.Begin(t.Context(), nil, "x")
	end(200, "")
	tr.Stage(ctx, "fetch", time.Now(), 0)
	if ctx != t.Context() {
		t.Error("another context")
	}
	if err := tr.Close(ctx); err != nil {
		t.Error(err)
	}
}

// Without a span there is nothing to continue elsewhere.
func TestNoParent(t *testing.T) {
	if parent, state := Parent(t.Context()); parent != "" || state != "" {
		t.Errorf("got %q and %q", parent, state)
	}
}

// Spans reach a collector; one that is gone costs spans and no request.
func TestCollector(t *testing.T) {
	var mu sync.Mutex
	got := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if r.URL.Path == "/v1/traces" {
			got++
		}
	}))
	defer s.Close()
	tr, err := New(t.Context(), Options{Endpoint: s.URL + "/v1/traces", Share: 1})
	if err != nil {
		t.Fatal(err)
	}
	_, end := tr.Begin(t.Context(), propagation.MapCarrier{}, "rank")
	end(200, "")
	if err := tr.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if got == 0 {
		t.Error("the collector got nothing")
	}
}

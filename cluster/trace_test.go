package cluster

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"go.opentelemetry.io/otel/propagation"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	grebev1 "grebe/api/grebe/v1"
	"grebe/serve/tracing"
)

// The spans of the node that answers are children of the span of the process where the request entered.
func TestTracesTravel(t *testing.T) {
	t.Parallel()
	collector := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(collector.Close)
	tracer, err := tracing.New(t.Context(), tracing.Options{Endpoint: collector.URL, Share: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tracer.Close(context.Background()) })
	nodes := three(t, nil)
	seen := make(chan sdk.ReadOnlySpan, 1)
	for _, n := range nodes[1:] {
		n.local.tracer = tracer
		n.local.answer = func(ctx context.Context, _ *grebev1.RankRequest) (*grebev1.RankResponse, error) {
			span, _ := trace.SpanFromContext(ctx).(sdk.ReadOnlySpan)
			seen <- span
			return &grebev1.RankResponse{}, nil
		}
	}
	forwarded := 0
	for range 3 {
		headers := propagation.MapCarrier{
			"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "shop=1",
		}
		ctx, end := tracer.Begin(t.Context(), headers, "rank")
		entry := trace.SpanContextFromContext(ctx)
		if _, err := nodes[0].rank(ctx); err != nil {
			t.Fatal(err)
		}
		end(http.StatusOK, "")
		select {
		case span := <-seen:
			forwarded++
			switch {
			case span == nil:
				t.Error("the node that answers has no span")
			case span.Parent().TraceID() != entry.TraceID() || span.Parent().SpanID() != entry.SpanID():
				t.Errorf("the node's span belongs to %v, want %v", span.Parent(), entry)
			case span.SpanContext().TraceState().String() != "shop=1":
				t.Errorf("the state is %q", span.SpanContext().TraceState())
			}
		default: // answered here
		}
	}
	if forwarded == 0 {
		t.Error("no request was forwarded")
	}
}

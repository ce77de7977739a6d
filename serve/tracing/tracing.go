// Package tracing reports where the time of a request goes, as OpenTelemetry spans. A request has a span. Inside it
// are a span for fetch and one for each round through the model; a round has spans for queue and compute.
//
// Spans are made afterwards, from times that are measured anyway. A request that is not sampled costs a fraction of a
// microsecond. Without an endpoint there are no spans.
package tracing

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"grebe/engine"
)

// Options configure a Tracer.
type Options struct {
	Endpoint string  // of OTLP over HTTP, such as http://localhost:4318
	Share    float64 // of requests to sample if the caller has not decided, 0 to 1
	Version  string
	Node     string
}

// Tracer makes spans. A nil Tracer makes none.
type Tracer struct {
	tracer   trace.Tracer
	provider *sdk.TracerProvider
}

// New returns a Tracer that sends spans in batches, in a goroutine that Close ends. If the endpoint does not answer,
// spans are lost, but requests are not delayed.
func New(ctx context.Context, opt Options) (*Tracer, error) {
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(opt.Endpoint))
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	return over(sdk.WithBatcher(exporter), opt), nil
}

func over(sink sdk.TracerProviderOption, opt Options) *Tracer {
	about := resource.NewSchemaless(attribute.String("service.name", "grebe"),
		attribute.String("service.version", opt.Version),
		attribute.String("service.instance.id", opt.Node))
	p := sdk.NewTracerProvider(sink, sdk.WithResource(about),
		sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(opt.Share))))
	return &Tracer{tracer: p.Tracer("grebe"), provider: p}
}

// Close sends the remaining spans, until ctx ends.
func (t *Tracer) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	return t.provider.Shutdown(ctx)
}

var propagator = propagation.TraceContext{}

// Begin begins the span of a request. It is part of the caller's trace if the headers name one. The caller MUST call
// end with the HTTP status and, if the server failed, the reason.
func (t *Tracer) Begin(ctx context.Context, headers propagation.TextMapCarrier,
	op string) (_ context.Context, end func(status int, failure string)) {
	if t == nil {
		return ctx, func(int, string) {}
	}
	ctx, span := t.tracer.Start(propagator.Extract(ctx, headers), op, trace.WithSpanKind(trace.SpanKindServer))
	return ctx, func(status int, failure string) {
		span.SetAttributes(attribute.Int("http.response.status_code", status))
		if failure != "" {
			span.SetStatus(codes.Error, failure)
		}
		span.End()
	}
}

// Parent returns the span that ctx is in, as W3C's headers traceparent and tracestate have it. Both are empty if there
// is none.
func Parent(ctx context.Context) (parent, state string) {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return "", ""
	}
	headers := propagation.MapCarrier{}
	propagator.Inject(ctx, headers)
	return headers["traceparent"], headers["tracestate"]
}

// Continue begins the span of a request that another process forwarded, with what Parent returned there. The caller
// MUST call end, with nil or with why the server failed.
func (t *Tracer) Continue(ctx context.Context, parent, state, op string) (_ context.Context, end func(error)) {
	if t == nil {
		return ctx, func(error) {}
	}
	headers := propagation.MapCarrier{"traceparent": parent, "tracestate": state}
	ctx, span := t.tracer.Start(propagator.Extract(ctx, headers), op, trace.WithSpanKind(trace.SpanKindServer))
	return ctx, func(err error) {
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}
}

// Named adds the request's id and model to its span.
func Named(ctx context.Context, request, model string) {
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.SetAttributes(attribute.String("grebe.request_id", request), attribute.String("grebe.model", model))
	}
}

// Stage adds the span of a stage that has ended.
func (t *Tracer) Stage(ctx context.Context, name string, start time.Time, took time.Duration,
	about ...attribute.KeyValue) {
	if t == nil || !trace.SpanFromContext(ctx).IsRecording() {
		return
	}
	_, span := t.tracer.Start(ctx, name, trace.WithTimestamp(start), trace.WithAttributes(about...))
	span.End(trace.WithTimestamp(start.Add(took)))
}

// Do runs a job.
type Do = func(context.Context, *engine.Job) (*engine.Result, error)

// Rounds adds a span for every job that do runs, with spans for queue and compute inside.
func (t *Tracer) Rounds(do Do) Do {
	if t == nil {
		return do
	}
	return func(ctx context.Context, job *engine.Job) (*engine.Result, error) {
		if !trace.SpanFromContext(ctx).IsRecording() {
			return do(ctx, job)
		}
		start := time.Now()
		inside, span := t.tracer.Start(ctx, "round", trace.WithTimestamp(start))
		r, err := do(ctx, job)
		end := time.Now()
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		} else {
			span.SetAttributes(attribute.Int("grebe.tokens.computed", r.Computed),
				attribute.Int("grebe.tokens.cached", r.Cached))
			t.Stage(inside, "queue", start, r.Queue)
			t.Stage(inside, "compute", end.Add(-r.Compute), r.Compute, attribute.Int("grebe.batch.tokens", r.BatchTokens))
		}
		span.End(trace.WithTimestamp(end))
		return r, err
	}
}

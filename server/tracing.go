package server

import (
	"context"
	"net/http"

	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/grpc/metadata"
)

// traceHTTP begins the span of a request. The caller MUST call end.
func (s *Server) traceHTTP(r *http.Request, op string) (ctx context.Context, end func(status int)) {
	t := s.service.Tracer()
	if t == nil {
		return r.Context(), func(int) {}
	}
	ctx, done := t.Begin(r.Context(), propagation.HeaderCarrier(r.Header), op)
	return ctx, func(status int) { done(status, failureOf(status)) }
}

// traceGRPC is traceHTTP for a gRPC call.
func (s *Server) traceGRPC(ctx context.Context, op string) (context.Context, func(status int)) {
	t := s.service.Tracer()
	if t == nil {
		return ctx, func(int) {}
	}
	md, _ := metadata.FromIncomingContext(ctx)
	ctx, done := t.Begin(ctx, carrier(md), op)
	return ctx, func(status int) { done(status, failureOf(status)) }
}

// failureOf returns the text of a status 5xx, else "".
func failureOf(status int) string {
	if status < http.StatusInternalServerError {
		return ""
	}
	return http.StatusText(status)
}

// carrier reads the trace context from the metadata of a gRPC call.
type carrier metadata.MD

func (c carrier) Get(key string) string {
	if v := metadata.MD(c).Get(key); len(v) > 0 {
		return v[0]
	}
	return ""
}

func (c carrier) Set(key, value string) { metadata.MD(c).Set(key, value) }

func (c carrier) Keys() []string {
	var out []string
	for k := range c {
		out = append(out, k)
	}
	return out
}

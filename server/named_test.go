package server

import (
	"testing"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	grebev1 "grebe/api/grebe/v1"
)

// The span of a request has its id and its model as attributes.
func TestSpansNameRequestAndModel(t *testing.T) {
	r := newRecommender(t)
	for op, ask := range map[string]func(*testing.T, *sdk.TracerProvider) error{
		"recommend": func(t *testing.T, p *sdk.TracerProvider) error {
			ctx, span := p.Tracer("test").Start(t.Context(), "request")
			defer span.End()
			_, err := r.Recommend(ctx, &grebev1.RecommendRequest{
				Model: "m", RequestId: "r-7", User: &grebev1.User{Tokens: []int32{1, 2, 3}}, DeadlineMs: 60000})
			return err
		},
		"rank": func(t *testing.T, p *sdk.TracerProvider) error {
			ctx, span := p.Tracer("test").Start(t.Context(), "request")
			defer span.End()
			_, err := r.Rank(ctx, &grebev1.RankRequest{Model: "m", RequestId: "r-7", User: &grebev1.User{
				Tokens: []int32{1, 2, 3}}, DeadlineMs: 60000})
			_ = err // the span is named before the missing field is found
			return nil
		},
	} {
		sink := tracetest.NewInMemoryExporter()
		p := sdk.NewTracerProvider(sdk.WithSyncer(sink))
		if err := ask(t, p); err != nil {
			t.Fatalf("%s: %v", op, err)
		}
		got := map[string]string{}
		for _, s := range sink.GetSpans() {
			for _, a := range s.Attributes {
				got[string(a.Key)] = a.Value.AsString()
			}
		}
		if got["grebe.request_id"] != "r-7" || got["grebe.model"] != "m" {
			t.Errorf("%s: the span has %v", op, got)
		}
		if err := p.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// The parts of a ranking's prompt have the ids of the items, in the order of the candidates, and no others.
func TestPartsNameTheirItems(t *testing.T) {
	w := newWorld(t)
	for _, prefix := range []string{"user", "item"} {
		got, err := w.Rank(t.Context(), &grebev1.RankRequest{
			Model: "id", User: &grebev1.User{Id: "u1"}, Prefix: prefix, Explain: true,
			Candidates: []*grebev1.Item{{Id: "i3"}, {Id: "i1"}, {Id: "i2"}}})
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, p := range got.Parts {
			if p.Kind == "item" {
				ids = append(ids, p.Id)
			} else if p.Id != "" {
				t.Errorf("%s first: a part of kind %s has the id %q", prefix, p.Kind, p.Id)
			}
		}
		if len(ids) != 3 || ids[0] != "i3" || ids[1] != "i1" || ids[2] != "i2" {
			t.Errorf("%s first: items %q, want i3, i1, i2", prefix, ids)
		}
	}
}

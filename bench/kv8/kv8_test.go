package kv8

import (
	"bytes"
	"context"
	"math"
	"strings"
	"testing"

	grebev1 "grebe/api/grebe/v1"
	"grebe/eval"
	"grebe/shop"
)

// The orders 0 1 2 3 and 1 0 3 2 differ in two of six pairs.
func TestTauByHand(t *testing.T) {
	if got := Tau([]int{0, 1, 2, 3}, []int{1, 0, 3, 2}); math.Abs(got-1.0/3) > 1e-12 {
		t.Errorf("tau is %v, want 1/3", got)
	}
	if got := Tau([]int{2, 0, 1}, []int{1, 0, 2}); got != -1 {
		t.Errorf("tau of an order and its reverse is %v", got)
	}
	if got := overlap([]int{0, 1, 2, 3}, []int{3, 2, 0, 1}, 2); got != 0 {
		t.Errorf("%v of the first two are shared, want none", got)
	}
}

// byPlace ranks candidates by their place in the request; off exchanges the first two.
type byPlace struct{ off float64 }

func (b byPlace) Rank(_ context.Context, r *grebev1.RankRequest) (*grebev1.RankResponse, error) {
	resp := &grebev1.RankResponse{TimingMs: &grebev1.Timing{Compute: 2}}
	for i, c := range r.Candidates {
		resp.Results = append(resp.Results, &grebev1.Ranked{Index: int32(i), Id: c.Id, Logit: float32(-i)})
	}
	if b.off != 0 {
		resp.Results[0], resp.Results[1] = resp.Results[1], resp.Results[0]
		for i := range resp.Results {
			resp.Results[i].Logit += float32(b.off) // the same for all: no difference
		}
	}
	return resp, nil
}

func (byPlace) Recommend(context.Context, *grebev1.RecommendRequest) (*grebev1.RecommendResponse, error) {
	return nil, nil
}

func TestRun(t *testing.T) {
	sh, err := shop.New(1, shop.Default)
	if err != nil {
		t.Fatal(err)
	}
	d := eval.Shop(sh, 5)
	r, err := Run(t.Context(), d, [2]Format{{"bf16", byPlace{}, 100}, {"fp8", byPlace{off: 3}, 50}},
		Options{Ways: []eval.Way{{Name: "user-first", Prefix: "user"}}, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	l := r.Lines[0]
	n := float64(len(d.Questions[0].Candidates))
	if want := 1 - 4/(n*(n-1)); l.Questions != 5 || l.Logit > 1e-12 || l.Top10.Value != 1 || l.First != 0 ||
		math.Abs(l.Tau.Value-want) > 1e-12 {
		t.Errorf("got %+v, want no difference but the first two exchanged", l)
	}
	var text, data bytes.Buffer
	if err := r.Text(&text); err != nil || !strings.Contains(text.String(), "50 bytes of KV in fp8, 100 in bf16") {
		t.Errorf("%v: %s", err, text.String())
	}
	if err := r.JSON(&data); err != nil || !strings.Contains(data.String(), `"Tau"`) {
		t.Errorf("%v: %s", err, data.String())
	}
}

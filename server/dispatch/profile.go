package dispatch

import (
	"context"
	"fmt"
	"time"

	"grebe/engine"
	"grebe/plan"
	"grebe/schedule"
)

// profiled are the batches that Profile runs first: requests of so many tokens each. They are few and
// small, so that a start takes little longer for it; the batches that follow teach the model more.
var profiled = []struct{ requests, tokens int }{
	{1, 32}, // warms up; not counted
	{1, 1}, {1, 16}, {4, 4}, {4, 16}, {1, 64}, {8, 16}, {2, 64}, {1, 160},
}

// Where a batch takes less than quick, ones of twice as many tokens follow, up to most: predictions
// should not reach far beyond what was measured.
//
// A model that is slow is measured for patience, and by as many batches as a fit needs.
const (
	quick    = 60 * time.Millisecond
	most     = 4096
	patience = 500 * time.Millisecond
	enough   = 5
)

// Profile measures how long an engine takes for batches of several sizes, and fits a model to it.
// Tokens are zeros and the plans causal, at most positions long.
func Profile(ctx context.Context, e Engine, positions int) (schedule.PrefillModel, error) {
	var samples []schedule.Sample
	start := time.Now()
	done := func() bool { return len(samples) >= enough && time.Since(start) > patience }
	for i, p := range profiled {
		if done() {
			break
		}
		s, err := twice(ctx, e, p.requests, min(p.tokens, positions, e.MaxTokens()/p.requests))
		if err != nil {
			return schedule.PrefillModel{}, err
		}
		if i > 0 {
			samples = append(samples, s)
		}
	}
	limit := min(most, positions, e.MaxTokens())
	for tokens := 320; tokens <= limit && !done(); tokens *= 2 {
		s, err := twice(ctx, e, 1, tokens)
		if err != nil {
			return schedule.PrefillModel{}, err
		}
		samples = append(samples, s)
		if s.Ms > float64(quick/time.Millisecond) {
			break
		}
	}
	m, err := schedule.Fit(samples)
	if err != nil {
		return m, fmt.Errorf("dispatch: %w", err)
	}
	return m, nil
}

// twice measures a batch and takes the faster of two runs, since what disturbs a measurement slows it
// down; a batch that is slow runs once.
func twice(ctx context.Context, e Engine, requests, tokens int) (schedule.Sample, error) {
	if err := ctx.Err(); err != nil {
		return schedule.Sample{}, err
	}
	s, err := measure(e, requests, tokens)
	if err == nil && s.Ms < float64(quick/time.Millisecond) {
		var again schedule.Sample
		again, err = measure(e, requests, tokens)
		s.Ms = min(s.Ms, again.Ms)
	}
	if err != nil {
		return s, fmt.Errorf("dispatch: measure prefill times: %w", err)
	}
	return s, nil
}

func measure(e Engine, requests, tokens int) (schedule.Sample, error) {
	s := schedule.Sample{Requests: requests}
	jobs := make([]*engine.Job, requests)
	for i := range jobs {
		p := &plan.Plan{Segments: []plan.Segment{{Kind: plan.User, Tokens: make([]int32, max(1, tokens))}}}
		jobs[i] = &engine.Job{Plan: p, Want: []engine.Want{{Segment: 0, IDs: []int32{0}}}}
		cost, err := e.Check(jobs[i])
		if err != nil {
			return s, err
		}
		s.Rows += cost.Rows
		s.Keys += cost.Keys
	}
	out := make([]engine.Outcome, requests)
	start := time.Now()
	e.Run(jobs, out)
	s.Ms = float64(time.Since(start)) / float64(time.Millisecond)
	for i := range out {
		if out[i].Err != nil {
			return s, out[i].Err
		}
	}
	return s, nil
}

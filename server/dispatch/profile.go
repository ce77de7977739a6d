package dispatch

import (
	"context"
	"fmt"
	"time"

	"grebe/engine"
	"grebe/plan"
	"grebe/schedule"
)

// profiled are the batches that Profile runs: requests of so many tokens each. They are few and
// small, so that a start takes little longer for it; the batches that follow teach the model more.
var profiled = []struct{ requests, tokens int }{
	{1, 32}, // warms up; not counted
	{1, 1}, {1, 16}, {4, 4}, {1, 64}, {4, 16}, {1, 160}, {8, 16}, {1, 16}, {2, 64},
}

// Profile measures how long an engine takes for batches of several sizes, and fits a model to it.
// Tokens are zeros and the plans causal, at most positions long.
func Profile(ctx context.Context, e Engine, positions int) (schedule.PrefillModel, error) {
	var samples []schedule.Sample
	for i, p := range profiled {
		if err := ctx.Err(); err != nil {
			return schedule.PrefillModel{}, err
		}
		tokens := min(p.tokens, positions, e.MaxTokens()/p.requests)
		best, err := measure(e, p.requests, tokens)
		if err == nil && i > 0 { // the faster of two, since what disturbs a measurement slows it down
			var again schedule.Sample
			again, err = measure(e, p.requests, tokens)
			best.Ms = min(best.Ms, again.Ms)
			samples = append(samples, best)
		}
		if err != nil {
			return schedule.PrefillModel{}, fmt.Errorf("dispatch: measure prefill times: %w", err)
		}
	}
	m, err := schedule.Fit(samples)
	if err != nil {
		return m, fmt.Errorf("dispatch: %w", err)
	}
	return m, nil
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

package dispatch

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"grebe/engine"
	"grebe/plan"
	"grebe/schedule"
)

// profiled are the batches that Profile runs first, by their requests and the tokens of each request. They are few and
// small, so that a start takes little longer. Batches of real requests improve the model later.
var profiled = []struct{ requests, tokens int }{
	{1, 32}, // warm-up, not counted
	{1, 1}, {1, 16}, {4, 4}, {4, 16}, {1, 64}, {8, 16}, {2, 64}, {1, 160},
}

// If a batch takes less than quick, batches of twice as many tokens follow, up to most, so that predictions do not
// reach far beyond measurements.
//
// A slow model is measured for patience, and with as many batches as a fit needs. A GPU compiles, tunes and records
// when it first sees a size. That time does not count, up to limit.
const (
	quick    = 60 * time.Millisecond
	most     = 4096
	patience = 500 * time.Millisecond
	limit    = 30 * time.Second
	prepared = 8192 // rows of the largest prepared batch
	enough   = 5
	settling = 5 // most runs of a size
)

// Profile measures an engine with batches of several sizes and fits a model to the times. First it runs a batch of each
// size that the engine's device prepares for (engine.Engine.Sizes), so that under load only large batches need
// preparation. Tokens are zeros and the plans causal, at most positions long.
func Profile(ctx context.Context, e Engine, positions int) (schedule.PrefillModel, error) {
	if err := prepareSizes(ctx, e, positions); err != nil {
		return schedule.PrefillModel{}, err
	}
	p := profile{engine: e, start: time.Now()}
	for _, b := range profiled {
		if err := p.add(ctx, b.requests, min(b.tokens, positions, e.MaxTokens()/b.requests)); err != nil {
			return schedule.PrefillModel{}, err
		}
		if p.done() {
			break
		}
	}
	for tokens := 320; tokens <= min(most, positions, e.MaxTokens()) && !p.done(); tokens *= 2 {
		if err := p.add(ctx, 1, tokens); err != nil {
			return schedule.PrefillModel{}, err
		}
		if p.last().Ms > float64(quick/time.Millisecond) {
			break
		}
	}
	m, err := schedule.Fit(p.samples[1:])
	if errors.Is(err, schedule.ErrDegenerate) {
		return p.linear(), nil
	}
	if err != nil {
		return m, fmt.Errorf("dispatch: %w", err)
	}
	return m, nil
}

// sized is an engine that may prepare for sizes of batches, such as engine.Engine.
type sized interface{ Sizes(most int) []int }

// Prepare makes an engine ready without measuring it, beside others that serve: it runs a batch of each size that the
// engine's device prepares for, and a small one, which shows that the model answers with finite numbers.
func Prepare(ctx context.Context, e Engine, positions int) error {
	if err := prepareSizes(ctx, e, positions); err != nil {
		return err
	}
	if _, err := measure(e, 1, min(profiled[0].tokens, positions, e.MaxTokens())); err != nil {
		return fmt.Errorf("dispatch: run a first batch: %w", err)
	}
	return ctx.Err()
}

// prepareSizes runs a batch of each size that the engine prepares for.
func prepareSizes(ctx context.Context, e Engine, positions int) error {
	s, ok := e.(sized)
	if !ok {
		return nil
	}
	for _, rows := range s.Sizes(min(prepared, e.MaxTokens())) {
		if err := ctx.Err(); err != nil {
			return err
		}
		requests := (rows + positions - 1) / positions
		if _, err := measure(e, requests, rows/requests); err != nil {
			return fmt.Errorf("dispatch: prepare for batches of %d rows: %w", rows, err)
		}
	}
	return nil
}

// profile holds the measurements so far.
type profile struct {
	engine  Engine
	start   time.Time
	spent   time.Duration     // in runs that count
	samples []schedule.Sample // the first one is the warm-up
}

func (p *profile) last() schedule.Sample { return p.samples[len(p.samples)-1] }

func (p *profile) done() bool {
	return len(p.samples) > enough && p.spent > patience || len(p.samples) > 1 && time.Since(p.start) > limit
}

// add measures a batch and takes the faster of two runs, because disturbances only slow a run down. A batch that is
// slow because of its size runs once. If a run takes less than half of the previous one, that one prepared something,
// and another run follows.
func (p *profile) add(ctx context.Context, requests, tokens int) error {
	var best schedule.Sample
	for run := range settling {
		if err := ctx.Err(); err != nil {
			return err
		}
		s, err := measure(p.engine, requests, tokens)
		if err != nil {
			return fmt.Errorf("dispatch: measure prefill times: %w", err)
		}
		if run == 0 {
			best = s
			if s.Ms < float64(quick/time.Millisecond) || !p.explains(&s) {
				continue
			}
			break
		}
		settled := 2*s.Ms >= best.Ms
		if settled {
			p.spent += time.Duration(best.Ms * float64(time.Millisecond))
		}
		best.Ms = min(best.Ms, s.Ms)
		if settled {
			break
		}
	}
	p.spent += time.Duration(best.Ms * float64(time.Millisecond))
	p.samples = append(p.samples, best)
	return nil
}

// explains reports whether a batch's size explains its time, compared with the previous batch.
func (p *profile) explains(s *schedule.Sample) bool {
	if len(p.samples) == 0 {
		return false
	}
	before := p.last()
	return s.Ms <= 3*before.Ms*max(1, float64(s.Rows)/float64(before.Rows))
}

// linear returns a model for a device whose times did not grow with the measured sizes: the least time as the fixed
// cost, and a growth as if the largest batch had no fixed cost. Later batches correct it.
func (p *profile) linear() schedule.PrefillModel {
	m := schedule.PrefillModel{Fixed: math.Inf(1)}
	q := &m.Quality
	for _, s := range p.samples {
		m.Fixed = min(m.Fixed, s.Ms)
		if s.Rows >= q.Largest.Rows {
			m.Row = s.Ms / float64(s.Rows)
		}
		q.Largest = schedule.Sample{Rows: max(q.Largest.Rows, s.Rows), Keys: max(q.Largest.Keys, s.Keys),
			Requests: max(q.Largest.Requests, s.Requests), Ms: max(q.Largest.Ms, s.Ms)}
		q.Samples++
	}
	return m
}

func measure(e Engine, requests, tokens int) (schedule.Sample, error) {
	s := schedule.Sample{Requests: requests}
	jobs := make([]*engine.Job, requests)
	for i := range jobs {
		p := &plan.Plan{Segments: []plan.Segment{{Kind: plan.User, Tokens: make([]int32, max(1, tokens))}}}
		jobs[i] = &engine.Job{Plan: p, Hidden: []int{0}}
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
		for _, state := range out[i].Result.Hidden {
			if slices.ContainsFunc(state, func(x float32) bool { return x-x != 0 }) { // NaN or an infinity
				return s, ErrNotFinite
			}
		}
	}
	return s, nil
}

// ErrNotFinite means that a model's weights make its hidden states NaN or infinite.
var ErrNotFinite = errors.New("the model does not answer with finite numbers: its weights hold NaN or infinities, or " +
	"overflow the format")

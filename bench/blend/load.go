package blend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"grebe/bench/load"
	"grebe/bench/report"
	"grebe/blend"
	"grebe/compute"
	"grebe/dispatch"
	"grebe/engine"
	"grebe/workload"
)

// LoadOptions say what MeasureLoad measures. Zero values stand for defaults.
type LoadOptions struct {
	Device  compute.Device // taken over
	Shape   string         // of Shapes; qwen3-0.6b
	Prompts []Prompt       // kinds of prompts, which take turns
	Each    int            // prompts of each kind; 4
	Budget  float64        // for items and history alike; 0.3
	Share   float64        // of the baseline's capacity that requests arrive at; 0.8
	Seconds float64        // of requests, both ways together; 48
	Rounds  int            // in which both ways take turns; 3
	Warmup  float64        // seconds of each round that do not count; 1
	SLO     time.Duration  // that batches are made for; the server's default
	Layers  int            // that compute all tokens; blend.WholeLayers
	Seed    uint64
}

// Load is what blending does to latency under load.
type Load struct {
	Date     string     `json:"date"`
	Device   string     `json:"device"`
	Shape    string     `json:"shape"`
	Budget   float64    `json:"budget"`
	Share    float64    `json:"share"`
	Capacity [2]float64 `json:"capacity"` // requests per second that are answered with 16 always waiting: full, blended
	Rate     float64    `json:"rate"`     // of arrivals
	Ways     [2]Loaded  `json:"ways"`     // full, blended
	P50By    float64    `json:"p50_ratio"`
	P99By    float64    `json:"p99_ratio"`
}

// Loaded is one way of computing prompts under load.
type Loaded struct {
	load.Result
	Rounds   []float64 `json:"rounds_p99_ms"` // of each round by itself
	Computed float64   `json:"computed"`      // tokens per prompt
}

// tally counts tokens that were computed.
type tally struct{ tokens, prompts atomic.Int64 }

func (t *tally) mean() float64 { return float64(t.tokens.Load()) / float64(max(t.prompts.Load(), 1)) }

// loaded has a queue before the engine, as a server has.
type loaded struct {
	*system
	queue     *dispatch.Dispatcher
	questions []*question
	layers    int
	failure   atomic.Pointer[error] // the first
}

func (s *loaded) failed() error {
	if err := s.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// MeasureLoad sends prompts at random times to an engine behind its queue: at a share of what it can answer when it
// computes all but the preamble, which a prefix cache has. Both ways get the same times in turns.
func MeasureLoad(ctx context.Context, o LoadOptions) (*Load, error) {
	o.defaults()
	s, err := o.open(ctx)
	if err != nil {
		return nil, err
	}
	defer s.close()
	out := &Load{Date: time.Now().UTC().Format(time.DateOnly), Device: o.Device.Name(), Shape: o.Shape, Budget: o.Budget,
		Share: o.Share}
	budgets := [2]*blend.Budget{nil, {Items: o.Budget, History: o.Budget}}
	for i, b := range budgets {
		if out.Capacity[i], err = s.capacity(ctx, &o, b); err != nil {
			return nil, fmt.Errorf("bench blend: capacity: %w", err)
		}
	}
	out.Rate = o.Share * out.Capacity[0]
	during := max(o.part(2*o.Rounds), time.Duration(waiting/out.Rate*float64(time.Second)))
	var runs [2][]load.Result
	var computed [2]tally
	for round := range o.Rounds {
		for i, b := range budgets {
			r, err := load.Open(ctx, load.Options{Arrivals: workload.Poisson(out.Rate, o.Seed+uint64(round)), Warmup: o.warmup(),
				Duration: during, Timeout: patience, Drain: patience}, s.do(b, &computed[i]))
			if err == nil {
				err = s.failed()
			}
			if err != nil {
				return nil, fmt.Errorf("bench blend: %w", err)
			}
			runs[i] = append(runs[i], r)
			out.Ways[i].Rounds = append(out.Ways[i].Rounds, r.Latency.P99)
		}
	}
	for i := range runs {
		out.Ways[i].Result = load.Merge(runs[i]...)
		out.Ways[i].Computed = computed[i].mean()
		out.Ways[i].Name = [...]string{"full", "blended"}[i]
	}
	out.P50By = out.Ways[0].Latency.P50 / out.Ways[1].Latency.P50
	out.P99By = out.Ways[0].Latency.P99 / out.Ways[1].Latency.P99
	return out, nil
}

const (
	// requests that always wait while the capacity is measured, and the fewest of a round on average
	waiting  = 16
	patience = time.Minute // the queue sheds nothing: what is late is measured
)

// capacity is how many requests are answered per second. A time in which not all that wait are answered says nothing:
// it is doubled.
func (s *loaded) capacity(ctx context.Context, o *LoadOptions, budget *blend.Budget) (float64, error) {
	for d := o.part(8); ; d *= 2 {
		r, err := load.Closed(ctx, load.Options{Workers: waiting, Warmup: o.warmup(), Duration: d, Timeout: patience},
			s.do(budget, nil))
		if err == nil {
			err = s.failed()
		}
		switch {
		case err != nil:
			return 0, err
		case r.Answered >= waiting:
			return r.Throughput, nil
		case d > patience:
			return 0, fmt.Errorf("%d requests of %d were answered in %v", r.Answered, r.Requests, d)
		}
	}
}

func (o *LoadOptions) defaults() {
	if o.Shape == "" {
		o.Shape = "qwen3-0.6b"
	}
	if len(o.Prompts) == 0 {
		o.Prompts = prompts
	}
	if o.Each <= 0 {
		o.Each = 4
	}
	if o.Budget <= 0 {
		o.Budget = 0.3
	}
	if o.Share <= 0 {
		o.Share = 0.8
	}
	if o.Seconds <= 0 {
		o.Seconds = 48
	}
	if o.Rounds <= 0 {
		o.Rounds = 3
	}
	if o.Warmup <= 0 {
		o.Warmup = 1
	}
}

// part is one of n parts of the time for requests.
func (o *LoadOptions) part(n int) time.Duration {
	return time.Duration(o.Seconds / float64(n) * float64(time.Second))
}

func (o *LoadOptions) warmup() time.Duration { return time.Duration(o.Warmup * float64(time.Second)) }

// open makes the model, its prompts with all that stands in for their tokens, and the queue.
func (o *LoadOptions) open(ctx context.Context) (*loaded, error) {
	sys, err := newRandom(o.Device, o.Shape, o.Seed, o.Prompts, o.Each, engine.Options{MaxTokens: 16384})
	if err != nil {
		return nil, err
	}
	s := &loaded{system: sys, layers: o.Layers}
	for i := range o.Each * len(o.Prompts) {
		q, err := s.question(ctx, o.Seed+uint64(1000*i), o.Prompts[i%len(o.Prompts)])
		if err != nil {
			return nil, errors.Join(err, s.close())
		}
		s.questions = append(s.questions, q)
	}
	times, err := dispatch.Profile(ctx, s.engine, s.model.MaxPositions())
	if err == nil {
		s.queue, err = dispatch.New([]dispatch.Engine{s.engine}, dispatch.Options{Model: times, SLO: o.SLO})
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// do computes the prompts in turn, blended with a budget, and notes how many tokens that takes.
func (s *loaded) do(budget *blend.Budget, computed *tally) load.Do {
	jobs := make([]*engine.Job, len(s.questions))
	for i, q := range s.questions {
		jobs[i] = q.job(budget, s.layers)
	}
	return func(ctx context.Context, i int) error {
		j := *jobs[i%len(jobs)]
		r, err := s.queue.Do(ctx, &j)
		if err != nil && ctx.Err() == nil {
			s.failure.CompareAndSwap(nil, &err)
		}
		if err == nil && computed != nil {
			computed.tokens.Add(int64(r.Computed))
			computed.prompts.Add(1)
		}
		return err
	}
}

func (s *loaded) close() error {
	var err error
	if s.queue != nil {
		err = s.queue.Close()
	}
	for _, q := range s.questions {
		q.release()
	}
	return errors.Join(err, s.system.close())
}

// JSON writes the report.
func (l *Load) JSON(w io.Writer) error {
	return report.JSON(w, l)
}

// Text writes a table.
func (l *Load) Text(w io.Writer) error {
	fmt.Fprintf(w, "%s, %s\n%s's shape, random weights, bf16; the preamble is cached in both; budget %.2f\n", l.Date,
		l.Device, l.Shape, l.Budget)
	fmt.Fprintf(w, "with 16 always waiting %.2f requests/s full, %.2f blended; arrivals at random, %.2f/s (%.0f%% of "+
		"full)\n\n", l.Capacity[0], l.Capacity[1], l.Rate, 100*l.Share)
	fmt.Fprintf(w, "%-8s %9s %9s %9s %9s %9s %9s  %s\n", "", "requests", "errors", "tokens", "P50 ms", "P99 ms", "max ms",
		"P99 of each round")
	for i := range l.Ways {
		r := &l.Ways[i]
		fmt.Fprintf(w, "%-8s %9d %9d %9.0f %9.1f %9.1f %9.1f  %.0f\n", r.Name, r.Requests, r.Requests-r.Answered, r.Computed,
			r.Latency.P50, r.Latency.P99, r.Latency.Max, r.Rounds)
	}
	_, err := fmt.Fprintf(w, "\nblended P50 is %.2f times lower, P99 %.2f times\n", l.P50By, l.P99By)
	return err
}

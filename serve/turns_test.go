package serve

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"grebe/dispatch"
	"grebe/engine"
	"grebe/plan"
	"grebe/schedule"
	"grebe/serve/servetest"
)

// onlyOne is an engine that computes one job at a time, in 10 ms.
type onlyOne struct{ servetest.Runner }

func (*onlyOne) MaxTokens() int                         { return 100 }
func (*onlyOne) Check(*engine.Job) (engine.Cost, error) { return engine.Cost{Rows: 100}, nil }
func (e *onlyOne) Run(jobs []*engine.Job, out []engine.Outcome) {
	for i, j := range jobs {
		time.Sleep(10 * time.Millisecond)
		r, err := e.Do(context.Background(), j)
		if out[i].Err = err; err == nil {
			out[i].Result = *r
		}
	}
}

// A checkpoint that shares its queue with the one that serves is checked while requests take all of the engine's time,
// and it can compute items then.
func TestACheckpointIsCheckedUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		times := schedule.PrefillModel{Row: 0.1, Quality: schedule.Quality{Largest: largest}}
		d, err := dispatch.New([]dispatch.Engine{&onlyOne{}}, dispatch.Options{Model: times})
		must(t, err)
		defer d.Close()
		s := newFake(t, func(c *Config) { c.SLO = 200 * time.Millisecond })
		defer s.Close()
		m := *s.models["id"].now.Model
		m.Runner = d
		ctx, end := context.WithCancel(t.Context())
		var clients sync.WaitGroup
		for range 30 { // 20 would do
			clients.Go(func() {
				for ctx.Err() == nil {
					within, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
					job := &engine.Job{Plan: &plan.Plan{Segments: []plan.Segment{{Kind: plan.User, Tokens: []int32{1}}}}}
					if _, err := d.Do(within, job); errors.Is(err, dispatch.ErrShed) {
						<-within.Done()
					}
					cancel()
				}
			})
		}
		start := time.Now()
		if err := s.probe(ctx, newCheckpoint(&m)); err != nil || time.Since(start) > 30*time.Second {
			t.Errorf("checked after %v: %v", time.Since(start), err)
		}
		start = time.Now()
		job := &engine.Job{Plan: &plan.Plan{Segments: []plan.Segment{{Kind: plan.User, Tokens: []int32{1}}}}}
		if _, err := s.inTurn(d.Do)(ctx, job); err != nil || time.Since(start) > 3*time.Second {
			t.Errorf("computed after %v: %v", time.Since(start), err)
		}
		end()
		clients.Wait()
		if _, err := s.inTurn(d.Do)(ctx, job); !errors.Is(err, context.Canceled) {
			t.Errorf("computed after the end: %v", err)
		}
	})
}

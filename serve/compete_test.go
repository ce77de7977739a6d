package serve

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	grebev1 "grebe/api/grebe/v1"
	"grebe/dispatch"
	"grebe/engine"
	"grebe/schedule"
	"grebe/serve/servetest"
)

// halved is an engine that computes a batch in 40 ms and 4 more for each job. Engines of one device slow each other
// down.
type halved struct {
	servetest.Runner
	computing *atomic.Int64 // engines of the device that compute
}

func (*halved) MaxTokens() int                         { return 1000 }
func (*halved) Check(*engine.Job) (engine.Cost, error) { return engine.Cost{Rows: 100}, nil }
func (e *halved) Run(jobs []*engine.Job, out []engine.Outcome) {
	e.computing.Add(1)
	defer e.computing.Add(-1)
	for range 40 + 4*len(jobs) {
		time.Sleep(time.Duration(e.computing.Load()) * time.Millisecond)
	}
	for i, j := range jobs {
		r, err := e.Do(context.Background(), j)
		if out[i].Err = err; err == nil {
			out[i].Result = *r
		}
	}
}

// Checkpoints with queues of their own are checked and take over while requests take all of a device's time. A batch
// takes up to twice as long then. Requests that would be late are refused: none waits in vain. Only those that were
// admitted before a reload began may be late: nothing was known of it.
func TestReloadsMakeNoRequestLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var device, reload atomic.Int64 // reload: when the last one began, after start
		var queues [2]*dispatch.Dispatcher
		for i := range queues {
			times := schedule.PrefillModel{Fixed: 40, Row: 0.04, Quality: schedule.Quality{Largest: largest}}
			opt := dispatch.Options{Model: times, Like: queues[0]}
			var err error
			queues[i], err = dispatch.New([]dispatch.Engine{&halved{computing: &device}}, opt)
			must(t, err)
			defer queues[i].Close()
		}
		loads := 0
		s := newFake(t, func(c *Config) {
			c.SLO, c.ReloadWait = 200*time.Millisecond, time.Minute
			c.Models = c.Models[:1]
			m := &c.Models[0]
			m.Runner, m.Queue, m.Admit = queues[0], queues[0], queues[0].Admit
			c.Loader = loaderFunc(func() *Model {
				loads++
				next, q := *m, queues[loads%2]
				next.Version, next.Runner, next.Queue, next.Admit = fmt.Sprint(loads), q, q, q.Admit
				return &next
			})
		})
		defer s.Close()
		ctx, end := context.WithCancel(t.Context())
		var answered, late atomic.Int64
		var clients sync.WaitGroup
		for range 100 {
			clients.Go(func() {
				user, item := &grebev1.User{Tokens: []int32{1}}, &grebev1.Item{Tokens: []int32{2}, Identifier: new(int32)}
				for ctx.Err() == nil {
					came := time.Since(start)
					_, err := s.Rank(ctx, &grebev1.RankRequest{User: user, Candidates: []*grebev1.Item{item}})
					switch codeOf(err) {
					case "":
						answered.Add(1)
					case DeadlineExceeded:
						if came >= time.Duration(reload.Load()) {
							late.Add(1)
						}
					default:
						time.Sleep(50 * time.Millisecond)
					}
				}
			})
		}
		for range 10 {
			time.Sleep(time.Second)
			reload.Store(int64(time.Since(start)))
			m, err := s.ReloadModel(ctx, &grebev1.ReloadModelRequest{Model: "id", Wait: true})
			if err != nil || m.Reload.State != "done" {
				t.Fatalf("%v %v", m, err)
			}
		}
		end()
		clients.Wait()
		if late.Load() > 0 || answered.Load() < 300 {
			t.Errorf("%d requests were answered, want 300; %d that came after a reload began were late, want none",
				answered.Load(), late.Load())
		}
	})
}

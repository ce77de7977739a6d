package dispatch

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"grebe/engine"
	"grebe/internal/contain"
)

// explosive is clockwork that panics at jobs of 13 tokens.
type explosive struct{ clockwork }

func (e *explosive) Run(jobs []*engine.Job, out []engine.Outcome) {
	for _, j := range jobs {
		if j.Plan.Tokens() == 13 {
			panic("thirteen")
		}
	}
	e.clockwork.Run(jobs, out)
}

// A panic in an engine fails the jobs of its batch, is reported once, and affects no other job.
func TestAPanicFailsItsBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []*contain.Panic
		d := open(t, Options{SLO: time.Second, Panicked: func(p *contain.Panic) { told = append(told, p) }}, &explosive{})
		defer d.Close()
		for range 3 {
			if _, err := d.Do(t.Context(), job(13)); !errors.Is(err, ErrPanicked) || !strings.Contains(err.Error(), "thirteen") {
				t.Errorf("a job whose batch panicked: %v", err)
			}
			if r, err := d.Do(t.Context(), job(5)); err != nil || r.Computed != 5 {
				t.Errorf("the next one: %+v, %v", r, err)
			}
		}
		if len(told) != 3 || !strings.Contains(string(told[0].Stack), "explosive") {
			t.Errorf("%d of 3 panics were told", len(told))
		}
		var wg sync.WaitGroup
		for i := range 20 { // some share the batch that panics, and fail with it
			wg.Go(func() {
				n := 1
				if i == 7 {
					n = 13
				}
				if _, err := d.Do(t.Context(), job(n)); err != nil && !errors.Is(err, ErrPanicked) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if ms, n := d.Backlog(); ms > 1e-9 || n != 0 {
			t.Errorf("%v ms and %d requests are left", ms, n)
		}
	})
}

// gated is an engine whose batches wait for the test.
type gated struct {
	clockwork
	begun, end chan struct{}
	ended      bool
}

func (g *gated) Run(jobs []*engine.Job, out []engine.Outcome) {
	close(g.begun)
	<-g.end
	g.ended = true
}

// Close returns only after the running batch has ended, because its memory is freed next.
func TestCloseWaitsForTheBatchUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gated{begun: make(chan struct{}), end: make(chan struct{})}
		d := open(t, Options{SLO: time.Second}, g)
		go d.Do(t.Context(), job(1))
		<-g.begun
		closed := make(chan struct{})
		go func() {
			d.Close()
			if !g.ended {
				t.Error("closed while a batch runs")
			}
			close(closed)
		}()
		synctest.Wait()
		close(g.end)
		<-closed
	})
}

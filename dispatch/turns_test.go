package dispatch

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"grebe/engine"
)

// shared is an engine whose device another engine uses too. It counts the batches that run at once.
type shared struct {
	clockwork
	running *atomic.Int64
	most    *atomic.Int64
	panics  bool
}

func (s *shared) Run(jobs []*engine.Job, out []engine.Outcome) {
	s.most.Store(max(s.most.Load(), s.running.Add(1)))
	defer s.running.Add(-1)
	if s.panics {
		panic("broken")
	}
	s.clockwork.Run(jobs, out)
}

// Two models share a device. One has batches of 51 ms and always work, the other has requests of 6 ms, one after the
// other. Each of those waits for one batch of the first at most, and no two batches run at once.
func TestModelsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running, most atomic.Int64
		turns := NewTurns(1)
		large, small := &shared{running: &running, most: &most}, &shared{running: &running, most: &most}
		a := open(t, Options{SLO: time.Minute, Turns: []*Turns{turns}}, large)
		defer a.Close()
		b := open(t, Options{SLO: time.Minute, Turns: []*Turns{turns}}, small)
		defer b.Close()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				for ctx.Err() == nil {
					if _, err := a.Do(t.Context(), job(50)); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		synctest.Wait()
		const own = 6 * time.Millisecond
		for i := range 50 {
			time.Sleep(time.Duration(i) * time.Millisecond)
			asked, batches := time.Now(), large.batches.Load()
			if _, err := b.Do(t.Context(), job(5)); err != nil {
				t.Fatal(err)
			}
			if n := large.batches.Load() - batches; n > 1 {
				t.Errorf("request %d waited for %d batches, want at most 1, and the one that runs", i, n)
			}
			// A batch of the other model has up to three of its jobs.
			if took := time.Since(asked); took > own+151*time.Millisecond {
				t.Errorf("request %d took %v, want at most its %v and a batch of the other model", i, took, own)
			}
		}
		cancel()
		wg.Wait()
		if n := most.Load(); n != 1 {
			t.Errorf("%d batches ran at once, want 1", n)
		}
	})
}

// A request that arrives while a model waits for its turn is part of the next batch.
func TestABatchIsChosenAtItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns(1)
		e := &clockwork{}
		d := open(t, Options{SLO: time.Second, Turns: []*Turns{turns}}, e)
		defer d.Close()
		turns.take()
		var wg sync.WaitGroup
		for range 4 {
			time.Sleep(time.Millisecond)
			wg.Go(func() {
				if _, err := d.Do(t.Context(), job(1)); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		turns.give()
		wg.Wait()
		if n := e.batches.Load(); n != 1 {
			t.Errorf("four jobs took %d batches, want 1", n)
		}
	})
}

// A turn ends with a batch that panics, and a Dispatcher that waits for its turn can be closed.
func TestTurnsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running, most atomic.Int64
		turns := NewTurns(1)
		broken := open(t, Options{SLO: time.Second, Turns: []*Turns{turns}},
			&shared{running: &running, most: &most, panics: true})
		defer broken.Close()
		if _, err := broken.Do(t.Context(), job(1)); !errors.Is(err, ErrPanicked) {
			t.Fatalf("got %v, want a panic", err)
		}
		turns.take() // is given back after the panic
		d := open(t, Options{SLO: time.Second, Turns: []*Turns{turns}}, &clockwork{})
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := d.Do(t.Context(), job(1)); !errors.Is(err, engine.ErrClosed) {
				t.Errorf("got %v, want that the queue is closed", err)
			}
		})
		synctest.Wait()
		wg.Go(func() { d.Close() })
		synctest.Wait()
		turns.give()
		wg.Wait()
		turns.take()
		turns.give()
		if _, err := New([]Engine{&clockwork{}}, Options{Model: exact, Turns: []*Turns{}}); err == nil ||
			!strings.Contains(err.Error(), "turns") {
			t.Errorf("got %v, want that an engine has no turns", err)
		}
	})
}

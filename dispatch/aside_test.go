package dispatch

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"grebe/engine"
)

// layered is an engine of ten layers of ten milliseconds, which pauses between them.
type layered struct {
	clockwork
	ran    atomic.Int64
	panics bool
}

const layerTime = 10 * time.Millisecond

func (l *layered) RunPausing(jobs []*engine.Job, out []engine.Outcome, pause func()) {
	if l.panics {
		panic("broken")
	}
	for range 10 {
		pause()
		time.Sleep(layerTime)
	}
	for i := range out {
		out[i].Computed = jobs[i].Plan.Tokens()
	}
	l.ran.Add(1)
}

// A job in the background takes all the time that others leave. Another job waits for one of its layers at most, and
// finds no work ahead of it.
func TestJobsInTheBackgroundGiveWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		aside := &layered{}
		d := open(t, Options{SLO: time.Second, Aside: []Pauser{aside}}, &clockwork{})
		defer d.Close()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				for {
					if _, err := d.Do(Background(ctx), job(5)); err != nil {
						if !errors.Is(err, context.Canceled) {
							t.Error(err)
						}
						return
					}
				}
			})
		}
		synctest.Wait()
		began := time.Now()
		busy := time.Duration(0)
		for i := range 100 {
			time.Sleep(time.Duration(13+i) * time.Millisecond)
			if ms, n := d.Backlog(); ms != 0 || n != 0 {
				t.Fatalf("%v ms of %d jobs are ahead, want none", ms, n)
			}
			asked := time.Now()
			r, err := d.Do(t.Context(), job(20))
			if err != nil || r.Computed != 20 {
				t.Fatalf("%+v, %v", r, err)
			}
			own := 21 * time.Millisecond
			if took := time.Since(asked); took > own+layerTime {
				t.Errorf("request %d took %v beside a job in the background, want at most a layer more than %v", i, took, own)
			}
			busy += own
		}
		left := time.Since(began) - busy
		if used := time.Duration(aside.ran.Load()) * 10 * layerTime; used < left*95/100 {
			t.Errorf("jobs in the background ran for %v of %v that were left", used, left)
		}
		cancel()
		wg.Wait()
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if _, err := d.Do(Background(t.Context()), job(1)); !errors.Is(err, engine.ErrClosed) {
			t.Errorf("a job after Close: %v", err)
		}
	})
}

// A job in the background that waits leaves with its context and when the Dispatcher closes. The list is bounded, and a
// panic fails one job.
func TestJobsInTheBackgroundEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		aside := &layered{panics: true}
		d := open(t, Options{SLO: time.Second, Queue: 2, Aside: []Pauser{aside}}, &clockwork{})
		if _, err := d.Do(Background(t.Context()), job(1)); !errors.Is(err, ErrPanicked) {
			t.Errorf("a panic: %v", err)
		}
		aside.panics = false
		errs := make(chan error, 4)
		ctx, cancel := context.WithCancel(Background(t.Context()))
		for range 3 {
			go func() {
				_, err := d.Do(ctx, job(1))
				errs <- err
			}()
			synctest.Wait()
		}
		if _, err := d.Do(ctx, job(1)); !errors.Is(err, ErrQueueFull) {
			t.Errorf("a job beside one that runs and two that wait: %v", err)
		}
		cancel()
		for _, want := range []error{context.Canceled, context.Canceled, nil} { // the one that runs ends
			if err := <-errs; !errors.Is(err, want) {
				t.Errorf("%v, want %v", err, want)
			}
		}
		go func() {
			_, err := d.Do(Background(t.Context()), job(1))
			errs <- err
		}()
		synctest.Wait()
		go func() {
			_, err := d.Do(Background(t.Context()), job(1))
			errs <- err
		}()
		synctest.Wait()
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if first, second := <-errs, <-errs; !errors.Is(first, engine.ErrClosed) || second != nil {
			t.Errorf("after Close: %v and %v, want that the one that waits fails", first, second)
		}
		if _, err := New([]Engine{&clockwork{}}, Options{Model: exact, Aside: make([]Pauser, 2)}); err == nil {
			t.Error("two engines aside of one")
		}
	})
}

// Without engines for the background its jobs run like others.
func TestBackgroundWithoutEngines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, Options{SLO: time.Second}, &clockwork{})
		defer d.Close()
		if r, err := d.Do(Background(t.Context()), job(3)); err != nil || r.Computed != 3 || d.Pauses() {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

package dispatch

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"grebe/engine"
	"grebe/plan"
	"grebe/schedule"
)

// clockwork is an engine that takes a millisecond per token and one per batch.
type clockwork struct {
	batches atomic.Int64
	largest atomic.Int64
	fail    error
}

func (c *clockwork) Check(j *engine.Job) (engine.Cost, error) {
	n := j.Plan.Tokens()
	if n > c.MaxTokens() {
		return engine.Cost{}, engine.ErrTooLarge
	}
	return engine.Cost{Rows: n, Keys: n * (n + 1) / 2}, nil
}

func (c *clockwork) MaxTokens() int { return 1000 }

func (c *clockwork) Run(jobs []*engine.Job, out []engine.Outcome) {
	n := 0
	for i, j := range jobs {
		out[i].Computed = j.Plan.Tokens()
		out[i].Err = c.fail
		n += j.Plan.Tokens()
	}
	c.batches.Add(1)
	c.largest.Store(max(c.largest.Load(), int64(len(jobs))))
	time.Sleep(time.Duration(1+n) * time.Millisecond)
}

// exact is the model of clockwork's times.
var exact = func() schedule.PrefillModel {
	var samples []schedule.Sample
	for i := 1; i < 40; i++ {
		rows := i * 5
		samples = append(samples, schedule.Sample{Rows: rows, Keys: rows * (1 + i%7), Requests: 1 + i%4,
			Ms: float64(1 + rows)})
	}
	m, err := schedule.Fit(samples)
	if err != nil {
		panic(err)
	}
	return m
}()

func job(tokens int) *engine.Job {
	return &engine.Job{Plan: &plan.Plan{Segments: []plan.Segment{{Kind: plan.User, Tokens: make([]int32, tokens)}}}}
}

func open(t *testing.T, opt Options, engines ...Engine) *Dispatcher {
	t.Helper()
	opt.Model = exact
	d, err := New(engines, opt)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestBatchesShareTheFixedCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &clockwork{}
		d := open(t, Options{SLO: time.Second}, e)
		defer d.Close()
		var wg sync.WaitGroup
		for range 40 {
			wg.Go(func() {
				r, err := d.Do(t.Context(), job(1))
				if err != nil || r.Computed != 1 {
					t.Errorf("got %+v, %v", r, err)
				}
			})
		}
		wg.Wait()
		if n := e.batches.Load(); n > 10 || e.largest.Load() < 5 {
			t.Errorf("40 requests took %d batches of up to %d", n, e.largest.Load())
		}
		if ms, n := d.Backlog(); math.Abs(ms) > 1e-9 || n != 0 {
			t.Errorf("%v ms and %d requests are left", ms, n)
		}
	})
}

// When a job is answered, its own work no longer counts in the backlog, to the last bit: callers that wait for an idle
// engine rely on that.
func TestAnAnswerLeavesAnIdleEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, Options{SLO: time.Second}, &clockwork{}, &clockwork{}, &clockwork{})
		defer d.Close()
		for round := range 20 {
			var wg sync.WaitGroup
			for i := range 3 {
				wg.Go(func() {
					if _, err := d.Do(t.Context(), job(7+10*i+round)); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if ms, n := d.Backlog(); ms != 0 || n != 0 {
				t.Fatalf("round %d: %v ms and %d requests are left", round, ms, n)
			}
		}
	})
}

func TestTwoEnginesShareTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := &clockwork{}, &clockwork{}
		d := open(t, Options{SLO: time.Second}, a, b)
		defer d.Close()
		start := time.Now()
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if _, err := d.Do(t.Context(), job(30)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(start); took > 400*time.Millisecond {
			t.Errorf("620 ms of work took two engines %v", took)
		}
	})
}

func TestPointlessRequestsDoNotCompute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &clockwork{}
		d := open(t, Options{SLO: time.Second, Queue: 2}, e)
		defer d.Close()
		busy := make(chan error)
		go func() { _, err := d.Do(t.Context(), job(100)); busy <- err }()
		synctest.Wait()
		within := func(wait time.Duration, tokens int) error {
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			defer cancel()
			_, err := d.Do(ctx, job(tokens))
			return err
		}
		if err := within(10*time.Millisecond, 1); !errors.Is(err, ErrExpired) {
			t.Errorf("a deadline that passes in the queue: %v", err)
		}
		gone, cancel := context.WithCancel(t.Context())
		left := make(chan error)
		go func() { _, err := d.Do(gone, job(1)); left <- err }()
		synctest.Wait()
		cancel()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("a client that left: %v", err)
		}
		late := make(chan error)
		go func() { late <- within(110*time.Millisecond, 50) }()
		synctest.Wait()
		other := make(chan error)
		go func() { other <- within(time.Second, 1) }()
		synctest.Wait()
		if err := within(time.Second, 1); !errors.Is(err, ErrQueueFull) {
			t.Errorf("a third in a queue of two: %v", err)
		}
		if err := <-late; !errors.Is(err, ErrShed) {
			t.Errorf("50 ms of work 19 ms before the deadline: %v", err)
		}
		if err := errors.Join(<-busy, <-other); err != nil {
			t.Error(err)
		}
		if err := within(time.Second, 1001); !errors.Is(err, engine.ErrTooLarge) {
			t.Errorf("a request larger than a batch: %v", err)
		}
		if n := e.batches.Load(); n != 2 {
			t.Errorf("%d batches ran, want 2", n)
		}
	})
}

func TestCloseAnswersEveryone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, Options{}, &clockwork{})
		first := make(chan error)
		go func() { _, err := d.Do(t.Context(), job(100)); first <- err }()
		synctest.Wait()
		second := make(chan error)
		go func() { _, err := d.Do(t.Context(), job(1)); second <- err }()
		synctest.Wait()
		go d.Close()
		if err := <-second; !errors.Is(err, engine.ErrClosed) {
			t.Errorf("in the queue: %v", err)
		}
		if err := <-first; err != nil {
			t.Errorf("under way: %v", err)
		}
		d.Close()
		if _, err := d.Do(t.Context(), job(1)); !errors.Is(err, engine.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

func TestProfileFindsTheCosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := Profile(t.Context(), &clockwork{}, 4096)
		if err != nil {
			t.Fatal(err)
		}
		for _, rows := range []int{1, 50, 200} {
			if got, want := m.Predict(rows, rows*rows/2, 1), float64(rows+1); math.Abs(got-want) > .05*want {
				t.Errorf("%d rows are predicted to take %.2f ms, want %.2f", rows, got, want)
			}
		}
	})
}

// A model that wrongly predicts that nothing can be in time is corrected by measurements.
func TestWrongPredictionsHeal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &clockwork{}
		wrong := exact
		wrong.Fixed, wrong.Row = 5000, 500
		d, err := New([]Engine{e}, Options{SLO: 100 * time.Millisecond, Model: wrong})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		shed, answered := 0, 0
		for range 2000 {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			_, err := d.Do(ctx, job(10))
			cancel()
			switch {
			case err == nil:
				answered++
			case errors.Is(err, ErrShed):
				shed++
			default:
				t.Fatal(err)
			}
			time.Sleep(50 * time.Millisecond)
		}
		if answered < 1000 {
			t.Errorf("%d requests of 11 ms were answered and %d shed within 100 ms each", answered, shed)
		}
	})
}

// If the caller's own work panics, the panic continues only when the job's memory is no longer in use, because its
// caller frees that memory.
func TestAPanicMeanwhileWaitsForTheBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &clockwork{}
		d := open(t, Options{SLO: time.Second}, e)
		defer d.Close()
		start := time.Now()
		fall := func(wait time.Duration) (after time.Duration) {
			defer func() {
				if recover() == nil {
					t.Error("the panic is lost")
				}
				after = time.Since(start)
			}()
			j := job(50)
			j.Meanwhile = func() {
				time.Sleep(wait)
				panic("meanwhile")
			}
			_, err := d.Do(t.Context(), j)
			t.Errorf("it returned, with %v", err)
			return 0
		}
		if after := fall(10 * time.Millisecond); after < 51*time.Millisecond {
			t.Errorf("it went on after %v, while the batch ran", after)
		}
		go func() { _, _ = d.Do(context.Background(), job(500)) }()
		time.Sleep(5 * time.Millisecond)
		before := e.batches.Load()
		fall(10 * time.Millisecond) // in the queue
		time.Sleep(time.Second)
		if n := e.batches.Load() - before; n != 0 {
			t.Errorf("a job that left the queue was computed, in %d batches", n)
		}
		if _, waiting := d.Backlog(); waiting != 0 {
			t.Errorf("%d jobs wait", waiting)
		}
	})
}

// A lost device is reported once, and every job fails with its error.
func TestALostDeviceIsToldOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &clockwork{}
		var told []error
		d := open(t, Options{Lost: func(err error) { told = append(told, err) }}, e)
		if _, err := d.Do(t.Context(), job(1)); err != nil {
			t.Fatal(err)
		}
		e.fail = fmt.Errorf("%w: an illegal address", engine.ErrLost)
		for range 3 {
			if _, err := d.Do(t.Context(), job(1)); !errors.Is(err, engine.ErrLost) {
				t.Errorf("a job on a lost device: %v", err)
			}
		}
		d.Close()
		if len(told) != 1 || !errors.Is(told[0], engine.ErrLost) {
			t.Errorf("told %v", told)
		}
	})
}

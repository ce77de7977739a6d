package load

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Closed runs do in a closed loop of Options.Workers workers, each of which sends its next request when
// its last one has returned. Requests count by when they return: the first WarmupRequests and those
// until Warmup are warm-up, the next are measured, for Duration or until there are Requests of them.
// With Requests exactly as many as needed are sent; with Duration some are under way at its end, and
// not counted.
func Closed(ctx context.Context, o Options, do Do) (Result, error) {
	if err := o.prepare(); err != nil {
		return Result{}, fmt.Errorf("load %s: %w", o.Name, err)
	}
	if o.Workers <= 0 {
		return Result{}, fmt.Errorf("load %s: %d workers", o.Name, o.Workers)
	}
	r := &closedRun{Options: o, do: do, rec: newRecorder(&o)}
	if err := r.run(ctx); err != nil {
		return Result{}, fmt.Errorf("load %s: %w", o.Name, err)
	}
	return r.rec.result(r.window(), o.First+r.sent), nil
}

// closedRun is one closed loop.
type closedRun struct {
	Options
	do     Do
	rec    *recorder
	start  time.Time
	cancel context.CancelCauseFunc

	mu       sync.Mutex // guards what is below
	sent     int
	returned int
	warm     int           // returned and not measured
	ready    time.Duration // when the last of WarmupRequests returned
	giveUp   *time.Timer   // nil while the end is not known
}

func (r *closedRun) run(parent context.Context) error {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	r.cancel, r.start = cancel, time.Now()
	r.mu.Lock()
	r.watch(0)
	r.mu.Unlock()
	var wg sync.WaitGroup
	for range r.Workers {
		wg.Go(func() {
			for r.one(ctx) {
			}
		})
	}
	wg.Wait()
	if r.giveUp != nil {
		r.giveUp.Stop()
	}
	return parent.Err()
}

// one sends a request and reports whether one was to be sent.
func (r *closedRun) one(ctx context.Context) bool {
	sent := time.Since(r.start)
	n, ok := r.next(sent)
	if !ok || ctx.Err() != nil {
		return false
	}
	call := ctx
	if r.Timeout > 0 {
		var stop context.CancelFunc
		call, stop = context.WithDeadline(ctx, r.start.Add(sent+r.Timeout))
		defer stop()
	}
	err := r.do(call, r.First+n)
	done := time.Since(r.start)
	if r.counts(done) {
		r.rec.add(sample{latency: done - sent, done: done}, err, givenUp(ctx))
	}
	return true
}

// next returns the number of the next request, or false where no more are to be sent.
func (r *closedRun) next(now time.Duration) (int, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.Duration > 0 && r.returned >= r.WarmupRequests && now >= r.from()+r.Duration {
		return 0, false
	}
	enough := max(r.warm, r.WarmupRequests) + r.Requests
	if r.Requests > 0 && now >= r.Warmup && r.sent >= enough {
		return 0, false
	}
	r.sent++
	return r.sent - 1, true
}

// counts notes that a request has returned and reports whether it is measured.
func (r *closedRun) counts(now time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.returned++
	if r.returned <= r.WarmupRequests || now <= r.Warmup && r.Warmup > 0 {
		r.warm++
		if r.returned == r.WarmupRequests {
			r.ready = now
			r.watch(now)
		}
		return false
	}
	return r.Duration <= 0 || now <= r.from()+r.Duration
}

// from returns the start of the measured window, once WarmupRequests have returned.
func (r *closedRun) from() time.Duration { return max(r.Warmup, r.ready) }

// watch sets the time at which the run gives up, once it is known.
func (r *closedRun) watch(now time.Duration) {
	if r.Duration > 0 && r.returned >= r.WarmupRequests {
		r.giveUp = time.AfterFunc(r.from()+r.Duration+r.Drain-now, func() { r.cancel(errGivenUp) })
	}
}

func (r *closedRun) window() window {
	w := window{from: r.from(), to: r.rec.last}
	if r.Duration > 0 && r.Requests <= 0 {
		w.to = w.from + r.Duration
	}
	return w
}

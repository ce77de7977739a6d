// Package load sends requests to a system under test and says how it did: latency percentiles,
// throughput, goodput within an SLO, errors by class. It is what every serving benchmark uses.
//
// Open sends each request at its intended time, whether earlier ones have finished or not, and
// measures latency from that time: a server that stalls makes every request of the stall late, and
// cannot hide behind a client that waits for it (no coordinated omission). Closed keeps a number of
// workers busy, for saturated throughput; its latencies say nothing about a server that users call.
// Search finds the highest rate that keeps the SLO. Compare takes turns between variants and gives
// ratios with confidence intervals, which is what a noisy machine can measure.
//
// What is counted, everywhere:
//   - Each measured request is answered or has one class of error: Requests = Answered + all Errors.
//   - Percentiles are over requests that were answered or given up: a timeout, a request cut off or
//     not sent when the run ended counts with the time until then, as it was at least that slow. A
//     request that the server refused is in Errors only. Neither is goodput.
//   - Warm-up requests are sent and not counted.
//
// At most Options.InFlight requests are under way. When as many are, the next one waits for a place,
// is sent late and counted in Held, and its latency has its full delay. Nothing is dropped silently.
package load

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"grebe/workload"
)

// Do sends request i and waits for its answer. It MUST return soon after its context ends, and may be
// called from many goroutines.
type Do func(ctx context.Context, i int) error

// Options of a run. One of Duration and Requests must be set; the run ends with the first reached.
type Options struct {
	Name     string
	Arrivals workload.Arrivals // intended times, for Open; the run also ends with them
	Workers  int               // for Closed

	Duration time.Duration // measured, after the warm-up
	Requests int           // measured
	// Requests are warm-up until both are over.
	Warmup         time.Duration
	WarmupRequests int

	// First is the index of the first request.
	First int
	// InFlight bounds the requests under way in Open; 1000.
	InFlight int
	// Timeout is a request's time from its intended time, by its context; 0: none.
	Timeout time.Duration
	// Drain is the time after the last intended one (Closed: after the end) until the run gives up:
	// what is under way is cut off, what was not sent is counted as unsent; 10 s.
	Drain time.Duration
	// SLO is the latency within which an answer is goodput; 0: any.
	SLO time.Duration
	// Abandon ends an open run as soon as so many requests missed the SLO that it cannot keep it any more.
	// What was not sent by then counts as unsent.
	Abandon bool
	// Classify names an error of Do; by default "timeout", "canceled" or "error".
	Classify func(error) string
}

// Classes of errors that come from the run itself, and the default ones of Do.
const (
	Unsent     = "unsent"     // not sent when the run gave up
	Unfinished = "unfinished" // cut off when the run gave up
	Timeout    = "timeout"
	Canceled   = "canceled"
	Failed     = "error"
)

var errGivenUp = errors.New("load: the run is over")

func (o *Options) prepare() error {
	if o.Duration <= 0 && o.Requests <= 0 {
		return errors.New("neither a duration nor a number of requests is given")
	}
	if o.InFlight <= 0 {
		o.InFlight = 1000
	}
	if o.Drain <= 0 {
		o.Drain = 10 * time.Second
	}
	if o.Classify == nil {
		o.Classify = classify
	}
	return nil
}

func classify(err error) string {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return Timeout
	case errors.Is(err, context.Canceled):
		return Canceled
	}
	return Failed
}

// warm reports whether the request that is n-th in the run and intended at that time is warm-up.
func (o *Options) warm(n int, at time.Duration) bool {
	return n < o.WarmupRequests || at < o.Warmup
}

// schedule returns the intended times of the run, how many of them, the first ones, are warm-up, and
// when the measured window begins. It is known before the first request is sent, so that making it
// takes no time from sending.
func (o *Options) schedule() (times []time.Duration, warm int, from time.Duration) {
	for {
		at, ok := o.Arrivals.Next()
		isWarm := o.warm(len(times), at)
		if !isWarm && len(times) == warm {
			from = o.Warmup
			if o.WarmupRequests > 0 {
				from = at
			}
		}
		over := !isWarm && (o.Duration > 0 && at >= from+o.Duration || o.Requests > 0 && len(times)-warm == o.Requests)
		if !ok || over {
			return times, warm, from
		}
		times = append(times, at)
		if isWarm {
			warm = len(times)
		}
	}
}

// Open runs do in an open loop. Where ctx ends it returns its error after what is under way has
// returned; errors of do are part of the result.
func Open(ctx context.Context, o Options, do Do) (Result, error) {
	if err := o.prepare(); err != nil {
		return Result{}, fmt.Errorf("load %s: %w", o.Name, err)
	}
	if o.Arrivals == nil {
		return Result{}, fmt.Errorf("load %s: no arrivals", o.Name)
	}
	times, warm, from := o.schedule()
	switch {
	case len(times) == 0:
		return Result{}, fmt.Errorf("load %s: no request arrives", o.Name)
	case len(times) == warm:
		return Result{}, fmt.Errorf("load %s: all %d requests are warm-up", o.Name, warm)
	}
	r := &openRun{Options: o, do: do, times: times, warm: warm, from: from, rec: newRecorder(&o)}
	if err := r.run(ctx); err != nil {
		return Result{}, fmt.Errorf("load %s: %w", o.Name, err)
	}
	return r.rec.result(r.window(), o.First+len(times)), nil
}

// openRun is one open loop.
type openRun struct {
	Options
	do    Do
	times []time.Duration
	warm  int
	from  time.Duration
	rec   *recorder

	start  time.Time
	places chan struct{} // one per request under way
	wg     sync.WaitGroup
}

func (r *openRun) run(parent context.Context) error {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	r.places = make(chan struct{}, r.InFlight)
	r.start = time.Now()
	last := r.times[len(r.times)-1]
	giveUp := time.AfterFunc(last+r.Drain, func() { cancel(errGivenUp) })
	defer giveUp.Stop()
	if r.Abandon {
		r.rec.abandon(len(r.times)-r.warm, func() { cancel(errGivenUp) })
	}

	sent := r.sendAll(ctx)
	r.wg.Wait()
	if err := parent.Err(); err != nil {
		return err
	}
	for n := max(sent, r.warm); n < len(r.times); n++ {
		r.rec.unsent(time.Since(r.start) - r.times[n])
	}
	return nil
}

// sendAll sends the requests, each at its time, and returns how many it sent before ctx ended.
func (r *openRun) sendAll(ctx context.Context) int {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for n, at := range r.times {
		if wait := at - time.Since(r.start); wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-ctx.Done():
				return n
			}
		}
		held, ok := r.place(ctx)
		if !ok {
			return n
		}
		r.wg.Go(func() {
			defer func() { <-r.places }()
			r.send(ctx, n, at, held)
		})
	}
	return len(r.times)
}

// place takes a place among those in flight and says whether it had to wait for one.
func (r *openRun) place(ctx context.Context) (held, ok bool) {
	select {
	case r.places <- struct{}{}:
		return false, true
	default:
	}
	select {
	case r.places <- struct{}{}:
		return true, true
	case <-ctx.Done():
		return true, false
	}
}

func (r *openRun) send(ctx context.Context, n int, at time.Duration, held bool) {
	intended := r.start.Add(at)
	call := ctx
	if r.Timeout > 0 {
		var cancel context.CancelFunc
		call, cancel = context.WithDeadline(ctx, intended.Add(r.Timeout))
		defer cancel()
	}
	lag := time.Since(intended)
	err := r.do(call, r.First+n)
	if n < r.warm {
		return
	}
	r.rec.add(sample{latency: time.Since(intended), lag: lag, held: held, done: time.Since(r.start)}, err, givenUp(ctx))
}

// givenUp reports whether a request that fails does so because the run ended.
func givenUp(ctx context.Context) bool { return context.Cause(ctx) == errGivenUp }

// window returns what rates are taken over.
func (r *openRun) window() window {
	measured := r.times[r.warm:]
	first, last := measured[0], measured[len(measured)-1]
	w := window{from: r.from, to: max(last, r.rec.last)}
	if r.Duration > 0 && r.Requests <= 0 {
		w.to = max(w.to, r.from+r.Duration)
	}
	if last > first {
		w.offered = float64(len(measured)-1) / (last - first).Seconds()
	}
	return w
}

package load

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"grebe/workload"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server answers so many requests at a time, each in its service time, in virtual time.
type server struct {
	places  chan struct{}
	service time.Duration
	start   time.Time
	// While it stalls, from and for those times, it takes no request.
	stallAt, stall time.Duration
}

func newServer(parallel int, service time.Duration) *server {
	return &server{places: make(chan struct{}, parallel), service: service, start: time.Now()}
}

func (s *server) do(ctx context.Context, _ int) error {
	select {
	case s.places <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-s.places }()
	now := time.Since(s.start)
	if s.stall > 0 && now >= s.stallAt && now < s.stallAt+s.stall {
		if err := sleep(ctx, s.stallAt+s.stall-now); err != nil {
			return err
		}
	}
	return sleep(ctx, s.service)
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func open(t *testing.T, o Options, do Do) Result {
	t.Helper()
	r, err := Open(t.Context(), o, do)
	if err != nil {
		t.Fatal(err)
	}
	checkBooks(t, &r)
	return r
}

// checkBooks tests what holds for every result.
func checkBooks(t *testing.T, r *Result) {
	t.Helper()
	sum := r.Answered
	for _, n := range r.Errors {
		sum += n
	}
	l := r.Latency
	if sum != r.Requests || r.Good > r.Answered {
		t.Errorf("the books are wrong: %+v", r)
	}
	if !slices.IsSorted([]float64{l.P50, l.P90, l.P99, l.P999, l.Max}) || l.Mean > l.Max {
		t.Errorf("percentiles go down: %+v", l)
	}
}

func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if math.Abs(got-want) > tolerance*want {
		t.Errorf("%s is %.5g, want %.5g within %.1f%%", what, got, want, 100*tolerance)
	}
}

func TestOpenLoopCountsExactly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var at []time.Duration
		start := time.Now()
		r := open(t, Options{
			Name: "exact", Arrivals: workload.Uniform(200), Warmup: time.Second, Duration: 5 * time.Second, First: 10,
			SLO: 3 * time.Millisecond,
		}, func(_ context.Context, i int) error {
			mu.Lock()
			for len(at) <= i {
				at = append(at, -1)
			}
			at[i] = time.Since(start)
			mu.Unlock()
			time.Sleep(2 * time.Millisecond)
			return nil
		})
		if r.Requests != 1000 || r.Answered != 1000 || r.Good != 1000 || r.Held != 0 || len(r.Errors) != 0 || r.Next != 1210 {
			t.Errorf("%d requests, %d answered, %d good, %d held, errors %v, next %d", r.Requests, r.Answered, r.Good, r.Held,
				r.Errors, r.Next)
		}
		if r.Offered != 200 || r.Throughput != 200 || r.Goodput != 200 || r.Seconds != 5 {
			t.Errorf("offered %v, answered %v, good %v per second over %v s", r.Offered, r.Throughput, r.Goodput, r.Seconds)
		}
		if r.Latency.Max != 2 || r.Latency.Mean != 2 || r.Latency.P50 != 2 || r.Lag.Max != 0 {
			t.Errorf("latency %+v, lag %+v, want 2 ms and none", r.Latency, r.Lag)
		}
		for n, sent := range at[10:] {
			if want := time.Duration(n) * 5 * time.Millisecond; sent != want {
				t.Fatalf("request %d was sent at %v, want %v", n, sent, want)
			}
		}
		if len(at) != 1210 {
			t.Errorf("indices up to %d, want 1210", len(at))
		}
	})
}

// A server that stalls for a second makes the hundred requests of that second late by half a second on
// average, whatever the number in flight. A closed loop does not see it: that is why there is an open one.
func TestStallShowsInPercentiles(t *testing.T) {
	for _, inFlight := range []int{1, 7, 1000} {
		t.Run(fmt.Sprint(inFlight), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(1, time.Millisecond)
				s.stallAt, s.stall = 5*time.Second, time.Second
				r := open(t, Options{Arrivals: workload.Uniform(100), Duration: 10 * time.Second, InFlight: inFlight,
					SLO: 50 * time.Millisecond}, s.do)
				near(t, "P50", r.Latency.P50, 1, 0.01)
				near(t, "P99", r.Latency.P99, 911, 0.02) // of 1000 the eleventh of the delays 1001, 992, 983, …
				near(t, "max", r.Latency.Max, 1001, 0.001)
				near(t, "requests within the SLO", float64(r.Good), 1000-106, 0.005)
				if r.Requests != 1000 || r.Answered != 1000 {
					t.Errorf("%d of %d requests answered, want 1000", r.Answered, r.Requests)
				}
				if held := r.Held > 0; held != (inFlight < 100) {
					t.Errorf("%d requests were held at %d in flight", r.Held, inFlight)
				}
				if inFlight == 1 && r.Lag.Max < 980 {
					t.Errorf("requests held for a second lag by %v ms", r.Lag.Max)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		s := newServer(1, time.Millisecond)
		s.stallAt, s.stall = 5*time.Second, time.Second
		r, err := Closed(t.Context(), Options{Workers: 1, Duration: 10 * time.Second}, s.do)
		if err != nil {
			t.Fatal(err)
		}
		near(t, "P99 of a closed loop", r.Latency.P99, 1, 0.01)
	})
}

// Twice as many requests as the server can answer: the run ends, and says what became of each.
func TestOverload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(1, 20*time.Millisecond)
		start := time.Now()
		r := open(t, Options{Arrivals: workload.Uniform(100), Duration: 10 * time.Second, InFlight: 10,
			Drain: 5 * time.Second}, s.do)
		// The last request is due at 9.99 s.
		if took := time.Since(start); took != 14990*time.Millisecond {
			t.Errorf("the run took %v, want 14.99 s", took)
		}
		if r.Requests != 1000 || r.Answered != 749 || r.Errors[Unfinished] != 10 || r.Errors[Unsent] != 241 {
			t.Errorf("%d requests, %d answered, errors %v; want 1000, 749, 10 unfinished and 241 unsent", r.Requests, r.Answered,
				r.Errors)
		}
		near(t, "throughput", r.Throughput, 50, 0.01)
		// Unsent requests were due from 7.59 s on: the longest delay is that of the last one answered or
		// of the first one given up.
		near(t, "max", r.Latency.Max, 7500, 0.02)
		if r.KeepsSLO() {
			t.Error("a run that answers three of four requests keeps its SLO")
		}
	})
}

func TestErrorsByClass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shed := errors.New("shed")
		o := Options{Arrivals: workload.Uniform(10), Requests: 100, Timeout: 50 * time.Millisecond}
		do := func(ctx context.Context, i int) error {
			switch {
			case i%10 == 0:
				return fmt.Errorf("server: %w", shed)
			case i%10 == 1:
				return sleep(ctx, time.Minute)
			}
			return sleep(ctx, time.Millisecond)
		}
		r := open(t, o, do)
		if r.Answered != 80 || r.Errors[Failed] != 10 || r.Errors[Timeout] != 10 {
			t.Errorf("%d answered, errors %v; want 80, 10 failed, 10 timed out", r.Answered, r.Errors)
		}
		// Refusals have no latency, timeouts have the time until they were given up: 10 of 90.
		near(t, "P99", r.Latency.P99, 50, 0.002)
		near(t, "P50", r.Latency.P50, 1, 0.002)
		o.Arrivals = workload.Uniform(10)
		o.Classify = func(err error) string {
			if errors.Is(err, shed) {
				return "shed"
			}
			return "other"
		}
		if r := open(t, o, do); r.Errors["shed"] != 10 || r.Errors["other"] != 10 {
			t.Errorf("errors %v, want 10 shed and 10 other", r.Errors)
		}
	})
}

func TestOpenLoopEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(100, time.Millisecond)
		times := []time.Duration{0, time.Second, 2 * time.Second, 2 * time.Second}
		r := open(t, Options{Arrivals: workload.Trace(times, 1), Requests: 100, WarmupRequests: 1}, s.do)
		if r.Requests != 3 || r.Next != 4 || r.Offered != 2 {
			t.Errorf("with the trace: %d requests, next %d, %v per second; want 3, 4, 2", r.Requests, r.Next, r.Offered)
		}
		r = open(t, Options{Arrivals: workload.Uniform(10), Requests: 7, Duration: time.Hour, WarmupRequests: 5}, s.do)
		if r.Requests != 7 || r.Next != 12 {
			t.Errorf("with the requests: %d, next %d", r.Requests, r.Next)
		}
		for what, o := range map[string]Options{
			"no end":      {Arrivals: workload.Uniform(10)},
			"no arrivals": {Requests: 1},
			"all warm-up": {Arrivals: workload.Trace(times, 1), Requests: 1, Warmup: time.Hour},
		} {
			if _, err := Open(t.Context(), o, s.do); err == nil {
				t.Errorf("%s: no error", what)
			}
		}
	})
}

func TestCanceledRunsReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		start := time.Now()
		s := newServer(1, time.Hour)
		if _, err := Open(ctx, Options{Arrivals: workload.Uniform(10), Duration: time.Minute, InFlight: 5},
			s.do); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("open: %v", err)
		}
		if _, err := Closed(ctx, Options{Workers: 3, Duration: time.Minute}, s.do); !errors.Is(err,
			context.DeadlineExceeded) {
			t.Errorf("closed: %v", err)
		}
		if took := time.Since(start); took != 3*time.Second {
			t.Errorf("returned after %v, want 3 s", took)
		}
	})
}

func TestClosedLoop(t *testing.T) {
	for _, c := range []struct {
		name     string
		o        Options
		requests int
		sent     int
		seconds  float64
	}{
		{"duration", Options{Workers: 4, Duration: 2 * time.Second}, 800, 800, 2},
		{"warm-up time", Options{Workers: 4, Duration: 2 * time.Second, Warmup: time.Second}, 800, 1200, 2},
		{"requests", Options{Workers: 4, Requests: 100}, 100, 100, 0.25},
		{"warm-up requests", Options{Workers: 4, Requests: 100, WarmupRequests: 20}, 100, 120, 0.25},
		{"both", Options{Workers: 4, Duration: time.Second, WarmupRequests: 20}, 400, 420, 1},
		{"time, then requests", Options{Workers: 4, Requests: 100, Warmup: time.Second}, 100, 500, 0.25},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(10, 10*time.Millisecond)
				r, err := Closed(t.Context(), c.o, s.do)
				if err != nil {
					t.Fatal(err)
				}
				checkBooks(t, &r)
				if r.Requests != c.requests || r.Next != c.sent || math.Abs(r.Seconds-c.seconds) > 1e-9 {
					t.Errorf("%d requests of %d sent in %v s, want %d of %d in %v", r.Requests, r.Next, r.Seconds, c.requests, c.sent,
						c.seconds)
				}
				near(t, "throughput", r.Throughput, 400, 1e-9)
				near(t, "latency", r.Latency.P99, 10, 1e-9)
			})
		})
	}
}

func TestClosedLoopGivesUpOnAStuckServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		s := newServer(1, time.Hour)
		r, err := Closed(t.Context(), Options{Workers: 2, Duration: time.Second, Drain: time.Second}, s.do)
		if err != nil || r.Answered != 0 || r.Throughput != 0 {
			t.Errorf("%+v, %v", r, err)
		}
		if took := time.Since(start); took != 2*time.Second {
			t.Errorf("returned after %v, want 2 s", took)
		}
	})
	if _, err := Closed(t.Context(), Options{Requests: 1}, nil); err == nil {
		t.Error("no workers: no error")
	}
}

// Real goroutines and a real clock: what is counted stays exact, and the race detector looks on.
func TestRealTime(t *testing.T) {
	var mu sync.Mutex
	seen := map[int]int{}
	r := open(t, Options{Arrivals: workload.Poisson(20_000, 1), Requests: 500, WarmupRequests: 50, InFlight: 16},
		func(_ context.Context, i int) error {
			mu.Lock()
			defer mu.Unlock()
			seen[i]++
			return nil
		})
	if r.Requests != 500 || len(seen) != 550 {
		t.Errorf("%d measured, %d sent; want 500 and 550", r.Requests, len(seen))
	}
	for i, n := range seen {
		if n != 1 {
			t.Errorf("request %d was sent %d times", i, n)
		}
	}
}

// A run that cannot keep the SLO any more ends, and counts what it did not send.
func TestAbandon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(1, 20*time.Millisecond) // half of what is asked for
		begun := time.Now()
		o := Options{Arrivals: workload.Uniform(100), Duration: time.Minute, SLO: 100 * time.Millisecond, Abandon: true}
		r := open(t, o, s.do)
		checkBooks(t, &r)
		if took := time.Since(begun); took > 5*time.Second {
			t.Errorf("the run took %v", took)
		}
		if r.KeepsSLO() || r.Requests != 6000 || r.Errors[Unsent] < 5000 {
			t.Errorf("abandoned: %+v", r)
		}
		o.Arrivals, o.Duration = workload.Uniform(40), time.Second
		if r := open(t, o, s.do); !r.KeepsSLO() || r.Requests != 40 {
			t.Errorf("a run that keeps the SLO: %+v", r)
		}
	})
}

// A search ends in its time, with what it found.
func TestSearchInBoundedTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(1, 10*time.Millisecond)
		begun := time.Now()
		f, err := Search(t.Context(), SearchOptions{
			Run: Options{Duration: 10 * time.Second, SLO: 50 * time.Millisecond}, Start: 20, Repeats: 1, Precision: .001,
			Time: 45 * time.Second}, s.do)
		if err != nil || !f.Cut || f.Rate == 0 || f.Limit == 0 {
			t.Errorf("%v: found %v, limit %v, cut %v", err, f.Rate, f.Limit, f.Cut)
		}
		if took := time.Since(begun); took > time.Minute {
			t.Errorf("the search took %v", took)
		}
	})
}

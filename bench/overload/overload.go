// Package overload asks a server for more than it can do, and keeps it waiting in every way that a client can. It says
// whether good requests are still answered in time.
//
// The server is a process of its own, on all cores but the last; the client has the last. Requests are rankings that
// reuse nothing and take at least 20 ms. Their rate is a multiple of what the server answers in a closed loop. Latency
// counts from the time at which a request was due.
package overload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"grebe/bench/load"
	"grebe/bench/report"
	"grebe/workload"
)

// Options of a run. Zero values mean the default.
type Options struct {
	Program  string        // that serves the demo: the path of grebe; required
	Loads    []float64     // multiples of the capacity; 1.5, 3, 10
	Duration time.Duration // of each load; 60 s
	Deadline time.Duration // of requests; 500 ms
	Least    time.Duration // that a request takes; 20 ms
	Slow     []string      // kinds of slow connections; all
	Conns    int           // of each kind; 1000
	Parts    []string      // load, slow; both
	JSON     bool
}

func (o *Options) setDefaults() {
	if len(o.Loads) == 0 {
		o.Loads = []float64{1.5, 3, 10}
	}
	if o.Duration == 0 {
		o.Duration = time.Minute
	}
	if o.Deadline == 0 {
		o.Deadline = 500 * time.Millisecond
	}
	if o.Least == 0 {
		o.Least = 20 * time.Millisecond
	}
	if o.Conns == 0 {
		o.Conns = 1000
	}
	if len(o.Parts) == 0 {
		o.Parts = []string{"load", "slow"}
	}
}

// Report is what a run found.
type Report struct {
	Candidates int     `json:"candidates"`  // of a request
	RequestMS  float64 `json:"request_ms"`  // median time of a request by itself
	Capacity   float64 `json:"capacity"`    // requests per second in a closed loop
	DeadlineMS float64 `json:"deadline_ms"` // of a request
	Loads      []Load  `json:"loads,omitempty"`
	Slow       []Slow  `json:"slow,omitempty"`
	Passed     bool    `json:"passed"`
}

// Load is what became of requests at a multiple of the capacity.
type Load struct {
	Times     float64 `json:"times"`
	Late      float64 `json:"late"`       // share of the answers
	Goodput   float64 `json:"goodput"`    // answers in time, as a share of the capacity
	Least     float64 `json:"least"`      // goodput that is wanted
	AgainMS   float64 `json:"again_ms"`   // slowest of 20 requests 2 s after the load
	Unanswers int     `json:"unanswered"` // of these
	Outside50 float64 `json:"outside_p50_ms"`
	// of answers' times: before the server read the request, and after it had the answer
	Outside99 float64     `json:"outside_p99_ms"`
	Result    load.Result `json:"result"`
	Passed    bool        `json:"passed"`
}

// The bars.
const (
	mostLate  = .01
	slowBar   = 1.5 // P99 beside slow connections, as a multiple of the idle one
	afterLoad = 2 * time.Second
)

func least(times float64) float64 {
	if times > 3 {
		return .75
	}
	return .85
}

// judge says whether a load passed.
func (l *Load) judge(deadline time.Duration) {
	l.Least = least(l.Times)
	l.Passed = l.Late <= mostLate && l.Goodput >= l.Least && l.Unanswers == 0 &&
		l.AgainMS <= float64(deadline.Milliseconds())
}

// Run measures and writes a report.
func Run(ctx context.Context, o Options, w io.Writer) (*Report, error) {
	o.setDefaults()
	dir, err := os.MkdirTemp("", "grebe-overload-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	addr, stop, err := start(ctx, o.Program, "demo", "--data", filepath.Join(dir, "demo"), "--log-level", "error")
	if err != nil {
		return nil, fmt.Errorf("overload: start the server: %w", err)
	}
	defer stop()
	c := newClient(addr)
	defer c.close()
	r := &Report{Passed: true, DeadlineMS: float64(o.Deadline.Milliseconds())}
	if err := c.prepare(ctx, &o, r); err != nil {
		return nil, fmt.Errorf("overload: %w", err)
	}
	if slices.Contains(o.Parts, "load") {
		for i, times := range o.Loads {
			l, err := c.overload(ctx, &o, r.Capacity, times, uint64(i))
			if err != nil {
				return nil, fmt.Errorf("overload: %v times the capacity: %w", times, err)
			}
			r.Loads, r.Passed = append(r.Loads, *l), r.Passed && l.Passed
		}
	}
	if slices.Contains(o.Parts, "slow") {
		if err := c.slow(ctx, &o, r); err != nil {
			return nil, fmt.Errorf("overload: slow connections: %w", err)
		}
	}
	if o.JSON {
		return r, report.JSON(w, r)
	}
	return r, r.write(w)
}

// start runs a server on all cores but the last, and waits until it is ready.
func start(ctx context.Context, program string, args ...string) (addr string, stop func(), err error) {
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	addr = ln.Addr().String()
	ln.Close()
	cmd := exec.CommandContext(ctx, program, append(args, "--listen", addr)...)
	cmd.Stderr = os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	if err := startApart(cmd); err != nil {
		return "", nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	stop = func() {
		_ = cmd.Process.Signal(os.Interrupt) // it may have ended already
		<-ended
	}
	for {
		resp, err := http.Get("http://" + addr + "/readyz")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return addr, stop, nil
			}
		}
		select {
		case err := <-ended:
			return "", nil, errors.Join(errors.New("it ended"), err)
		case <-ctx.Done():
			stop()
			return "", nil, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// overload offers a multiple of the capacity, and asks again 2 s after it.
func (c *client) overload(ctx context.Context, o *Options, capacity, times float64, seed uint64) (*Load, error) {
	c.takeOutside()
	res, err := load.Open(ctx, load.Options{
		Name: fmt.Sprintf("%g × capacity", times), Arrivals: workload.Poisson(times*capacity, seed), Duration: o.Duration,
		Warmup: min(2*time.Second, o.Duration/10), InFlight: 4096, Timeout: o.Deadline + 10*time.Second, SLO: o.Deadline,
		Classify: classOf,
	}, func(ctx context.Context, i int) error { return c.rank(ctx, i, c.candidates, o.Deadline) })
	if err != nil {
		return nil, err
	}
	l := &Load{Times: times, Result: res, Goodput: res.Goodput / capacity}
	l.Outside50, l.Outside99 = c.takeOutside()
	if res.Answered > 0 {
		l.Late = 1 - float64(res.Good)/float64(res.Answered)
	}
	select {
	case <-time.After(afterLoad):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for i := range 20 {
		start := time.Now()
		if err := c.rank(ctx, i, c.candidates, o.Deadline); err != nil {
			l.Unanswers++
		}
		l.AgainMS = max(l.AgainMS, float64(time.Since(start))/float64(time.Millisecond))
	}
	l.judge(o.Deadline)
	return l, nil
}

func verdict(passed bool) string {
	if passed {
		return "pass"
	}
	return "FAIL"
}

func (r *Report) write(w io.Writer) error {
	fmt.Fprintf(w, "Rankings of %d candidates, nothing reused: %.1f ms by themselves, capacity %.1f/s, deadline %.0f "+
		"ms\n\n", r.Candidates, r.RequestMS,
		r.Capacity, r.DeadlineMS)
	t := report.Table(w)
	if len(r.Loads) > 0 {
		fmt.Fprintln(t, "load\toffered/s\tanswers\tlate (≤ 1 %)\tgoodput\twanted\tP50 ms\tP99 ms\toutside P50\tP99\tlag "+
			"P99\t2 s later, ms\trefused or failed\t\t")
	}
	for i := range r.Loads {
		l := &r.Loads[i]
		again := fmt.Sprintf("%.0f", l.AgainMS)
		if l.Unanswers > 0 {
			again = fmt.Sprintf("%d of 20 failed", l.Unanswers)
		}
		fmt.Fprintf(t, "%g ×\t%.0f\t%d\t%.2f %%\t%.1f %%\t%.0f %%\t%.0f\t%.0f\t%.1f\t%.1f\t%.1f\t%s\t%v\t%s\t\n", l.Times,
			l.Result.Offered, l.Result.Answered, 100*l.Late,
			100*l.Goodput, 100*l.Least, l.Result.Latency.P50, l.Result.Latency.P99, l.Outside50, l.Outside99, l.Result.Lag.P99,
			again, l.Result.Errors, verdict(l.Passed))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if len(r.Slow) > 0 {
		fmt.Fprintf(w, "\nP99 of another client's requests beside slow connections, as a multiple of the idle server's "+
			"before and after (≤ %g)\n\n", slowBar)
		fmt.Fprintln(t, "kind\tconnections\tidle ms\tbeside ms\tratio\tfailed\t\t")
	}
	for i := range r.Slow {
		s := &r.Slow[i]
		fmt.Fprintf(t, "%s\t%d\t%.2f\t%.2f\t%.2f\t%d\t%s\t\n", s.Kind, s.Open, s.IdleMS, s.BesideMS, s.Ratio, s.Failed,
			verdict(s.Passed))
	}
	return t.Flush()
}

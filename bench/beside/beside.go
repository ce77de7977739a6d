// Package beside measures a batch of requests beside online requests: how much of the time that these leave the batch
// uses, and what it costs them.
//
// One server gets slices of load in turn: online requests alone, the batch alone, both, and online requests alone
// again. The same online requests come at the same times in each. The slice with both is compared with those around it,
// and the median over the rounds is the result. A machine that others use too disturbs some rounds, and these do not
// change a median.
package beside

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"grebe/bench/drive"
	"grebe/bench/load"
	"grebe/bench/report"
	"grebe/shop/demo"
	"grebe/workload"
)

// Options are those of Run.
type Options struct {
	Program    string  // the path of grebe
	Device     string  // of the server, such as cpu or none:3ms+100us
	Load       float64 // of online requests, as a share of what one client at a time gets
	Candidates int     // of a request
	Rounds     int
	Slice      time.Duration
	JSON       bool
	Progress   io.Writer
}

// The bars.
const (
	leastUsed = 0.80 // of what online requests leave
	mostRatio = 1.10 // of their P99
)

// Round is what the slices of a round showed. Times are milliseconds, rates are per second.
type Round struct {
	Before float64 `json:"before_p99_ms"`
	With   float64 `json:"with_p99_ms"`
	After  float64 `json:"after_p99_ms"`
	Ratio  float64 `json:"ratio"` // of With to the geometric mean of the others
	Busy   float64 `json:"busy"`  // share of the time that online requests are computed
	Alone  float64 `json:"alone"` // lines of the batch alone
	Beside float64 `json:"beside"`
	Used   float64 `json:"used"` // Beside, as a share of Alone in the time that is not Busy
}

// Report is what Run found.
type Report struct {
	Device   string  `json:"device"`
	Rate     float64 `json:"rate"` // of online requests
	Requests int     `json:"requests"`
	Rounds   []Round `json:"rounds"`
	Ratio    float64 `json:"ratio"` // median
	Used     float64 `json:"used"`  // median
	Passed   bool    `json:"passed"`
}

// Run measures, and writes a report.
func Run(ctx context.Context, o Options, w io.Writer) (r *Report, err error) {
	dir, err := os.MkdirTemp("", "grebe-bench-batch-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	shop := filepath.Join(dir, "shop")
	if err := demo.Ensure(shop); err != nil {
		return nil, err
	}
	server, err := drive.Start(ctx, o.Program, filepath.Join(shop, demo.ConfigFile), []drive.Setting{
		{Key: "data_dir", Value: filepath.Join(dir, "data")}, {Key: "device", Value: o.Device},
		{Key: "cache.ahead", Value: "off"},
		{Key: "slo_ms", Value: "30000"},
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	b := &bench{o: &o, url: server.URL, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
	defer b.client.CloseIdleConnections()
	if r, err = b.run(ctx); err != nil {
		return nil, fmt.Errorf("bench batch: %w", err)
	}
	if o.JSON {
		return r, report.JSON(w, r)
	}
	return r, r.write(w)
}

type bench struct {
	o       *Options
	url     string
	client  *http.Client
	compute atomic.Int64 // nanoseconds that online requests were computed
	ranked  atomic.Int64
	each    float64 // seconds that one is computed alone
	jobs    int
}

func (b *bench) run(ctx context.Context) (*Report, error) {
	if err := b.rank(ctx, 0, 0); err != nil { // an answer that says what is wrong
		return nil, err
	}
	res, err := load.Closed(ctx, load.Options{Name: "alone", Workers: 1, Duration: 3 * time.Second, Warmup: time.Second,
		Timeout: time.Minute},
		func(ctx context.Context, i int) error { return b.rank(ctx, 1, i) })
	if err != nil {
		return nil, err
	}
	if res.Throughput == 0 {
		return nil, fmt.Errorf("no answer, errors %v", res.Errors)
	}
	b.each = time.Duration(b.compute.Load()).Seconds() / float64(b.ranked.Load())
	r := &Report{Device: b.o.Device, Rate: b.o.Load * res.Throughput}
	for n := range b.o.Rounds {
		round, err := b.round(ctx, r, uint64(n))
		if err != nil {
			return nil, fmt.Errorf("round %d: %w", n, err)
		}
		r.Rounds = append(r.Rounds, *round)
		fmt.Fprintf(b.o.Progress, "round %d of %d: P99 × %.3f, %.1f %% of the rest used\n", n+1, b.o.Rounds, round.Ratio,
			100*round.Used)
	}
	var ratios, used []float64
	for _, x := range r.Rounds {
		ratios, used = append(ratios, x.Ratio), append(used, x.Used)
	}
	r.Ratio, r.Used = report.Median(ratios), report.Median(used)
	r.Passed = r.Ratio <= mostRatio && r.Used >= leastUsed
	return r, nil
}

func (b *bench) round(ctx context.Context, r *Report, seed uint64) (*Round, error) {
	before, busy, err := b.slice(ctx, r, seed)
	if err != nil {
		return nil, err
	}
	stop, err := b.begin(ctx, seed)
	if err != nil {
		return nil, err
	}
	if err := wait(ctx, b.o.Slice); err != nil {
		return nil, err
	}
	alone, err := stop()
	if err != nil {
		return nil, err
	}
	if stop, err = b.begin(ctx, seed); err != nil {
		return nil, err
	}
	with, _, err := b.slice(ctx, r, seed)
	if err != nil {
		return nil, err
	}
	beside, err := stop()
	if err != nil {
		return nil, err
	}
	after, busyAfter, err := b.slice(ctx, r, seed)
	if err != nil {
		return nil, err
	}
	out := &Round{Before: before, With: with, After: after, Ratio: with / math.Sqrt(before*after),
		Busy:  (busy + busyAfter) / 2,
		Alone: alone, Beside: beside}
	out.Used = beside / (alone * (1 - out.Busy))
	return out, nil
}

// slice sends online requests. It returns their P99 in milliseconds, and the share of the time that they are computed.
func (b *bench) slice(ctx context.Context, r *Report, seed uint64) (p99, busy float64, err error) {
	ranked, began := b.ranked.Load(), time.Now()
	res, err := load.Open(ctx, load.Options{
		Name: "rankings", Arrivals: workload.Poisson(r.Rate, seed), Duration: b.o.Slice, Warmup: 300 * time.Millisecond,
		Timeout: time.Minute,
	}, func(ctx context.Context, i int) error { return b.rank(ctx, seed+2, i) })
	if err == nil && len(res.Errors) > 0 {
		err = fmt.Errorf("errors %v", res.Errors)
	}
	r.Requests += res.Answered
	return res.Latency.P99, b.each * float64(b.ranked.Load()-ranked) / time.Since(began).Seconds(), err
}

// begin adds a batch and waits until it is at work. stop cancels it and returns its lines per second since begin
// returned.
func (b *bench) begin(ctx context.Context, seed uint64) (stop func() (float64, error), err error) {
	var lines bytes.Buffer
	const most = 40_000 // lines, which no slice answers
	for i := range most {
		lines.Write(b.body(seed+1_000, i))
		lines.WriteByte('\n')
	}
	b.jobs++
	id := fmt.Sprintf("beside%016d", b.jobs)
	if _, err := b.job(ctx, http.MethodPost, "?op=rank&id="+id, lines.Bytes()); err != nil {
		return nil, err
	}
	first, began := 0.0, time.Now()
	for first == 0 {
		if first, err = b.job(ctx, http.MethodGet, "/"+id, nil); err != nil {
			return nil, err
		}
		if began = time.Now(); first == 0 {
			if err := wait(ctx, 5*time.Millisecond); err != nil {
				return nil, err
			}
		}
	}
	return func() (float64, error) {
		last, err := b.job(ctx, http.MethodDelete, "/"+id, nil)
		took := time.Since(began)
		if err == nil && last >= most {
			err = errors.New("the batch ended before its slice: shorten it with --slice-s")
		}
		return (last - first) / took.Seconds(), err
	}, nil
}

// job calls the API of batches. It returns the number of lines that are answered.
func (b *bench) job(ctx context.Context, method, path string, body []byte) (float64, error) {
	var answer struct{ Done float64 }
	err := b.call(ctx, method, "/v1/batches"+path, body, &answer)
	return answer.Done, err
}

// body is a ranking for a user whom nobody has seen, so that it reuses nothing.
func (b *bench) body(seed uint64, i int) []byte {
	r := rand.New(rand.NewPCG(seed, uint64(i)))
	candidates := make([]map[string]string, b.o.Candidates)
	for k, at := range r.Perm(40)[:b.o.Candidates] {
		candidates[k] = map[string]string{"id": fmt.Sprintf("i%05d", 1+at)}
	}
	out, err := json.Marshal(map[string]any{
		"model": demo.Model, "prefix": "none", "deadline_ms": 30_000, "candidates": candidates,
		"user": map[string]string{"text": fmt.Sprintf("Customer %d-%d bought a tent, a stove and %d ropes.", seed, i,
			r.IntN(1000))},
	})
	if err != nil {
		panic(err) // strings and numbers
	}
	return out
}

// rank sends an online request and counts the time that it is computed.
func (b *bench) rank(ctx context.Context, seed uint64, i int) error {
	var answer struct {
		Timing struct{ Compute float64 } `json:"timing_ms"`
	}
	if err := b.call(ctx, http.MethodPost, "/v1/rank", b.body(seed, i), &answer); err != nil {
		return err
	}
	b.ranked.Add(1)
	b.compute.Add(int64(answer.Timing.Compute * float64(time.Millisecond)))
	return nil
}

func (b *bench) call(ctx context.Context, method, path string, body []byte, into any) error {
	req, err := http.NewRequestWithContext(ctx, method, b.url+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := b.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s: %s: %.200s", method, path, resp.Status, text)
	}
	return json.Unmarshal(text, into)
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// write shows a report to people.
func (r *Report) write(w io.Writer) error {
	fmt.Fprintf(w, "device %s: %d online rankings, %.1f/s\n", r.Device, r.Requests, r.Rate)
	t := report.Table(w)
	fmt.Fprintf(t, "round\tP99 before\twith the batch\tafter\tratio\tbusy\tlines/s alone\tbeside\tof the rest\t\n")
	for i, x := range r.Rounds {
		fmt.Fprintf(t, "%d\t%.1f ms\t%.1f ms\t%.1f ms\t%.3f\t%.1f %%\t%.1f\t%.1f\t%.1f %%\t\n",
			i, x.Before, x.With, x.After, x.Ratio, 100*x.Busy, x.Alone, x.Beside, 100*x.Used)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "medians: P99 × %.3f (bar: %.2f), %.1f %% of the rest used (bar: %.0f %%)\npassed: %v\n",
		r.Ratio, mostRatio, 100*r.Used, 100*leastUsed, r.Passed)
	return nil
}

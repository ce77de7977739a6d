package overload

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"grebe/bench/load"
	"grebe/bench/report"
)

// client asks for rankings.
type client struct {
	addr       string
	http       *http.Client
	items      []string
	candidates int      // of a request
	models     []string // that are asked in turn
	prefix     string   // what is reused

	mu      sync.Mutex
	outside []float64 // milliseconds, see account
}

func newClient(addr string) *client {
	tr := &http.Transport{MaxIdleConnsPerHost: 4096, DisableCompression: true}
	return &client{addr: addr, http: &http.Client{Transport: tr}, models: []string{"shop"}, prefix: "none"}
}

func (c *client) close() { c.http.CloseIdleConnections() }

// statusError is an answer that is not 200.
type statusError int

func (e statusError) Error() string { return fmt.Sprintf("status %d", int(e)) }

// classOf names errors by their status.
func classOf(err error) string {
	var status statusError
	switch {
	case errors.As(err, &status):
		return fmt.Sprint(int(status))
	case errors.Is(err, context.DeadlineExceeded):
		return load.Timeout
	}
	return load.Failed
}

// rank asks for a ranking of so many items.
func (c *client) rank(ctx context.Context, i, candidates int, deadline time.Duration) error {
	var b bytes.Buffer
	fmt.Fprintf(&b,
		`{"model":%q,"user":{"text":"Ada is into baking. Likes plain design.\n"},"prefix":%q,"top_k":1,"deadline_ms":%d,`+
			`"candidates":[`,
		c.models[i%len(c.models)], c.prefix, deadline.Milliseconds())
	for k := range candidates {
		if k > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"id":%q}`, c.items[(i*31+k)%len(c.items)])
	}
	b.WriteString("]}")
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+c.addr+"/v1/rank", &b)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	start := time.Now()
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return statusError(resp.StatusCode)
	}
	c.account(text, time.Since(start))
	return nil
}

// account notes the time of an answer that the server did not see: before it read the request, and after it had the
// answer.
func (c *client) account(text []byte, took time.Duration) {
	var answer struct {
		Timing struct {
			Total float64 `json:"total"`
		} `json:"timing_ms"`
	}
	if json.Unmarshal(text, &answer) != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.outside = append(c.outside, float64(took)/float64(time.Millisecond)-answer.Timing.Total)
}

// takeOutside returns the median and the 99th percentile of the times that the server did not see, in milliseconds.
func (c *client) takeOutside() (p50, p99 float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	slices.Sort(c.outside)
	p50, p99 = report.Percentile(c.outside, 50), report.Percentile(c.outside, 99)
	c.outside = c.outside[:0]
	return p50, p99
}

const patience = 30 * time.Second

// prepare finds items, requests of them that take long enough, and how many of these the server answers.
func (c *client) prepare(ctx context.Context, o *Options, r *Report) error {
	if err := c.list(ctx); err != nil {
		return err
	}
	var err error
	if r.RequestMS, r.Capacity, err = c.calibrate(ctx, o.Least,
		max(3*time.Second, min(15*time.Second, o.Duration/3))); err != nil {
		return err
	}
	r.Candidates = c.candidates
	return nil
}

// calibrate finds how many items a request needs to take so long, its time in milliseconds, and how many such requests
// the server answers per second.
func (c *client) calibrate(ctx context.Context, least,
	duration time.Duration) (requestMS, capacity float64, err error) {
	for c.candidates = 2; ; c.candidates = c.candidates*5/4 + 1 {
		median, err := c.median(ctx, 9)
		if err != nil {
			return 0, 0, err
		}
		requestMS = float64(median) / float64(time.Millisecond)
		if median >= least*5/4 || c.candidates > len(c.items)/2 {
			break
		}
	}
	res, err := load.Closed(ctx, load.Options{Name: "capacity", Workers: 4, Duration: duration, Warmup: time.Second,
		Timeout: patience, Classify: classOf},
		func(ctx context.Context, i int) error { return c.rank(ctx, i, c.candidates, patience) })
	if err == nil && res.Throughput == 0 {
		err = fmt.Errorf("measure the capacity: no answer, errors %v", res.Errors)
	}
	return requestMS, res.Throughput, err
}

// median returns the median time of n requests, one after the other.
func (c *client) median(ctx context.Context, n int) (time.Duration, error) {
	times := make([]time.Duration, n)
	for i := range times {
		start := time.Now()
		if err := c.rank(ctx, i, c.candidates, patience); err != nil {
			return 0, fmt.Errorf("rank %d candidates: %w", c.candidates, err)
		}
		times[i] = time.Since(start)
	}
	slices.Sort(times)
	return report.Percentile(times, 50), nil
}

func (c *client) list(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.addr+"/v1/items?limit=1000", nil)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var list struct {
		IDs []string `json:"ids"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil || len(list.IDs) == 0 {
		return fmt.Errorf("list items: %d of them, %w", len(list.IDs), err)
	}
	c.items = list.IDs
	return nil
}

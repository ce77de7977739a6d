package ahead

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"grebe/bench/drive"
	"grebe/bench/load"
	"grebe/bench/report"
	"grebe/workload"
)

// Latency compares requests with indexing and without. Times are milliseconds, one of each slice.
type Latency struct {
	Capacity float64   `json:"capacity"` // rankings per second
	Rate     float64   `json:"rate"`     // of the requests: half of the capacity
	Seconds  float64   `json:"seconds"`  // of a slice
	Before   []float64 `json:"before_p99_ms"`
	With     []float64 `json:"with_p99_ms"`
	After    []float64 `json:"after_p99_ms"`
	Tokens   float64   `json:"tokens_per_s"` // computed ahead during the slices with indexing
	Ratio    float64   `json:"ratio"`        // median over the rounds
	Low      float64   `json:"low"`          // 95 % interval of the ratio
	High     float64   `json:"high"`
	Requests int       `json:"requests"`
}

const (
	// share of the capacity that requests take.
	share = 0.5
	// leastRequests is expected in a slice. With fewer, single requests decide the P99.
	leastRequests = 300
	// firstItems is the size of the first catalog. It doubles when a pass over it ends before a slice does.
	firstItems = 1 << 11
	mostItems  = 1 << 18
)

// latency measures rounds. Each has a server of its own, because an item is computed only once.
func (s *site) latency(ctx context.Context) (*Latency, error) {
	l, items := &Latency{}, firstItems
	for len(l.With) < s.o.Rounds {
		err := s.round(ctx, items, l)
		if errors.Is(err, errTooFew) && items < mostItems {
			items *= 2
			fmt.Fprintf(s.o.Progress, "latency: indexing ended before a slice did; going on with %d items\n", items)
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("round %d with %d items: %w", len(l.With), items, err)
		}
		fmt.Fprintf(s.o.Progress, "latency: %d of %d rounds\n", len(l.With), s.o.Rounds)
	}
	ratios := make([]float64, len(l.With))
	for i := range ratios {
		ratios[i] = l.ratio(i)
	}
	l.Ratio, l.Tokens = report.Median(ratios), l.Tokens/float64(s.o.Rounds)
	l.Low, l.High = report.Interval(ratios)
	return l, nil
}

// ratio compares the slice with indexing with the geometric mean of the slices around it. A machine that becomes slower
// or faster at a steady pace does not change it.
func (l *Latency) ratio(round int) float64 {
	return l.With[round] / math.Sqrt(l.Before[round]*l.After[round])
}

// writeItems writes a catalog of n items: those of the shop, and variants of them.
func (s *site) writeItems(name string, n int) error {
	var b strings.Builder
	for i := range n {
		it := s.lines[i%len(s.lines)]
		b.WriteString(strings.ReplaceAll(it.line, `"`+it.id+`"`, `"`+s.variant(i)+`"`))
	}
	return os.WriteFile(name, []byte(b.String()), 0o600)
}

// variant returns the id of item i of a catalog by writeItems.
func (s *site) variant(i int) string {
	return fmt.Sprintf("%s-%d", s.lines[i%len(s.lines)].id, i/len(s.lines))
}

// loaded is a server under load.
type loaded struct {
	site   *site
	server *drive.Server
	client *http.Client
	items  int
	seed   uint64
}

// errTooFew means that all items were computed before the slice ended.
var errTooFew = errors.New("indexing ended before the slice did")

// round measures three slices of one server: before, with and after indexing. The same requests come at the same times
// in all three.
func (s *site) round(ctx context.Context, items int, l *Latency) (err error) {
	catalog := filepath.Join(s.dir, "many.ndjson")
	if err := s.writeItems(catalog, items); err != nil {
		return err
	}
	server, err := s.start(ctx, drive.Setting{Key: "cache.ahead", Value: "off"},
		drive.Setting{Key: "catalog.items", Value: catalog},
		drive.Setting{Key: "models[0].host_memory", Value: "4GiB"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	w := &loaded{site: s, server: server, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}},
		items: items, seed: uint64(len(l.With))}
	defer w.client.CloseIdleConnections()
	if err := w.calibrate(ctx, l); err != nil {
		return err
	}
	before, err := w.slice(ctx, l)
	if err != nil {
		return err
	}
	with, tokens, err := w.sliceWith(ctx, l)
	if err != nil {
		return err
	}
	if err := w.settle(ctx); err != nil {
		return err
	}
	after, err := w.slice(ctx, l)
	if err != nil {
		return err
	}
	l.Before, l.With, l.After = append(l.Before, before.Latency.P99), append(l.With, with.Latency.P99),
		append(l.After, after.Latency.P99)
	l.Requests += before.Answered + with.Answered + after.Answered
	l.Tokens += tokens
	return nil
}

// sliceWith measures a slice with indexing, and the tokens per second that it computed.
func (w *loaded) sliceWith(ctx context.Context, l *Latency) (load.Result, float64, error) {
	began := time.Now()
	if _, err := indexing(ctx, w.client, http.MethodPost, w.server.URL); err != nil {
		return load.Result{}, 0, err
	}
	res, err := w.slice(ctx, l)
	if err != nil {
		return res, 0, err
	}
	p, err := indexing(ctx, w.client, http.MethodGet, w.server.URL)
	switch {
	case err != nil:
	case p.State == "done":
		err = errTooFew
	case p.State != "computing":
		err = fmt.Errorf("indexing is %s after %d items", p.State, p.Computed)
	}
	return res, float64(p.Tokens) / time.Since(began).Seconds(), err
}

// settle waits for the end of indexing, which is fast while no requests come.
func (w *loaded) settle(ctx context.Context) error {
	for {
		p, err := indexing(ctx, w.client, http.MethodGet, w.server.URL)
		if err != nil || p.State != "computing" {
			return err
		}
		if err := wait(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

// rank sends ranking i. It reuses nothing, so that it costs the same before and after indexing.
func (w *loaded) rank(ctx context.Context, i int) error {
	r := rand.New(rand.NewPCG(w.seed, uint64(i)))
	ids := make([]string, w.site.o.Candidates)
	for k, from := 0, r.IntN(w.items); k < len(ids); k++ { // none of them twice
		ids[k] = w.site.variant((from + 31*k) % w.items)
	}
	_, err := rank(ctx, w.client, w.server.URL, "none", stranger(r.Uint64(), things), ids)
	return err
}

// calibrate warms the server. The first time it also measures the capacity.
func (w *loaded) calibrate(ctx context.Context, l *Latency) error {
	o := load.Options{Name: "capacity", Workers: 4, Duration: 4 * time.Second, Warmup: time.Second, Timeout: time.Minute}
	if l.Capacity > 0 {
		o.Duration = time.Second
	}
	res, err := load.Closed(ctx, o, func(ctx context.Context, i int) error { return w.rank(ctx, -1-i) })
	if err != nil {
		return err
	}
	if res.Throughput == 0 {
		return fmt.Errorf("measure the capacity: no answer, errors %v", res.Errors)
	}
	if l.Capacity == 0 {
		l.Capacity, l.Rate = res.Throughput, share*res.Throughput
		l.Seconds = max(w.site.o.Slice.Seconds(), leastRequests/l.Rate)
		fmt.Fprintf(w.site.o.Progress, "latency: %.1f rankings/s in slices of %.1f s\n", l.Rate, l.Seconds)
	}
	return nil
}

// slice measures requests for a slice.
func (w *loaded) slice(ctx context.Context, l *Latency) (load.Result, error) {
	res, err := load.Open(ctx, load.Options{
		Name: "rankings", Arrivals: workload.Poisson(l.Rate, w.seed),
		Duration: time.Duration(l.Seconds * float64(time.Second)),
		Warmup:   500 * time.Millisecond, Timeout: time.Minute,
	}, w.rank)
	if err == nil && len(res.Errors) > 0 {
		err = fmt.Errorf("errors %v", res.Errors)
	}
	return res, err
}

// write shows a report to people.
func (r *Report) write(w io.Writer) error {
	if u := r.Reuse; u != nil {
		fmt.Fprintf(w, "reuse: %d one-shot users, prompts of %.0f tokens, %d items computed ahead\n", u.Requests, u.Tokens,
			u.Items)
		t := report.Table(w)
		fmt.Fprintf(t, "cache.ahead\treused\tfirst tenth\t\n")
		fmt.Fprintf(t, "on\t%.1f %%\t%.1f %%\t\n", 100*u.Ahead, 100*u.First)
		fmt.Fprintf(t, "off\t%.1f %%\t%.1f %%\t\n", 100*u.Off, 100*u.OffFirst)
		if err := t.Flush(); err != nil {
			return err
		}
		fmt.Fprintf(w, "bar: %.0f %%; with all items cached %.1f %% can be reused\n", 100*leastReused, 100*u.Most)
	}
	if l := r.Latency; l != nil {
		fmt.Fprintf(w, "latency: %d rankings, %.1f/s (half of the capacity), in slices of %.1f s; indexing computed %.0f "+
			"tokens/s\n",
			l.Requests, l.Rate, l.Seconds, l.Tokens)
		t := report.Table(w)
		fmt.Fprintf(t, "round\tP99 before\twith indexing\tafter\tratio\t\n")
		for i := range l.With {
			fmt.Fprintf(t, "%d\t%.1f ms\t%.1f ms\t%.1f ms\t%.3f\t\n", i, l.Before[i], l.With[i], l.After[i], l.ratio(i))
		}
		if err := t.Flush(); err != nil {
			return err
		}
		fmt.Fprintf(w, "median ratio %.3f [%.3f, %.3f]; bar: %.2f\n", l.Ratio, l.Low, l.High, mostRatio)
		if l.Low <= mostRatio && mostRatio < l.High {
			fmt.Fprintf(w, "the interval includes the bar: this machine needs more rounds to decide\n")
		}
	}
	fmt.Fprintf(w, "passed: %v\n", r.Passed)
	return nil
}

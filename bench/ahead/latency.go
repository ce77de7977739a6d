package ahead

import (
	"context"
	"errors"
	"fmt"
	"io"
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

// Latency is what requests saw with indexing going on, and without. Times are milliseconds, one of each window.
type Latency struct {
	Capacity float64   `json:"capacity"` // rankings per second
	Rate     float64   `json:"rate"`     // half of that
	Without  []float64 `json:"without_p99_ms"`
	With     []float64 `json:"with_p99_ms"`
	Tokens   float64   `json:"tokens_per_s"` // computed ahead beside requests
	Ratio    float64   `json:"ratio"`        // of with to without, the median of the rounds
	Low      float64   `json:"low"`          // 95 % interval of the ratio
	High     float64   `json:"high"`
	Requests int       `json:"requests"`
}

// share of the capacity that rankings take.
const share = 0.5

// latency measures windows in turns. Each round has a server of its own, since items are computed once.
func (s *site) latency(ctx context.Context) (*Latency, error) {
	items := filepath.Join(s.dir, "many.ndjson")
	if err := s.writeCopies(items); err != nil {
		return nil, err
	}
	l := &Latency{}
	for round := range s.o.Rounds {
		if err := s.round(ctx, items, round, l); err != nil {
			return nil, fmt.Errorf("round %d: %w", round, err)
		}
	}
	ratios := report.Ratios(l.With, l.Without)
	l.Ratio, l.Tokens = report.Median(ratios), l.Tokens/(float64(s.o.Rounds)*s.o.Window.Seconds())
	l.Low, l.High = report.Interval(ratios)
	return l, nil
}

// writeCopies writes a catalog with several variants of each item.
func (s *site) writeCopies(name string) error {
	var b strings.Builder
	for c := range s.o.Copies {
		for _, it := range s.lines {
			b.WriteString(strings.ReplaceAll(it.line, `"`+it.id+`"`, fmt.Sprintf(`"%s-%d"`, it.id, c)))
		}
	}
	return os.WriteFile(name, []byte(b.String()), 0o600)
}

// window is one of a server's.
type window struct {
	site   *site
	server *drive.Server
	client *http.Client
	seed   uint64
}

// round takes a window with indexing and one without, in either order.
func (s *site) round(ctx context.Context, items string, round int, l *Latency) (err error) {
	server, err := s.start(ctx, drive.Setting{Key: "cache.ahead", Value: "off"}, drive.Setting{Key: "catalog.items", Value: items},
		drive.Setting{Key: "models[0].host_memory", Value: "4GiB"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	w := &window{site: s, server: server, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}}, seed: uint64(round)}
	defer w.client.CloseIdleConnections()
	if err := w.calibrate(ctx, l); err != nil {
		return err
	}
	with := func() error {
		if _, err := indexing(ctx, w.client, http.MethodPost, server.URL); err != nil {
			return err
		}
		if err := w.run(ctx, l, &l.With); err != nil {
			return err
		}
		p, err := indexing(ctx, w.client, http.MethodGet, server.URL)
		if l.Tokens += float64(p.Tokens); err == nil && p.State != "computing" {
			err = fmt.Errorf("indexing is %s after %d items before the window ended: raise --copies", p.State, p.Computed)
		}
		return err
	}
	without := func() error { return w.run(ctx, l, &l.Without) }
	if round%2 == 0 {
		return errors.Join(without(), with())
	}
	if err := errors.Join(with(), w.settle(ctx)); err != nil {
		return err
	}
	return without()
}

// settle waits for the end of indexing, which is soon when nobody asks for anything.
func (w *window) settle(ctx context.Context) error {
	for {
		p, err := indexing(ctx, w.client, http.MethodGet, w.server.URL)
		if err != nil || p.State != "computing" {
			return err
		}
		if err := wait(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}

// rank sends a ranking that finds nothing of its own in the cache, whatever was computed ahead.
func (w *window) rank(ctx context.Context, i int) error {
	r := rand.New(rand.NewPCG(w.seed, uint64(i)))
	ids, all := make([]string, w.site.o.Candidates), w.site.lines
	for k, from := 0, r.IntN(len(all)); k < len(ids); k++ { // none of them twice
		ids[k] = fmt.Sprintf("%s-%d", all[(from+31*k)%len(all)].id, k%w.site.o.Copies)
	}
	_, err := rank(ctx, w.client, w.server.URL, "none", stranger(r.Uint64(), things), ids)
	return err
}

// calibrate finds the capacity, once, and warms each server.
func (w *window) calibrate(ctx context.Context, l *Latency) error {
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
	}
	return nil
}

// run sends rankings for a window and adds their P99.
func (w *window) run(ctx context.Context, l *Latency, to *[]float64) error {
	res, err := load.Open(ctx, load.Options{
		Name: "rankings", Arrivals: workload.Poisson(l.Rate, w.seed), Duration: w.site.o.Window, Warmup: time.Second, Timeout: time.Minute,
	}, w.rank)
	if err == nil && len(res.Errors) > 0 {
		err = fmt.Errorf("errors %v", res.Errors)
	}
	*to = append(*to, res.Latency.P99)
	l.Requests += res.Answered
	return err
}

// write shows a report to people.
func (r *Report) write(w io.Writer) error {
	if u := r.Reuse; u != nil {
		fmt.Fprintf(w, "reuse: %d one-shot users, prompts of %.0f tokens, %d items computed ahead\n", u.Requests, u.Tokens, u.Items)
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
		fmt.Fprintf(w, "latency: %.1f rankings/s of %.1f that the server can do, %d in all; %.0f tokens/s computed ahead beside them\n",
			l.Rate, l.Capacity, l.Requests, l.Tokens)
		t := report.Table(w)
		fmt.Fprintf(t, "round\tP99 without\tP99 with\tratio\t\n")
		for i := range l.With {
			fmt.Fprintf(t, "%d\t%.1f ms\t%.1f ms\t%.3f\t\n", i, l.Without[i], l.With[i], l.With[i]/l.Without[i])
		}
		if err := t.Flush(); err != nil {
			return err
		}
		fmt.Fprintf(w, "median ratio %.3f [%.3f, %.3f]; bar: %.2f\n", l.Ratio, l.Low, l.High, mostRatio)
	}
	fmt.Fprintf(w, "passed: %v\n", r.Passed)
	return nil
}

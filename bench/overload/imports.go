package overload

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"time"

	"grebe/bench/load"
	"grebe/bench/report"
	"grebe/workload"
)

// ImportOptions are those of RunImport. Zero values mean the default.
type ImportOptions struct {
	Program string        // the path of grebe; required
	Config  string        // of the server; required
	Catalog string        // its items, NDJSON; required
	Models  []string      // that are ranked with, in turn; required
	Items   int           // of an import; 10,000
	Window  time.Duration // 20 s
	Rounds  int           // windows of each kind; 4
	Share   float64       // of the capacity that rankings take; 0.3
	Events  float64       // per second; 20
	Least   time.Duration // that a ranking takes; 20 ms
	Prefix  string        // what rankings reuse: none
	JSON    bool
}

func (o *ImportOptions) setDefaults() {
	for _, d := range []struct {
		v   *int
		def int
	}{{&o.Items, 10_000}, {&o.Rounds, 4}} {
		if *d.v == 0 {
			*d.v = d.def
		}
	}
	for _, d := range []struct {
		v   *float64
		def float64
	}{{&o.Share, .3}, {&o.Events, 20}} {
		if *d.v == 0 {
			*d.v = d.def
		}
	}
	if o.Window == 0 {
		o.Window = 20 * time.Second
	}
	if o.Least == 0 {
		o.Least = 20 * time.Millisecond
	}
	if o.Prefix == "" {
		o.Prefix = "none"
	}
}

// The bars beside an import.
const (
	importRatio = 1.2 // of the P99 of rankings
	mostEventMS = 100
)

// Beside is what clients saw of a server, alone or beside imports.
type Beside struct {
	Rankings load.Result `json:"rankings"`
	Events   load.Result `json:"events"`
}

// ImportReport is what RunImport found.
type ImportReport struct {
	Models     int       `json:"models"`
	Items      int       `json:"items"` // of an import
	Candidates int       `json:"candidates"`
	RequestMS  float64   `json:"request_ms"`
	Capacity   float64   `json:"capacity"`
	ImportS    []float64 `json:"import_s"`  // until each import was acknowledged
	SettledS   []float64 `json:"settled_s"` // after the window, until what it left to do was done
	Alone      Beside    `json:"alone"`
	Beside     Beside    `json:"beside"`
	Ratio      float64   `json:"ratio"`   // of the rankings' P99
	Refused    int       `json:"refused"` // with 429, beside imports
	Failed     int       `json:"failed"`  // otherwise
	Passed     bool      `json:"passed"`
}

// judge compares the two kinds of windows.
func (r *ImportReport) judge() {
	r.Ratio = r.Beside.Rankings.Latency.P99 / r.Alone.Rankings.Latency.P99
	r.Refused, r.Failed = 0, 0
	for _, res := range []*load.Result{&r.Beside.Rankings, &r.Beside.Events} {
		for class, n := range res.Errors {
			if class == "429" {
				r.Refused += n
			} else {
				r.Failed += n
			}
		}
	}
	r.Passed = r.Ratio <= importRatio && r.Refused == 0 && r.Failed == 0 && r.Beside.Events.Answered > 0 &&
		r.Beside.Events.Latency.Max <= mostEventMS
}

// RunImport ranks and sends events at a rate that the server can do, in windows that take turns: alone, and beside
// an import that begins with the window and changes every item. The items' KV is computed before, so that an import
// has something to remove and to compute again. Between windows RunImport waits until the server is idle.
func RunImport(ctx context.Context, o ImportOptions, w io.Writer) (*ImportReport, error) {
	o.setDefaults()
	if out, err := exec.CommandContext(ctx, o.Program, "index", "-c", o.Config).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("bench import: compute the items: %w\n%s", err, out)
	}
	addr, stop, err := start(ctx, o.Program, "serve", "-c", o.Config, "--admin-listen", "", "--grpc-listen", "",
		"--log-level", "error")
	if err != nil {
		return nil, fmt.Errorf("bench import: start the server: %w", err)
	}
	defer stop()
	c := newClient(addr)
	defer c.close()
	c.models, c.prefix = o.Models, o.Prefix
	r, err := c.besideImports(ctx, &o)
	if err != nil {
		return nil, fmt.Errorf("bench import: %w", err)
	}
	if o.JSON {
		return r, report.JSON(w, r)
	}
	return r, r.write(w)
}

func (c *client) besideImports(ctx context.Context, o *ImportOptions) (*ImportReport, error) {
	items, err := readItems(o.Catalog, o.Items)
	if err != nil {
		return nil, err
	}
	if err := c.imports(ctx, items, 0); err != nil { // from here on every import changes all of them
		return nil, err
	}
	if _, err := c.settle(ctx); err != nil {
		return nil, err
	}
	if err := c.list(ctx); err != nil {
		return nil, err
	}
	r := &ImportReport{Models: len(o.Models), Items: len(items)}
	if r.RequestMS, r.Capacity, err = c.calibrate(ctx, o.Least, max(3*time.Second, o.Window/2)); err != nil {
		return nil, err
	}
	r.Candidates = c.candidates
	var alone, beside [2][]load.Result
	for round := range o.Rounds {
		seed := uint64(round)
		if err := c.window(ctx, o, r.Capacity, seed, &alone); err != nil {
			return nil, err
		}
		imported := make(chan error, 1)
		start, took := time.Now(), 0.0
		go func() {
			err := c.imports(ctx, items, round+1)
			took = time.Since(start).Seconds()
			imported <- err
		}()
		err := c.window(ctx, o, r.Capacity, seed, &beside)
		if failed := <-imported; failed != nil || err != nil {
			return nil, fmt.Errorf("beside import %d: %w", round+1, firstOf(err, failed))
		}
		rest, err := c.settle(ctx)
		if err != nil {
			return nil, err
		}
		r.ImportS, r.SettledS = append(r.ImportS, took), append(r.SettledS, rest.Seconds())
	}
	r.Alone = Beside{load.Merge(alone[0]...), load.Merge(alone[1]...)}
	r.Beside = Beside{load.Merge(beside[0]...), load.Merge(beside[1]...)}
	r.judge()
	return r, nil
}

// window sends rankings and events for a while, and adds what became of them.
func (c *client) window(ctx context.Context, o *ImportOptions, capacity float64, seed uint64,
	to *[2][]load.Result) error {
	var results [2]load.Result
	var errs [2]error
	var wg sync.WaitGroup
	send := func(i int, name string, a workload.Arrivals, do load.Do) {
		wg.Go(func() {
			results[i], errs[i] = load.Open(ctx, load.Options{
				Name: name, Arrivals: a, Duration: o.Window, Timeout: patience, Classify: classOf}, do)
		})
	}
	send(0, "rankings", workload.Poisson(o.Share*capacity, seed), func(ctx context.Context, i int) error {
		return c.rank(ctx, i, c.candidates, patience)
	})
	send(1, "events", workload.Poisson(o.Events, seed+1<<32), func(ctx context.Context, i int) error {
		body := fmt.Sprintf(`{"events":[{"item":%q,"time":%d}]}`, c.items[i%len(c.items)], time.Now().Unix())
		return c.post(ctx, fmt.Sprintf("/v1/users/visitor-%d/events", i%500), "application/json", strings.NewReader(body))
	})
	wg.Wait()
	for i := range results {
		to[i] = append(to[i], results[i])
	}
	return firstOf(errs[:]...)
}

func (c *client) post(ctx context.Context, path, kind string, body io.Reader) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+c.addr+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", kind)
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return statusError(resp.StatusCode)
	}
	return nil
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// readItems reads so many items of a catalog. Further ones are made of those, under other ids.
func readItems(catalog string, n int) ([]map[string]any, error) {
	var all []map[string]any
	for line := range strings.Lines(catalog) {
		var item map[string]any
		if err := json.Unmarshal([]byte(line), &item); err != nil {
			return nil, fmt.Errorf("read the items: %w", err)
		}
		if all = append(all, item); len(all) == n {
			return all, nil
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("read the items: there are none")
	}
	for i, of := len(all), len(all); i < n; i++ {
		item := map[string]any{}
		for name, v := range all[i%of] {
			item[name] = v
		}
		item["id"] = fmt.Sprintf("more-%d", i)
		all = append(all, item)
	}
	return all, nil
}

// batchLines is how many items "grebe import" sends at once.
const batchLines = 100

// imports changes the text of all items, as "grebe import" does: in batches that become one version.
func (c *client) imports(ctx context.Context, items []map[string]any, round int) error {
	path := fmt.Sprintf("/v1/items:batch?import=round-%d", round)
	var b bytes.Buffer
	for i, it := range items {
		text := it["text"]
		it["text"] = fmt.Sprintf("%v, edition %d", text, round)
		line, err := json.Marshal(it)
		it["text"] = text
		if err != nil {
			return err
		}
		b.Write(append(line, '\n'))
		if i%batchLines == batchLines-1 || i == len(items)-1 {
			if err := c.post(ctx, path, "application/x-ndjson", &b); err != nil {
				return fmt.Errorf("import items: %w", err)
			}
			b.Reset()
		}
	}
	if err := c.post(ctx, path+"&end", "application/x-ndjson", strings.NewReader("")); err != nil {
		return fmt.Errorf("end the import: %w", err)
	}
	return nil
}

// quiet is a share of a core below which a server does nothing to speak of.
const quiet = .1

// settle waits until the server has nothing to do any more, and returns how long it was busy.
func (c *client) settle(ctx context.Context) (time.Duration, error) {
	start := time.Now()
	last, err := c.cpuSeconds(ctx)
	if err != nil {
		return 0, err
	}
	for calm := 0; calm < 2; {
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		now, err := c.cpuSeconds(ctx)
		if err != nil {
			return 0, err
		}
		if calm++; now-last > quiet {
			calm = 0
		}
		last = now
	}
	return time.Since(start) - 2*time.Second, nil
}

// cpuSeconds asks the server how much of a processor it took so far.
func (c *client) cpuSeconds(ctx context.Context) (float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.addr+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	const name = "\nprocess_cpu_seconds_total "
	_, rest, _ := strings.Cut(string(text), name)
	var v float64
	if _, err := fmt.Sscan(rest, &v); err != nil {
		return 0, fmt.Errorf("read%sof the server: %w", strings.ReplaceAll(name, "\n", " "), err)
	}
	return v, nil
}

func (r *ImportReport) write(w io.Writer) error {
	fmt.Fprintf(w, "Rankings of %d candidates with %d models in turn: %.1f ms by themselves, capacity %.1f/s; imports "+
		"of %d changed items\n",
		r.Candidates, r.Models, r.RequestMS, r.Capacity, r.Items)
	fmt.Fprintf(w, "Imports acknowledged after %.1f s; busy after the window for %.1f s\n\n", r.ImportS, r.SettledS)
	t := report.Table(w)
	fmt.Fprintln(t, "\toffered/s\tanswers\tP50 ms\tP90 ms\tP99 ms\tmax ms\trefused or failed\t")
	row := func(name string, x *load.Result) {
		fmt.Fprintf(t, "%s\t%.1f\t%d\t%.1f\t%.1f\t%.1f\t%.1f\t%v\t\n", name, x.Offered, x.Answered, x.Latency.P50,
			x.Latency.P90, x.Latency.P99, x.Latency.Max, x.Errors)
	}
	row("rankings alone", &r.Alone.Rankings)
	row("beside", &r.Beside.Rankings)
	row("events alone", &r.Alone.Events)
	row("beside", &r.Beside.Events)
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	for _, line := range []struct {
		what string
		ok   bool
	}{
		{fmt.Sprintf("P99 of rankings beside imports %.2f times that alone, at most %g", r.Ratio, importRatio),
			r.Ratio <= importRatio},
		{fmt.Sprintf("%d requests refused with 429, %d failed, at most 0", r.Refused, r.Failed), r.Refused+r.Failed == 0},
		{fmt.Sprintf("all events acknowledged within %.1f ms, at most %d", r.Beside.Events.Latency.Max, mostEventMS),
			r.Beside.Events.Latency.Max <= mostEventMS},
	} {
		fmt.Fprintf(w, "%s  %s\n", verdict(line.ok), line.what)
	}
	return nil
}

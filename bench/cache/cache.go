// Package cache measures eviction.
//
// The floor compares the default policy with LRU at every request of real traces, generated loops or a user's own
// trace.
//
// Run replays traces in virtual time through package residency, with every policy of package evict and with the
// offline optimum. For each policy it reports the share of the gap between LRU and the optimum that it closes. It also
// reports the time to the first token and the cost of an access. Predictions are learned during the replay from
// earlier requests. Predictors get the features that the server's do, from the same extractor.
//
// The error sweep replaces a share of perfect predictions by wrong ones. The package also times training and
// prediction, and trains XGBoost on the same samples where it is installed.
//
// Only times differ between runs: traces are files or have fixed seeds, and models train between two requests.
//
// Which data was used for tuning is part of the report. Defaults of package evict were chosen by looking at the whole
// real traces. "2nd half" counts the hits of the second half, with caches and models warm from the first. The
// generated traces were never tuned on.
package cache

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"runtime"
	"slices"
	"sync"
	"time"

	"grebe/bench/rank"
	"grebe/bench/rivals"
	"grebe/evict"
)

// Options say what Run measures. Zero values stand for defaults.
type Options struct {
	Data     string    // folder of the real traces; ../shared/data/traces
	Traces   []string  // names; all, or none beside File
	File     string    // a user's own trace, replayed first
	Format   string    // of File, one of Formats; text
	Sizes    []float64 // shares of the distinct keys; 0.01, 0.03, 0.1, 0.3
	Policies []string  // beside lru and the optimum; all
	Parts    []string  // table, floor, replay, sweep, train, rank; all, with File floor and replay
	XGBoost  bool      // train XGBoost on the same samples
	Python   string    // that has XGBoost; python3
	Dir      string    // folder of the checkpoint for rank; in the user's cache folder
	SVG      string    // file for the plot of the error sweep
	JSON     bool
}

// policies are those shown, in order.
var policies = []string{"lru", "sieve", "laru", rivals.LARUCost, rivals.Blind, rivals.Filtered, "default"}

// parts of a run, in order.
var parts = []string{"table", "floor", "replay", "sweep", "train", "rank"}

// Validate reports the first option that makes no sense.
func (o Options) Validate() error { return o.setDefaults() }

func (o *Options) setDefaults() error {
	if o.Data == "" {
		o.Data = "../shared/data/traces"
	}
	if o.Format == "" {
		o.Format = "text"
	}
	if !knownFormat(o.Format) {
		return fmt.Errorf("format %q is not one of %q", o.Format, Formats)
	}
	if len(o.Traces) == 0 && o.File == "" {
		o.Traces = Traces()
	}
	for _, name := range o.Traces {
		if !slices.Contains(Traces(), name) {
			return fmt.Errorf("trace %q is not one of %q", name, Traces())
		}
	}
	if len(o.Sizes) == 0 {
		o.Sizes = []float64{.01, .03, .1, .3}
	}
	if len(o.Policies) == 0 {
		o.Policies = policies
	}
	if len(o.Parts) == 0 {
		o.Parts = parts
		if o.File != "" {
			o.Parts = []string{"floor", "replay"}
		}
	}
	if o.Python == "" {
		o.Python = "python3"
	}
	for _, p := range o.Parts {
		if !slices.Contains(parts, p) {
			return fmt.Errorf("part %q is not one of %q", p, parts)
		}
	}
	for _, s := range o.Sizes {
		if !(s > 0 && s <= 1) {
			return fmt.Errorf("cache of %v of the keys: want a share", s)
		}
	}
	for _, p := range o.Policies {
		if !slices.Contains(evict.Names(), p) {
			return fmt.Errorf("policy %q is not one of %q", p, evict.Names())
		}
	}
	return nil
}

func (o *Options) part(name string) bool { return slices.Contains(o.Parts, name) }

// Report is what Run found.
type Report struct {
	Date    string          `json:"date"`
	Tuned   string          `json:"tuned"`
	Table   []Known         `json:"table,omitempty"`
	Floor   []Floor         `json:"floor,omitempty"`
	Results []Result        `json:"results,omitempty"`
	Sweep   []Error         `json:"sweep,omitempty"`
	Train   *Training       `json:"train,omitempty"`
	Rank    []rank.Eviction `json:"rank,omitempty"`
	Skipped []string        `json:"skipped,omitempty"`
	Checks  []Check         `json:"checks"`
}

// Known compares a hit rate with that of another simulator.
type Known struct {
	Trace     string  `json:"trace"`
	Share     float64 `json:"share"`
	Policy    string  `json:"policy"`
	Rate      float64 `json:"rate"`
	Published string  `json:"published"`
	Same      bool    `json:"same"`
}

// Result is one policy on one trace at one size.
type Result struct {
	Trace      string  `json:"trace"`
	Share      float64 `json:"share"`
	Entries    int     `json:"entries"`
	Policy     string  `json:"policy"`
	Rate       float64 `json:"hit_rate"`
	Closed     float64 `json:"gap_closed"`          // share of the way from LRU to the optimum
	HeldOut    float64 `json:"gap_closed_held_out"` // the same in the second half
	P99        float64 `json:"p99_ttft_ms"`
	NsPerReq   float64 `json:"ns_per_access"`
	TrainShare float64 `json:"train_share,omitempty"` // of the replay's time
	RMS        float64 `json:"prediction_rms,omitempty"`
}

// Check is a target and whether it was reached.
type Check struct {
	What string `json:"what"`
	Got  string `json:"got"`
	OK   bool   `json:"ok"`
}

// Passed reports whether all were reached.
func Passed(checks []Check) bool {
	return !slices.ContainsFunc(checks, func(c Check) bool { return !c.OK })
}

func (r *Report) check(ok bool, what, format string, args ...any) {
	r.Checks = append(r.Checks, Check{what, fmt.Sprintf(format, args...), ok})
}

const tuned = "defaults of the policy and the predictor were chosen on the real traces; 2nd half: hits of the second " +
	"half only"

// Run measures and writes tables, or the report as JSON, to w.
func Run(ctx context.Context, o Options, w io.Writer) (*Report, error) {
	if err := o.setDefaults(); err != nil {
		return nil, fmt.Errorf("bench cache: %w", err)
	}
	r := &Report{Date: time.Now().UTC().Format(time.DateOnly), Tuned: tuned}
	p := &printer{w: w, json: o.JSON}
	var traces []*trace
	if o.File != "" {
		t, err := openFile(o.File, o.Format)
		if err != nil {
			return nil, fmt.Errorf("bench cache: %w", err)
		}
		traces = append(traces, t)
	}
	for _, name := range o.Traces {
		t, err := open(o.Data, name)
		if errors.Is(err, fs.ErrNotExist) {
			r.Skipped = append(r.Skipped, fmt.Sprintf("%s: %v", name, err))
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("bench cache: %w", err)
		}
		traces = append(traces, t)
	}
	for _, s := range r.Skipped {
		p.printf("skipped: %s\n", s)
	}
	steps := []struct {
		part string
		do   func(context.Context, *Options, []*trace, *printer) error
	}{{"table", r.table}, {"floor", r.floor}, {"replay", r.replay}, {"sweep", r.sweep}, {"train", r.train},
		{"rank", r.rank}}
	for _, s := range steps {
		if !o.part(s.part) {
			continue
		}
		if err := s.do(ctx, &o, traces, p); err != nil {
			return nil, fmt.Errorf("bench cache: %s: %w", s.part, err)
		}
	}
	return r, p.finish(r)
}

// published are hit rates of LRU, SIEVE and the optimum, measured with another simulator (README.md of the data).
var published = map[string]map[float64][3]string{
	"scarab-recs": {
		.01: {".3471", ".4081", ".5335"}, .03: {".4576", ".4939", ".6401"}, .1: {".6060", ".6091", ".7503"},
		.3: {".7381", ".7300", ".7925"}},
	"mooncake-conversation": {
		.01: {".0523", ".0582", ".2463"}, .03: {".1252", ".0945", ".3479"}, .1: {".2784", ".1948", ".3664"},
		.3: {".3577", ".3486", ".3664"}},
	"mooncake-synthetic": {
		.01: {".0343", ".0179", ".1852"}, .03: {".1011", ".0577", ".3141"}, .1: {".2598", ".1761", ".5063"},
		.3: {".4876", ".4494", ".6396"}},
}

// table reproduces published hit rates before anything else is believed.
func (r *Report) table(ctx context.Context, o *Options, traces []*trace, p *printer) error {
	same := true
	for _, t := range traces {
		for _, share := range o.Sizes {
			want, ok := published[t.name][share]
			if !ok {
				continue
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			for i, name := range []string{"lru", "sieve", "optimum"} {
				hits, err := hitsOf(t, name, t.entries(share))
				if err != nil {
					return err
				}
				rate := float64(hits) / float64(len(t.keys))
				k := Known{t.name, share, name, rate, want[i], fmt.Sprintf("%.4f", rate)[1:] == want[i]}
				same = same && k.Same
				r.Table = append(r.Table, k)
			}
		}
	}
	if len(r.Table) == 0 {
		return nil
	}
	p.known(r.Table)
	r.check(same, "hit rates of LRU, SIEVE and the optimum as published", "%d of them", len(r.Table))
	return nil
}

func hitsOf(t *trace, policy string, k int) (int, error) {
	if policy == "optimum" {
		return evict.Optimal(t.keys, k), nil
	}
	o, err := replay(t, policy, k, nil)
	if err != nil {
		return 0, err
	}
	return o.hits, nil
}

// replay runs all policies over all traces.
func (r *Report) replay(ctx context.Context, o *Options, traces []*trace, p *printer) error {
	p.printf("\nhit rates; gap: share of the way from LRU to the optimum; predictions learnt online; %s\n", tuned)
	p.resultHead()
	for _, t := range traces {
		for _, share := range o.Sizes {
			if err := r.replayAt(ctx, o, t, share, p); err != nil {
				return fmt.Errorf("%s at %v: %w", t.name, share, err)
			}
		}
	}
	r.targets()
	return nil
}

func (r *Report) replayAt(ctx context.Context, o *Options, t *trace, share float64, p *printer) error {
	k := t.entries(share)
	lru, err := replay(t, "lru", k, nil)
	if err != nil {
		return err
	}
	best, err := replay(t, rivals.Blind, k, perfect(t)) // with perfect predictions, the optimum
	if err != nil {
		return err
	}
	gap := mean(warmServices(t, lru.hit)) / busy
	names := slices.Concat(o.Policies, []string{"optimum"})
	outs, err := replayAll(ctx, t, names, k, lru, best)
	if err != nil {
		return err
	}
	for i, name := range names {
		out := outs[i]
		total := out.ns*float64(len(t.keys)) + float64(out.trained)
		res := Result{
			Trace: t.name, Share: share, Entries: k, Policy: name, Rate: float64(out.hits) / float64(len(t.keys)),
			Closed: closed(out.hits, lru.hits, best.hits), HeldOut: closed(out.held, lru.held, best.held),
			P99: p99(warmServices(t, out.hit), gap), NsPerReq: out.ns, TrainShare: float64(out.trained) / total, RMS: out.rms,
		}
		r.Results = append(r.Results, res)
		p.result(&res)
	}
	return nil
}

// replayAll replays policies, as many at a time as there are processors.
func replayAll(ctx context.Context, t *trace, names []string, k int, lru, best *outcome) ([]*outcome, error) {
	outs, errs := make([]*outcome, len(names)), make([]error, len(names))
	slots := newSlots()
	var wg sync.WaitGroup
	for i, name := range names {
		switch {
		case name == "optimum":
			outs[i] = best
			continue
		case name == "lru":
			outs[i] = lru
			continue
		case name == rivals.LARUCost && t.costs == nil && slices.Contains(names, "laru"):
			continue // all cost the same: it is LARU
		}
		slots.take()
		wg.Go(func() {
			defer slots.give()
			if errs[i] = ctx.Err(); errs[i] != nil {
				return
			}
			var s source
			if evict.Predicts(name) {
				s = newLearnt(k)
			}
			outs[i], errs[i] = replay(t, name, k, s)
		})
	}
	wg.Wait()
	if i, laru := slices.Index(names, rivals.LARUCost), slices.Index(names, "laru"); i >= 0 && laru >= 0 &&
		t.costs == nil {
		outs[i] = outs[laru]
	}
	return outs, errors.Join(errs...)
}

// slots are as many as there are processors.
type slots chan struct{}

func newSlots() slots { return make(slots, runtime.GOMAXPROCS(0)) }
func (s slots) take() { s <- struct{}{} }
func (s slots) give() { <-s }

// closed is the share of the gap between LRU and the optimum; 0 where there is none.
func closed(hits, lru, best int) float64 {
	if best <= lru {
		return 0
	}
	return float64(hits-lru) / float64(best-lru)
}

// targets of the default policy: share of the gap.
var gapTargets = []struct {
	trace       string
	share, goal float64
}{
	{"scarab-recs", .01, .40}, {"scarab-recs", .1, .25}, {"mooncake-conversation", .03, .20},
	{"mooncake-synthetic", .1, .20},
}

func (r *Report) targets() {
	find := func(trace string, share float64, policy string) *Result {
		for i := range r.Results {
			if x := &r.Results[i]; x.Trace == trace && x.Share == share && x.Policy == policy {
				return x
			}
		}
		return nil
	}
	for _, g := range gapTargets {
		if x := find(g.trace, g.share, "default"); x != nil {
			r.check(x.Closed >= g.goal, fmt.Sprintf("%s at %g %%: default closes %g %% of the gap", g.trace, 100*g.share,
				100*g.goal),
				"%.1f %%, in the second half %.1f %%", 100*x.Closed, 100*x.HeldOut)
		}
	}
	worst, at := 0.0, "nowhere"
	for _, x := range r.Results {
		lru := find(x.Trace, x.Share, "lru")
		if x.Policy != "default" || lru == nil || lru.Rate == 0 {
			continue
		}
		if loss := 1 - x.Rate/lru.Rate; loss > worst {
			worst, at = loss, fmt.Sprintf("%s at %g %%", x.Trace, 100*x.Share)
		}
	}
	r.check(worst <= 0.01, "default never more than 1 % below LRU, learning online", "at worst %.2f %% (%s)", 100*worst,
		at)
}

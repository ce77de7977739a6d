package simpaper

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"grebe/bench/report"
	"grebe/internal/config"
	"grebe/placement"
	"grebe/sim"
)

// Options say how experiments are run.
type Options struct {
	Seeds  int    // runs of each trial, with other seeds; 1
	First  uint64 // the first of the seeds; 1. A Match wants some that nothing was chosen on
	Rates  int    // of Match: seeds for which rates are searched
	Beauty string // the file Beauty.txt of Amazon Beauty, for rcllm-local
	Log    func(format string, args ...any)
}

// Value is what one run found.
type Value struct {
	Run  string `json:"run"`
	Seed uint64 `json:"seed"`
	// requests per second of a closed loop, or the rate that was sustained
	Throughput float64   `json:"throughput,omitempty"`
	Rate       float64   `json:"rate,omitempty"` // requests per second that were sent
	Mean       float64   `json:"mean,omitempty"` // milliseconds; of local a share
	P50        float64   `json:"p50,omitempty"`
	P99        float64   `json:"p99,omitempty"`
	Hits       *sim.Hits `json:"hits,omitempty"`
	UserFirst  float64   `json:"user_first,omitempty"` // share of requests
	Remote     float64   `json:"remote_gbit_per_second,omitempty"`
	ItemBytes  int64     `json:"item_bytes,omitempty"` // of a node, for items alone
}

// runner runs the trials of an experiment.
type runner struct {
	*Experiment
	Options
	values map[string][]Value // by trial, one per seed
	closed map[string]float64 // throughput of closed loops, by trial and seed
	near   float64            // the last rate that was sustained
	size   *config.Part       // keys of the scenario that differ in all trials; nil: none
	past   uint64             // the seed of the requests that cuts are made from; 0: the run's
	cuts   map[string]*placement.Map
}

// Run runs an experiment and compares it with the paper.
func Run(ctx context.Context, e *Experiment, o Options) (*Report, error) {
	o.Seeds, o.First = max(o.Seeds, 1), max(o.First, 1)
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	r := &runner{Experiment: e, Options: o, values: map[string][]Value{}, closed: map[string]float64{},
		cuts: map[string]*placement.Map{}}
	for i := range e.Runs {
		t := &e.Runs[i]
		for seed := o.First; seed < o.First+uint64(o.Seeds); seed++ {
			v, err := r.trial(ctx, t, seed)
			if err == nil {
				err = ctx.Err()
			}
			if err != nil {
				return nil, fmt.Errorf("bench sim-paper: %s: %s: %w", e.Name, t.Name, err)
			}
			v.Run, v.Seed = t.Name, seed
			r.values[t.Name] = append(r.values[t.Name], *v)
			o.Log("  %s\n", v)
		}
	}
	return r.report(), nil
}

// String is a line of progress.
func (v *Value) String() string {
	s := fmt.Sprintf("%-18s seed %d", v.Run, v.Seed)
	if v.Throughput > 0 {
		s += fmt.Sprintf("  %.1f requests/s", v.Throughput)
	}
	if v.P99 > 0 {
		s += fmt.Sprintf("  mean %.3g, P50 %.3g, P99 %.3g", v.Mean, v.P50, v.P99)
	}
	if v.Hits != nil {
		s += fmt.Sprintf("  reused %.0f%%, users hit %.0f%%, user-first %.0f%%, %.2f Gb/s between nodes, %.0f GB for items",
			100*v.Hits.Total, 100*v.Hits.Users, 100*v.UserFirst, v.Remote, float64(v.ItemBytes)/1e9)
	}
	return s
}

func (r *runner) trial(ctx context.Context, t *Trial, seed uint64) (*Value, error) {
	switch r.Measure {
	case "footprint":
		return r.footprint(t, seed)
	case "local":
		return r.local(t, seed)
	case "throughput":
		return r.loop(ctx, t, seed)
	case "rate":
		return r.sustained(ctx, t, seed)
	case "latency":
		full, err := r.full(ctx, r.reference(t), seed)
		if err != nil {
			return nil, err
		}
		return r.at(ctx, t, seed, full*r.Load.Share, nil)
	}
	return nil, fmt.Errorf("no measure %q", r.Measure)
}

// reference returns the trial that the load of another one is relative to.
func (r *runner) reference(t *Trial) *Trial {
	group := t.Name[:strings.LastIndexByte(t.Name, '-')+1]
	for _, name := range []string{group + r.Load.Of, r.Load.Of} {
		for i := range r.Runs {
			if r.Runs[i].Name == name {
				return &r.Runs[i]
			}
		}
	}
	return t
}

// scenario returns a trial's scenario.
func (r *runner) scenario(t *Trial, seed uint64) (*sim.Scenario, error) {
	s := sim.Default()
	if err := config.Onto(&r.Scenario, s); err != nil {
		return nil, err
	}
	if err := config.Onto(&t.Set, s); err != nil {
		return nil, err
	}
	if r.size != nil {
		if err := config.Onto(r.size, s); err != nil {
			return nil, err
		}
	}
	s.Name, s.Seed = r.Name+"/"+t.Name, seed
	return s, nil
}

// stream returns a trial's stream.
func (r *runner) stream(t *Trial) *Stream {
	if t.Stream != nil {
		return t.Stream
	}
	return &r.Experiment.Stream
}

// clients per node of a closed loop.
const clients = 32

// aboutRate is the requests per second and node for which the times of a closed loop's stream are drawn: they decide
// how bursts overlap, not when requests are sent.
const aboutRate = 25

// loop runs a closed loop.
func (r *runner) loop(ctx context.Context, t *Trial, seed uint64) (*Value, error) {
	s, err := r.scenario(t, seed)
	if err != nil {
		return nil, err
	}
	if s.Load.Clients == 0 {
		s.Load.Clients = clients * s.Fleet.Nodes
	}
	return r.run(ctx, s, t, aboutRate*float64(s.Fleet.Nodes))
}

// capacity is the throughput of a trial's closed loop.
func (r *runner) capacity(ctx context.Context, t *Trial, seed uint64) (float64, error) {
	key := fmt.Sprint(t.Name, " ", seed)
	if v, ok := r.closed[key]; ok {
		return v, nil
	}
	v, err := r.loop(ctx, t, seed)
	if err != nil {
		return 0, err
	}
	r.closed[key] = v.Throughput
	return v.Throughput, nil
}

// full is the load that others are relative to: the throughput of a trial's closed loop, or its sustained rate.
func (r *runner) full(ctx context.Context, t *Trial, seed uint64) (float64, error) {
	if !r.Load.Sustained {
		return r.capacity(ctx, t, seed)
	}
	key := fmt.Sprint(t.Name, " ", seed)
	if v, ok := r.closed[key]; ok {
		return v, nil
	}
	v, err := r.sustained(ctx, t, seed)
	if err != nil {
		return 0, err
	}
	r.closed[key] = v.Throughput
	return v.Throughput, nil
}

// at runs a trial at a rate. Change may be nil.
func (r *runner) at(ctx context.Context, t *Trial, seed uint64, rate float64,
	change func(*sim.Scenario)) (*Value, error) {
	s, err := r.scenario(t, seed)
	if err != nil {
		return nil, err
	}
	if change != nil {
		change(s)
	}
	s.Load.Clients, s.Load.Rate = 0, rate
	return r.run(ctx, s, t, rate)
}

// width is how close the bounds of a sustained rate come.
const width = 0.02

// sustained finds the highest rate at which 99 % of the requests end within the SLO; of static trials, with the best
// share.
func (r *runner) sustained(ctx context.Context, t *Trial, seed uint64) (*Value, error) {
	if !t.Static {
		return r.search(ctx, t, seed, nil, 0)
	}
	return r.bestStatic(func(share, above float64) (*Value, error) {
		return r.search(ctx, t, seed, func(s *sim.Scenario) {
			s.Embeddings = sim.Embeddings{Share: share, Controller: "static"}
		}, above)
	})
}

// step is the factor between rates until one is sustained and one is not.
const step = 1.15

// search finds a sustained rate. If it is not higher than above, it may return a value without one.
func (r *runner) search(ctx context.Context, t *Trial, seed uint64, change func(*sim.Scenario),
	above float64) (*Value, error) {
	low, high, best := 0.0, math.Inf(1), &Value{}
	rate := above * (1 + width)
	if above == 0 {
		var err error
		if rate, high, err = r.bounds(ctx, t, seed); err != nil {
			return nil, err
		}
	}
	s, err := r.scenario(t, seed)
	if err != nil {
		return nil, err
	}
	for high-low > width*high || math.IsInf(high, 1) {
		v, err := r.at(ctx, t, seed, rate, change)
		if err != nil {
			return nil, err
		}
		if v.P99 <= s.SLO.Seconds()*1000 {
			low, best = rate, v
			best.Throughput = rate
		} else {
			high = rate
		}
		switch {
		case low == 0 && above > 0:
			return best, nil
		case math.IsInf(high, 1):
			rate *= step
		case low == 0:
			rate /= step
		default:
			rate = (low + high) / 2
		}
		r.Log("    %.1f requests/s: P99 %.3g\n", v.Rate, v.P99)
	}
	r.near = low
	return best, nil
}

// bounds returns a rate to begin a search with and one that is too high. Users of a model of events come as often as
// the rate says, so that a closed loop, which sends them faster, says little: its search begins at the last rate that
// was found, or where all engines compute users that are not cached.
func (r *runner) bounds(ctx context.Context, t *Trial, seed uint64) (first, high float64, err error) {
	if r.near > 0 && (r.size != nil || r.stream(t).Regime != "") {
		return r.near, math.Inf(1), nil
	}
	if r.stream(t).Regime == "" {
		high, err = r.capacity(ctx, t, seed)
		if r.size != nil { // larger batches than those of a closed loop may be worth more than they wait
			return 0.8 * high, math.Inf(1), err
		}
		return 0.8 * high, high, err
	}
	s, err := r.scenario(t, seed)
	if err != nil {
		return 0, 0, err
	}
	source, err := r.stream(t).rankings(1, seed)
	if err == nil {
		err = missCosts(s, source)
	}
	return float64(s.Fleet.Nodes*s.Fleet.Workers) * 1e3 / s.Route.MissKV, math.Inf(1), err
}

// run runs a scenario on a trial's stream.
func (r *runner) run(ctx context.Context, s *sim.Scenario, t *Trial, rate float64) (*Value, error) {
	stream := r.stream(t)
	source, err := stream.source(rate, s.Seed)
	if err != nil {
		return nil, err
	}
	if events, ok := source.(*rankings); ok {
		if err := missCosts(s, events); err != nil {
			return nil, err
		}
	}
	places, err := r.firstMap(t, s)
	if err != nil {
		return nil, err
	}
	items, err := r.memory(t, s, places, source)
	if err != nil {
		return nil, err
	}
	s.Cache.ItemMemory = sim.Bytes(items)
	if s.Load.Rate == 0 {
		s.Load.Rate = rate
	}
	// Popularity does not change in a run.
	s.Placement.Refresh.Duration = max(s.Placement.Refresh.Duration, 2*s.Duration.Duration)
	// Users and items are the stream's, but a scenario has some.
	one := sim.Lengths{Mean: 1, Min: 1, Max: 1}
	s.Users.Count, s.Users.Tokens = 1, one
	s.Items.Count, s.Items.Candidates, s.Items.Tokens = 1, 1, one
	if err := s.Validate(); err != nil {
		return nil, err
	}
	res, err := sim.Run(ctx, s, sim.Options{Stream: source, Map: places})
	if err == nil && res.Stopped {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	if lost := res.Requests - res.Answered; lost > res.Requests/1000 {
		r.Log("  %s: %d of %d requests were not answered\n", t.Name, lost, res.Requests)
	}
	return &Value{
		Throughput: closedOnly(s, res.Throughput), Rate: res.Rate, Mean: res.Latency.Mean, P50: res.Latency.P50,
		P99:  res.Latency.P99,
		Hits: &res.Hits, UserFirst: res.Orders.User, ItemBytes: items,
		Remote: float64(res.RemoteBytes) * 8 / 1e9 / math.Max(s.Duration.Seconds(), 1),
	}, nil
}

// closedOnly is the throughput of a closed loop; of an open one it is what was sent.
func closedOnly(s *sim.Scenario, throughput float64) float64 {
	if s.Load.Clients == 0 {
		return 0
	}
	return throughput
}

// metric returns a run's number by name; by default its throughput, or the millions of tokens of a footprint.
func (v *Value) metric(name string) float64 {
	switch name {
	case "mean":
		return v.Mean
	case "p50":
		return v.P50
	case "p99":
		return v.P99
	}
	return v.Throughput
}

// compare returns the values of a comparison, one per seed.
func (r *runner) compare(c *Compare) []float64 {
	var out []float64
	for seed := range r.Seeds {
		if len(c.Largest) > 0 {
			most := 0.0
			for _, pair := range c.Largest {
				most = max(most, r.values[pair[0]][seed].metric(c.Metric)/r.values[pair[1]][seed].metric(c.Metric))
			}
			out = append(out, most)
			continue
		}
		v := r.values[c.Of][seed].metric(c.Metric)
		if c.To != "" {
			v /= r.values[c.To][seed].metric(c.Metric)
		}
		if c.Per > 0 {
			v /= c.Per
		}
		out = append(out, v)
	}
	return out
}

// Tolerances of ratios.
const (
	want = 0.15
	aim  = 0.05
)

func (r *runner) report() *Report {
	out := &Report{Name: r.Name, Paper: r.Paper, Assumptions: r.Assumptions, Explained: r.Explained}
	for i := range r.Compare {
		c := &r.Compare[i]
		values := r.compare(c)
		l := Line{
			What: c.What, Ours: report.Median(values), Low: slices.Min(values), High: slices.Max(values),
			Ratio: c.To != "" || len(c.Largest) > 0,
		}
		switch {
		case c.Range != nil:
			l.Paper, l.Text = nearest(*c.Range, l.Ours), fmt.Sprintf("%g–%g", c.Range[0], c.Range[1])
		case c.Least > 0:
			l.Paper, l.Text = math.Max(c.Least, l.Ours), fmt.Sprintf("≥ %g", c.Least)
		default:
			l.Paper, l.Text = c.Paper, fmt.Sprintf("%g", c.Paper)
		}
		if c.Least > 0 && l.Ours < c.Least {
			l.Paper = c.Least
		}
		l.Difference = l.Ours/l.Paper - 1
		l.Verdict = l.verdict(c)
		out.Lines = append(out.Lines, l)
	}
	for _, t := range r.Runs {
		out.Values = append(out.Values, r.values[t.Name]...)
	}
	return out
}

// nearest returns the value of a range that is nearest to v.
func nearest(r [2]float64, v float64) float64 { return min(max(v, r[0]), r[1]) }

// verdict says whether a value agrees with the paper's: the sign of an effect, and how close it is.
func (l *Line) verdict(c *Compare) string {
	off := math.Abs(l.Difference)
	switch {
	case math.IsNaN(off) || math.IsInf(off, 0):
		return "no value"
	case l.Ratio && c.Least == 0 && (l.Ours-1)*(l.Paper-1) < 0:
		return "other sign"
	case c.Least > 0 && l.Ours < c.Least:
		return "other order"
	case off <= aim:
		return "agrees"
	case off <= want:
		return "within 15 %"
	}
	return "differs"
}

// Package allocator judges controllers of the boundary between embeddings and KV, in virtual time: workloads of
// package regime go through a node with the real pool, the decisions of packages residency and evict and the costs of
// an H200, and every controller gets the same requests. It also trains the policy that package alloc carries, and
// measures what moving the boundary costs.
package allocator

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"

	"grebe/alloc"
	"grebe/bench/allocator/smart"
	"grebe/bench/report"
	"grebe/workload/regime"
)

// Options say what to run. Zero values mean the defaults.
type Options struct {
	Workloads []string // of regime.Names
	Seeds     int      // of regime.VerdictSeeds, at most 20; 5
	Step      float64  // between the static shares that are tried; 0.05
	Parts     []string // boundary, real, verdict, loads, margins, bound, settle; all
	Only      []string // controllers of the verdict, beside static shares and the optimum; all
	Costs     string   // of Costs; "measured"
	Rate      float64  // of the workloads of verdict and bound, times their own; 1, and several for the bound
	Policy    string   // file of another policy than the one that the binary carries; none
	JSON      bool
}

// Validate reports the first option that makes no sense.
func (o Options) Validate() error {
	_, err := o.orDefaults()
	return err
}

func (o Options) orDefaults() (Options, error) {
	if len(o.Workloads) == 0 {
		o.Workloads = regime.Names()
	}
	if o.Seeds == 0 {
		o.Seeds = usualSeeds
	}
	if o.Step == 0 {
		o.Step = 0.05
	}
	if o.Costs == "" {
		o.Costs = "measured"
	}
	if len(o.Parts) == 0 {
		o.Parts = parts
	}
	for _, p := range o.Parts {
		if !slices.Contains(parts, p) {
			return o, fmt.Errorf("allocator: no part %q", p)
		}
	}
	if o.Rate != 0 && (o.Rate < 0.1 || o.Rate > 10) {
		return o, fmt.Errorf("allocator: %v times the rate: want 0.1 to 10", o.Rate)
	}
	if o.Seeds < 1 || o.Seeds > len(regime.VerdictSeeds()) || o.Step < 0.01 || o.Step > 0.2 {
		return o, fmt.Errorf("allocator: %d seeds and steps of %v: want 1 to %d and 0.01 to 0.2", o.Seeds, o.Step,
			len(regime.VerdictSeeds()))
	}
	return o, nil
}

var parts = []string{"boundary", "real", "verdict", "loads", "margins", "bound", "settle"}

// usualSeeds is how many seeds there are unless more are asked for.
const usualSeeds = 5

// Report is all that was found.
type Report struct {
	Costs    string    `json:"costs"`
	Boundary *Boundary `json:"boundary,omitempty"`
	Real     []Real    `json:"real,omitempty"`
	Verdicts []Verdict `json:"verdicts,omitempty"`
	Loads    []Load    `json:"loads,omitempty"`
	Margins  []Margin  `json:"margins,omitempty"`
	Bounds   []Bound   `json:"bounds,omitempty"`
	Settles  []Settle  `json:"settles,omitempty"`
	Checks   []Check   `json:"checks,omitempty"`
}

// Verdict is one workload under all controllers.
type Verdict struct {
	Workload string    `json:"workload"`
	Rate     float64   `json:"rate"` // times the workload's own
	Seeds    int       `json:"seeds"`
	Shares   []float64 `json:"shares"`  // static ones
	Statics  []float64 `json:"statics"` // P99 of each, milliseconds, the mean over seeds
	Best     float64   `json:"best"`    // static share of the least P99
	Optimum  []float64 `json:"optimum"` // best share by epoch
	Hot      []float64 `json:"hot"`     // share of hot users by epoch
	Lines    []Line    `json:"lines"`
}

// Line is one controller on one workload.
type Line struct {
	Controller string    `json:"controller"`
	P99        float64   `json:"p99"`    // of all requests, milliseconds, mean over seeds
	Epochs     float64   `json:"epochs"` // mean of the epochs' P99
	Within     float64   `json:"within"` // share within the SLO
	ToStatic   Interval  `json:"to_static"`
	ToOptimum  Interval  `json:"to_optimum"`
	Gap        float64   `json:"gap"` // mean |α − α*|
	KVHit      float64   `json:"kv_hit"`
	EmbHit     float64   `json:"emb_hit"`
	Alpha      []float64 `json:"alpha"` // by epoch, of the first seed
}

// Interval is a mean over seeds and its 95 % confidence interval.
type Interval struct{ Mean, Low, High float64 }

// Check is a bar and whether it was reached.
type Check struct {
	What string  `json:"what"`
	Got  float64 `json:"got"`
	Want string  `json:"want"`
	OK   bool    `json:"ok"`
}

// contender makes a controller for one run.
type contender struct {
	name  string
	make  func() alloc.Controller
	naive bool
	from  float64 // share to begin with, if not start
	small bool    // only on one GPU: a node's workloads take ten times as long
}

func contenders(opt Options) ([]contender, error) {
	base, err := policy(opt.Policy)
	if err != nil {
		return nil, fmt.Errorf("allocator: the policy: %w", err)
	}
	pred, err := trainedPredictors()
	if err != nil {
		return nil, err
	}
	learned := func(c smart.Config) func() alloc.Controller {
		c.SLO = SLO
		return func() alloc.Controller { return smart.New(base.Clone(), c) }
	}
	return []contender{
		{name: "pid", make: func() alloc.Controller { return &alloc.PID{P: 0.2, I: 0.02} }},
		{name: "trees", make: func() alloc.Controller { return &follower{trees: pred.Trees} }},
		{name: "recurrent", make: func() alloc.Controller { return &follower{gated: pred.Recurrent} }},
		{name: "ppo", make: learned(smart.Config{NoAdapter: true, NoRescue: true})},
		{name: "ppo+adapter", make: learned(smart.Config{NoRescue: true}), small: true},
		{name: "ppo+recovery", make: learned(smart.Config{NoAdapter: true}), small: true},
		{name: "smart", make: learned(smart.Config{})},
		{name: "smart, recovery 0.12", make: learned(smart.Config{RescueStep: 0.12}), small: true},
		{name: "climb, always", make: func() alloc.Controller { return &alloc.Climb{} }},
		{name: "climb", make: newClimb},
		{name: "climb, from 0.3", make: newClimb, from: 0.3},
		{name: "climb, from 0.7", make: newClimb, from: 0.7},
		{name: "climb, refill at once", make: newClimb, naive: true, small: true},
	}, nil
}

// policy reads a policy from a file, or takes the one that the binary carries.
func policy(file string) (*smart.Policy, error) {
	if file == "" {
		return smart.TrainedPolicy()
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return smart.ReadPolicy(data)
}

// Run measures and prints.
func Run(ctx context.Context, opt Options, w io.Writer) (*Report, error) {
	opt, err := opt.orDefaults()
	if err != nil {
		return nil, err
	}
	cost, err := Costs(opt.Costs)
	if err != nil {
		return nil, err
	}
	p := &printer{w: w, json: opt.JSON}
	rep := &Report{Costs: cost.Source}
	if slices.Contains(opt.Parts, "boundary") {
		if rep.Boundary, err = measureBoundary(); err != nil {
			return nil, err
		}
		p.boundary(rep.Boundary)
	}
	if slices.Contains(opt.Parts, "real") {
		if rep.Real, err = realRuns(ctx); err != nil {
			return nil, err
		}
		p.real(rep.Real)
	}
	if slices.Contains(opt.Parts, "verdict") {
		p.head(cost)
		for _, name := range opt.Workloads {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			v, err := verdict(cost, name, opt)
			if err != nil {
				return nil, err
			}
			rep.Verdicts = append(rep.Verdicts, *v)
			p.verdict(v)
		}
	}
	if slices.Contains(opt.Parts, "loads") {
		if rep.Loads, err = loads(ctx, cost, opt); err != nil {
			return nil, err
		}
		p.loads(rep.Loads)
	}
	if slices.Contains(opt.Parts, "margins") {
		p.marginHead()
		if rep.Margins, err = margins(ctx, cost, opt, p.margin); err != nil {
			return nil, err
		}
	}
	if slices.Contains(opt.Parts, "bound") {
		p.boundHead()
		if rep.Bounds, err = bounds(ctx, cost, opt, p.bound); err != nil {
			return nil, err
		}
	}
	if slices.Contains(opt.Parts, "settle") {
		if rep.Settles, err = settles(ctx, cost, opt); err != nil {
			return nil, err
		}
		p.settles(rep.Settles)
	}
	rep.check()
	p.checks(rep.Checks)
	return rep, p.finish(rep)
}

// specsOf returns a workload with each seed, at its rate times times.
func specsOf(name string, seeds []uint64, times float64) ([]regime.Spec, error) {
	var specs []regime.Spec
	for _, seed := range seeds {
		s, err := regime.Named(name, seed)
		if err != nil {
			return nil, err
		}
		s.Rate *= times
		specs = append(specs, s)
	}
	return specs, nil
}

// verdict serves one workload with all.
func verdict(cost *Cost, name string, opt Options) (*Verdict, error) {
	rate := cmp.Or(opt.Rate, 1)
	specs, err := specsOf(name, regime.VerdictSeeds()[:opt.Seeds], rate)
	if err != nil {
		return nil, err
	}
	all, err := contenders(opt)
	if err != nil {
		return nil, err
	}
	if specs[0].GPUs > 0 {
		all = slices.DeleteFunc(all, func(c contender) bool { return c.small })
	}
	if len(opt.Only) > 0 {
		all = slices.DeleteFunc(all, func(c contender) bool { return !slices.Contains(opt.Only, c.name) })
	}
	v := &Verdict{Workload: name, Rate: rate, Seeds: opt.Seeds, Shares: grid(opt.Step), Hot: specs[0].Hot[regime.Warm:]}
	runs, err := sweep(cost, specs, v.Shares, how{})
	if err != nil {
		return nil, err
	}
	best := 0
	for i := range v.Shares {
		v.Statics = append(v.Statics, mean(runs[i], (*played).P99))
		if v.Statics[i] < v.Statics[best] {
			best = i
		}
	}
	v.Best = v.Shares[best]
	if v.Optimum, err = optimum(cost, specs, v.Shares, runs); err != nil {
		return nil, err
	}
	got := make([][]*played, len(all)+1)
	for i := range got {
		got[i] = make([]*played, len(specs))
	}
	err = each(len(got)*len(specs), func(i int) error {
		k, s := i/len(specs), i%len(specs)
		var err error
		if k == len(all) {
			got[k][s], err = play(cost, &specs[s], &oracle{shares: v.Optimum}, how{})
			return err
		}
		got[k][s], err = play(cost, &specs[s], all[k].make(), how{naive: all[k].naive, from: all[k].from})
		return err
	})
	if err != nil {
		return nil, err
	}
	ideal := got[len(all)]
	if mean(runs[best], (*played).P99) < mean(ideal, (*played).P99) {
		ideal = runs[best] // moving every epoch costs more than it brings
	}
	v.Lines = append(v.Lines, v.line(fmt.Sprintf("best static, %.2f", v.Best), runs[best], runs[best], ideal))
	for i, a := range v.Shares {
		if math.Abs(a*10-math.Round(a*10)) < 1e-6 {
			v.Lines = append(v.Lines, v.line(fmt.Sprintf("static %.1f", a), runs[i], runs[best], ideal))
		}
	}
	for k := range all {
		v.Lines = append(v.Lines, v.line(all[k].name, got[k], runs[best], ideal))
	}
	v.Lines = append(v.Lines, v.line("optimum", got[len(all)], runs[best], ideal))
	return v, nil
}

func mean(runs []*played, f func(*played) float64) float64 {
	sum := 0.0
	for _, r := range runs {
		sum += f(r) / float64(len(runs))
	}
	return sum
}

// line sums a controller up.
func (v *Verdict) line(name string, runs, static, ideal []*played) Line {
	l := Line{
		Controller: name, P99: mean(runs, (*played).P99), Within: mean(runs, (*played).within), Alpha: runs[0].alpha,
		Epochs:    mean(runs, func(p *played) float64 { return average(p.p99) }),
		KVHit:     mean(runs, func(p *played) float64 { return p.kvHit }),
		EmbHit:    mean(runs, func(p *played) float64 { return p.embHit }),
		ToStatic:  ratio(runs, static),
		ToOptimum: ratio(runs, ideal),
	}
	l.Gap = mean(runs, func(p *played) float64 {
		sum := 0.0
		for i, a := range p.alpha {
			sum += math.Abs(a - v.Optimum[i])
		}
		return sum / float64(len(p.alpha))
	})
	return l
}

func average(x []float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += v
	}
	return sum / float64(max(len(x), 1))
}

// ratio compares P99 seed by seed.
func ratio(runs, to []*played) Interval {
	r := make([]float64, len(runs))
	for i := range runs {
		r[i] = runs[i].P99() / to[i].P99()
	}
	return interval(r)
}

func interval(r []float64) (i Interval) {
	i.Mean, i.Low, i.High = report.Mean(r)
	return i
}

// check compares the results with what the project asks for.
func (r *Report) check() {
	add := func(what string, got float64, want string, ok bool) {
		r.Checks = append(r.Checks, Check{what, got, want, ok})
	}
	if b := r.Boundary; b != nil {
		add("moving the boundary, µs per page", b.PerPage, "at most 1", b.PerPage <= 1)
		add("moving 4 % of the pool, µs", b.FourPercent, "at most 100", b.FourPercent <= 100)
		add("P99 of requests while it moves, change in %", 100*(b.P99Ratio-1), "below 2", b.P99Ratio < 1.02)
		add("a decision of smart, µs", b.Smart, "at most 5", b.Smart <= 5)
	}
	for i := range r.Settles {
		s := &r.Settles[i]
		add("settled within 3 epochs, share of seeds: "+s.Shift, float64(s.Within)/float64(s.Seeds), "1",
			s.Within == s.Seeds)
		add("moves under unchanged traffic: "+s.Shift, s.Span, "at most 0.05", s.Span <= 0.05)
	}
	share := map[string]float64{"steady": 0.996, "trend": 0.989, "burst": 0.935}
	for i := range r.Verdicts {
		v := &r.Verdicts[i]
		for j := range v.Lines {
			l := &v.Lines[j]
			if l.Controller != Default && l.Controller != "smart" {
				continue
			}
			name := v.Workload + ", " + l.Controller
			kind := strings.TrimPrefix(v.Workload, "node-")
			if kind == "trend" || kind == "burst" {
				add(name+": P99 to the best static", l.ToStatic.Mean, "at most 0.8", l.ToStatic.Mean <= 0.8)
			}
			add(name+": P99 to the optimum", l.ToOptimum.Mean, "at most 1.05", l.ToOptimum.Mean <= 1.05)
			if s, ok := share[kind]; ok {
				add(name+": share within the SLO", l.Within, fmt.Sprintf("at least %.3f", s), l.Within >= s)
			}
		}
	}
}

// Default is the controller that the server uses unless told otherwise.
const Default = "climb"

// Passed reports whether every bar was reached.
func Passed(checks []Check) bool {
	return !slices.ContainsFunc(checks, func(c Check) bool { return !c.OK })
}

package rank

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"grebe/bench/load"
	"grebe/plan"
	"grebe/schedule"
	"grebe/workload"
)

// workload compares all policies on one workload. Where a later step fails, what the closed loop measured
// is returned too.
func (s *system) workload(ctx context.Context, o *Options, name string) (*Workload, error) {
	spec, scale, err := o.spec(name)
	if err != nil {
		return nil, err
	}
	src, err := newSource(spec, s.model.Vocab())
	if err != nil {
		return nil, err
	}
	share := o.Memory
	if share < 0 {
		if share, err = paperShare(name); err != nil {
			return nil, err
		}
	}
	memory := newBudget(src.w, &s.shape, share)
	if len(o.CachePolicies) > 0 && !usesItems(o.reuses()) {
		memory.items, memory.bytes = 0, memory.users*int64(s.shape.ChunkBytes(1, false))
	}
	r := &Workload{Name: spec.Name, Users: spec.Users, Items: spec.Items, Scale: scale, Share: share,
		ItemBytes: memory.items * int64(s.shape.ChunkBytes(1, false)), Bytes: memory.bytes,
		Pressure: len(o.CachePolicies) > 0}
	if err := r.measure(spec, o); err != nil {
		return nil, err
	}
	b := &bout{system: s, options: o, source: src, report: r, memory: memory.bytes, base: 1}
	if r.Pressure {
		b.base = 0
	}
	defer b.close()
	r.Bound = b.bound(math.Inf(1))
	r.MemoryBound = b.bound(float64(memory.users))
	steps := []func(context.Context) error{b.open, b.saturate, b.openLoop, b.search, b.countCold, b.sweep}
	if o.Count {
		steps = []func(context.Context) error{b.countAll, b.countCold, b.sweep}
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			if len(r.Policies) > 0 && r.Policies[0].PromptTokens > 0 {
				return r, err
			}
			return nil, err
		}
	}
	return r, nil
}

// measure says what the stream is like.
func (r *Workload) measure(spec workload.Spec, o *Options) error {
	perBlock, warm := o.blocks()
	stats, err := workload.Measure(spec, perBlock*(warm+o.Blocks))
	r.Stream = stats
	return err
}

// bout is the comparison on one workload.
type bout struct {
	system   *system
	options  *Options
	source   *source
	report   *Workload
	memory   int64
	variants []*variant
	base     int // which one the ratios are to, beside the first
	first    int // request of the stream that the blocks begin with
	next     int // and the one behind them
}

func (b *bout) close() {
	for _, v := range b.variants {
		v.close()
	}
}

// contender is what a variant is opened for.
type contender struct {
	policy schedule.Policy
	evicts string // policy of package evict; empty: the store's own
}

// contenders returns those of the options, in the report's order.
func (o *Options) contenders() []contender {
	var out []contender
	for _, name := range o.CachePolicies {
		out = append(out, contender{o.reuses(), name})
	}
	if len(out) > 0 {
		return out
	}
	for _, p := range o.policies() {
		out = append(out, contender{policy: p})
	}
	return out
}

// open opens the variants, computes the items of those that can use them, and warms the caches up.
func (b *bout) open(ctx context.Context) error {
	for _, c := range b.options.contenders() {
		p, begun := c.policy, time.Now()
		v, err := b.system.newVariant(ctx, p, b.source, b.memory, nil)
		if err != nil {
			return err
		}
		b.say("%s, %s: prepared in %.1f s", b.report.Name, strings.TrimSpace(v.name+" "+c.evicts),
			time.Since(begun).Seconds())
		b.variants = append(b.variants, v)
		line := Policy{Name: display(p), Policy: p.String(), Evicts: c.evicts}
		if c.evicts != "" {
			v.name = display(p) + " " + c.evicts
			line.Name = v.name
			if err := errors.Join(v.store.SetPolicy(c.evicts), v.store.Predict()); err != nil {
				return err
			}
		}
		if usesItems(p) && b.options.start() == Indexed {
			start := time.Now()
			if line.Indexed, err = v.indexItems(ctx); err != nil {
				return fmt.Errorf("index: %w", err)
			}
			line.IndexSeconds = time.Since(start).Seconds()
		}
		b.report.Policies = append(b.report.Policies, line)
	}
	return b.warm(ctx)
}

// warm sends all of the warm-up but the last block to each variant without computing, if that is wanted.
func (b *bout) warm(ctx context.Context) error {
	perBlock, warm := b.options.blocks()
	if !b.options.DryWarmup || warm < 2 {
		return nil
	}
	fill, err := b.system.newNoise()
	if err != nil {
		return err
	}
	defer fill.close()
	b.first = perBlock * (warm - 1)
	b.say("%s: %d requests warm each cache up", b.report.Name, b.first)
	errs := make([]error, len(b.variants))
	var wg sync.WaitGroup
	for i, v := range b.variants {
		wg.Go(func() { errs[i] = v.warm(ctx, fill, b.first) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// say tells of progress.
func (b *bout) say(format string, args ...any) {
	if w := b.options.Progress; w != nil {
		fmt.Fprintf(w, format+"\n", args...)
	}
}

// saturate compares the variants in a closed loop.
func (b *bout) saturate(ctx context.Context) error {
	o := b.options
	perBlock, warm := o.blocks()
	if b.first > 0 {
		warm = 1 // the others went before
	}
	runs := make([][]load.Result, len(b.variants)) // by block
	before := make([]tally, len(b.variants))
	reasons := make([]map[string]int64, len(b.variants))
	variants := make([]load.Variant, len(b.variants))
	for i, v := range b.variants {
		variants[i] = load.Variant{Name: v.name, Run: func(ctx context.Context, block int) (load.Result, error) {
			if block == warm {
				before[i], reasons[i] = v.tally(), v.reasons()
			}
			var r load.Result
			var err error
			if block >= warm || v.policy != schedule.None { // RE has nothing to warm up
				r, err = load.Closed(ctx, load.Options{Name: v.name, Workers: o.Clients, Requests: perBlock,
					First: b.first + block*perBlock}, v.do)
			}
			if err == nil && r.Requests != r.Answered {
				err = fmt.Errorf("%d of %d requests failed: %v", r.Requests-r.Answered, r.Requests, r.Errors)
			}
			runs[i] = append(runs[i], r)
			return r, err
		}}
	}
	opt := load.CompareOptions{Blocks: o.Blocks, Warmup: warm, Seed: o.Seed,
		Metrics: []load.Metric{load.ByThroughput, load.ByP50, load.ByP99}}
	toRE, err := load.Compare(ctx, opt, variants)
	if err != nil {
		return err
	}
	b.next = b.first + perBlock*(warm+o.Blocks)
	toUP, err := b.again(ctx, opt, runs, b.base)
	if err != nil {
		return err
	}
	for i, v := range b.variants {
		line := &b.report.Policies[i]
		line.fill(v, before[i], reasons[i])
		line.Saturated = toRE.Variants[i].Result
		line.OverRE = toRE.Variants[i].Metrics[0]
		line.OverUP = toUP[i]
		line.P99OverFirst = toRE.Variants[i].Metrics[2]
	}
	return nil
}

// again takes a comparison's runs and compares them with another variant, and returns the ratios of
// throughput.
func (b *bout) again(ctx context.Context, opt load.CompareOptions, runs [][]load.Result,
	base int) ([]load.MetricRatio, error) {
	replay := func(i int) load.Variant {
		return load.Variant{Name: b.variants[i].name, Run: func(_ context.Context, block int) (load.Result, error) {
			return runs[i][block], nil
		}}
	}
	order := []int{base}
	for i := range runs {
		if i != base {
			order = append(order, i)
		}
	}
	variants := make([]load.Variant, len(order))
	for n, i := range order {
		variants[n] = replay(i)
	}
	c, err := load.Compare(ctx, opt, variants)
	if err != nil {
		return nil, err
	}
	out := make([]load.MetricRatio, len(runs))
	for n, i := range order {
		out[i] = c.Variants[n].Metrics[0]
	}
	return out, nil
}

// fill counts what the variant did since then.
func (l *Policy) fill(v *variant, before tally, reasons map[string]int64) {
	t := v.tally().minus(before)
	requests := float64(max(t.requests, 1))
	l.PromptTokens, l.ComputedTokens = float64(t.prompt)/requests, float64(t.computed)/requests
	l.Reused = float64(t.cached) / math.Max(float64(t.prompt), 1)
	l.UserFirst = float64(t.userFirst) / requests
	if v.cache == nil {
		return
	}
	l.Decisions = map[string]int64{}
	for why, n := range v.reasons() {
		if n -= reasons[why]; n > 0 {
			l.Decisions[why] = n
		}
	}
	users, items := v.cache.Stats(plan.User), v.cache.Stats(plan.Item)
	l.UserBytes, l.ItemBytes, l.PoolBytes = users.Bytes, items.Bytes, v.cache.Books().Used
	l.Users, l.Items, l.EvictedUsers, l.EvictedItems = users.Entries, items.Entries, users.Evicted, items.Evicted
}

// indexItems computes all items' KV, before the first request.
func (v *variant) indexItems(ctx context.Context) (int, error) {
	n, _, err := v.cache.Precompute(ctx, v.runner.Do, v.source.items, nil)
	return n, err
}

// reasons counts the cache's decisions.
func (v *variant) reasons() map[string]int64 {
	if v.cache == nil {
		return nil
	}
	return v.cache.Decisions()
}

// openRounds is how often the variants take turns in the open loop.
const openRounds = 5

// openLoop sends Poisson arrivals to each variant, at the same rate and in turns.
func (b *bout) openLoop(ctx context.Context) error {
	o := b.options
	if o.Open <= 0 {
		return nil
	}
	rate := o.Open * b.report.Policies[b.base].Saturated.Throughput
	n := max(int(o.Seconds*rate/openRounds), 20)
	runs := make([][]load.Result, len(b.variants))
	for round := range openRounds {
		for i, v := range b.variants {
			r, err := load.Open(ctx, load.Options{
				Name: v.name, Arrivals: workload.Poisson(rate, o.Seed+uint64(round)), Requests: n, First: b.next, SLO: o.SLO,
			}, v.do)
			if err != nil {
				return err
			}
			runs[i] = append(runs[i], r)
		}
		b.next += n
	}
	for i, v := range b.variants {
		r := load.Merge(runs[i]...)
		r.Name = v.name
		b.report.Policies[i].Open = &r
	}
	return nil
}

// Where a search begins, as a share of the rate of the closed loop, and by how much it goes up and down. It
// ends at the least share: whoever cannot keep the SLO there cannot keep it at all.
const (
	searchStart = .8
	searchStep  = 1.2
	searchLeast = 1. / 16
)

// search finds the highest rate of each variant within the SLO. Requests have the SLO as their deadline, so
// that the server drops what is too late already; it counts as missed.
func (b *bout) search(ctx context.Context) error {
	o := b.options
	if !o.Search {
		return nil
	}
	var all []load.SearchOptions
	var do []load.Do
	for i, v := range b.variants {
		start := searchStart * b.report.Policies[i].Saturated.Throughput
		length := time.Duration(o.Seconds * float64(time.Second))
		all = append(all, load.SearchOptions{
			Run: load.Options{
				Name: v.name, Duration: length, Warmup: length / 5, SLO: o.SLO, First: b.next,
			},
			Start: start, Step: searchStep, Min: start * searchLeast, Repeats: o.Repeats, Time: o.SearchTime,
			Tried: b.tried,
		})
		do = append(do, v.within(o.SLO))
	}
	found, err := load.SearchAll(ctx, all, do) // with an error too: an interrupted search found something
	for i := range found {
		b.report.Policies[i].Found = &found[i]
	}
	return err
}

// tried says how a long search goes on.
func (b *bout) tried(name string, t *load.Trial) {
	verdict := "too slow"
	if t.Kept {
		verdict = "kept"
	}
	all := load.Merge(t.Runs...)
	b.say("%s, %s: %.4g requests/s %s, %.1f %% of %d requests in time, P99 %.1f ms of those answered",
		b.report.Name, name, t.Rate, verdict, 100*float64(all.Good)/float64(max(all.Requests, 1)), all.Requests,
		all.Latency.P99)
}

// sweep counts tokens at other sizes of memory, without computing.
func (b *bout) sweep(ctx context.Context) error {
	for _, share := range b.options.Sweep {
		memory := newBudget(b.source.w, &b.system.shape, share)
		line := Sweep{Share: share, Bytes: memory.bytes, Computed: map[string]float64{}}
		for _, p := range b.options.policies() {
			l := Policy{}
			if err := b.count(ctx, p, memory.bytes, b.options.start(), &l); err != nil {
				return fmt.Errorf("sweep at %v: %w", share, err)
			}
			line.Computed[display(p)] = l.ComputedTokens
		}
		b.report.Sweep = append(b.report.Sweep, line)
	}
	return nil
}

// countAll is saturate without computing.
func (b *bout) countAll(ctx context.Context) (err error) {
	b.report.Policies, err = b.countFrom(ctx, b.options.start())
	return err
}

// countCold counts what the policies compute when caches begin empty.
func (b *bout) countCold(ctx context.Context) (err error) {
	if b.options.countsCold() {
		b.report.Cold, err = b.countFrom(ctx, Cold)
	}
	return err
}

// countFrom counts what each policy computes when caches begin that way.
func (b *bout) countFrom(ctx context.Context, start string) ([]Policy, error) {
	var out []Policy
	for _, p := range b.options.policies() {
		line := Policy{Name: display(p), Policy: p.String()}
		if err := b.count(ctx, p, b.memory, start, &line); err != nil {
			return nil, err
		}
		out = append(out, line)
	}
	return out, nil
}

// count replays the stream dry and fills in what was computed after the warm-up.
func (b *bout) count(ctx context.Context, p schedule.Policy, memory int64, start string, line *Policy) error {
	times := b.system.flops()
	v, err := b.system.newVariant(ctx, p, b.source, memory, &times)
	if err != nil {
		return err
	}
	defer v.close()
	if usesItems(p) && start == Indexed {
		if line.Indexed, err = v.indexItems(ctx); err != nil {
			return err
		}
	}
	perBlock, warm := b.options.blocks()
	var before tally
	var reasons map[string]int64
	work := &v.runner.(*dry).work
	for i := range perBlock * (warm + b.options.Blocks) {
		if i == perBlock*warm {
			before, reasons, *work = v.tally(), v.reasons(), 0
		}
		if err := v.do(ctx, i); err != nil {
			return err
		}
	}
	line.fill(v, before, reasons)
	line.WorkMs = *work / float64(perBlock*b.options.Blocks)
	return nil
}

package rank

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"grebe/bench/report"
	"grebe/compute"
	"grebe/engine"
	"grebe/kv"
	"grebe/plan"
	"grebe/prompt"
)

// AssembleOptions say what Assemble measures. Zero values stand for defaults.
type AssembleOptions struct {
	Models  []string // tiny, small, medium, qwen2-0.5b or qwen2-1.5b; small
	Device  string   // cpu or cuda; cpu
	Dir     string   // folder of the checkpoint, for one model
	Items   int      // cached ones of a request; 100
	Tokens  int      // of each; 10
	User    int      // tokens of the user, computed; 1500
	Repeats int      // 9
	Format  string   // bf16
	Threads int
	JSON    bool
}

func (o *AssembleOptions) setDefaults() {
	if len(o.Models) == 0 {
		o.Models = []string{"small"}
	}
	for _, d := range []struct {
		value *int
		is    int
	}{{&o.Items, 100}, {&o.Tokens, 10}, {&o.User, 1500}, {&o.Repeats, 9}, {&o.Threads, runtime.GOMAXPROCS(0)}} {
		if *d.value <= 0 {
			*d.value = d.is
		}
	}
	if o.Format == "" {
		o.Format = "bf16"
	}
}

// AssembleReport is what Assemble measured.
type AssembleReport struct {
	Date     string      `json:"date"`
	Device   string      `json:"device"`
	Lines    []Assembly  `json:"assembly"`
	Decision []Deciding  `json:"decision"`
	Gather   []Gathering `json:"gather,omitempty"` // of the first model, on a GPU
	Catalog  Packing     `json:"catalog"`
	Checks   []Check     `json:"checks"`
}

// Assembly is the time of a ranking whose items come from the cache, item-first; medians in
// milliseconds of runs in turns.
type Assembly struct {
	Model      string  `json:"model"`
	Items      int     `json:"items"`
	Tokens     int     `json:"item_tokens"`
	User       int     `json:"user_tokens"`
	Alone      float64 `json:"alone_ms"`      // the user without items
	Scattered  float64 `json:"scattered_ms"`  // items in entries of their own
	Contiguous float64 `json:"contiguous_ms"` // as many keys in one entry
	Ratio      float64 `json:"ratio"`         // scattered over contiguous, median of the repeats' own
	// What the cached keys add: FLOPs of attention, the rate at which the time beyond Alone does them,
	// and the rate of attention to as many keys more, in one entry.
	ExtraGFLOP   float64 `json:"extra_gflop"`
	ExtraGFLOPS  float64 `json:"extra_gflops"`
	KernelGFLOPS float64 `json:"kernel_gflops"`
}

const (
	maxAssembly      = 1.05
	maxDecisionNs    = 2000 // and per candidate
	maxCandidateNs   = 50
	maxFragmentation = 0.10
)

// Assemble measures and writes tables, or the report as JSON, to w.
func Assemble(ctx context.Context, o AssembleOptions, w io.Writer) (*AssembleReport, error) {
	o.setDefaults()
	r := &AssembleReport{Date: time.Now().UTC().Format(time.DateOnly)}
	for _, name := range o.Models {
		if err := o.one(ctx, name, r); err != nil {
			return r, fmt.Errorf("bench assemble: %s: %w", name, err)
		}
	}
	r.check()
	p := newPrinter(w, o.JSON)
	p.assemble(r)
	p.checks(r.Checks)
	return r, p.finish(r)
}

// one measures one model; with the first, what does not depend on it.
func (o *AssembleOptions) one(ctx context.Context, name string, r *AssembleReport) error {
	sys, err := open(&Options{Model: name, Dir: o.Dir, Format: o.Format, Device: o.Device, Threads: o.Threads})
	if err != nil {
		return err
	}
	defer sys.close()
	r.Device = sys.device.Name()
	line, err := sys.assemble(ctx, o)
	if err != nil {
		return err
	}
	r.Lines = append(r.Lines, line)
	if len(r.Lines) > 1 {
		return nil
	}
	if r.Gather, err = sys.gathering(ctx, o); err != nil {
		return err
	}
	if r.Decision, err = sys.deciding(); err != nil {
		return err
	}
	r.Catalog, err = packing(&sys.shape, o.Tokens)
	return err
}

// assembler runs plans over entries of a store of its own.
type assembler struct {
	engine *engine.Engine
	build  *prompt.Builder
	random *rand.Rand
	vocab  int
}

func newAssembler(e *engine.Engine, vocab int) (*assembler, error) {
	a := &assembler{engine: e, random: rand.New(rand.NewPCG(1, 2)), vocab: vocab}
	var err error
	a.build, err = prompt.New(prompt.Config{Instruction: prompt.Text{Tokens: a.tokens(8)}}, nil, vocab)
	return a, err
}

func (s *system) assemble(ctx context.Context, o *AssembleOptions) (Assembly, error) {
	keys := o.Items * o.Tokens
	a, done, err := s.newAssembler(s.device.Memory(), int64(6*keys+4096))
	if err != nil {
		return Assembly{}, err
	}
	defer done()
	jobs := make([]*engine.Job, 4)
	user := a.tokens(o.User)
	for i, lengths := range [][]int{{}, slices.Repeat([]int{o.Tokens}, o.Items), {keys}, {2 * keys}} {
		if jobs[i], err = a.job(ctx, user, lengths); err != nil {
			return Assembly{}, err
		}
	}
	defer func() {
		for _, j := range jobs {
			releaseOf(j)
		}
	}()
	times, err := a.turns(ctx, jobs, o.Repeats)
	if err != nil {
		return Assembly{}, err
	}
	line := Assembly{
		Model: s.describe(), Items: o.Items, Tokens: o.Tokens, User: o.User,
		Alone: report.Median(times[0]), Scattered: report.Median(times[1]), Contiguous: report.Median(times[2]),
		Ratio: report.Median(report.Ratios(times[1], times[2])),
	}
	line.rates(&s.shape, times)
	return line, nil
}

// rates sets what the cached keys add.
func (l *Assembly) rates(s *compute.Shape, times [4][]float64) {
	rows := float64(l.User + 8)
	l.ExtraGFLOP = 4 * float64(s.Heads*s.HeadDim*s.Layers) * rows * float64(l.Items*l.Tokens) / 1e9
	l.ExtraGFLOPS = l.ExtraGFLOP / report.Median(differences(times[1], times[0])) * 1000
	l.KernelGFLOPS = l.ExtraGFLOP / report.Median(differences(times[3], times[2])) * 1000
}

func (a *assembler) tokens(n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(a.random.IntN(a.vocab))
	}
	return out
}

// job lays out a user behind items of those lengths, whose KV it computes and caches first.
func (a *assembler) job(ctx context.Context, user []int32, lengths []int) (*engine.Job, error) {
	items := make([][]int32, len(lengths))
	for i, n := range lengths {
		items[i] = a.tokens(n)
	}
	l, err := a.build.Rank(plan.ItemFirst, user, items)
	if err != nil {
		return nil, err
	}
	job := &engine.Job{Plan: l.Plan, Want: []engine.Want{{Segment: l.Answers, IDs: []int32{1, 2}}},
		Segments: make([]engine.Segment, len(l.Plan.Segments))}
	if len(items) == 0 {
		return job, nil
	}
	alone := a.build.ItemsAlone(items)
	segments := make([]engine.Segment, len(alone.Plan.Segments))
	for i := range segments {
		segments[i].Keep = alone.Plan.Segments[i].Kind == plan.Item
	}
	r, err := a.engine.Do(ctx, &engine.Job{Plan: alone.Plan, Segments: segments})
	if err != nil {
		return nil, err
	}
	for i := range items {
		if job.Segments[l.Items+i].Entry = r.Kept[alone.Items+i]; r.Kept[alone.Items+i] == nil {
			release(r.Kept)
			return nil, kv.ErrFull
		}
	}
	return job, nil
}

// releaseOf gives back the entries that a job begins with.
func releaseOf(j *engine.Job) {
	for i := range j.Segments {
		if e := j.Segments[i].Entry; e != nil {
			e.Release()
		}
	}
}

func release(entries []*kv.Entry) {
	for _, e := range entries {
		if e != nil {
			e.Release()
		}
	}
}

// turns runs the jobs in turns and returns the milliseconds of each, after a few rounds to warm up.
func (a *assembler) turns(ctx context.Context, jobs []*engine.Job, repeats int) (times [4][]float64, err error) {
	const warm = 3
	for round := range repeats + warm {
		for _, i := range a.random.Perm(len(jobs)) {
			r, err := a.engine.Do(ctx, jobs[i])
			if err != nil {
				return times, err
			}
			if round >= warm {
				times[i] = append(times[i], r.Compute.Seconds()*1000)
			}
		}
	}
	return times, nil
}

func differences(a, b []float64) []float64 {
	out := make([]float64, len(a))
	for i := range a {
		out[i] = a[i] - b[i]
	}
	return out
}

func (r *AssembleReport) check() {
	for _, l := range r.Lines {
		r.Checks = append(r.Checks, Check{
			What: fmt.Sprintf("%d cached items cost at most %.2f× as many keys in one piece", l.Items, maxAssembly),
			Got:  fmt.Sprintf("%.3f", l.Ratio), OK: l.Ratio <= maxAssembly,
		})
	}
	for _, d := range r.Decision {
		limit := maxDecisionNs + maxCandidateNs*float64(d.Candidates)
		r.Checks = append(r.Checks, Check{
			What: fmt.Sprintf("a decision over %d candidates takes at most %.1f µs and allocates nothing", d.Candidates,
				limit/1000),
			Got: fmt.Sprintf("%.2f µs, %.1f allocations", d.DecideNs/1000, d.Allocations), OK: d.DecideNs <= limit &&
				d.Allocations < 1,
		})
	}
	r.Checks = append(r.Checks, Check{
		What: fmt.Sprintf("a catalog of %d-token items leaves less than %.0f %% of full memory unused", r.Catalog.Tokens,
			100*maxFragmentation),
		Got: percent(r.Catalog.Fragmentation), OK: r.Catalog.Fragmentation < maxFragmentation,
	})
}

func (p *printer) assemble(r *AssembleReport) {
	p.printf("%s, %s\n", r.Date, r.Device)
	for _, l := range r.Lines {
		p.printf("\nmodel %s\nitem-first, %d cached items of %d tokens, a user of %d computed; medians of runs in turns\n",
			l.Model, l.Items,
			l.Tokens, l.User)
		p.table([][]string{
			{"", "ms"}, {"user alone", fmt.Sprintf("%.2f", l.Alone)}, {"behind the items", fmt.Sprintf("%.2f", l.Scattered)},
			{"behind as many keys in one piece", fmt.Sprintf("%.2f", l.Contiguous)},
		})
		p.printf("ratio of the last two %.3f; the items add %.2f GFLOP of attention, done at %.0f GFLOP/s; "+
			"attention to as many keys more in one piece: %.0f GFLOP/s\n",
			l.Ratio, l.ExtraGFLOP, l.ExtraGFLOPS, l.KernelGFLOPS)
	}
	p.gathering(r.Gather)
	p.printf("\n")
	rows := [][]string{{"candidates", "decision µs", "allocations", "with keys and lookups µs"}}
	for _, d := range r.Decision {
		rows = append(rows, []string{fmt.Sprint(d.Candidates), fmt.Sprintf("%.2f", d.DecideNs/1000),
			fmt.Sprintf("%.1f", d.Allocations),
			fmt.Sprintf("%.1f", d.BeginNs/1000)})
	}
	p.table(rows)
	c := &r.Catalog
	p.printf("\ncatalog of about %d tokens per item, %d B of KV per token, pages of %d B: %s of pages in use are not KV; "+
		"after %d items came and went in %s, %s of the memory is not KV\n",
		c.Tokens, c.TokenBytes, c.Page, percent(c.Padding), c.Items, mib(c.Bytes), percent(c.Fragmentation))
}

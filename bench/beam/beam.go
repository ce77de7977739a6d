// Package beam measures the generation of items on the CPU. It compares attention of beams behind a shared prompt with
// beams that each attend to the prompt by themselves, in time and in memory. It compares selection with sorting and
// with heaps. It runs whole recommendations with and without the constraint to valid paths, with and without filters by
// ranges, and catalogs with real codes.
//
// The contenders take turns within each block, in an order drawn anew. Ratios are medians of the blocks' own ratios,
// with bootstrap intervals of 95 %. The weights are random.
package beam

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"time"

	"grebe/bench/load"
)

// Parts that Run can measure.
var Parts = []string{"attention", "selection", "recommend", "filter"}

// Options say what to measure. Zero values stand for defaults.
type Options struct {
	Parts []string // all
	// of beams; 128, 256, 512 for attention, 128 and 512 for recommendations, and 32 too for closed loops
	Widths   []int
	Contexts []int  // tokens of the prompt; 1024, 4096 for attention, the first of them for recommendations
	Blocks   int    // that the ways take turns in; 9
	Clients  []int  // of closed loops; 1, 4, 16
	Requests int    // of each closed loop; 48
	Model    string // small or qwen3-0.6b, of recommendations; small
	Dir      string // folder of its checkpoint, made when missing; in the user's cache folder
	Threads  int    // all that Go may use
	JSON     bool

	beams, logits int // of selection: 512 of 8,192; tests take fewer
	items         int // of the catalog of recommendations; 500,000, twice as many for filters
}

func (o *Options) setDefaults() {
	def := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&o.Blocks, 9)
	def(&o.Requests, 48)
	def(&o.Threads, runtime.GOMAXPROCS(0))
	def(&o.beams, 512)
	def(&o.logits, 8192)
	def(&o.items, 500_000)
	if len(o.Parts) == 0 {
		o.Parts = Parts
	}
	if len(o.Contexts) == 0 {
		o.Contexts = []int{1024, 4096}
	}
	if len(o.Clients) == 0 {
		o.Clients = []int{1, 4, 16}
	}
	if o.Model == "" {
		o.Model = "small"
	}
}

// widths returns the beam widths to measure.
func (o *Options) widths(def ...int) []int {
	if len(o.Widths) > 0 {
		return o.Widths
	}
	return def
}

// Report is what Run measured.
type Report struct {
	Device      string       `json:"device"`
	Attention   []Attention  `json:"attention,omitempty"`
	Memory      []Memory     `json:"memory,omitempty"`
	Selection   []Selection  `json:"selection,omitempty"`
	Model       string       `json:"model,omitempty"`
	Recommend   []Recommend  `json:"recommend,omitempty"`
	Throughputs []Throughput `json:"throughput,omitempty"`
	Filter      []Filter     `json:"filter,omitempty"`

	Checks []Check `json:"checks"`
}

// Check is a bar and whether it was reached.
type Check struct {
	What string `json:"what"`
	Got  string `json:"got"`
	OK   bool   `json:"ok"`
}

// Passed reports whether all bars were reached.
func Passed(checks []Check) bool {
	return !slices.ContainsFunc(checks, func(c Check) bool { return !c.OK })
}

// Way is one of several ways to do the same, in milliseconds.
type Way struct {
	Name string  `json:"name"`
	Ms   float64 `json:"ms"` // median
	// Over is its time over that of the first way, with the interval.
	Over float64 `json:"over_first"`
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// Run measures and writes tables, or the report as JSON, to w.
func Run(ctx context.Context, o Options, w io.Writer) (Report, error) {
	o.setDefaults()
	var r Report
	p := &printer{w: w, json: o.JSON}
	for _, part := range o.Parts {
		var err error
		switch part {
		case "attention":
			err = attention(ctx, &o, &r, p)
		case "selection":
			err = selection(ctx, &o, &r, p)
		case "recommend":
			err = recommend(ctx, &o, &r, p)
		case "filter":
			err = filtered(ctx, &o, &r, p)
		default:
			err = fmt.Errorf("no part %q: want attention, selection, recommend or filter", part)
		}
		if err != nil {
			return r, fmt.Errorf("bench beam: %w", err)
		}
	}
	return r, p.finish(&r, r.Checks)
}

// way is something to time: run returns how long it took.
type way struct {
	name string
	run  func() (time.Duration, error)
}

// timed is a way whose whole run counts.
func timed(name string, run func() error) way {
	return way{name, func() (time.Duration, error) {
		start := time.Now()
		err := run()
		return time.Since(start), err
	}}
}

// after has something done before each run that does not count.
func (v way) after(do func() error) way {
	return way{v.name, func() (time.Duration, error) {
		if err := do(); err != nil {
			return 0, err
		}
		return v.run()
	}}
}

// compare has the ways take turns, after each has run once to warm up.
func compare(ctx context.Context, blocks int, ways ...way) ([]Way, error) {
	var variants []load.Variant
	for _, v := range ways {
		variants = append(variants, load.Variant{Name: v.name, Run: func(context.Context, int) (load.Result, error) {
			took, err := v.run()
			return load.Result{Requests: 1, Extra: map[string]float64{"ms": float64(took) / float64(time.Millisecond)}}, err
		}})
	}
	c, err := load.Compare(ctx, load.CompareOptions{Blocks: blocks, Warmup: 1, Metrics: []load.Metric{load.ByExtra("ms")},
		Seed: 1}, variants)
	var out []Way
	for _, v := range c.Variants {
		m := v.Metrics[0]
		out = append(out, Way{v.Name, m.Median, m.Ratio, m.Low, m.High})
	}
	return out, err
}

// Package gpu measures models of true shapes and random weights on an NVIDIA GPU, beside what PyTorch
// does on the same machine.
//
// Before anything is timed, a small model of fresh random weights is held against compute/ref. Times are
// those that a caller sees, from the batch to its logits on the host; cases that are compared take turns,
// and medians are reported.
package gpu

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"grebe/compute"
	"grebe/compute/cuda"
	"grebe/compute/cuda/driver"
)

// Options say what to measure. Zero values stand for defaults.
type Options struct {
	Tokens  []int // lengths of prompts; 256, 1024, 4096, 8192
	Repeats int   // at least 20, the default
	NoRank  bool  // leave out the rankings
	// NoRecommend leaves out the recommendations.
	NoRecommend bool
	Peers       string // a Python with torch and transformers that runs the peers; none: no peers
	JSON        bool   // write the report as JSON, not as a table
	File        string // where to write the report as JSON besides
	Device      cuda.Options
	Seed        uint64 // of weights and inputs; from the clock
	NoChecks    bool   // for profilers: time without checking first
}

func (o *Options) setDefaults() {
	if len(o.Tokens) == 0 {
		o.Tokens = []int{256, 1024, 4096, 8192}
	}
	o.Repeats = max(o.Repeats, 20)
	if o.Seed == 0 {
		o.Seed = uint64(time.Now().UnixNano())
	}
}

// Report is what Run measured.
type Report struct {
	Date      time.Time `json:"date"`
	Device    string    `json:"device"`
	CUDA      string    `json:"cuda"` // newest version that the driver knows
	Libraries string    `json:"libraries"`
	Seed      uint64    `json:"seed"`
	Check     Check     `json:"check"`
	Lines     []Line    `json:"lines"`
	Peers     []Peer    `json:"peers,omitempty"`
}

// Line is one case; milliseconds.
type Line struct {
	Name    string  `json:"name"`
	Rows    int     `json:"rows"`
	MS      float64 `json:"ms"` // median
	Least   float64 `json:"least_ms"`
	P90     float64 `json:"p90_ms"`
	Repeats int     `json:"repeats"`
	Must    float64 `json:"must,omitempty"` // what it has to reach
	Aim     float64 `json:"aim,omitempty"`
	// Ratio is the median of the repeats' own ratios to the case named by Of.
	Ratio float64 `json:"ratio,omitempty"`
	Of    string  `json:"of,omitempty"`
}

// bars of prefill, by tokens: must and aim in milliseconds on an H200.
var bars = map[int][2]float64{256: {2.4, 1.9}, 1024: {5.5, 4.8}, 4096: {21, 19.5}, 8192: {47, 43}}

// Run measures and writes a table, or the report as JSON, to w.
func Run(ctx context.Context, o Options, w io.Writer) (Report, error) {
	o.setDefaults()
	r := Report{Date: time.Now().UTC(), Seed: o.Seed}
	if err := run(ctx, &o, &r); err != nil {
		return r, fmt.Errorf("bench gpu: %w", err)
	}
	if o.File != "" {
		if err := r.save(o.File); err != nil {
			return r, fmt.Errorf("bench gpu: %w", err)
		}
	}
	return r, r.write(w, o.JSON)
}

func run(ctx context.Context, o *Options, r *Report) error {
	d, err := cuda.New(o.Device)
	if err != nil {
		return err
	}
	defer d.Close()
	libs, err := driver.Open()
	if err != nil {
		return err
	}
	i := d.Context().Info()
	r.Device, r.CUDA = d.Name(), fmt.Sprintf("%d.%d", i.Driver/1000, i.Driver%1000/10)
	r.Libraries = fmt.Sprintf("%s, %s, %s", libs.Driver, libs.Compiler, libs.Matrix)
	if !o.NoChecks {
		if r.Check, err = check(d, o.Seed); err != nil {
			return err
		}
		if err := checkSearch(d, o.Seed); err != nil {
			return err
		}
	}
	if err := measure(ctx, o, d, r); err != nil {
		return err
	}
	if !o.NoRecommend {
		lines, err := measureRecommend(ctx, o, d)
		if err != nil {
			return err
		}
		r.Lines = append(r.Lines, lines...)
	}
	if o.Peers != "" {
		r.Peers, err = peers(ctx, o.Peers, o.Tokens)
	}
	return err
}

func measure(ctx context.Context, o *Options, d cuda.Device, r *Report) error {
	m, err := newModel(d, qwen2, o.Seed)
	if err != nil {
		return fmt.Errorf("weights: %w", err)
	}
	longest := max(slices.Max(o.Tokens), 2048)
	s, err := m.open(d, longest)
	if err != nil {
		return err
	}
	defer s.close()
	for _, n := range o.Tokens {
		c, err := s.prompt(fmt.Sprintf("prefill 1×%d", n), n)
		if err != nil {
			return err
		}
		lines, err := s.time(ctx, o.Repeats, c)
		if err != nil {
			return err
		}
		lines[0].Must, lines[0].Aim = bars[n][0], bars[n][1]
		r.Lines = append(r.Lines, lines...)
	}
	if o.NoRank {
		return nil
	}
	cases, err := s.ranking()
	if err != nil {
		return err
	}
	lines, err := s.time(ctx, o.Repeats, cases...)
	r.Lines = append(r.Lines, lines...)
	return err
}

// warmups come before what is timed: the first tunes, the second captures.
const warmups = 4

// time runs cases in turns.
func (s *subject) time(ctx context.Context, repeats int, cases ...*workCase) ([]Line, error) {
	took := make([][]float64, len(cases))
	for i := range warmups + repeats {
		for j, c := range cases {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			start := time.Now()
			if err := s.forward(&c.batch, c.wanted); err != nil {
				return nil, fmt.Errorf("%s: %w", c.name, err)
			}
			if i >= warmups {
				took[j] = append(took[j], float64(time.Since(start).Nanoseconds())/1e6)
			}
		}
	}
	var out []Line
	for j, c := range cases {
		sorted := slices.Sorted(slices.Values(took[j]))
		l := Line{Name: c.name, Rows: len(c.batch.Tokens), MS: median(sorted), Least: sorted[0], P90: sorted[len(sorted)*9/10], Repeats: repeats, Must: c.must, Aim: c.aim}
		if c.of >= 0 {
			l.Of = cases[c.of].name
			var ratios []float64
			for i := range took[j] {
				ratios = append(ratios, took[j][i]/took[c.of][i])
			}
			slices.Sort(ratios)
			l.Ratio = median(ratios)
		}
		out = append(out, l)
	}
	return out, nil
}

func median(sorted []float64) float64 { return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2 }

// Check says how far results were from compute/ref.
type Check struct {
	Shape    string  `json:"shape"`
	Rows     int     `json:"rows"`
	Relative float64 `json:"relative_error"` // ‖got − want‖ / ‖want‖ of the hidden states
	Limit    float64 `json:"limit"`
}

var _ compute.Device = cuda.Device(nil)

// Package gpu measures the work of generative recommenders on an NVIDIA GPU, beside what PyTorch does on the
// same machine, and says which bars are reached.
//
// Before anything is timed, fresh random weights, keys and logits are compared with compute/ref. Times of models are
// those that a caller sees, from the batch to its logits on the host; times of single operations are the GPU's own, of
// layers with their own data in one graph. Cases that are compared take turns, and medians are reported. Bars are
// those of an H200.
package gpu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"grebe/bench/report"
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
	NoKernels   bool // leave out single operations
	FP8         bool // measure weights of FP8 beside those of bf16, and nothing else
	Timeline    bool // show the phases of a group of searches, and nothing else
	Events      bool // measure rankings by a model of events, and nothing else
	// a folder, whose hidden states with weights of FP8 are compared with compute/ref as well; none: no such
	Checkpoint string
	Tune       bool   // measure anew how attention is best cut
	Peers      string // a Python with torch and transformers that runs the peers; none: no peers
	Rank       string // a report of `bench rank --json` on the same device whose sustained rates are to be shown
	JSON       bool   // write the report as JSON, not as a table
	File       string // where to write the report as JSON besides
	Device     cuda.Options
	Seed       uint64 // of weights and inputs; from the clock
	NoChecks   bool   // for profilers: time without checking first
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

// Run measures and writes a table, or the report as JSON, to w.
func Run(ctx context.Context, o Options, w io.Writer) (Report, error) {
	o.setDefaults()
	r := Report{Date: time.Now().UTC(), Seed: o.Seed}
	failed := run(ctx, &o, &r)
	if failed != nil && len(r.Lines) == 0 {
		return r, fmt.Errorf("bench gpu: %w", failed)
	}
	// The report has its worth without what failed, and without peers.
	if o.Peers != "" {
		failed = errors.Join(failed, r.addPeers(ctx, o.Peers, o.Tokens))
	}
	if o.File != "" {
		failed = errors.Join(failed, r.save(o.File))
	}
	if err := errors.Join(failed, r.write(w, o.JSON)); err != nil {
		return r, fmt.Errorf("bench gpu: %w", err)
	}
	return r, nil
}

func run(ctx context.Context, o *Options, r *Report) error {
	var sustained []Line
	if o.Rank != "" { // a mistake in its name should not cost a run
		var err error
		if sustained, err = sustainedRates(o.Rank); err != nil {
			return err
		}
	}
	if err := runOn(ctx, o, r); err != nil {
		return err
	}
	r.Lines = append(r.Lines, sustained...)
	return nil
}

// runOn measures what the device does, and closes it before others use the GPU.
func runOn(ctx context.Context, o *Options, r *Report) error {
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
		if r.Checks, err = checkAll(d, o.Seed); err != nil {
			return err
		}
	}
	if o.Timeline {
		return measureTimeline(ctx, o, d, r)
	}
	if o.Events {
		return measureEvents(ctx, o, r)
	}
	if o.FP8 {
		return measureFP8(ctx, o, d, r)
	}
	if o.Tune {
		if err := tuneAgain(d, o); err != nil {
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
	if o.NoKernels {
		return nil
	}
	if err := measureAttention(o, d, r); err != nil {
		return err
	}
	line, err := measureSelection(o, d)
	if err != nil {
		return err
	}
	r.Lines = append(r.Lines, line)
	return measureEvents(ctx, o, r)
}

// bars of prefill, by tokens: must and aim in milliseconds.
var bars = map[int][2]float64{256: {2.4, 1.9}, 1024: {5.5, 4.8}, 4096: {21, 19.5}, 8192: {47, 43}}

func measure(ctx context.Context, o *Options, d cuda.Device, r *Report) error {
	m, err := newModel(d, qwen2, o.Seed)
	if err != nil {
		return fmt.Errorf("weights: %w", err)
	}
	longest := max(slices.Max(o.Tokens), rankRows)
	s, err := m.open(d, longest)
	if err != nil {
		return err
	}
	defer s.close()
	for _, n := range o.Tokens {
		c, err := s.prompt(fmt.Sprintf("prefill 1 × %d", n), n)
		if err != nil {
			return err
		}
		took, err := s.time(ctx, o.Repeats, c)
		if err != nil {
			return err
		}
		l := newLine(fmt.Sprintf("prefill-%d", n), c.name, "ms", took[0])
		l.Must, l.Aim = bars[n][0], bars[n][1]
		r.Lines = append(r.Lines, l)
	}
	if o.NoRank {
		return nil
	}
	cases, err := s.ranking()
	if err != nil {
		return err
	}
	took, err := s.time(ctx, o.Repeats, cases...)
	if err != nil {
		return err
	}
	r.Lines = append(r.Lines, rankLines(took)...)
	return nil
}

// rankLines are the lines of ranking's cases: the ratios are medians of the repeats' own.
func rankLines(took [][]float64) []Line {
	alone, scattered, whole, all := took[rankAlone], took[rankScattered], took[rankWhole], took[rankAll]
	main := newLine("rank", "rank, 1,500-token user, 100 cached items", "ms", scattered)
	main.Peers = []Peer{{Name: "the user alone", Value: report.Median(alone)},
		{Name: "keys in one piece", Value: report.Median(whole)},
		{Name: "everything recomputed", Value: report.Median(all)}}
	user := newLine("rank-user", "  to the user alone", "×", report.Ratios(scattered, alone))
	user.Must, user.Aim = 1.12, 1.08
	keys := newLine("rank-keys", "  to the same keys in one piece", "×", report.Ratios(scattered, whole))
	keys.Must, keys.Aim = 1.05, 1.02
	return []Line{main, user, keys}
}

// warmups come before what is timed: the first tunes, the second captures.
const warmups = 4

// time runs cases in turns and returns the milliseconds of each.
func (s *subject) time(ctx context.Context, repeats int, cases ...*workCase) ([][]float64, error) {
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
	return took, nil
}

var _ compute.Device = cuda.Device(nil)

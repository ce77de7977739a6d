// Package prefill measures how fast a Qwen2-0.5B-shaped model of random weights reads prompts on the
// CPU: tokens per second by length, the share of the matrix products' rate that a whole pass keeps,
// and the latency of a ranking by stage.
//
// Everything that is compared takes turns within each repeat, formats and products too, and medians
// are reported: on a shared machine only such ratios mean something. FLOPs are those computed: all
// products and causal attention, where the last layer's rows that nobody asks for are left out, as
// the engine leaves them out.
package prefill

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"grebe/bench/report"
	"grebe/compute"
	"grebe/compute/cpu"
	"grebe/engine"
	"grebe/model"
	"grebe/model/modeltest"
	_ "grebe/model/qwen" // the architecture that is measured
	"grebe/plan"
)

// Options say what to measure. Zero values stand for defaults.
type Options struct {
	Dir     string          // folder of the checkpoint, made when missing; in the user's cache folder
	Tokens  []int           // lengths of prompts; 128, 512, 1000, 4000
	Formats []compute.DType // BF16, F32; INT8 quantises at load
	Repeats int             // of short prompts; long ones have fewer, at least 3; 7
	Threads int             // all that Go may use
	NoRank  bool            // leave out the rankings
	JSON    bool            // write the report as JSON, not as a table
	// Spec is the model; Qwen2-0.5B's shape.
	Spec *modeltest.Spec
}

func (o *Options) setDefaults() {
	if o.Spec == nil {
		s := modeltest.Qwen2Half()
		o.Spec = &s
	}
	if o.Dir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			base = os.TempDir()
		}
		o.Dir = filepath.Join(base, "grebe", "bench-prefill-1")
	}
	if len(o.Tokens) == 0 {
		o.Tokens = []int{128, 512, 1000, 4000}
	}
	if len(o.Formats) == 0 {
		o.Formats = []compute.DType{compute.BF16, compute.F32}
	}
	if o.Repeats <= 0 {
		o.Repeats = 7
	}
	if o.Threads <= 0 {
		o.Threads = runtime.GOMAXPROCS(0)
	}
}

// Report is what Run measured.
type Report struct {
	Device string `json:"device"`
	Loads  []Load `json:"loads"`
	Lines  []Line `json:"prefill"`
	Ranks  []Rank `json:"rank"`
}

// Load is the opening of the model in one format.
type Load struct {
	Format          string  `json:"format"`
	Seconds         float64 `json:"seconds"`
	CheckpointBytes int64   `json:"checkpoint_bytes"`
	WeightBytes     int64   `json:"weight_bytes"` // held in memory
}

// Line is prompts of one length in one format; medians.
type Line struct {
	Format          string  `json:"format"`
	Tokens          int     `json:"tokens"`
	Seconds         float64 `json:"seconds"`
	TokensPerSecond float64 `json:"tokens_per_second"`
	GFLOPS          float64 `json:"gflops"`      // of the whole pass, attention counted
	GemmGFLOPS      float64 `json:"gemm_gflops"` // of a layer's products alone, at as many rows
	Ratio           float64 `json:"ratio"`       // median of the repeats' own ratios
	// Best are the same figures from the fastest repeat of each side: what a machine with other work
	// on it does when it is left alone for a moment.
	BestTokensPerSecond float64 `json:"best_tokens_per_second"`
	BestRatio           float64 `json:"best_ratio"`
	Repeats             int     `json:"repeats"`
}

// subject is the model opened in one format, behind an engine.
type subject struct {
	format compute.DType
	dev    compute.Device
	model  model.Model
	engine *engine.Engine
	gemm   *products
}

// Run measures and writes a table, or the report as JSON, to w.
func Run(ctx context.Context, o Options, w io.Writer) (Report, error) {
	o.setDefaults()
	var r Report
	if err := ensure(o.Dir, *o.Spec); err != nil {
		return r, fmt.Errorf("bench prefill: %w", err)
	}
	subjects, err := openAll(&o, &r)
	defer func() {
		for _, s := range subjects {
			s.close()
		}
	}()
	if err != nil {
		return r, fmt.Errorf("bench prefill: %w", err)
	}
	t := newTable(w, o.JSON, &r)
	for _, n := range o.Tokens {
		if err := measure(ctx, &o, subjects, n, &r); err != nil {
			return r, fmt.Errorf("bench prefill: %d tokens: %w", n, err)
		}
		t.lines(r.Lines[len(r.Lines)-len(subjects):])
	}
	if !o.NoRank {
		if r.Ranks, err = rank(ctx, &o, subjects); err != nil {
			return r, fmt.Errorf("bench prefill: rank: %w", err)
		}
	}
	return r, t.finish(&r)
}

// ensure writes the checkpoint unless it is there: complete, since it is moved into place.
func ensure(dir string, spec modeltest.Spec) error {
	if _, err := os.Stat(filepath.Join(dir, model.ConfigFile)); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "bench-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := modeltest.Write(tmp, spec); err != nil {
		return err
	}
	return os.Rename(tmp, dir)
}

func openAll(o *Options, r *Report) ([]*subject, error) {
	var out []*subject
	for _, dt := range o.Formats {
		start := time.Now()
		s, err := openSubject(o, dt)
		if err != nil {
			return out, fmt.Errorf("open in %s: %w", dt, err)
		}
		out = append(out, s)
		r.Device = s.dev.Name()
		r.Loads = append(r.Loads, Load{
			Format: dt.String(), Seconds: time.Since(start).Seconds(),
			CheckpointBytes: s.model.CheckpointBytes(), WeightBytes: s.model.Bytes(),
		})
		if s.gemm, err = newProducts(s.model.Shape(), dt, o.Threads, slices.Max(o.Tokens)); err != nil {
			return out, fmt.Errorf("products in %s: %w", dt, err)
		}
	}
	return out, nil
}

func openSubject(o *Options, dt compute.DType) (s *subject, err error) {
	s = &subject{format: dt}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.dev, err = cpu.New(cpu.Options{Threads: o.Threads}); err != nil {
		return nil, err
	}
	if s.model, err = model.Open(o.Dir, s.dev, options(dt)); err != nil {
		return nil, err
	}
	s.engine, err = engine.New(s.model, s.dev, engine.Options{Now: time.Now})
	return s, err
}

// options returns those of a format; int8 has the products' other numbers in bf16.
func options(dt compute.DType) model.Options {
	if dt == compute.INT8 {
		return model.Options{DType: "bf16", Weights: "int8"}
	}
	return model.Options{DType: dt.String()}
}

// close releases what is open, in reverse order. A benchmark has no use for what may fail there.
func (s *subject) close() {
	if s.gemm != nil {
		s.gemm.free()
	}
	if s.engine != nil {
		_ = s.engine.Close()
	}
	if s.model != nil {
		_ = s.model.Close()
	}
	if s.dev != nil {
		_ = s.dev.Close()
	}
}

// measure adds a line per format for prompts of n tokens.
func measure(ctx context.Context, o *Options, subjects []*subject, n int, r *Report) error {
	repeats := max(3, min(o.Repeats, o.Repeats*1000/n))
	pass := make([][]float64, len(subjects))
	gemm := make([][]float64, len(subjects))
	for repeat := range repeats {
		for i, s := range subjects {
			seconds, err := s.prefill(ctx, n, o.Spec.Vocab, repeat)
			if err != nil {
				return err
			}
			rest()
			pass[i] = append(pass[i], seconds)
			gemm[i] = append(gemm[i], s.gemm.seconds(n, time.Duration(seconds*float64(time.Second))))
			rest()
		}
	}
	for i, s := range subjects {
		shape := s.model.Shape()
		work := passFLOPs(&shape, n)
		ratios := make([]float64, repeats)
		for j := range ratios {
			ratios[j] = (work / pass[i][j]) / (s.gemm.flops(n) / gemm[i][j])
		}
		seconds := report.Median(pass[i])
		r.Lines = append(r.Lines, Line{
			Format: s.format.String(), Tokens: n, Seconds: seconds, TokensPerSecond: float64(n) / seconds,
			GFLOPS: work / seconds / 1e9, GemmGFLOPS: s.gemm.flops(n) / report.Median(gemm[i]) / 1e9,
			Ratio: report.Median(ratios), Repeats: repeats,
			BestTokensPerSecond: float64(n) / slices.Min(pass[i]),
			BestRatio:           (work / slices.Min(pass[i])) / (s.gemm.flops(n) / slices.Min(gemm[i])),
		})
	}
	return nil
}

// prefill runs one prompt of n tokens and returns the seconds of its pass.
func (s *subject) prefill(ctx context.Context, n, vocab, seed int) (float64, error) {
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = int32((i*7919 + seed*104729 + 13) % vocab)
	}
	p := &plan.Plan{Segments: []plan.Segment{{Kind: plan.User, Tokens: tokens}}}
	res, err := s.engine.Do(ctx, &engine.Job{Plan: p, Want: []engine.Want{{Segment: 0, IDs: []int32{0}}}})
	if err != nil {
		return 0, err
	}
	return res.Compute.Seconds(), nil
}

// passFLOPs counts what a pass over n tokens computes when only the last one's result is wanted.
func passFLOPs(s *compute.Shape, n int) float64 {
	qkv, out, gateUp, down := layerWeights(s)
	rows, layers := float64(n), float64(s.Layers)
	kept := rows*(layers-1) + 1 // rows that go on after attention, over all layers
	products := 2 * (rows*layers*qkv + kept*(out+gateUp+down))
	keys := rows * (rows + 1) / 2 // seen by all rows together
	attention := 4 * float64(s.Heads*s.HeadDim) * keys * layers
	return products + attention
}

// layerWeights returns the sizes of a layer's matrices.
func layerWeights(s *compute.Shape) (qkv, out, gateUp, down float64) {
	h, q, kv, inter := float64(s.Hidden), float64(s.Heads*s.HeadDim), float64(s.KVHeads*s.HeadDim), float64(s.Inter)
	return (q + 2*kv) * h, q * h, 2 * inter * h, inter * h
}

// rest waits until the threads of whoever ran last have stopped spinning.
func rest() { time.Sleep(5 * time.Millisecond) }

package gpu

import (
	"context"
	"errors"
	"fmt"
	"time"

	"grebe/bench/report"
	"grebe/compute"
	"grebe/compute/cuda"
)

// Models that are measured with weights of FP8 beside bf16.
var (
	qwen3Small = func() spec {
		s := decoder("Qwen3-0.6B", 28, 1024, 16, 8, 128, 3072, 151936)
		s.bias, s.norms = false, true
		return s
	}()
	qwen3Large = func() spec {
		s := decoder("Qwen3-8B", 36, 4096, 32, 8, 128, 12288, 151936)
		s.bias, s.norms, s.same = false, true, true
		return s
	}()
)

// limitFP8 bounds what models with weights of FP8 are off compute/ref. Both round the inputs of products, to steps of
// about 1/11 of a value. Values that differ by noise, δ of them, fall on two sides of a boundary now and then: that is
// √(δ/11) of the RMS, 1.5 % after attention in bf16. It adds up from product to product, to at most what two
// roundings differ by: 3.8 %, and as much again for each further layer, as their variances add. Rounding to bf16 alone,
// in float64, moves these models by 1.9 to 5.4 %: see TestRoundingMovesRandomModels.
const limitFP8 = 0.06

// Searches that run together.
const (
	searches, searchTokens, searchWidth, searchCodes = 16, 350, 128, 512
)

// pairOf is a model with weights of bf16 and of FP8.
type pairOf struct{ bf16, fp8 *model }

func newPair(d compute.Device, s spec, seed uint64) (p pairOf, seconds float64, err error) {
	if p.bf16, err = newModel(d, s, seed); err != nil {
		return p, 0, fmt.Errorf("weights of %s: %w", s.name, err)
	}
	s.weights = compute.FP8
	start := time.Now()
	if p.fp8, err = newModel(d, s, seed); err != nil {
		err = fmt.Errorf("weights of %s in fp8: %w", s.name, err)
	}
	return p, time.Since(start).Seconds(), err
}

// measureFP8 times models with weights of FP8 and of bf16 in turns. Ratios are those of the pairs.
func measureFP8(ctx context.Context, o *Options, d cuda.Device, r *Report) error {
	if q, ok := d.(compute.Quantiser); !ok || !q.Quantises(compute.FP8) {
		return fmt.Errorf("%s does not multiply FP8", d.Name())
	}
	var failed error
	if !o.NoChecks {
		for i, t := range trials() {
			t.spec.weights = compute.FP8
			c, err := t.run(d, o.Seed+uint64(i))
			c.Name += ", weights of FP8"
			r.Checks, failed = append(r.Checks, c), errors.Join(failed, err)
		}
	}
	if o.Checkpoint != "" {
		c, err := checkCheckpoint(d, o.Checkpoint, o.Seed)
		r.Checks, failed = append(r.Checks, c), errors.Join(failed, err)
	}
	for _, measure := range []func(context.Context, *Options, cuda.Device, *Report) error{
		prefillFP8, recommendFP8, searchesFP8, largeFP8} {
		failed = errors.Join(failed, measure(ctx, o, d, r))
	}
	return failed
}

// turns runs both in turns.
func turns(ctx context.Context, repeats int, bf16, fp8 func() error) (took [2][]float64, err error) {
	for i := range warmups + repeats {
		for j, run := range []func() error{bf16, fp8} {
			if err := ctx.Err(); err != nil {
				return took, err
			}
			start := time.Now()
			if err := run(); err != nil {
				return took, err
			}
			if i >= warmups {
				took[j] = append(took[j], float64(time.Since(start).Nanoseconds())/1e6)
			}
		}
	}
	return took, nil
}

// addPair adds the times with FP8 and how much faster it is.
func (r *Report) addPair(key, name string, took [2][]float64, must, aim float64) {
	own := newLine(key, name+", FP8", "ms", took[1])
	own.Peers = []Peer{{Name: "bf16", Value: report.Median(took[0])}}
	ratio := newLine(key+"-ratio", "  bf16 over FP8", "×", report.Ratios(took[0], took[1]))
	ratio.Must, ratio.Aim, ratio.AtLeast = must, aim, true
	r.Lines = append(r.Lines, own, ratio)
}

func prefillFP8(ctx context.Context, o *Options, d cuda.Device, r *Report) error {
	pair, seconds, err := newPair(d, qwen2, o.Seed)
	if err != nil {
		return err
	}
	size := newLine("fp8-bytes", "memory of Qwen2-1.5B's products, FP8 to bf16",
		"×", []float64{float64(pair.fp8.bytes) / float64(pair.bf16.bytes)})
	size.Must, size.Aim = 0.56, 0.51
	load := newLine("fp8-load", "weights of Qwen2-1.5B drawn and packed in FP8", "s", []float64{seconds})
	r.Lines = append(r.Lines, size, load)
	for _, c := range []struct {
		tokens    int
		must, aim float64
	}{{128, 0, 0}, {256, 0, 0}, {512, 0, 0}, {1024, 1.25, 1.4}, {2048, 0, 0}, {4096, 1.3, 1.42}, {8192, 0, 0}} {
		if err := pair.prefill(ctx, o, d, r, c.tokens, c.must, c.aim); err != nil {
			return err
		}
	}
	return nil
}

func (p *pairOf) prefill(ctx context.Context, o *Options, d cuda.Device, r *Report, tokens int, must,
	aim float64) error {
	var run [2]func() error
	for i, m := range []*model{p.bf16, p.fp8} {
		s, err := m.open(d, tokens)
		if err != nil {
			return err
		}
		defer s.close()
		c, err := s.prompt("", tokens)
		if err != nil {
			return err
		}
		run[i] = func() error { return s.forward(&c.batch, c.wanted) }
	}
	took, err := turns(ctx, o.Repeats, run[0], run[1])
	if err != nil {
		return fmt.Errorf("%s, prefill of %d: %w", p.fp8.spec.name, tokens, err)
	}
	r.addPair(fmt.Sprintf("fp8-%s-%d", p.fp8.spec.name, tokens),
		fmt.Sprintf("%s, prefill 1 × %d", p.fp8.spec.name, tokens), took, must, aim)
	return nil
}

func recommendFP8(ctx context.Context, o *Options, d cuda.Device, r *Report) error {
	pair, _, err := newPair(d, qwen3, o.Seed)
	if err != nil {
		return err
	}
	return pair.search(ctx, o, d, r, "fp8-recommend", recommendCodes, 1, recommendTokens, recommendWidth, 1, 1.2)
}

func searchesFP8(ctx context.Context, o *Options, d cuda.Device, r *Report) error {
	pair, _, err := newPair(d, qwen3Small, o.Seed)
	if err != nil {
		return err
	}
	return pair.search(ctx, o, d, r, "fp8-searches", searchCodes, searches, searchTokens, searchWidth, 1.15, 1.3)
}

func (p *pairOf) search(ctx context.Context, o *Options, d cuda.Device, r *Report, key string, codes, prompts, tokens,
	width int, must, aim float64) error {
	var run [2]func() error
	for i, m := range []*model{p.bf16, p.fp8} {
		x, err := newRecommendation(d, m, recommendItems, codes, prompts, tokens, width, o.Seed)
		if err != nil {
			return err
		}
		defer x.close()
		run[i] = x.run
	}
	took, err := turns(ctx, o.Repeats, run[0], run[1])
	if err != nil {
		return fmt.Errorf("%s, search: %w", p.fp8.spec.name, err)
	}
	name := fmt.Sprintf("%s, %d × %d tokens, %d beams", p.fp8.spec.name, prompts, tokens, width)
	r.addPair(key, name, took, must, aim)
	return nil
}

func largeFP8(ctx context.Context, o *Options, d cuda.Device, r *Report) error {
	pair, _, err := newPair(d, qwen3Large, o.Seed)
	if err != nil {
		return err
	}
	return pair.prefill(ctx, o, d, r, 2048, 1.45, 1.55)
}

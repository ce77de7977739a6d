package load

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"grebe/bench/report"
)

// Variant is one of several things to compare. Run measures it once; block counts from 0, warm-up blocks
// included, and all variants should do the same work in the same block.
type Variant struct {
	Name string
	Run  func(ctx context.Context, block int) (Result, error)
}

// Metric is a figure of a result to compare.
type Metric struct {
	Name string
	Of   func(*Result) float64
}

// Metrics that every run has.
var (
	ByThroughput = Metric{"requests/s", func(r *Result) float64 { return r.Throughput }}
	ByGoodput    = Metric{"good/s", func(r *Result) float64 { return r.Goodput }}
	ByMean       = Metric{"mean ms", func(r *Result) float64 { return r.Latency.Mean }}
	ByP50        = Metric{"P50 ms", func(r *Result) float64 { return r.Latency.P50 }}
	ByP99        = Metric{"P99 ms", func(r *Result) float64 { return r.Latency.P99 }}
)

// ByExtra is the metric of a figure that the caller put into Result.Extra.
func ByExtra(name string) Metric {
	return Metric{name, func(r *Result) float64 { return r.Extra[name] }}
}

// CompareOptions say how to compare.
type CompareOptions struct {
	// Blocks is how often each variant is measured; 7. In a block all take their turn, in an order
	// drawn anew, so that a machine that slows down slows all of them.
	Blocks int
	// Warmup is the number of blocks before those.
	Warmup int
	// Metrics are compared; throughput, P50 and P99.
	Metrics []Metric
	// Confidence of the intervals; 0.95.
	Confidence float64
	Seed       uint64
}

// Comparison is variants and how they relate to the first of them.
type Comparison struct {
	Blocks     int        `json:"blocks"`
	Confidence float64    `json:"confidence"`
	Variants   []Compared `json:"variants"`
}

// Compared is a variant.
type Compared struct {
	Result                // all its blocks together
	Metrics []MetricRatio `json:"metrics"`
}

// MetricRatio is a metric of a variant over that of the first variant.
type MetricRatio struct {
	Metric string  `json:"metric"`
	Median float64 `json:"median"` // of the variant's blocks
	// Ratio is the median of the blocks' own ratios, Low and High its bootstrap interval.
	Ratio float64 `json:"ratio"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
}

func (o *CompareOptions) prepare() {
	if o.Blocks <= 0 {
		o.Blocks = 7
	}
	if len(o.Metrics) == 0 {
		o.Metrics = []Metric{ByThroughput, ByP50, ByP99}
	}
	if o.Confidence <= 0 || o.Confidence >= 1 {
		o.Confidence = 0.95
	}
}

// Compare measures variants in turns, one at a time.
func Compare(ctx context.Context, o CompareOptions, variants []Variant) (Comparison, error) {
	o.prepare()
	if len(variants) == 0 {
		return Comparison{}, errors.New("load: compare: no variants")
	}
	rng := rand.New(rand.NewPCG(o.Seed, uint64(len(variants))))
	runs := make([][]Result, len(variants))
	for block := range o.Warmup + o.Blocks {
		for _, v := range rng.Perm(len(variants)) {
			r, err := variants[v].Run(ctx, block)
			if err == nil {
				err = ctx.Err()
			}
			if err != nil {
				return Comparison{}, fmt.Errorf("load: compare: %s in block %d: %w", variants[v].Name, block, err)
			}
			if block >= o.Warmup {
				runs[v] = append(runs[v], r)
			}
		}
	}
	out := Comparison{Blocks: o.Blocks, Confidence: o.Confidence}
	for v := range variants {
		c := Compared{Result: Merge(runs[v]...)}
		c.Name = variants[v].Name
		for _, m := range o.Metrics {
			c.Metrics = append(c.Metrics, ratio(m, runs[v], runs[0], o.Confidence, rng))
		}
		out.Variants = append(out.Variants, c)
	}
	return out, nil
}

func ratio(m Metric, runs, base []Result, confidence float64, rng *rand.Rand) MetricRatio {
	values, ratios := make([]float64, len(runs)), make([]float64, 0, len(runs))
	for i := range runs {
		values[i] = m.Of(&runs[i])
		if b := m.Of(&base[i]); b != 0 {
			ratios = append(ratios, values[i]/b)
		}
	}
	out := MetricRatio{Metric: m.Name, Median: report.Median(values), Ratio: report.Median(ratios)}
	out.Low, out.High = bootstrap(ratios, confidence, rng)
	return out
}

const resamples = 2000

// bootstrap returns the interval that holds that share of the medians of samples drawn with
// replacement.
func bootstrap(values []float64, confidence float64, rng *rand.Rand) (low, high float64) {
	if len(values) == 0 {
		return 0, 0
	}
	medians, drawn := make([]float64, resamples), make([]float64, len(values))
	for i := range medians {
		for j := range drawn {
			drawn[j] = values[rng.IntN(len(values))]
		}
		medians[i] = report.Median(drawn)
	}
	slices.Sort(medians)
	tail := int((1 - confidence) / 2 * resamples)
	return medians[tail], medians[resamples-1-tail]
}

package cache

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"grebe/bench/report"
	"grebe/evict"
)

// Training is what a model costs, and what it is worth beside XGBoost's.
type Training struct {
	Samples  int     `json:"samples"`
	Features int     `json:"features"`
	Source   string  `json:"source"`
	TrainMs  float64 `json:"train_ms"` // median
	BestMs   float64 `json:"best_ms"`
	// the histograms' additions alone: what no such trainer can be faster than
	AddsMs         float64  `json:"additions_ms"`
	PredictNs      float64  `json:"predict_ns"` // per prediction in batches of 64, median
	RMSE           float64  `json:"rmse"`       // on unseen samples
	TrainRMSE      float64  `json:"train_rmse"`
	XGBoost        *XGBoost `json:"xgboost,omitempty"`
	XGBoostSkipped string   `json:"xgboost_skipped,omitempty"`
}

const (
	trainSamples = 50_000
	trainRounds  = 15
	maxTrainMs   = 100
	maxPredictNs = 1000
	maxRMSERatio = 1.05
)

// shape is that of the models compared: the defaults of evict.TrainParams.
var shape = evict.TrainParams{Trees: 20, Depth: 5, Rate: 0.2, MinLeaf: 20, Lambda: 1, Share: 0.5}

// train times training and prediction on one core.
func (r *Report) train(ctx context.Context, o *Options, traces []*trace, p *printer) error {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	source := generate("drift")
	if len(traces) > 0 {
		source = traces[0]
	}
	xs, ys, testX, testY := samplesOf(source)
	t := &Training{Samples: len(xs), Features: evict.Features, Source: source.name}
	var model *evict.Model
	var times, ns []float64
	out := make([]float32, 64)
	for range trainRounds {
		if err := ctx.Err(); err != nil {
			return err
		}
		runtime.GC()
		start := time.Now()
		model = evict.Train(xs, ys, shape)
		times = append(times, ms(time.Since(start)))
		start = time.Now()
		const batches = 512
		for i := range batches {
			model.Predict(testX[i*64%(len(testX)-64):][:64], out)
		}
		ns = append(ns, float64(time.Since(start).Nanoseconds())/(64*batches))
	}
	t.TrainMs, t.BestMs, t.PredictNs = report.Median(times), slices.Min(times), report.Median(ns)
	t.AddsMs = additions(len(xs))
	t.RMSE, t.TrainRMSE = rmse(model, testX, testY), rmse(model, xs, ys)
	if o.XGBoost {
		var err error
		if t.XGBoost, t.XGBoostSkipped, err = xgboost(ctx, o.Python, xs, ys, testX, testY); err != nil {
			return err
		}
	}
	r.Train = t
	p.training(t)
	r.check(t.TrainMs < maxTrainMs, fmt.Sprintf("training on %d samples × %d features, one core, below %d ms", t.Samples,
		t.Features, maxTrainMs),
		"median %.0f ms, best %.0f ms of %d", t.TrainMs, t.BestMs, trainRounds)
	r.check(t.PredictNs <= maxPredictNs, "a prediction in batches of 64 within 1 µs", "%.0f ns", t.PredictNs)
	if x := t.XGBoost; x != nil {
		r.check(t.RMSE <= maxRMSERatio*x.RMSE, "error on unseen samples within 5 % of XGBoost's", "%.4f to %.4f (%+.1f %%)",
			t.RMSE, x.RMSE, 100*(t.RMSE/x.RMSE-1))
	}
	return nil
}

func ms(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

// samplesOf runs a trace through a tracker and deals its samples to a training set and a test set.
func samplesOf(t *trace) (xs []evict.Sample, ys []float32, testX []evict.Sample, testY []float32) {
	const window = 3 * trainSamples
	k := t.entries(.1)
	tracker := evict.NewTracker(evict.TrackerConfig{
		Keys: 8 * k, Window: window, Every: max(1, float64(len(t.keys))/window), Entries: k, HalfLife: int64(k / 32),
		Horizon: int64(k),
	})
	var x evict.Sample
	seen := make([]bool, t.distinct)
	d := newDescriber(t, func(key uint64) bool { return seen[key] })
	for i, key := range t.keys {
		tracker.Access(key, int64(i), d.context(i), &x)
		seen[key] = true
	}
	all, labels := tracker.Labelled(int64(len(t.keys)))
	r := rand.New(rand.NewPCG(1, 2))
	r.Shuffle(len(all), func(i, j int) {
		all[i], all[j] = all[j], all[i]
		labels[i], labels[j] = labels[j], labels[i]
	})
	n := min(trainSamples, len(all)*2/3)
	return all[:n], labels[:n], all[n:], labels[n:]
}

func rmse(m *evict.Model, xs []evict.Sample, ys []float32) float64 {
	out := make([]float32, len(xs))
	m.Predict(xs, out)
	sum := 0.0
	for i, y := range ys {
		sum += float64(out[i]-y) * float64(out[i]-y)
	}
	return math.Sqrt(sum / float64(len(ys)))
}

// additions times as many additions into histograms as the trees need at least: each row of a tree at its root, and
// half of them on each further level, where the larger side is a difference.
func additions(rows int) float64 {
	levels := 1 + float64(shape.Depth-2)/2
	n := int(float64(rows) * shape.Share * float64(shape.Trees) * levels)
	var table [evict.Features][64]int64
	var best float64 = math.MaxFloat64
	for range 5 {
		start, b := time.Now(), uint8(0)
		for i := range n {
			for f := range table {
				table[f][(b+uint8(f))%64] += int64(i)
			}
			b += 7
		}
		best = min(best, ms(time.Since(start)))
	}
	runtime.KeepAlive(&table)
	return best
}

func (p *printer) training(t *Training) {
	p.printf("\ntraining %d trees of depth %d on %d samples × %d features of %s, one core\n", shape.Trees, shape.Depth,
		t.Samples, t.Features, t.Source)
	p.printf("%-10s %10s %9s %16s %14s %12s\n", "", "median ms", "best ms", "additions only", "ns/prediction",
		"RMSE unseen")
	p.printf("%-10s %10.1f %9.1f %9.1f (%3.0f%%) %14.0f %12.4f\n", "grebe", t.TrainMs, t.BestMs, t.AddsMs,
		100*t.AddsMs/t.BestMs, t.PredictNs, t.RMSE)
	if x := t.XGBoost; x != nil {
		p.printf("%-10s %10.1f %9.1f %16s %14.0f %12.4f\n", "xgboost", x.TrainMs, x.BestMs, x.Version, x.PredictNs, x.RMSE)
	}
	if t.XGBoostSkipped != "" {
		p.printf("xgboost skipped: %s\n", t.XGBoostSkipped)
	}
}

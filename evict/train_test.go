package evict

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
)

// learnable makes samples whose label is a known function with a little noise.
func learnable(n int, seed uint64) ([]Sample, []float32) {
	r := rand.New(rand.NewPCG(seed, seed))
	xs, ys := make([]Sample, n), make([]float32, n)
	for i := range xs {
		for f := range xs[i] {
			xs[i][f] = r.Float32() * 10
		}
		x := &xs[i]
		ys[i] = x[0] + 2*float32(math.Sin(float64(x[3]))) + x[7]*x[12]/10 + 0.1*float32(r.NormFloat64())
		if x[20] > 5 {
			ys[i] += 3
		}
	}
	return xs, ys
}

func rmse(m *Model, xs []Sample, ys []float32) float64 {
	out := make([]float32, len(xs))
	m.Predict(xs, out)
	sum := 0.0
	for i, y := range ys {
		sum += float64(out[i]-y) * float64(out[i]-y)
	}
	return math.Sqrt(sum / float64(len(ys)))
}

func TestTrainLearns(t *testing.T) {
	xs, ys := learnable(20000, 1)
	test, want := learnable(5000, 2)
	flat := rmse(Train(xs, ys, TrainParams{Trees: 1, Rate: 1e-6}), test, want)
	few, many := rmse(Train(xs, ys, TrainParams{}), test, want),
		rmse(Train(xs, ys, TrainParams{Trees: 150, Share: 1}), test, want)
	if few > 0.4*flat || many > 0.12*flat {
		t.Errorf("error on unseen samples %.3f with 20 trees and %.3f with 150, %.3f without", few, many, flat)
	}
}

// One tree of depth one without penalty is the best single cut, which a scan of all cuts also finds.
func TestTrainFindsTheBestCut(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	for range 20 {
		xs, ys := make([]Sample, 300), make([]float32, 300)
		f := r.IntN(Features)
		for i := range xs {
			for g := range xs[i] {
				xs[i][g] = float32(r.IntN(20)) // fewer values than bins: binning loses nothing
			}
			ys[i] = float32(r.NormFloat64())
			if xs[i][f] > 11 {
				ys[i] += 2
			}
		}
		m := Train(xs, ys, TrainParams{Trees: 1, Depth: 1, Rate: 1, Share: 1, MinLeaf: 1, Lambda: 1e-12})
		best := math.Inf(1)
		for g := range Features {
			for cut := range 20 {
				best = min(best, cutError(xs, ys, g, float32(cut)))
			}
		}
		if got := rmse(m, xs, ys); math.Abs(got-best) > 1e-4 {
			t.Fatalf("error %.6f, the best of all cuts %.6f", got, best)
		}
	}
}

func cutError(xs []Sample, ys []float32, f int, cut float32) float64 {
	var sum, n [2]float64
	side := func(i int) int {
		if xs[i][f] > cut {
			return 1
		}
		return 0
	}
	for i, y := range ys {
		sum[side(i)] += float64(y)
		n[side(i)]++
	}
	e := 0.0
	for i, y := range ys {
		d := float64(y) - sum[side(i)]/n[side(i)]
		e += d * d
	}
	return math.Sqrt(e / float64(len(ys)))
}

// Events occur at known rates that depend on a feature, and some are watched to the end. The trees find the rates.
func TestTrainReturnsFindsRates(t *testing.T) {
	const noisy = 34 // features without information, but for one
	r := rand.New(rand.NewPCG(11, 11))
	rates := []float64{1.0 / 30, 1.0 / 300, 1.0 / 3000}
	xs, outcomes := make([]Sample, 30000), make([]Outcome, 30000)
	for i := range xs {
		for f := range noisy {
			xs[i][f] = r.Float32()
		}
		kind := r.IntN(len(rates))
		xs[i][7] = float32(kind)
		wait, patience := r.ExpFloat64()/rates[kind], 1+r.Float64()*1000
		outcomes[i] = Outcome{Time: float32(min(wait, patience)), Returned: wait <= patience}
	}
	m, out := TrainReturns(xs, outcomes, TrainParams{}), make([]float32, 1)
	if again := TrainReturns(xs, outcomes, TrainParams{}); !reflect.DeepEqual(m, again) {
		t.Error("the same samples gave two models")
	}
	for kind, rate := range rates {
		var x Sample
		for f := range x {
			x[f] = 0.5
		}
		x[7] = float32(kind)
		m.Predict([]Sample{x}, out)
		if want := -math.Log2(rate); math.Abs(float64(out[0])-want) > 0.25 {
			t.Errorf("kind %d: predicted 2^%.2f per return, want 2^%.2f", kind, out[0], want)
		}
	}
}

func TestModelIsReproducibleAndTravels(t *testing.T) {
	xs, ys := learnable(3000, 4)
	m := Train(xs, ys, TrainParams{Seed: 5})
	if again := Train(xs, ys, TrainParams{Seed: 5}); !reflect.DeepEqual(m, again) {
		t.Error("the same samples and parameters gave two models")
	}
	data, err := json.Marshal(m)
	if err == nil {
		var back Model
		if err = json.Unmarshal(data, &back); err == nil && !reflect.DeepEqual(*m, back) {
			t.Error("the model changed on its way through JSON")
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{`{}`, `{"depth":9}`, `{"depth":1,"leaf":[1,2,3]}`,
		`{"depth":1,"leaf":[1,2],"feature":"/w==","threshold":[1]}`, `[`} {
		if err := new(Model).UnmarshalJSON([]byte(bad)); err == nil {
			t.Errorf("model %s was accepted", bad)
		}
	}
	if got := rmse(Train(nil, nil, TrainParams{}), xs[:1], []float32{0}); got != 0 {
		t.Errorf("a model of nothing predicts %v", got)
	}
}

func TestPredictDoesNotAllocate(t *testing.T) {
	xs, ys := learnable(2000, 6)
	m, out := Train(xs, ys, TrainParams{}), make([]float32, 64)
	if n := testing.AllocsPerRun(100, func() { m.Predict(xs[:64], out) }); n != 0 {
		t.Errorf("a batch of 64 allocates %v times", n)
	}
}

func TestTrackerFeaturesAndLabels(t *testing.T) {
	tr := NewTracker(TrackerConfig{Keys: 2, Window: 100, Every: 1, HalfLife: 4, Horizon: 10, Entries: 6})
	var x Sample
	tr.Access(7, 100, Context{Turn: 6, Prompt: 50, Bytes: 3, Cost: 4, Before: 8, After: 9, Known: .5, Behind: 2, New: 12,
		Since: 13}, &x)
	if x[0] != 0 || x[1] != unknownGap || x[10] != 1 ||
		!reflect.DeepEqual(x[20:], []float32{1, -unknownGap, -unknownGap, -unknownGap, -1, 0, 6, 50, 3, 4, 8, 9, .5, 2, 12,
			13}) {
		t.Fatalf("first access described as %v", x)
	}
	tr.Describe(7, 103, &x)
	if x[0] != 2 || math.Abs(float64(x[10])-math.Exp2(-3.0/4)) > 1e-5 {
		t.Fatalf("three units later the open gap is %v, want log2(4), and the fastest counter %v, want 2^(-3/4)", x[0], x[10])
	}
	tr.Access(7, 107, Context{Turn: 2}, &x)
	if x[0] != 0 || x[1] != 3 || x[2] != unknownGap || math.Abs(float64(x[10])-(1+math.Exp2(-7.0/4))) > 1e-5 ||
		math.Abs(float64(x[19])-(1+math.Exp2(-7.0/2048))) > 1e-5 {
		t.Fatalf("second access described as %v", x)
	}
	if !reflect.DeepEqual(x[21:26], []float32{-3, -3, -3, 1, 3}) {
		t.Fatalf("the open gap of 0 is %v above the latest other, their mean and the largest, want -3; all are longer, and "+
			"the first request is log2(8) ago", x[21:26])
	}
	// Samples of 100, 103 and 107; the window spans 12, so the horizon is 6 and the last is too young.
	_, ys := tr.Labelled(112)
	if len(ys) != 2 || ys[0] != float32(math.Log2(13)) || ys[1] != float32(math.Log2(5)) {
		t.Fatalf("labels %v, want log2 of 1+12 and 1+4", ys)
	}
	if _, ys = tr.Labelled(5000); len(ys) != 3 || ys[0] != 3 || ys[2] != float32(math.Log2(21)) {
		t.Fatalf("labels %v, want log2 of 1+7, 1+4 and, beyond the horizon of 10, 1+20", ys)
	}
	// All are watched for six requests, as many as the cache has entries; only the second returned within them.
	_, seen := tr.Outcomes(112)
	if !reflect.DeepEqual(seen, []Outcome{{6, false}, {4, true}, {5, false}}) {
		t.Fatalf("outcomes %v", seen)
	}
	if _, seen = tr.Outcomes(5000); !reflect.DeepEqual(seen[2], Outcome{6, false}) {
		t.Fatalf("the last outcome is %v long after", seen[2])
	}
	tr.Access(8, 5000, Context{}, &x)
	tr.Access(9, 5001, Context{}, &x) // forgets 7
	if _, seen = tr.Outcomes(6000); len(seen) != 5 || seen[3] != (Outcome{6, false}) {
		t.Fatalf("outcomes %v, want that of 8 cut at 6", seen)
	}
	if tr.Describe(7, 5002, &x) || !tr.Describe(8, 5002, &x) {
		t.Fatal("the least recent key was not the one forgotten")
	}
}

// If almost nothing returns within as many requests as there are entries, samples are watched for longer.
func TestHorizonGrowsUntilSomethingReturns(t *testing.T) {
	for _, c := range []struct{ loop, want int64 }{{50, 100}, {150, 200}, {700, 800}} {
		tr := NewTracker(TrackerConfig{Keys: 2000, Window: 4000, Every: 1, HalfLife: 4, Entries: 100})
		var x Sample
		for now := range int64(8000) {
			tr.Access(uint64(now%c.loop), now, Context{}, &x)
		}
		var l Lesson
		l.gather(tr, 8000, 4000)
		if h := l.horizon(); h != c.want {
			t.Errorf("a loop of %d through a cache of 100: samples are watched for %d, want %d", c.loop, h, c.want)
		}
	}
}

// A lesson gathered in steps equals one gathered at once, and its memory is reused.
func TestLessonGathersInSteps(t *testing.T) {
	f := NewForecaster(300)
	r := rand.New(rand.NewPCG(3, 4))
	l := NewLesson(f)
	for now := range int64(20000) {
		f.Access(uint64(r.ExpFloat64()*200), now, Context{}) // some return, some do not
		if now%7000 != 6999 {
			continue
		}
		l.Reset()
		steps := 1
		for l.Gather(f, now) {
			steps++
		}
		l.conclude()
		xs, out := f.Tracker.Outcomes(now)
		if !reflect.DeepEqual(l.samples, xs) || !reflect.DeepEqual(l.outcomes, out) {
			t.Fatalf("after %d requests the lessons differ: %d samples in steps, %d at once", now, len(l.samples), len(xs))
		}
		if want := (len(f.Tracker.window) + gathered - 1) / gathered; steps != want {
			t.Errorf("%d samples were gathered in %d steps, want %d", len(f.Tracker.window), steps, want)
		}
	}
	if n := testing.AllocsPerRun(10, func() {
		l.Reset()
		for l.Gather(f, 20000) {
		}
	}); n != 0 {
		t.Errorf("gathering allocates %v times", n)
	}
}

// A single sample gives the same bits as in a batch.
func TestPredictOneIsPredict(t *testing.T) {
	xs, ys := learnable(3000, 5)
	out := make([]float32, len(xs))
	for trees := range 10 {
		m := Train(xs, ys, TrainParams{Trees: trees + 1, Depth: 1 + trees%maxDepth})
		if trees%2 == 1 {
			m.rescale(2)
		}
		m.Predict(xs, out)
		for i := range xs {
			if got := m.one(&xs[i]); got != out[i] {
				t.Fatalf("%d trees, sample %d: %v alone, %v in a batch", trees+1, i, got, out[i])
			}
		}
	}
}

func TestTrackerStaysBounded(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	tr := NewTracker(TrackerConfig{Keys: 50, Window: 64, Every: 1, HalfLife: 4, Horizon: 100})
	var x Sample
	for now := range int64(20000) {
		tr.Access(r.Uint64N(300), now, Context{}, &x)
		tr.Describe(r.Uint64N(300), now, &x)
	}
	if len(tr.window) != 64 || tr.byKey.used != 50 || len(tr.byKey.cells) > 128 {
		t.Errorf("window of %d, %d keys in a table of %d", len(tr.window), tr.byKey.used, len(tr.byKey.cells))
	}
	if n := testing.AllocsPerRun(1000, func() { tr.Access(r.Uint64N(300), 30000, Context{}, &x) }); n != 0 {
		t.Errorf("an access allocates %v times", n)
	}
}

func BenchmarkTrain50000(b *testing.B) {
	xs, ys := learnable(50000, 8)
	for b.Loop() {
		Train(xs, ys, TrainParams{})
	}
}

// threeModels returns the mean of three models, which is what predicts by default.
func threeModels() (*Model, []Sample) {
	xs, ys := learnable(5000, 9)
	var models []*Model
	for seed := range uint64(averaged) {
		models = append(models, Train(xs, ys, TrainParams{Seed: seed + 1}))
	}
	return average(models), xs
}

func BenchmarkPredictOne(b *testing.B) {
	m, xs := threeModels()
	b.Run("plain", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			m.onePlain(&xs[i%4096])
		}
	})
	b.Run("best", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			m.one(&xs[i%4096])
		}
	})
}

func BenchmarkPredict(b *testing.B) {
	m, xs := threeModels()
	out := make([]float32, 64)
	for _, n := range []int{12, 64} {
		for name, predict := range map[string]func([]Sample, []float32){"plain": m.predictPlain, "best": m.predict} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				for i := 0; b.Loop(); i++ {
					predict(xs[i%64*64:][:n], out[:n])
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/prediction")
			})
		}
	}
}

// Before the first eviction, models learn from waiting entries too, not only from those just used. After it, they learn
// from the entries that evictions ask for.
func TestForecasterLooksBack(t *testing.T) {
	f := NewForecaster(1000)
	waiting := func() (n int) {
		for _, s := range f.Tracker.window {
			if s.x[0] > 0 {
				n++
			}
		}
		return n
	}
	for now := range int64(900) {
		f.Access(uint64(now), now, Context{})
	}
	before := waiting()
	if all := len(f.Tracker.window); before < all/5 || before > 3*all/4 {
		t.Errorf("%d of %d samples are of entries that wait", before, all)
	}
	f.Refresh([]uint64{1 << 40}, 900, make([]int64, 1)) // of a key that is not remembered
	for now := range int64(100) {
		f.Access(uint64(now), 900+now, Context{})
	}
	if after := waiting(); after > before {
		t.Errorf("%d more samples of entries that wait, though evictions ask for them", after-before)
	}
}

// Models that predict together predict their mean. Models that knew too little are left out.
func TestForecasterAverages(t *testing.T) {
	xs, ys := learnable(3000, 9)
	models, out := make([]*Model, 4), make([][]float32, 4)
	for i := range models {
		models[i], out[i] = Train(xs, ys, TrainParams{Seed: uint64(i + 1)}), make([]float32, 50)
		models[i].Predict(xs[:50], out[i])
	}
	f, got := NewForecaster(100), make([]float32, 50)
	for i, accesses := range []uint64{400, 1000, 1500, 1900} {
		f.Tracker.accesses = accesses
		f.Use(models[i])
		first := []int{0, 1, 1, 1}[i]
		f.Model().Predict(xs[:50], got)
		for j := range got {
			want := float32(0)
			for _, o := range out[first : i+1] {
				want += o[j] / float32(i+1-first)
			}
			if math.Abs(float64(got[j]-want)) > 1e-3 {
				t.Fatalf("after model %d: predicted %v, the mean of models %d to %d is %v", i, got[j], first, i, want)
			}
		}
	}
}

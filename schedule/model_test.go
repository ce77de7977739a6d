package schedule

import (
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"testing"
)

// gpu is a made-up device: 2 ms per batch, 10 µs per token, 1 ns per key.
var gpu = PrefillModel{Fixed: 2, Row: .01, Square: 2e-8, Key: 1e-6, Request: .05}

// measure draws batches of all sizes and times them with a model, plus noise as a share of the time.
func measure(rng *rand.Rand, m *PrefillModel, n int, noise float64) []Sample {
	out := make([]Sample, n)
	for i := range out {
		s := Sample{Rows: int(math.Exp(9 * rng.Float64())), Requests: 1 + rng.IntN(8)}
		s.Keys = s.Rows * (100 + rng.IntN(4000))
		s.Ms = m.Predict(s.Rows, s.Keys, s.Requests) * (1 + noise*rng.NormFloat64())
		out[i] = s
	}
	return out
}

func TestFitFindsTheModel(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	m, err := Fit(measure(rng, &gpu, 60, 0))
	if err != nil {
		t.Fatal(err)
	}
	want := gpu.coefficients()
	for i, c := range m.coefficients() {
		if math.Abs(c-want[i]) > 1e-3*want[i] {
			t.Errorf("%s: fitted %v, want %v", features[i], c, want[i])
		}
	}
	if m.Quality.R2 < .99999 || m.Quality.MaxRelative > 1e-3 {
		t.Errorf("exact data, yet R² is %v and the largest error %v", m.Quality.R2, m.Quality.MaxRelative)
	}
}

// Noise may change coefficients, but predictions must stay close and no coefficient may be negative.
func TestFitOfNoisySamples(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 2))
		truth := gpu
		if seed%2 == 1 {
			truth.Square, truth.Request = 0, 0 // at the edge, where plain least squares goes negative
		}
		m, err := Fit(measure(rng, &truth, 80, .05))
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Validate(); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
		if m.Quality.R2 < .97 {
			t.Errorf("seed %d: R² is %v", seed, m.Quality.R2)
		}
		for _, s := range measure(rng, &truth, 50, 0) {
			if got := m.Predict(s.Rows, s.Keys, s.Requests); math.Abs(got-s.Ms) > .15*s.Ms {
				t.Errorf("seed %d: %+v predicted as %v", seed, s, got)
			}
		}
	}
}

// No lower error is found by projected gradient descent.
func TestSolveAgainstGradientDescent(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 3))
		var m moments
		for range 12 {
			var x vector
			for i := range x {
				x[i] = rng.NormFloat64()
			}
			m.add(x)
		}
		c, ok := m.solve()
		if !ok {
			continue // every direction is negative: the optimum is 0
		}
		var g vector
		for range 20_000 {
			for i := range g {
				slope := -m.b[i]
				for j := range g {
					slope += m.a[i][j] * g[j]
				}
				g[i] = max(0, g[i]-slope/40)
			}
		}
		if m.error(c) > m.error(g)+1e-6 {
			t.Errorf("seed %d: error %v at %v, descent finds %v at %v", seed, m.error(c), c, m.error(g), g)
		}
	}
}

func TestFitRejectsDegenerateSamples(t *testing.T) {
	repeat := func(n int, f func(i int) Sample) []Sample {
		out := make([]Sample, n)
		for i := range out {
			out[i] = f(i)
		}
		return out
	}
	for name, samples := range map[string][]Sample{
		"none":         nil,
		"too few":      repeat(4, func(i int) Sample { return Sample{i + 1, i, 1, 1} }),
		"one batch":    repeat(50, func(int) Sample { return Sample{100, 1000, 1, 3} }),
		"two sizes":    repeat(50, func(i int) Sample { return Sample{100 + i%2, 1000, 1, 3} }),
		"constant":     repeat(50, func(i int) Sample { return Sample{100 + i, 1000, 1, 3} }),
		"shrinking":    repeat(50, func(i int) Sample { return Sample{100 + i, 1000, 1, 300 - float64(i)} }),
		"only growing": repeat(50, func(i int) Sample { return Sample{100 - i, 1000 - i, 1 + i, 3 + float64(i)} }),
	} {
		if m, err := Fit(samples); !errors.Is(err, ErrDegenerate) {
			t.Errorf("%s: got %+v, %v, want ErrDegenerate", name, m, err)
		}
	}
	good := measure(rand.New(rand.NewPCG(1, 1)), &gpu, 20, 0)
	for _, bad := range []Sample{{0, 1, 1, 1}, {1, -1, 1, 1}, {1, 1, 0, 1}, {1, 1, 1, 0}, {1, 1, 1, math.NaN()},
		{1, 1, 1, math.Inf(1)}} {
		if _, err := Fit(append(good[:19:19], bad)); err == nil {
			t.Errorf("sample %+v was accepted", bad)
		}
	}
}

// Dense causal prefill: keys are a function of rows, so two features are not independent.
func TestFitOfCollinearSamples(t *testing.T) {
	var samples []Sample
	for r := 64; r <= 8192; r *= 2 {
		s := Sample{Rows: r, Keys: r * (r + 1) / 2, Requests: 1}
		s.Ms = gpu.Predict(s.Rows, s.Keys, 1)
		samples = append(samples, s)
	}
	m, err := Fit(samples)
	if err != nil {
		t.Fatal(err)
	}
	if m.Quality.MaxRelative > .01 {
		t.Errorf("largest relative error %v: %+v", m.Quality.MaxRelative, m)
	}
}

func TestRowsInvertsPredict(t *testing.T) {
	linear := PrefillModel{Fixed: 1, Row: .01}
	for _, m := range []PrefillModel{gpu, linear, {Square: 1e-6}} {
		for _, rows := range []int{1, 10, 333, 4000, 100_000} {
			const keysPerRow, rowsPerRequest = 100, 50
			ms := m.Predict(rows, rows*keysPerRow, 1) - m.Request + m.Request*float64(rows)/rowsPerRequest
			if got := m.Rows(ms*(1+1e-9), keysPerRow, rowsPerRequest); got != rows {
				t.Errorf("%+v: %v ms is a budget of %d rows, want %d", m, ms, got, rows)
			}
		}
	}
	if got := gpu.Rows(gpu.Fixed, 0, 0); got != 0 {
		t.Errorf("no time left, yet a budget of %d rows", got)
	}
	free := PrefillModel{Fixed: 1}
	if got := free.Rows(2, 0, 0); got != math.MaxInt {
		t.Errorf("rows cost nothing, yet a budget of %d rows", got)
	}
}

func TestModelSurvivesJSON(t *testing.T) {
	m, err := Fit(measure(rand.New(rand.NewPCG(9, 9)), &gpu, 40, .02))
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var back PrefillModel
	if err := json.Unmarshal(data, &back); err != nil || back != m {
		t.Errorf("%s came back as %+v: %v", data, back, err)
	}
	if bad := (PrefillModel{Row: -1}); bad.Validate() == nil {
		t.Error("a negative coefficient was accepted")
	}
}

// The machine becomes half as fast: predictions follow within the tuner's memory. Single stalls do not matter.
func TestTunerFollows(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	m, err := Fit(measure(rng, &gpu, 60, .02))
	if err != nil {
		t.Fatal(err)
	}
	tuner, err := NewTuner(m, 100)
	if err != nil {
		t.Fatal(err)
	}
	var slow PrefillModel
	c := gpu.coefficients()
	for i := range c {
		c[i] *= 2
	}
	slow.setCoefficients(c)
	worst := func(truth *PrefillModel) float64 {
		w, now := 0.0, tuner.Model()
		for _, s := range measure(rng, truth, 200, 0) {
			w = max(w, math.Abs(now.Predict(s.Rows, s.Keys, s.Requests)-s.Ms)/s.Ms)
		}
		return w
	}
	for _, s := range measure(rng, &gpu, 300, .05) {
		tuner.Observe(s)
	}
	if w := worst(&gpu); w > .1 {
		t.Errorf("on steady traffic a prediction is off by %.0f %%", 100*w)
	}
	stall := measure(rng, &gpu, 1, 0)[0]
	stall.Ms *= 1000
	tuner.Observe(stall)
	if w := worst(&gpu); w > .3 {
		t.Errorf("after one stall a prediction is off by %.0f %%", 100*w)
	}
	for _, s := range measure(rng, &slow, 500, .05) {
		tuner.Observe(s)
	}
	if w := worst(&slow); w > .15 {
		t.Errorf("500 batches after the machine slowed down a prediction is off by %.0f %%", 100*w)
	}
}

// Traffic that always looks the same must not make the tuner forget what other batches cost.
func TestTunerKeepsWhatTrafficDoesNotShow(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 6))
	m, err := Fit(measure(rng, &gpu, 60, 0))
	if err != nil {
		t.Fatal(err)
	}
	tuner, err := NewTuner(m, 50)
	if err != nil {
		t.Fatal(err)
	}
	for range 2000 {
		tuner.Observe(Sample{1000, 500_000, 2, gpu.Predict(1000, 500_000, 2) * (1 + .02*rng.NormFloat64())})
	}
	now := tuner.Model()
	for _, s := range measure(rng, &gpu, 50, 0) {
		if got := now.Predict(s.Rows, s.Keys, s.Requests); math.Abs(got-s.Ms) > .1*s.Ms {
			t.Errorf("%+v predicted as %v", s, got)
		}
	}
}

func TestTunerDoesNotAllocate(t *testing.T) {
	m, err := Fit(measure(rand.New(rand.NewPCG(7, 7)), &gpu, 60, 0))
	if err != nil {
		t.Fatal(err)
	}
	tuner, err := NewTuner(m, 50)
	if err != nil {
		t.Fatal(err)
	}
	if got := testing.AllocsPerRun(100, func() { tuner.Observe(Sample{100, 1000, 1, 3}) }); got != 0 {
		t.Errorf("%v allocations per sample", got)
	}
	tuner.Observe(Sample{})
	for _, c := range []struct {
		m      PrefillModel
		memory int
	}{{PrefillModel{}, 10}, {m, 0}, {PrefillModel{Row: math.NaN()}, 10}} {
		if _, err := NewTuner(c.m, c.memory); err == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
}

func BenchmarkTuner(b *testing.B) {
	m, err := Fit(measure(rand.New(rand.NewPCG(7, 7)), &gpu, 60, 0))
	if err != nil {
		b.Fatal(err)
	}
	tuner, err := NewTuner(m, 50)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		tuner.Observe(Sample{100, 1000, 1, 3})
	}
}

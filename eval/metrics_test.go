package eval

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func near(a, b float64) bool { return math.Abs(a-b) < 1e-12 }

// By hand. The discounts of places 1, 2 and 3 are 1, 1/log2(3) = 0.63093 and 1/2.
func TestMetricsByHand(t *testing.T) {
	second := 1 / math.Log2(3)
	for _, c := range []struct {
		name     string
		places   []int
		relevant int
		k        int
		want     Metrics
	}{
		{"first of all", []int{1}, 1, 10, Metrics{1, 1, 1, 1}},
		{"second", []int{2}, 1, 10, Metrics{1, 0.5, second, 1}},
		{"third", []int{3}, 1, 5, Metrics{1, 1.0 / 3, 0.5, 1}},
		{"at the cut", []int{5}, 1, 5, Metrics{1, 0.2, 1 / math.Log2(6), 1}},
		{"behind the cut", []int{6}, 1, 5, Metrics{}},
		{"not in the list", nil, 1, 5, Metrics{}},
		{"two of two, first and third", []int{3, 1}, 2, 5, Metrics{1, 1, 1.5 / (1 + second), 1}},
		{"one of three, second", []int{2, 9}, 3, 5, Metrics{1.0 / 3, 0.5, second / (1 + second + 0.5), 1}},
		{"more relevant than the cut", []int{1, 2}, 5, 2, Metrics{0.4, 1, 1, 1}},
	} {
		got := At(c.places, c.relevant, c.k)
		if !near(got.Recall, c.want.Recall) || !near(got.MRR, c.want.MRR) || !near(got.NDCG, c.want.NDCG) ||
			got.Hit != c.want.Hit {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

// judge is the metrics again, written from the other side: over a list of gains, by the textbook.
func judge(gains []int, k int) Metrics {
	dcg := func(g []int) (sum float64) {
		for i := range min(k, len(g)) {
			sum += (math.Pow(2, float64(g[i])) - 1) * math.Ln2 / math.Log(float64(i+2))
		}
		return sum
	}
	total := 0
	for _, g := range gains {
		total += g
	}
	if total == 0 {
		return Metrics{}
	}
	ideal := slices.Clone(gains)
	slices.Sort(ideal)
	slices.Reverse(ideal)
	m := Metrics{NDCG: dcg(gains) / dcg(ideal)}
	for i := min(k, len(gains)) - 1; i >= 0; i-- {
		if gains[i] == 1 {
			m.Recall += 1 / float64(total)
			m.Hit, m.MRR = 1, 1/float64(i+1)
		}
	}
	return m
}

func TestMetricsAgainstASecondImplementation(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 5000 {
		n, k := 1+r.IntN(40), 1+r.IntN(25)
		gains := make([]int, n)
		var places []int
		for i := range gains {
			if r.IntN(6) == 0 {
				gains[i] = 1
				places = append(places, i+1)
			}
		}
		if len(places) == 0 {
			continue
		}
		r.Shuffle(len(places), func(i, j int) { places[i], places[j] = places[j], places[i] })
		got, want := At(places, len(places), k), judge(gains, k)
		if math.Abs(got.NDCG-want.NDCG) > 1e-9 || math.Abs(got.Recall-want.Recall) > 1e-9 || !near(got.MRR, want.MRR) ||
			got.Hit != want.Hit {
			t.Fatalf("gains %v at %d: %+v, want %+v", gains, k, got, want)
		}
	}
}

// The expectation is the mean over all answers, weighted.
func TestExpected(t *testing.T) {
	p := []float64{0.4, 0.1, 0.3, 0.2}
	for k := 1; k <= 5; k++ {
		var want Metrics
		for i, x := range p {
			m := At([]int{i + 1}, 1, k)
			want.Recall += x * m.Recall
			want.MRR += x * m.MRR
			want.NDCG += x * m.NDCG
			want.Hit += x * m.Hit
		}
		got := Expected(p, k)
		if !near(got.Recall, want.Recall) || !near(got.MRR, want.MRR) || !near(got.NDCG, want.NDCG) ||
			!near(got.Hit, want.Hit) {
			t.Errorf("at %d: %+v, want %+v", k, got, want)
		}
	}
}

// No order of candidates has a better expectation than that of their probabilities: all orders of six.
func TestTheOptimumIsBest(t *testing.T) {
	q := &Question{Candidates: []string{"a", "b", "c", "d", "e", "f"},
		Probabilities: []float64{0.05, 0.3, 0.1, 0.25, 0.2, 0.1}}
	value := func(list []string) float64 {
		in := make([]float64, len(list))
		for i, id := range list {
			in[i] = q.Probabilities[slices.Index(q.Candidates, id)]
		}
		return Expected(in, 4).NDCG
	}
	best := value(byProbability(q))
	var each func(done, left []string)
	each = func(done, left []string) {
		if len(left) == 0 {
			if v := value(done); v > best+1e-12 {
				t.Errorf("%v reaches %.4f, the optimum %.4f", done, v, best)
			}
			return
		}
		for i := range left {
			each(append(slices.Clone(done), left[i]), slices.Delete(slices.Clone(left), i, i+1))
		}
	}
	each(nil, q.Candidates)
}

// Of a normal mean the bootstrap's interval is known: ±1.96 standard errors.
func TestBootstrap(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	const n = 2000
	values := make([]float64, n)
	var sum, squares float64
	for i := range values {
		values[i] = 3 + r.NormFloat64()
		sum += values[i]
		squares += values[i] * values[i]
	}
	mean := sum / n
	half := 1.96 * math.Sqrt((squares/n-mean*mean)/n)
	e := Mean(values, 1)
	if !near(e.Value, mean) || math.Abs(e.High-mean-half) > 0.15*half || math.Abs(mean-e.Low-half) > 0.15*half {
		t.Errorf("%v, want %.3f ± %.3f", e, mean, half)
	}
	if e != Mean(values, 1) {
		t.Error("one seed gives two intervals")
	}
	double := make([]float64, n)
	for i := range double {
		double[i] = 2 * values[i]
	}
	if e := Ratio(double, values, 1); !near(e.Value, 2) || !near(e.Low, 2) || !near(e.High, 2) {
		t.Errorf("twice the same values: ratio %v, want 2 without doubt: a user's values stay together", e)
	}
	if e := Ratio(nil, nil, 1); e != (Estimate{}) {
		t.Errorf("nothing: %v", e)
	}
}

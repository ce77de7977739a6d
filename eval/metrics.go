package eval

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Metrics are those of one list, cut at k.
type Metrics struct{ Recall, MRR, NDCG, Hit float64 }

// At returns the metrics of a list at k: places are those of the relevant items in it, from 1, in any
// order, and relevant is how many such items there are in all.
func At(places []int, relevant, k int) Metrics {
	var m Metrics
	if relevant <= 0 || k <= 0 {
		return m
	}
	first, gain, found := 0, 0.0, 0
	for _, p := range places {
		if p > k {
			continue
		}
		found++
		gain += discount(p)
		if first == 0 || p < first {
			first = p
		}
	}
	ideal := 0.0
	for p := 1; p <= min(relevant, k); p++ {
		ideal += discount(p)
	}
	m.Recall, m.NDCG = float64(found)/float64(relevant), gain/ideal
	if found > 0 {
		m.Hit, m.MRR = 1, 1/float64(first)
	}
	return m
}

func discount(place int) float64 { return 1 / math.Log2(float64(place)+1) }

// Expected returns the metrics at k in expectation, when one item is relevant: the one at place i+1
// with probability p[i].
func Expected(p []float64, k int) Metrics {
	var m Metrics
	for i, x := range p[:min(k, len(p))] {
		m.Recall += x
		m.MRR += x / float64(i+1)
		m.NDCG += x * discount(i+1)
	}
	m.Hit = m.Recall
	return m
}

// Estimate is a mean with a 95 % interval.
type Estimate struct {
	Value float64 `json:"value"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
	// Undefined is set of a ratio to values that are all zero. The other fields are then 0.
	Undefined bool `json:"undefined,omitempty"`
}

const resamples = 1000

// Mean returns the mean of values, one per user, with a bootstrap interval.
func Mean(values []float64, seed uint64) Estimate { return bootstrap{seed, resamples}.mean(values) }

// Ratio returns the sum of a over the sum of b, values of the same users, with a bootstrap interval in
// which a user's values stay together.
func Ratio(a, b []float64, seed uint64) Estimate { return bootstrap{seed, resamples}.ratio(a, b) }

// bootstrap makes intervals of so many samples; without any they are the value itself.
type bootstrap struct {
	seed    uint64
	samples int
}

func (s bootstrap) mean(values []float64) Estimate {
	ones := make([]float64, len(values))
	for i := range ones {
		ones[i] = 1
	}
	return s.ratio(values, ones)
}

func (s bootstrap) ratio(a, b []float64) Estimate {
	var sa, sb float64
	for i := range a {
		sa += a[i]
		sb += b[i]
	}
	if len(a) == 0 || sb == 0 {
		return Estimate{Undefined: len(a) > 0}
	}
	r := rand.New(rand.NewPCG(s.seed, uint64(len(a))))
	ratios := make([]float64, 0, s.samples)
	for range s.samples {
		var x, y float64
		for range a {
			i := r.IntN(len(a))
			x += a[i]
			y += b[i]
		}
		if y != 0 {
			ratios = append(ratios, x/y)
		}
	}
	if len(ratios) == 0 {
		return Estimate{Value: sa / sb, Low: sa / sb, High: sa / sb}
	}
	slices.Sort(ratios)
	at := func(q float64) float64 { return ratios[int(q*float64(len(ratios)-1)+0.5)] }
	return Estimate{Value: sa / sb, Low: at(0.025), High: at(0.975)}
}

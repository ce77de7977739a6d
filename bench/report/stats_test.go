package report

import (
	"math"
	"testing"
)

// By hand: the choices of signs whose sum of ranks is as large, of all.
func TestAbove(t *testing.T) {
	for _, c := range []struct {
		ratios []float64
		p      float64
	}{
		{[]float64{1.1, 1.2, 1.3, 1.4}, 1. / 16},
		{[]float64{.9, .8, .7, .6}, 1},
		{[]float64{.9, 1.2, 1.3, 1.4}, 2. / 16},  // the sums 9 and 10
		{[]float64{1.1, .5, 1.3, 1.05}, 7. / 16}, // 6 or more
		{[]float64{2, .5}, 3. / 4},               // equal distances: 1.5 or more
		{[]float64{1, 1, 1.5}, 1. / 2},
		{[]float64{1, 1}, 1},
	} {
		if got := Above(c.ratios); math.Abs(got-c.p) > 1e-9 {
			t.Errorf("Above(%v) is %v, want %v", c.ratios, got, c.p)
		}
	}
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{3, 1}, 2}, {[]float64{9, 1, 2}, 2}, {[]float64{4, 1, 3, 2}, 2.5}} {
		if got := Median(c.values); got != c.want {
			t.Errorf("the median of %v is %v, want %v", c.values, got, c.want)
		}
	}
}

func TestPercentile(t *testing.T) {
	hundred := make([]int, 100)
	for i := range hundred {
		hundred[i] = i
	}
	for _, c := range []struct {
		sorted        []int
		percent, want int
	}{
		{nil, 99, 0}, {[]int{7}, 99, 7}, {[]int{1, 2, 3}, 50, 2}, {[]int{1, 2, 3, 4}, 50, 3},
		{hundred, 99, 99}, {hundred, 90, 90}, {hundred, 100, 99},
	} {
		if got := Percentile(c.sorted, c.percent); got != c.want {
			t.Errorf("percentile %d of %d values is %d, want %d", c.percent, len(c.sorted), got, c.want)
		}
	}
}

// By hand: the deviation is 1, so the interval of three values is 4.303 / √3 to each side.
func TestMean(t *testing.T) {
	for _, c := range []struct {
		values      []float64
		mean, aside float64
	}{{nil, 0, 0}, {[]float64{2}, 2, 0}, {[]float64{1, 3, 2}, 2, 4.303 / math.Sqrt(3)}, {[]float64{4, 4, 4, 4}, 4, 0}} {
		mean, low, high := Mean(c.values)
		if mean != c.mean || math.Abs(low-(c.mean-c.aside)) > 1e-12 || math.Abs(high-(c.mean+c.aside)) > 1e-12 {
			t.Errorf("%v: %v, %v to %v, want %v ± %v", c.values, mean, low, high, c.mean, c.aside)
		}
	}
}

// With nine values, the second and the eighth: one tail of a coin's nine tosses has a chance of 10 in 512.
func TestInterval(t *testing.T) {
	for _, c := range []struct {
		values    []float64
		low, high float64
	}{{nil, 0, 0}, {[]float64{2}, 2, 2}, {[]float64{2, 1}, 1, 2}, {[]float64{9, 8, 7, 6, 5, 4, 3, 2, 1}, 2, 8}} {
		if low, high := Interval(c.values); low != c.low || high != c.high {
			t.Errorf("%v: %v to %v, want %v to %v", c.values, low, high, c.low, c.high)
		}
	}
}

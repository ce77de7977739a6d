package report

import (
	"cmp"
	"io"
	"math"
	"slices"
	"text/tabwriter"
)

// Median returns the middle of values, the mean of the two in the middle where their number is even; 0 for none.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	v := slices.Sorted(slices.Values(values))
	return (v[len(v)/2] + v[(len(v)-1)/2]) / 2
}

// Interval returns values between which the median that they were drawn from lies with a confidence of at least 95 %:
// on each side of it lie as many as n tosses of a coin show heads. Few values give the least and the greatest, with
// less confidence.
func Interval(values []float64) (low, high float64) {
	v := slices.Sorted(slices.Values(values))
	n, skip := len(v), 0
	if n == 0 {
		return 0, 0
	}
	chance := math.Exp2(-float64(n)) // of so many heads
	for sum := chance; skip < (n-1)/2; skip++ {
		chance *= float64(n-skip) / float64(skip+1)
		if sum += chance; sum > 0.025 {
			break
		}
	}
	return v[skip], v[n-1-skip]
}

// Percentile returns the value below which that many percent of sorted values lie; 0 for none.
func Percentile[T cmp.Ordered](sorted []T, percent int) T {
	if len(sorted) == 0 {
		var none T
		return none
	}
	return sorted[min(len(sorted)*percent/100, len(sorted)-1)]
}

// student is the 97.5 % quantile of Student's t by degrees of freedom.
var student = []float64{math.Inf(1), 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228}

// Mean returns the mean of a few values, such as one per seed, and values between which the mean that they were drawn
// from lies with a confidence of 95 %, if they are normally distributed. One value is its own interval. Of more than 11
// values the interval is a little wider than it needs to be.
func Mean(values []float64) (mean, low, high float64) {
	for _, x := range values {
		mean += x
	}
	mean /= float64(max(len(values), 1))
	if len(values) < 2 {
		return mean, mean, mean
	}
	square := 0.0
	for _, x := range values {
		square += (x - mean) * (x - mean)
	}
	free := len(values) - 1
	half := student[min(free, len(student)-1)] * math.Sqrt(square/float64(free)/float64(len(values)))
	return mean, mean - half, mean + half
}

// Ratios divides each of a by the one of b that was measured beside it.
func Ratios(a, b []float64) []float64 {
	out := make([]float64, len(a))
	for i := range a {
		out[i] = a[i] / b[i]
	}
	return out
}

// Above returns the p value of a one-sided signed-rank test of Wilcoxon: how likely ratios would be above 1 so often
// and so far if what they compare were the same. It is exact; of equal distances each has the mean of their ranks.
func Above(ratios []float64) float64 {
	var logs []float64
	for _, r := range ratios {
		if x := math.Log(r); x != 0 {
			logs = append(logs, x)
		}
	}
	slices.SortFunc(logs, func(a, b float64) int { return cmp.Compare(math.Abs(a), math.Abs(b)) })
	up, most := 0, 0              // twice the sum of the ranks above 1, and of all
	ways := map[int]float64{0: 1} // how many choices of signs give each sum
	for i := 0; i < len(logs); {
		k := i
		for k < len(logs) && math.Abs(logs[k]) == math.Abs(logs[i]) {
			k++
		}
		rank := i + k + 1 // twice the mean of ranks i+1 to k
		for ; i < k; i++ {
			if logs[i] > 0 {
				up += rank
			}
			next := map[int]float64{}
			for sum, n := range ways {
				next[sum] += n
				next[sum+rank] += n
			}
			ways, most = next, most+rank
		}
	}
	above, all := 0.0, 0.0
	for sum := 0; sum <= most; sum++ {
		all += ways[sum]
		if sum >= up {
			above += ways[sum]
		}
	}
	return above / all
}

// Table returns a writer of a table whose cells end in tabs. The caller MUST Flush it.
func Table(w io.Writer) *tabwriter.Writer {
	return tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
}

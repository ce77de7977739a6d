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

// Interval returns values between which the median that they were drawn from lies with a confidence of at least 95 %: on each
// side of it lie as many as n tosses of a coin show heads. Few values give the least and the greatest, with less confidence.
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

// Ratios divides each of a by the one of b that was measured beside it.
func Ratios(a, b []float64) []float64 {
	out := make([]float64, len(a))
	for i := range a {
		out[i] = a[i] / b[i]
	}
	return out
}

// Above returns the p value of a one-sided signed-rank test of Wilcoxon: how likely ratios would be above 1 so often and
// so far if what they compare were the same. It is exact; of equal distances each has the mean of their ranks.
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

package gemm

import (
	"context"
	"fmt"
	"slices"
	"time"

	"grebe/bench/report"
)

const (
	leastRounds = 11
	narrow      = 0.015                // half a confidence interval that is narrow
	rest        = 2 * time.Millisecond // longer than any contender's threads spin
	measure     = 8 * time.Millisecond // least time of a turn
)

// rounds holds the seconds of each contender by round.
type rounds struct {
	cs    []contender // Grebe first, then its peers
	limit *ceiling    // takes the last turn of a round, where there is one
	times [][]float64
	rates []float64 // of limit, FLOP/s
}

func newRounds(cs []contender, limit *ceiling) *rounds {
	return &rounds{cs: cs, limit: limit, times: make([][]float64, len(cs))}
}

// take lets all take turns until the ratios are certain enough.
func (rs *rounds) take(ctx context.Context, o *Options) error {
	begin := time.Now()
	for n := 0; n < o.Rounds || (!rs.certain() && time.Since(begin) < o.Patience); n++ {
		for _, c := range order(len(rs.cs), n) {
			if err := ctx.Err(); err != nil {
				return err
			}
			t, err := turn(rs.cs[c])
			if err != nil {
				return fmt.Errorf("%s: %w", rs.cs[c].name(), err)
			}
			rs.times[c] = append(rs.times[c], t)
		}
		if rs.limit != nil {
			time.Sleep(rest)
			rs.rates = append(rs.rates, rs.limit.rate())
		}
	}
	return nil
}

// order returns who takes turns in round n: everybody is as often before as after everybody else.
func order(contenders, n int) []int {
	o := make([]int, contenders)
	for i := range o {
		o[i] = (i + n/2) % contenders
	}
	if n%2 == 1 {
		slices.Reverse(o)
	}
	return o
}

// turn lets a contender run for a while and returns the median of its products. A first product,
// which wakes the threads, is not counted where it is short.
func turn(c contender) (float64, error) {
	time.Sleep(rest)
	var products []float64
	begin := time.Now()
	for n := 0; ; n++ {
		start := time.Now()
		if err := c.run(); err != nil {
			return 0, err
		}
		end := time.Now()
		if d := end.Sub(start); n > 0 || d >= measure {
			products = append(products, d.Seconds())
		}
		if end.Sub(begin) >= measure && len(products) > 0 {
			return report.Median(products), nil
		}
	}
}

// ratio returns the median of Grebe's rate over that of a peer, round by round, and its interval.
func (rs *rounds) ratio(peer int) (mid, low, high float64) {
	r := report.Ratios(rs.times[peer], rs.times[0])
	low, high = report.Interval(r)
	return report.Median(r), low, high
}

// certain reports whether the ratio to every peer is known well enough.
func (rs *rounds) certain() bool {
	for i := range rs.cs[1:] {
		if mid, low, high := rs.ratio(1 + i); high-low > 2*narrow*mid {
			return false
		}
	}
	return true
}

// fill sets what was measured of a line.
func (rs *rounds) fill(l *Line, limit *ceiling) {
	flops := 2 * float64(l.M) * float64(l.N) * float64(l.K)
	l.Rounds = len(rs.times[0])
	l.Grebe = flops / report.Median(rs.times[0]) / 1e9
	for i, c := range rs.cs[1:] {
		l.Peers[c.name()] = flops / report.Median(rs.times[1+i]) / 1e9
		if c.name() == ownBF16 {
			l.OverBF16, _, _ = rs.ratio(1 + i)
			continue
		}
		if mid, low, high := rs.ratio(1 + i); l.Ratio == 0 || mid < l.Ratio {
			l.Ratio, l.Low, l.High = mid, low, high
		}
	}
	if limit == nil {
		return
	}
	share := make([]float64, l.Rounds)
	for i := range share {
		share[i] = flops / rs.times[0][i] / rs.rates[i]
	}
	l.Ceiling = report.Median(share)
}

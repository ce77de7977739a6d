package workload

import (
	"math"
	"math/rand/v2"
)

// eventLog is the users of a log of interactions: how many events each has, and how many tokens.
type eventLog struct {
	law    Events
	n      float64
	cut    float64 // quantile below which users have Most events
	total  float64 // events per user
	perOne float64 // tokens of a user with one event
	limits Lengths
}

func newEventLog(law Events, users int, tokens Lengths) *eventLog {
	l := &eventLog{law: law, n: float64(users), limits: tokens}
	l.cut = math.Pow(1+(law.Most-law.Min)/law.scale(), -law.Tail)
	l.total = l.below(1)
	lo, hi := 0.0, float64(tokens.Max)
	for range 50 {
		l.perOne = (lo + hi) / 2
		if l.meanTokens() < tokens.Mean {
			lo = l.perOne
		} else {
			hi = l.perOne
		}
	}
	return l
}

// scale returns that of the tail.
func (e Events) scale() float64 { return (e.Mean - e.Min) * (e.Tail - 1) }

// at returns the events of the user at quantile q, 0 the most active; with Most 0 there is no limit.
func (e Events) at(q float64) float64 {
	n := e.Min + e.scale()*(math.Pow(q, -1/e.Tail)-1)
	if e.Most > 0 {
		n = min(n, e.Most)
	}
	return n
}

// below integrates the events up to quantile q.
func (l *eventLog) below(q float64) float64 {
	if q <= l.cut {
		return q * l.law.Most
	}
	c, power := l.law.scale(), 1-1/l.law.Tail
	tail := func(q float64) float64 { return (l.law.Min-c)*q + c*math.Pow(q, power)/power }
	return l.cut*l.law.Most + tail(q) - tail(l.cut)
}

// draw draws a user's rank in proportion to the user's events.
func (l *eventLog) draw(r *rand.Rand) int {
	want := r.Float64() * l.total
	lo, hi := 0.0, 1.0
	for range 40 {
		if mid := (lo + hi) / 2; l.below(mid) < want {
			lo = mid
		} else {
			hi = mid
		}
	}
	return int(min(hi*l.n, l.n-1))
}

// tokens returns the length of the history of the user at a rank.
func (l *eventLog) tokens(rank int) int {
	x := l.perOne * math.Pow(l.law.at((float64(rank)+0.5)/l.n), l.law.Power)
	return int(math.Round(min(max(x, float64(l.limits.Min)), float64(l.limits.Max))))
}

// meanTokens is over all ranks, or over evenly spaced ones where there are many.
func (l *eventLog) meanTokens() float64 {
	const most = 5_000
	step := max(int(l.n)/most, 1)
	sum, count := 0, 0
	for rank := step / 2; rank < int(l.n); rank += step {
		sum += l.tokens(rank)
		count++
	}
	return float64(sum) / float64(count)
}

// power returns the power of the events for which a log of so many users has both this mean and this
// maximum of tokens: what stretches short histories the more.
func (e Events) power(users int, mean, longest float64) float64 {
	const strata = 4_000
	most := e.at(0.5 / float64(users))
	lo, hi := 0.0, 4.0
	for range 40 {
		p := (lo + hi) / 2
		sum := 0.0
		for i := range strata {
			sum += math.Pow(e.at((float64(i)+0.5)/strata)/most, p)
		}
		if longest*sum/strata > mean {
			lo = p
		} else {
			hi = p
		}
	}
	return hi
}

package peer

import (
	"slices"
	"time"
)

// This file decides when a second peer is asked too. It is pure: times are arguments.

const (
	windowSize = 128 // response times that are kept
	fewTimes   = 16  // with fewer ones nothing is known

	hedgeShare = .1 // of fetches that may be hedged in the long run
	hedgeBurst = 8  // hedges that may come at once
)

// window keeps the last response times of a peer: from a GET to its first answer. A GET that ended without an answer
// counts with the time that it waited, so that a peer that gets slower is not hedged more and more often.
type window struct {
	times  [windowSize]time.Duration
	n      int // ever added
	sorted [windowSize]time.Duration
	at     int // n when sorted was made
}

func (w *window) add(d time.Duration) {
	w.times[w.n%windowSize] = d
	w.n++
}

// quantile returns the time below which a share q of the times lie, or SlowAfter while too little is known. It lags by
// a few times.
func (w *window) quantile(q float64) time.Duration {
	n := min(w.n, windowSize)
	if n < fewTimes {
		return SlowAfter
	}
	if w.at == 0 || w.n-w.at >= fewTimes {
		copy(w.sorted[:n], w.times[:n])
		slices.Sort(w.sorted[:n])
		w.at = w.n
	}
	n = min(w.at, windowSize)
	return w.sorted[min(int(q*float64(n)), n-1)]
}

// allowance bounds the share of fetches that are hedged. When all peers are slow, hedges only add load.
type allowance struct{ tokens float64 }

func (a *allowance) fetched() { a.tokens = min(a.tokens+hedgeShare, hedgeBurst) }

func (a *allowance) take() bool {
	if a.tokens < 1 {
		return false
	}
	a.tokens--
	return true
}

// progress is that of a GET at the first peer.
type progress struct {
	asked    time.Time     // when the fetch began
	last     time.Time     // when the last byte came; zero: none came
	patience time.Duration // P95 of the first peer's response times
	deadline time.Time
	second   time.Duration // median response time of the second peer
}

// hedge decides at now whether the second peer is asked. If not, it returns how long to wait before it is asked again;
// 0: no more.
func (p *progress) hedge(now time.Time) (ask bool, wait time.Duration) {
	due := p.asked.Add(p.patience)
	if !p.last.IsZero() {
		due = p.last.Add(SlowAfter)
	}
	if p.deadline.Sub(due) <= p.second {
		return false, 0 // its answer would come too late
	}
	if due.After(now) {
		return false, due.Sub(now)
	}
	return p.deadline.Sub(now) > p.second, 0
}

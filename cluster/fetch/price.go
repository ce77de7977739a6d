package fetch

import (
	"math"
	"sync"
	"time"

	"grebe/cluster/peer"
)

// price is the measured cost of fetching, over the nodes that were asked.
type price struct {
	mu        sync.Mutex
	nodes     map[string]struct{}
	at        time.Time // when it was computed
	trip, mib float64
	late      lateness
}

const (
	// Costs before anything was measured: a busy network of about 10 Gb/s.
	guessTrip = 0.5 // ms
	guessMiB  = 1   // ms
	// priceLasts is how long a computed price is used.
	priceLasts = 10 * time.Millisecond
)

// use notes that a node is asked.
func (p *price) use(node string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.nodes[node]; ok {
		return
	}
	if p.nodes == nil {
		p.nodes = map[string]struct{}{}
	}
	p.nodes[node] = struct{}{}
}

// Cost implements reuse.Peers. It is the mean over the nodes that were asked.
func (f *Fetcher) Cost() (trip, mib, late float64) {
	p := &f.price
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); p.at.IsZero() || now.Sub(p.at) > priceLasts {
		p.at = now
		p.measure(f.Client)
	}
	return p.trip, p.mib, p.late.factor(time.Now())
}

// ended notes whether all of a GET came in time.
func (p *price) ended(late bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.late.ended(late, time.Now())
}

// lateness makes fetches dearer after others were late. A fetch that is late has cost its whole budget. Over a slow
// link budgets may be too short to measure its bandwidth, and without this every request would try in vain.
type lateness struct {
	more float64   // logarithm of the factor
	last time.Time // when a fetch ended
}

const (
	lateMore  = 2 * math.Ln2 // a late fetch makes the factor four times as large
	lateLess  = -.22         // one in time takes a fifth off: the factor grows if more than one of seven is late
	lateMost  = 14 * math.Ln2
	lateFades = 10 * time.Second // of idleness, in which the logarithm loses most of its value
)

func (l *lateness) ended(late bool, now time.Time) {
	l.more = math.Log(l.factor(now))
	l.last = now
	if late {
		l.more = min(l.more+lateMore, lateMost)
	} else {
		l.more = max(l.more+lateLess, 0)
	}
}

// factor is at least 1. It falls with time, so that peers are tried again.
func (l *lateness) factor(now time.Time) float64 {
	return math.Exp(l.more * math.Exp(-max(0, now.Sub(l.last).Seconds())/lateFades.Seconds()))
}

func (p *price) measure(c *peer.Client) {
	var trips, rates int
	p.trip, p.mib = 0, 0
	for node := range p.nodes {
		s, ok := c.Stats(node)
		if !ok {
			delete(p.nodes, node) // it left
			continue
		}
		if s.RoundTrip > 0 {
			p.trip += s.RoundTrip.Seconds() * 1e3
			trips++
		}
		if s.Bandwidth > 0 {
			p.mib += 1e3 * (1 << 20) / s.Bandwidth
			rates++
		}
	}
	if p.trip /= float64(max(trips, 1)); trips == 0 {
		p.trip = guessTrip
	}
	if p.mib /= float64(max(rates, 1)); rates == 0 {
		p.mib = guessMiB
	}
}

package route

import (
	"math"
	"math/bits"
	"slices"
	"time"
)

// Rules for gray nodes: those that answer, but slowly.
const (
	judgeEvery = 100 * time.Millisecond
	ejectAfter = 5 * time.Second  // for which a node is beyond the limit
	halfLife   = 10 * time.Second // of a smoothed error without answers
	sigmas     = 3                // of the limit
	leastSigma = .05              // of the typical time of an answer: nodes that are a little slower are not ejected
	smoothing  = 16               // answers over which errors are averaged, and the least to judge a node by
	passes     = 5                // probes in a row that were answered in time and bring a node back
	mostGray   = 3                // one node of so many may be ejected
)

// gray is how far a node's answers were from their predictions, in milliseconds.
type gray struct {
	answers  int           // up to smoothing
	mean     float64       // smoothed error: actual less predicted
	variance float64       // of errors
	took     float64       // smoothed actual time
	last     time.Duration // when the last answer came

	beyond  bool          // the smoothed error is beyond the limit
	since   time.Duration // when it was first seen there
	ejected bool
	passed  int           // probes in a row that were answered in time
	probed  time.Duration // when the last probe was sent
}

// learn takes the error of an answer.
func (g *gray) learn(e, took float64, now time.Duration) {
	g.mean = g.smoothed(now)
	g.last = now
	g.answers = min(g.answers+1, smoothing)
	a := 1 / float64(g.answers)
	d := e - g.mean
	g.mean += a * d
	g.variance = (1 - a) * (g.variance + a*d*d)
	g.took += a * (took - g.took)
}

// smoothed returns the node's smoothed error. It fades, so that a node that gets no requests because of it is tried
// again.
func (g *gray) smoothed(now time.Duration) float64 {
	if g.answers == 0 || now <= g.last {
		return g.mean
	}
	return g.mean * math.Exp2(-float64(now-g.last)/float64(halfLife))
}

// typical describes the errors of the nodes that are not ejected: medians over nodes.
type typical struct {
	judged time.Duration
	error  float64 // smoothed error
	sigma  float64 // standard deviation of single errors
	sorted []float64
}

// limit is the smoothed error beyond which a node is gray.
func (t *typical) limit() float64 { return t.error + sigmas*t.sigma }

// penalty returns what a node's smoothed error adds to its price: the part that is further from the typical error than
// single errors are. Less is no sign of a slow node: it can be due to noise, or to the requests that the node gets.
// Nodes that hold much get those that reuse much, whose errors differ, and a penalty for that would send them even
// fewer others.
func (r *Router) penalty(n int, now time.Duration) float64 {
	m := &r.members[n]
	if m.answers == 0 || r.typical.sigma == 0 { // or no errors are known to be typical yet
		return 0
	}
	e := m.smoothed(now) - r.typical.error
	return math.Copysign(max(0, math.Abs(e)-r.typical.sigma), e)
}

// Answered reports how long a request took that was sent to a node. Both times are in milliseconds, predicted is
// Choice.Ms.
func (r *Router) Answered(node int, predicted, actual float64, now time.Duration) {
	m, e := &r.members[node], actual-predicted
	if !m.heard || math.IsNaN(e) || math.IsInf(e, 0) {
		return
	}
	m.learn(e, actual, now)
	if m.ejected {
		r.tested(m, e)
	}
	if now-r.typical.judged >= judgeEvery {
		r.typical.judged = now
		r.judge(now)
	}
}

// tested takes the answer of a probe.
func (r *Router) tested(m *member, e float64) {
	if e > r.typical.limit() {
		m.passed = 0
		return
	}
	if m.passed++; m.passed == passes {
		m.gray = gray{}
		r.ejected--
	}
}

// judge ejects the worst node whose smoothed error was beyond the limit for long enough.
func (r *Router) judge(now time.Duration) {
	if !r.setTypical(now) {
		return
	}
	worst, there := (*member)(nil), 0
	for i := range r.members {
		m := &r.members[i]
		if m.heard {
			there++
		}
		if !m.judgeable() {
			continue
		}
		e := m.smoothed(now)
		if e <= r.typical.limit() {
			m.beyond = false
			continue
		}
		if !m.beyond {
			m.beyond, m.since = true, now
		}
		if now-m.since >= ejectAfter && (worst == nil || e > worst.smoothed(now)) {
			worst = m
		}
	}
	if worst != nil && mostGray*(r.ejected+1) <= there {
		worst.ejected, worst.passed = true, 0
		r.ejected++
	}
}

// judgeable reports whether a node has enough answers.
func (m *member) judgeable() bool { return m.heard && !m.ejected && m.answers == smoothing }

// setTypical sets the typical errors. Medians do not change if a few nodes are gray.
func (r *Router) setTypical(now time.Duration) bool {
	mean, ok := r.median(func(m *member) float64 { return m.smoothed(now) })
	variance, _ := r.median(func(m *member) float64 { return m.variance })
	took, _ := r.median(func(m *member) float64 { return m.took })
	r.typical.error, r.typical.sigma = mean, max(math.Sqrt(variance), leastSigma*took)
	return ok
}

// median returns the median of a number over the nodes with enough answers. Of an even number it is the lower one.
func (r *Router) median(of func(*member) float64) (float64, bool) {
	s := r.typical.sorted[:0]
	for i := range r.members {
		if m := &r.members[i]; m.judgeable() {
			s = append(s, of(m))
		}
	}
	if len(s) == 0 {
		return 0, false
	}
	slices.Sort(s)
	return s[(len(s)-1)/2], true
}

// probe returns the ejected node to test with a request, or -1.
func (r *Router) probe(now time.Duration) int {
	if r.ejected == 0 || r.random.Float64() >= r.config.Probe {
		return -1
	}
	node := -1
	for i := range r.members {
		m := &r.members[i]
		if m.heard && m.ejected && now-m.when <= r.config.Silence && (node < 0 || m.probed < r.members[node].probed) {
			node = i
		}
	}
	if node >= 0 {
		r.members[node].probed = now
	}
	return node
}

// Seen is what a router knows about a node.
type Seen struct {
	Heard   time.Duration // when its last heartbeat came; 0: it was not heard
	Backlog float64       // predicted milliseconds of work
	Error   float64       // smoothed milliseconds, actual less predicted
	Ejected bool
	Shards  int     // embedding shards that it holds
	RowMs   float64 // milliseconds to fetch an embedding row; 0: not measured
}

// Seen returns what the router knows about a node.
func (r *Router) Seen(node int, now time.Duration) Seen {
	m := &r.members[node]
	if !m.heard {
		return Seen{}
	}
	s := Seen{Heard: m.when, Backlog: m.workAt(now), Error: m.smoothed(now), Ejected: m.ejected, RowMs: m.rowMs}
	for _, word := range r.shards[node*r.shardWords : (node+1)*r.shardWords] {
		s.Shards += bits.OnesCount64(word)
	}
	return s
}

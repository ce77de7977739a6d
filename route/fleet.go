package route

import (
	"math"
	"time"
)

// Heartbeat is what a node reports about itself, about every 100 ms.
type Heartbeat struct {
	Boot    uint64        // identifies the start of the node; 0: not told
	Seq     uint64        // number of the last event of its feed. Events up to it MUST be applied first. 0: not told
	At      time.Duration // when the node made this heartbeat, on the router's clock
	Backlog time.Duration // predicted time until its queue is empty
	Alpha   float64       // share of its memory that embeddings have, for metrics; no policy uses it
	Shards  []uint32      // embedding shards that it holds, at most Config.Shards; numbers from there on are ignored
	RowMs   float64       // measured milliseconds to fetch an embedding row that it does not hold; 0: not measured
}

// recents is the number of requests in flight that are kept for each node. If there are more, the oldest are joined.
const recents = 128

// unseenHalf is the milliseconds after which what was learnt about other routers counts half.
const unseenHalf = 1000

// sent is a request that this router sent to a node.
type sent struct {
	at time.Duration // when it arrives there
	ms float64       // work that it brings
}

// member is what a router knows about a node's state.
type member struct {
	heard   bool          // there was a heartbeat since the node was lost
	when    time.Duration // when the last one arrived
	beat    time.Duration // when the node made it
	made    time.Duration // when the node made its last report, in a heartbeat or an answer
	rowMs   float64       // Heartbeat.RowMs of the last heartbeat
	backlog float64       // predicted milliseconds of work at the time asOf
	asOf    time.Duration // see backlog
	ring    [recents]sent // requests sent since then, from first on
	first   int
	count   int

	reported float64 // backlog in the last report
	surplus  float64 // milliseconds of work that reports had more than this router knew of, with those long ago fading
	span     float64 // milliseconds between these reports, fading likewise

	gray
}

// workAt returns the milliseconds of work that a node is predicted to have at a time.
func (m *member) workAt(at time.Duration) float64 {
	return max(0, m.backlog-float64(at-m.asOf)/float64(time.Millisecond))
}

// add adds the work of a request that arrives at a time.
func (m *member) add(s sent) {
	at := max(s.at, m.asOf)
	m.backlog, m.asOf = m.workAt(at)+s.ms, at
}

// send notes a request that was sent.
func (m *member) send(s sent) {
	if m.count == recents {
		oldest := m.ring[m.first]
		m.first = (m.first + 1) % recents
		m.count--
		m.ring[m.first].ms += oldest.ms
	}
	m.ring[(m.first+m.count)%recents] = s
	m.count++
	m.add(s)
}

// hear takes a heartbeat. It returns false for one that a later one has overtaken.
func (m *member) hear(h *Heartbeat, now time.Duration) bool {
	if m.heard && h.At < m.beat {
		return false
	}
	m.tell(h.At, h.Backlog)
	m.heard, m.when, m.beat, m.rowMs = true, now, h.At, 0
	if cost(h.RowMs) {
		m.rowMs = h.RowMs
	}
	return true
}

// tell starts from the backlog that a node had at a time and adds again what was not there yet.
func (m *member) tell(at, backlog time.Duration) {
	if m.heard && at < m.made {
		return
	}
	ms := float64(backlog) / float64(time.Millisecond)
	if m.heard {
		m.compare(at, ms)
	}
	m.made, m.reported = at, ms
	m.backlog, m.asOf = ms, at
	for m.count > 0 && m.ring[m.first].at <= at {
		m.first = (m.first + 1) % recents
		m.count--
	}
	for i := range m.count {
		m.add(m.ring[(m.first+i)%recents])
	}
}

// compare learns how much more work a node has than its last report and the requests of this router explain: what other
// routers sent.
func (m *member) compare(at time.Duration, backlog float64) {
	known := member{backlog: m.reported, asOf: m.made}
	for i := range m.count {
		if s := m.ring[(m.first+i)%recents]; s.at <= at {
			known.add(s)
		}
	}
	ms := float64(at-m.made) / float64(time.Millisecond)
	keep := math.Exp2(-ms / unseenHalf)
	m.surplus = m.surplus*keep + backlog - known.workAt(at)
	m.span = m.span*keep + ms
}

// unseen returns the milliseconds of work that other routers are expected to have sent since the last report.
func (m *member) unseen(at time.Duration) float64 {
	if m.span == 0 {
		return 0
	}
	return max(0, m.surplus/m.span*float64(at-m.made)/float64(time.Millisecond))
}

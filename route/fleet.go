package route

import "time"

// Heartbeat is what a node reports about itself, about every 100 ms.
type Heartbeat struct {
	Boot    uint64        // identifies the start of the node; 0: not told
	Seq     uint64        // number of the last event of its feed. Events up to it MUST be applied first. 0: not told
	At      time.Duration // when the node made this heartbeat, on the router's clock
	Backlog time.Duration // predicted time until its queue is empty
	Load    float64       // share of its capacity that is used, in [0, 1]
	Alpha   float64       // share of its memory that embeddings have, for metrics; no policy uses it
	Shards  []uint32      // embedding shards that it holds, at most Config.Shards; numbers from there on are ignored
}

// recents is the number of requests in flight that are kept for each node. If there are more, the oldest are joined.
const recents = 128

// sent is a request that this router sent to a node.
type sent struct {
	at time.Duration // when it arrives there
	ms float64       // work that it brings
}

// member is what a router knows about a node's state.
type member struct {
	heard   bool          // there was a heartbeat since the node was lost
	when    time.Duration // when the last one arrived
	made    time.Duration // when the node made the last one
	load    float64
	backlog float64       // predicted milliseconds of work at the time asOf
	asOf    time.Duration // see backlog
	flight  float64       // milliseconds of work sent since the heartbeat was made
	ring    [recents]sent // requests sent since then, from first on
	first   int
	count   int

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
	m.flight += s.ms
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

// hear starts from the state of a heartbeat and adds again what was not there yet when the node made it. It returns
// false for a heartbeat that a later one has overtaken.
func (m *member) hear(h *Heartbeat, now time.Duration) bool {
	if m.heard && h.At < m.made {
		return false
	}
	m.heard, m.when, m.made = true, now, h.At
	m.load = h.Load
	m.backlog, m.asOf, m.flight = float64(h.Backlog)/float64(time.Millisecond), h.At, 0
	for m.count > 0 && m.ring[m.first].at <= h.At {
		m.first = (m.first + 1) % recents
		m.count--
	}
	for i := range m.count {
		m.add(m.ring[(m.first+i)%recents])
	}
	return true
}

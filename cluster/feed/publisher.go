package feed

import (
	"fmt"
	"iter"
	"slices"
	"time"

	clusterv1 "grebe/api/grebe/cluster/v1"
	"grebe/residency"
)

// Publisher is a node's side. It keeps nothing but its configuration: the feed's ring is the queue of all followers.
type Publisher struct {
	node   string
	secret Secret
	books  Books
	load   func() Load
}

// NewPublisher returns a publisher of what books holds. Node is the id of the node. Load is called for every heartbeat.
func NewPublisher(node string, secret Secret, books Books, load func() Load) *Publisher {
	return &Publisher{node: node, secret: secret, books: books, load: load}
}

// Session is one follower's connection to a node. It MUST be closed.
type Session struct {
	*Publisher
	ask   uint64        // number of the last Ask
	askAt time.Duration // when it arrived
	beat  time.Duration // when the next heartbeat is due

	sub   uint64 // number of the Ask with the last Subscribe; 0: there was none
	greet bool   // Hello is due
	speak uint32 // version of the protocol
	boot  uint64
	sent  uint64 // last event that was sent

	scan   func() ([]residency.Event, bool) // nil: no snapshot is being sent
	stop   func()
	piece  uint32
	rest   []residency.Event // of the last piece of the scan
	events []residency.Event // for Since

	audit  *Audit // nil: none waits to be sent
	told   bool   // its sums were sent
	valid  bitset
	marked uint64   // valid is right after this event
	want   []uint32 // buckets that the follower asked for
	demand bool     // it asked for an audit
}

// Session returns a session that waits for a Subscribe.
func (p *Publisher) Session() *Session { return &Session{Publisher: p} }

// Close releases what the session holds.
func (s *Session) Close() {
	if s.stop != nil {
		s.stop()
	}
	s.scan, s.stop, s.rest = nil, nil, nil
}

// Hear takes an Ask. One that a later one has overtaken is ignored.
func (s *Session) Hear(a *clusterv1.Ask, now time.Duration) error {
	if a.Number <= s.ask {
		return nil
	}
	s.ask, s.askAt = a.Number, now
	s.demand = s.demand || a.Sums || len(a.Buckets) > 0
	if len(a.Buckets) > maxRepair {
		return fmt.Errorf("%w: %d buckets", ErrMalformed, len(a.Buckets))
	}
	for _, b := range a.Buckets {
		if b >= buckets {
			return fmt.Errorf("%w: bucket %d", ErrMalformed, b)
		}
	}
	if len(a.Buckets) > 0 {
		s.want = append(s.want[:0], a.Buckets...)
	}
	if a.Subscribe != nil {
		return s.subscribe(a.Subscribe, now)
	}
	return nil
}

func (s *Session) subscribe(sub *clusterv1.Subscribe, now time.Duration) error {
	if sub.ProtocolMin > protocolMax || sub.ProtocolMax < protocolMin {
		return fmt.Errorf("%w: %d to %d, this node speaks %d to %d", ErrProtocol, sub.ProtocolMin, sub.ProtocolMax,
			protocolMin, protocolMax)
	}
	if sub.Node != s.node {
		return fmt.Errorf("%w: %s, want %s", ErrNode, s.node, sub.Node)
	}
	s.Close()
	s.sub, s.greet, s.beat, s.audit = s.ask, true, now, nil
	s.speak = min(sub.ProtocolMax, protocolMax)
	s.sent = sub.FromSeq
	boot, seq := s.books.Position()
	if _, ok := s.books.Since(nil, sub.Boot, sub.FromSeq, 0); ok && sub.Boot == boot {
		s.boot = boot
		return nil
	}
	s.boot, s.sent, s.piece = boot, seq, 0
	s.scan, s.stop = iter.Pull(s.books.Scan)
	return nil
}

// NextBeat returns when heartbeats are due that follow those of a time. All sessions of a process send them at the same
// moments, so that an idle process wakes up for all at once.
func NextBeat(now time.Duration) time.Duration { return (now/Beat + 1) * Beat }

// Wake returns when the next heartbeat is due.
func (s *Session) Wake() time.Duration { return s.beat }

// Next returns the next message, or nil if there is none. The caller calls it until it returns nil, then again when the
// feed may have new events, and at the time that Wake returns. Now MUST NOT be later than the time of the call.
func (s *Session) Next(now time.Duration) (*clusterv1.Message, error) {
	if s.sub == 0 {
		return nil, nil
	}
	m := &clusterv1.Message{Boot: s.boot, Subscription: s.sub}
	boot, seq := s.books.Position()
	switch {
	case now-s.askAt > goneAfter:
		return nil, ErrSilent
	case boot != s.boot:
		return nil, fmt.Errorf("%w: the feed started over", ErrSlow)
	case s.greet:
		s.greet = false
		m.Hello = &clusterv1.Hello{Protocol: s.speak, Check: s.secret.check()}
		return m, nil
	case now >= s.beat:
		s.beat = NextBeat(now)
		m.Heartbeat = s.heartbeat(seq, now)
		return m, nil
	case s.scan != nil:
		if _, ok := s.books.Since(nil, s.boot, s.sent, 0); !ok {
			return nil, ErrSlow
		}
		m.Snapshot = s.snapshot()
		return m, nil
	}
	events, ok := s.books.Since(s.events[:0], s.boot, s.sent, maxPiece)
	if s.events = events; !ok {
		return nil, ErrSlow
	}
	if len(events) > 0 {
		m.Delta = &clusterv1.Delta{First: s.sent + 1, Entries: s.secret.entries(events)}
		s.sent += uint64(len(events))
		return m, nil
	}
	if s.audited(m) {
		return m, nil
	}
	return nil, nil
}

func (s *Session) heartbeat(seq uint64, now time.Duration) *clusterv1.Heartbeat {
	l := s.load()
	h := &clusterv1.Heartbeat{
		Ask: s.ask, SinceUs: uint64((now - s.askAt) / time.Microsecond), Seq: seq, Sent: s.sent, Loading: s.scan != nil,
		BacklogMs: float64(l.Backlog) / float64(time.Millisecond), Alpha: l.Alpha, Shards: l.Shards, RowMs: l.RowMs,
		Draining: l.Draining,
	}
	if h.Loading {
		h.Sent = 0
	}
	return h
}

// snapshot returns the next piece of a snapshot.
func (s *Session) snapshot() *clusterv1.Snapshot {
	m := &clusterv1.Snapshot{Seq: s.sent, Piece: s.piece, Entries: &clusterv1.Entries{}}
	s.piece++
	if len(s.rest) == 0 {
		var ok bool
		if s.rest, ok = s.scan(); !ok {
			m.Last = true
			s.Close()
			return m
		}
	}
	n := min(len(s.rest), maxPiece)
	m.Entries = s.secret.entries(s.rest[:n])
	s.rest = s.rest[n:]
	return m
}

// Wants returns once that the follower asked for an audit, and of which buckets it wants the entries.
func (s *Session) Wants() (want []uint32, audit bool) {
	audit, s.demand = s.demand, false
	return s.want, audit
}

// Audited takes a complete audit, to be sent.
func (s *Session) Audited(a *Audit) {
	if a.boot == s.boot {
		s.audit, s.told, s.valid, s.marked = a, false, a.valid, a.seq
	}
}

// audited fills in the sums of an audit, or one of its buckets. All events have been sent.
func (s *Session) audited(m *clusterv1.Message) bool {
	a := s.audit
	if a == nil {
		return false
	}
	if a.seq > s.sent || !mark(s.books, &s.secret, &s.events, s.boot, s.marked, s.sent, &s.valid) {
		s.audit = nil
		return false
	}
	s.marked = s.sent
	if !s.told {
		s.told = true
		valid := s.valid
		m.Sums = &clusterv1.Sums{Seq: s.sent, Valid: valid[:], Users: a.sums.users, Others: a.sums.others}
		return true
	}
	for i, b := range s.want {
		e, has := a.repairs[b]
		if !has {
			continue // a later audit will have it
		}
		if s.want = slices.Delete(s.want, i, i+1); e != nil && s.valid.has(int(b)) {
			m.Repair = &clusterv1.Repair{Seq: s.sent, Buckets: []uint32{b}, Entries: e}
			return true
		}
		return s.audited(m)
	}
	s.audit = nil
	return false
}

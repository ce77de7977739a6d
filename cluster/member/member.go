// Package member decides who belongs to the cluster. It is pure: listings, probe results and time come in as arguments,
// and it says whom to probe next.
//
// A node's state, as one process sees it:
//
//	ACTIVE      its record is in the coordinator
//	LEASE_LOST  its record is missing, and it answers probes, or was not probed yet
//	SUSPECT     its record is missing, and it does not answer probes
//	GONE        it was SUSPECT for a while, and the coordinator was there all that time: the node is removed from the set
//
// Invariants:
//   - A lost lease alone never removes a node: only failed probes do, several of them, after the lease was lost.
//   - While the coordinator is away, nobody leaves. The time of a suspicion begins again when it is back.
//   - A record brings a node back to ACTIVE from every state. A new boot id is a new process: nothing known of the old
//     one holds.
//   - At most one probe of a node is under way. One without a result counts as failed after a timeout.
package member

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// State is what this process believes of a node.
type State uint8

const (
	Active State = iota + 1
	LeaseLost
	Suspect
	Gone // only in a Change: nodes that are gone are not in the set
)

func (s State) String() string {
	switch s {
	case 0:
		return "-"
	case Active:
		return "ACTIVE"
	case LeaseLost:
		return "LEASE_LOST"
	case Suspect:
		return "SUSPECT"
	case Gone:
		return "GONE"
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// Options of a set.
type Options struct {
	Every   time.Duration // between probes of a node that answers; default 1 s
	Faster  time.Duration // between probes of one that does not; default 250 ms
	Timeout time.Duration // of a probe; default 500 ms
	Fails   int           // failed probes in a row that make a node SUSPECT; default 2
	Gone    time.Duration // how long a node is SUSPECT before it is GONE; default 3 s
}

func (o Options) defaults() Options {
	o.Every = cmp.Or(o.Every, time.Second)
	o.Faster = cmp.Or(o.Faster, 250*time.Millisecond)
	o.Timeout = cmp.Or(o.Timeout, 500*time.Millisecond)
	o.Fails = cmp.Or(o.Fails, 2)
	o.Gone = cmp.Or(o.Gone, 3*time.Second)
	return o
}

// Validate checks the options.
func (o Options) Validate() error {
	o = o.defaults()
	if o.Every < 0 || o.Faster < 0 || o.Timeout < 0 || o.Fails < 0 || o.Gone < 0 {
		return fmt.Errorf("member: negative option in %+v", o)
	}
	return nil
}

// Member is a node of the set.
type Member struct {
	Record
	State   State
	Drained bool // by an operator's flag or by its own record: it gets no new requests
}

// Usable reports whether new requests may go to a member.
func (m Member) Usable() bool { return !m.Drained && (m.State == Active || m.State == LeaseLost) }

// Change is a transition of a node, for logs and metrics.
type Change struct {
	ID       string
	Boot     string
	From, To State // From 0: it joined
	Draining bool  // its last record said that it takes no new requests, as before an orderly stop
}

// Probe is a node whose answer is wanted.
type Probe struct {
	ID, Boot, Peer string
}

// Set is the membership as one process sees it. It is not safe for concurrent use.
type Set struct {
	o     Options
	up    bool // the coordinator answers
	nodes map[string]*node
	drain map[string]bool // by operators; also nodes that are not there
	epoch uint64
}

type node struct {
	record  Record
	state   State
	fails   int       // in a row
	suspect time.Time // since when SUSPECT counts
	next    time.Time // when it is probed
	sent    time.Time // the probe under way; zero: none
}

// New returns an empty set. The coordinator counts as away until the first listing.
func New(o Options) *Set {
	return &Set{o: o.defaults(), nodes: map[string]*node{}, drain: map[string]bool{}}
}

// Listing takes all records that the coordinator has. Nodes without one have lost their lease.
func (s *Set) Listing(now time.Time, records []Record) (out []Change) {
	s.back(now)
	listed := map[string]bool{}
	for _, r := range records {
		listed[r.ID] = true
		out = append(out, s.Put(now, r)...)
	}
	for _, id := range s.ids() {
		if !listed[id] {
			out = append(out, s.Remove(now, id)...)
		}
	}
	return out
}

// Put takes a record that was written.
func (s *Set) Put(now time.Time, r Record) (out []Change) {
	n := s.nodes[r.ID]
	if n != nil && n.record.Boot != r.Boot {
		out, n = s.turn(now, n, Gone), nil
	}
	if n == nil {
		n = &node{}
		s.nodes[r.ID] = n
	}
	if !equal(n.record, r) {
		s.epoch++
	}
	n.record, n.fails, n.sent = r, 0, time.Time{}
	return append(out, s.turn(now, n, Active)...)
}

// Remove takes the id of a record that is gone from the coordinator: its lease expired, or the node removed it.
func (s *Set) Remove(now time.Time, id string) []Change {
	n := s.nodes[id]
	if n == nil || n.state != Active {
		return nil
	}
	n.fails, n.next = 0, now
	return s.turn(now, n, LeaseLost)
}

// Away says that the coordinator does not answer. Nobody leaves until it is back.
func (s *Set) Away() { s.up = false }

// back starts the time of all suspicions again: while the coordinator was away, nodes could not register.
func (s *Set) back(now time.Time) {
	if s.up {
		return
	}
	s.up = true
	for _, n := range s.nodes {
		n.suspect = now
	}
}

// Drained takes the ids of all nodes that operators have drained. Such a flag stays if the node restarts.
func (s *Set) Drained(ids []string) {
	drain := map[string]bool{}
	for _, id := range ids {
		drain[id] = true
	}
	if !maps.Equal(drain, s.drain) {
		s.epoch++
	}
	s.drain = drain
}

// Probed takes the result of a probe: the boot id of the process that answered as this node; empty: none did.
func (s *Set) Probed(now time.Time, p Probe, answered string) []Change {
	n := s.nodes[p.ID]
	if n == nil || n.record.Boot != p.Boot || n.sent.IsZero() {
		return nil // about a process that is no longer of interest, or too late
	}
	return s.result(now, n, answered == n.record.Boot)
}

func (s *Set) result(now time.Time, n *node, ok bool) []Change {
	n.sent = time.Time{}
	if n.state == Active {
		return nil
	}
	if ok {
		n.fails, n.next = 0, now.Add(s.o.Every)
		return s.turn(now, n, LeaseLost)
	}
	n.fails++
	n.next = now.Add(s.o.Faster)
	if n.fails >= s.o.Fails && n.state == LeaseLost {
		return s.turn(now, n, Suspect)
	}
	return nil
}

// Tick returns whom to probe now, and what time alone has changed. The caller MUST probe them, and bring each result to
// Probed.
func (s *Set) Tick(now time.Time) (probes []Probe, out []Change) {
	for _, id := range s.ids() {
		n := s.nodes[id]
		if n.state == Active {
			continue
		}
		if !n.sent.IsZero() && !now.Before(n.sent.Add(s.o.Timeout)) {
			out = append(out, s.result(now, n, false)...)
		}
		if s.up && n.state == Suspect && !now.Before(n.suspect.Add(s.o.Gone)) {
			out = append(out, s.turn(now, n, Gone)...)
			continue
		}
		if n.sent.IsZero() && !now.Before(n.next) {
			n.sent = now
			probes = append(probes, Probe{id, n.record.Boot, n.record.Peer})
		}
	}
	return probes, out
}

// Next returns when Tick wants to be called; the zero time: not before something else happens.
func (s *Set) Next() (next time.Time) {
	sooner := func(t time.Time) {
		if next.IsZero() || t.Before(next) {
			next = t
		}
	}
	for _, n := range s.nodes {
		if n.state == Active {
			continue
		}
		if n.sent.IsZero() {
			sooner(n.next)
		} else {
			sooner(n.sent.Add(s.o.Timeout))
		}
		if s.up && n.state == Suspect {
			sooner(n.suspect.Add(s.o.Gone))
		}
	}
	return next
}

// turn moves a node to a state.
func (s *Set) turn(now time.Time, n *node, to State) []Change {
	if n.state == to {
		return nil
	}
	c := Change{ID: n.record.ID, Boot: n.record.Boot, From: n.state, To: to, Draining: n.record.Draining}
	s.epoch++
	n.state = to
	switch to {
	case Suspect:
		n.suspect = now
	case Gone:
		delete(s.nodes, n.record.ID)
	}
	return []Change{c}
}

// Epoch counts what Members shows: it grows with every change of a record, a state or a flag.
func (s *Set) Epoch() uint64 { return s.epoch }

// Up reports whether the coordinator answers, as far as the set was told.
func (s *Set) Up() bool { return s.up }

// Members returns the nodes by id.
func (s *Set) Members() []Member {
	out := make([]Member, 0, len(s.nodes))
	for _, id := range s.ids() {
		n := s.nodes[id]
		out = append(out, Member{Record: n.record, State: n.state, Drained: n.record.Draining || s.drain[id]})
	}
	return out
}

func (s *Set) ids() []string { return slices.Sorted(maps.Keys(s.nodes)) }

func equal(a, b Record) bool {
	return a.ID == b.ID && a.Boot == b.Boot && a.API == b.API && a.Peer == b.Peer && a.Protocol == b.Protocol &&
		slices.Equal(a.Roles, b.Roles) && slices.Equal(a.Models, b.Models) && a.Capacity == b.Capacity && a.Zone == b.Zone &&
		a.Draining == b.Draining && a.Keys == b.Keys
}

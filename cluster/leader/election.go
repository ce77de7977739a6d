// Package leader elects one process for a job, with nothing but compare-and-swap on single keys, and fences what that
// process writes.
//
// An election is a key with a Record. The holder renews it three times per ttl. A candidate that saw no change for a
// whole ttl, on its own monotonic clock, takes over with the next term. The holder stops acting before its ttl ends, on
// its own clock, counted from before it sent its last renewal. So clocks need to run at about the same rate, not to
// agree.
//
// A process can be paused between its look at the clock and its write. Fencing covers that: every object that a leader
// writes carries its term. A new leader first claims each object, by rewriting it with its own term, before it acts on
// what it read. A paused leader's compare-and-swap then fails. Readers ignore lower terms.
//
// Election is pure: time is an argument. Run drives it against a coordinator.
package leader

import (
	"encoding/json"
	"fmt"
	"time"
)

// Record is the value under an election's key.
type Record struct {
	Term   int64  `json:"term"`   // grows by one or more with every new leader, from 1
	Holder string `json:"holder"` // the leader; empty: it resigned
	Beat   int64  `json:"beat"`   // counts renewals within the term
}

func parse(data []byte) (r Record, err error) {
	if err := json.Unmarshal(data, &r); err != nil || r.Term < 1 {
		return Record{}, fmt.Errorf("leader: record %q is not one of an election: %w", data, err)
	}
	return r, nil
}

func (r Record) bytes() []byte {
	data, _ := json.Marshal(r) // of numbers and a string
	return data
}

// Election is one process's part in an election. It is not safe for concurrent use.
type Election struct {
	self string
	ttl  time.Duration

	known   bool      // the key was read
	seen    Record    // what is under the key, as far as we know
	version int64     // of it; 0: the key is absent
	since   time.Time // when we first saw this version
	floor   int64     // terms up to this one are used

	term  int64     // in which we lead; 0: we do not
	sent  time.Time // when our last renewal that was answered was sent
	tried time.Time // when a renewal was last sent
}

// NewElection returns the part of a process. Self MUST be unique to this start of the process. The ttl MUST be the same
// for all.
func NewElection(self string, ttl time.Duration) *Election { return &Election{self: self, ttl: ttl} }

// margin is the part of the ttl at its end in which a leader does not act: its last steps need time, and clocks drift.
func (e *Election) margin() time.Duration { return e.ttl / 6 }

// Until returns when the current term ends unless it is renewed. It is in the past for a process that does not lead.
func (e *Election) Until() time.Time {
	if e.term == 0 {
		return time.Time{}
	}
	return e.sent.Add(e.ttl - e.margin())
}

// Leading returns the term in which this process may act at a time; 0: it may not.
func (e *Election) Leading(now time.Time) int64 {
	if !now.Before(e.Until()) {
		return 0
	}
	return e.term
}

// Saw takes what a read has returned at a time; version 0: the key is absent.
func (e *Election) Saw(now time.Time, r Record, version int64) {
	if e.known && version == e.version {
		return
	}
	if e.term != 0 && (r.Term != e.term || r.Holder != e.self) {
		e.term = 0 // someone took over
	}
	e.known, e.seen, e.version, e.since = true, r, version, now
}

// Next returns what to write at a time, and the version it replaces; false: nothing.
func (e *Election) Next(now time.Time) (r Record, expected int64, ok bool) {
	if e.term != 0 && e.Leading(now) == 0 {
		e.term = 0
	}
	switch {
	case !e.known:
		return Record{}, 0, false
	case e.term != 0:
		if now.Before(e.due()) {
			return Record{}, 0, false
		}
		return Record{Term: e.term, Holder: e.self, Beat: e.seen.Beat + 1}, e.version, true
	case e.free() || now.Sub(e.since) >= e.ttl:
		return Record{Term: max(e.seen.Term, e.floor) + 1, Holder: e.self}, e.version, true
	}
	return Record{}, 0, false
}

// free reports whether nobody can be acting in the term that was seen: there is none, its leader resigned, or it was
// ours.
func (e *Election) free() bool {
	return e.version == 0 || e.seen.Holder == "" || e.seen.Holder == e.self
}

// due returns when a leader sends its next renewal: soon, if the last one was not answered.
func (e *Election) due() time.Time {
	if e.tried.After(e.sent) {
		return e.tried.Add(e.ttl / 10)
	}
	return e.sent.Add(e.ttl / 3)
}

// Wake returns when Next can have something to write, for a process that reads the key often enough.
func (e *Election) Wake(now time.Time) time.Time {
	next := now.Add(e.ttl / 3)
	if e.term != 0 {
		return earlier(e.due(), e.Until())
	}
	if e.known && now.Sub(e.since) < e.ttl {
		return earlier(next, e.since.Add(e.ttl))
	}
	return next
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// Trying notes that a record of Next is sent at a time.
func (e *Election) Trying(now time.Time) { e.tried = now }

// Wrote takes the version that a record of Next got, and when it was sent.
func (e *Election) Wrote(sent, now time.Time, r Record, version int64) {
	e.seen, e.version, e.since = r, version, now
	e.term, e.sent = r.Term, sent
}

// Raise makes the next term higher than one that was found in an object: someone has deleted the election's key.
func (e *Election) Raise(term int64) { e.floor = max(e.floor, term) }

// Resign ends our term and returns the record that lets others take over at once; false: we do not lead.
func (e *Election) Resign() (r Record, expected int64, ok bool) {
	if e.term == 0 {
		return Record{}, 0, false
	}
	r = Record{Term: e.term, Beat: e.seen.Beat + 1}
	e.term = 0
	return r, e.version, true
}

package feed

import (
	"fmt"
	"math"
	"math/bits"
	"time"

	clusterv1 "grebe/api/grebe/cluster/v1"
	"grebe/residency"
	"grebe/route"
)

// Sink is a router's view of the fleet. *route.Router is one.
type Sink interface {
	Heard(node int, h *route.Heartbeat, now time.Duration)
	Snapshot(node int, boot, seq uint64, piece []residency.Event, last bool)
	Apply(node int, boot uint64, events []residency.Event) (known bool)
	Unknown(node int)
	Resume(node int, boot, seq uint64) bool
	Replace(node int, keys residency.Range, entries []residency.Event)
	Index() *residency.Index
}

const (
	retryAfter  = 500 * time.Millisecond // without an answer to a Subscribe
	leastSpan   = Beat                   // between two Subscribes
	silentAfter = time.Second            // without a message, after which a connection is given up
	never       = time.Duration(math.MaxInt64)
	none        = time.Duration(math.MinInt64)
)

// FollowerConfig describes a follower.
type FollowerConfig struct {
	Node    int    // number of the node in the sink
	ID      string // id of the node
	Secret  Secret
	Sink    Sink
	Partial bool // the sink leaves out some entries that are not users': only users are compared
}

// Follower follows the feed of one node.
//
// The caller calls Connected and Disconnected when a connection begins and ends, Take with each message, and Tick at
// the time that Next returns. After each of these it sends what Ask returns, until it returns nil.
type Follower struct {
	FollowerConfig
	Stats Stats

	connected bool
	greeted   bool          // there was a Hello on this connection
	heard     time.Duration // when the last message came
	number    uint64        // of the last Ask
	asks      [8]asked      // the last ones, by number
	ping      time.Duration // when the next Ask is due

	wanted   bool          // a Subscribe is to be sent
	earliest time.Duration // when it may be sent
	sub      uint64        // number of the last one; 0: none, or its answers are ignored
	subAt    time.Duration // when it was sent
	answered bool

	boot    uint64
	seq     uint64 // last event that the sink has, or number of the snapshot that is loading
	whole   bool   // the sink has everything up to that event
	loading bool
	piece   uint32 // next piece of a snapshot in this subscription

	proven time.Duration // the sink had everything at this time, or later
	beats  [4]beat       // those that are ahead of the sink, from the oldest; unused ones are zero
	rtt    time.Duration // shortest round trip since the last Ask
	rttAsk uint64

	check  check
	events []residency.Event
	shards []uint32
}

// asked is an Ask that was sent.
type asked struct {
	number uint64
	at     time.Duration
}

// beat says that a node made an event at a time, or later.
type beat struct {
	seq  uint64
	made time.Duration
}

// Stats counts what happened to a follower.
type Stats struct {
	Snapshots int64 // snapshots that were complete
	Resumes   int64 // times that the part became known
	Gaps      int64 // events or pieces were missing
	Boots     int64 // restarts of the node that were seen
	Silences  int64 // times that the part became unknown for want of heartbeats
	Differed  int64 // buckets whose sums differed
	Repaired  int64 // buckets that were replaced
	Draining  bool  // in the last heartbeat
}

// NewFollower returns a follower that is not connected. The node's part is unknown.
func NewFollower(c FollowerConfig) *Follower {
	return &Follower{FollowerConfig: c, proven: none}
}

// Known reports whether the node's part is known.
func (f *Follower) Known() bool { return f.Sink.Index().Known(f.Node) }

// Position returns the last event that the sink has. It returns 0, 0 if the sink does not have everything up to an
// event.
func (f *Follower) Position() (boot, seq uint64) {
	if !f.whole {
		return 0, 0
	}
	return f.boot, f.seq
}

// Connected says that there is a connection to the node.
func (f *Follower) Connected(now time.Duration) {
	f.connected, f.greeted, f.heard = true, false, now
	f.wanted, f.earliest, f.sub = true, now, 0
}

// Disconnected says that the connection ended. What is known stays known until it is too old.
func (f *Follower) Disconnected() {
	f.connected, f.wanted, f.sub = false, false, 0
	f.check.stop()
}

// Close makes the node's part unknown, for good.
func (f *Follower) Close() {
	f.Disconnected()
	f.hide()
}

// Compare asks the node for its sums.
func (f *Follower) Compare() { f.check.demand = true }

// Ask returns the next Ask, or nil. The caller sends it after this call.
func (f *Follower) Ask(now time.Duration) *clusterv1.Ask {
	if !f.connected {
		return nil
	}
	subscribe := f.wanted && now >= f.earliest
	more := f.sub != 0 && (now >= f.ping || f.check.demand || len(f.check.want) > 0)
	if !subscribe && !more {
		return nil
	}
	f.number++
	a := &clusterv1.Ask{Number: f.number}
	f.asks[f.number%uint64(len(f.asks))] = asked{f.number, now}
	f.ping = now + pingEvery
	if subscribe {
		a.Subscribe = &clusterv1.Subscribe{ProtocolMin: protocolMin, ProtocolMax: protocolMax, Node: f.ID}
		a.Subscribe.Boot, a.Subscribe.FromSeq = f.Position()
		f.wanted, f.sub, f.subAt, f.answered = false, f.number, now, false
		f.loading, f.piece, f.beats = false, 0, [4]beat{}
		f.check.stop()
		return a
	}
	a.Sums, f.check.demand = f.check.demand, false
	a.Buckets, f.check.want = f.check.want, nil
	return a
}

// Take takes a message. Messages of an earlier subscription are ignored. After an error the connection is useless.
func (f *Follower) Take(m *clusterv1.Message, now time.Duration) error {
	if !f.connected || f.sub == 0 || m.Subscription != f.sub {
		return nil
	}
	if h := m.Hello; h != nil {
		return f.hello(h, now)
	}
	if !f.greeted {
		return nil // until the Subscribe is repeated
	}
	f.heard, f.answered = now, true
	switch {
	case m.Boot == 0:
		return fmt.Errorf("%w: boot 0", ErrMalformed)
	case m.Heartbeat != nil:
		f.heartbeat(m.Boot, m.Heartbeat, now)
	case m.Delta != nil:
		return f.delta(m.Boot, m.Delta, now)
	case m.Snapshot != nil:
		return f.snapshot(m.Boot, m.Snapshot, now)
	case m.Sums != nil:
		return f.sums(m.Boot, m.Sums)
	case m.Repair != nil:
		return f.repair(m.Boot, m.Repair)
	}
	return nil
}

func (f *Follower) hello(h *clusterv1.Hello, now time.Duration) error {
	if h.Protocol < protocolMin || h.Protocol > protocolMax {
		return fmt.Errorf("%w: %d", ErrProtocol, h.Protocol)
	}
	if h.Check != f.Secret.check() {
		return ErrSecret
	}
	f.heard, f.answered, f.greeted = now, true, true
	return nil
}

// again starts over from what the sink has. Until then the node's part is unknown.
func (f *Follower) again(now time.Duration) {
	f.hide()
	f.check.stop()
	f.proven = none
	f.wanted, f.earliest, f.sub = true, max(now, f.subAt+leastSpan), 0
}

// gap starts over because something is missing.
func (f *Follower) gap(now time.Duration) {
	f.Stats.Gaps++
	f.again(now)
}

// restarted starts over because the node did.
func (f *Follower) restarted(now time.Duration) {
	f.Stats.Boots++
	f.whole = false
	f.again(now)
}

func (f *Follower) heartbeat(boot uint64, h *clusterv1.Heartbeat, now time.Duration) {
	made, known := f.made(h, now)
	f.Stats.Draining = h.Draining
	switch {
	case f.whole && boot != f.boot && h.Loading: // a snapshot is on its way
		f.Stats.Boots++
		f.whole = false
		f.hide()
		f.prove(beat{h.Seq, made})
	case f.whole && boot != f.boot:
		f.restarted(now)
	case f.whole && !h.Loading && h.Sent > f.seq, // an event was sent and is not here
		!f.whole && !h.Loading: // all pieces were sent and are not here
		f.gap(now)
	case known:
		f.prove(beat{h.Seq, made})
	}
	if known && !h.Draining {
		f.shards = shardsOf(f.shards[:0], h.Shards)
		beat := route.Heartbeat{At: made + f.rtt/2, Backlog: duration(h.BacklogMs), Alpha: h.Alpha, Shards: f.shards,
			RowMs: h.RowMs}
		f.Sink.Heard(f.Node, &beat, now)
	}
	f.show(now)
}

// shardsOf appends the numbers of the bits that are set.
func shardsOf(dst []uint32, set []byte) []uint32 {
	for i, b := range set[:min(len(set), mostShards)] {
		for ; b != 0; b &= b - 1 {
			dst = append(dst, uint32(8*i+bits.TrailingZeros8(b)))
		}
	}
	return dst
}

// duration returns a number of milliseconds, or an hour if there are more. What is no number is 0.
func duration(ms float64) time.Duration {
	if !(ms > 0) {
		return 0
	}
	return time.Duration(min(ms, 3600e3) * float64(time.Millisecond))
}

// made returns a time before which the node did not make a heartbeat, on the follower's clock.
func (f *Follower) made(h *clusterv1.Heartbeat, now time.Duration) (at time.Duration, known bool) {
	a := &f.asks[h.Ask%uint64(len(f.asks))]
	since := time.Duration(h.SinceUs) * time.Microsecond
	if a.number != h.Ask || h.Ask == 0 || since < 0 || since > now-a.at {
		return 0, false
	}
	at = a.at + since
	if rtt := now - at; f.rttAsk != h.Ask || rtt < f.rtt {
		f.rtt, f.rttAsk = rtt, h.Ask
	}
	if f.rtt > Beat/2 { // the Ask was held up, and every proof by it is too old: send another one
		f.ping = min(f.ping, f.asks[f.number%uint64(len(f.asks))].at+Beat)
	}
	return at, true
}

// prove notes that the node had made no event after a number before a time.
func (f *Follower) prove(b beat) {
	if f.whole && b.seq <= f.seq {
		f.proven = max(f.proven, b.made)
		return
	}
	for i := range f.beats {
		if f.beats[i].made == 0 {
			f.beats[i] = b
			return
		}
	}
	copy(f.beats[:], f.beats[1:])
	f.beats[len(f.beats)-1] = b
}

// reached notes that the sink has more events.
func (f *Follower) reached(now time.Duration) {
	beats := f.beats
	f.beats = [4]beat{}
	for _, b := range beats {
		if b.made != 0 {
			f.prove(b)
		}
	}
	f.show(now)
}

func (f *Follower) delta(boot uint64, d *clusterv1.Delta, now time.Duration) error {
	n := uint64(len(d.GetEntries().GetKeys()))
	switch {
	case d.First == 0 || n == 0:
		return fmt.Errorf("%w: %d events from number %d", ErrMalformed, n, d.First)
	case f.whole && boot != f.boot:
		f.restarted(now)
		return nil
	case !f.whole || d.First > f.seq+1:
		f.gap(now)
		return nil
	case d.First+n-1 <= f.seq:
		return nil // it came twice
	}
	var err error
	if f.events, err = appendEvents(f.events[:0], d.Entries, d.First, maxPiece); err != nil {
		return err
	}
	f.check.touch(f.events)
	f.Sink.Apply(f.Node, boot, f.events) // show finds out if the sink did not take them
	f.seq = d.First + n - 1
	f.reached(now)
	return nil
}

func (f *Follower) snapshot(boot uint64, s *clusterv1.Snapshot, now time.Duration) error {
	switch {
	case s.Piece < f.piece:
		return nil // it came twice
	case s.Piece > f.piece:
		f.gap(now)
		return nil
	case s.Piece == 0:
		f.hide()
		if f.whole && boot != f.boot {
			f.Stats.Boots++
		}
		f.boot, f.seq, f.whole, f.loading, f.proven = boot, s.Seq, false, true, none
	case boot != f.boot || s.Seq != f.seq || !f.loading:
		f.gap(now)
		return nil
	}
	var err error
	if f.events, err = appendEvents(f.events[:0], s.Entries, 0, maxPiece); err != nil {
		return err
	}
	f.piece++
	f.Sink.Snapshot(f.Node, boot, s.Seq, f.events, s.Last)
	if s.Last {
		f.Sink.Unknown(f.Node) // until a heartbeat proves that it is complete
		f.whole, f.loading = true, false
		f.Stats.Snapshots++
		f.reached(now)
	}
	return nil
}

// show makes the node's part known if it is proven, and unknown if the last proof is too old.
func (f *Follower) show(now time.Duration) {
	proven := f.whole && f.proven != none && now <= f.proven+Limit
	switch known := f.Known(); {
	case known && !proven:
		f.Stats.Silences++
		f.hide()
	case proven && !known:
		if !f.Sink.Resume(f.Node, f.boot, f.seq) { // the sink has something else than this says
			f.whole = false
			f.again(now)
			return
		}
		f.Stats.Resumes++
	}
}

// hide makes the node's part unknown.
func (f *Follower) hide() {
	if f.Known() {
		f.Sink.Unknown(f.Node)
	}
}

// Tick lets time pass. After ErrSilent the connection is useless.
func (f *Follower) Tick(now time.Duration) error {
	f.show(now)
	if !f.connected {
		return nil
	}
	if f.sub != 0 && !f.answered && now >= f.subAt+retryAfter {
		f.again(now)
	}
	f.compare(now)
	if now >= f.heard+silentAfter {
		return ErrSilent
	}
	return nil
}

// Next returns when Tick or Ask is to be called.
func (f *Follower) Next() time.Duration {
	next := never
	if f.Known() {
		next = f.proven + Limit + 1
	}
	if !f.connected {
		return next
	}
	next = min(next, f.heard+silentAfter)
	switch {
	case f.wanted:
		next = min(next, f.earliest)
	case f.sub != 0:
		if next = min(next, f.ping); !f.answered {
			next = min(next, f.subAt+retryAfter)
		}
		if f.check.pending() {
			next = min(next, f.check.due)
		}
	}
	return next
}

package feed

import (
	"errors"
	"testing"
	"time"

	clusterv1 "grebe/api/grebe/cluster/v1"
	"grebe/plan"
	"grebe/residency"
	"grebe/route"
	"grebe/schedule"
)

// pair has a node and a follower, joined without a network.
type pair struct {
	*books
	session  *Session
	follower *Follower
	router   *route.Router
	now      time.Duration
	load     Load
}

func newPair(t testing.TB, keys, ring int) *pair {
	p := &pair{books: newBooks(t, 0, keys, ring, 7), router: newRouter(t, 2, keys, keys), now: time.Hour}
	p.session = NewPublisher("a", secret, p.books, func() Load { return p.load }).Session()
	p.follower = NewFollower(FollowerConfig{Node: 1, ID: "a", Secret: secret, Sink: p.router})
	p.follower.Connected(p.now)
	t.Cleanup(p.session.Close)
	return p
}

// put publishes an item.
func (p *pair) put(k int) {
	p.Publish(&residency.Held[int]{Key: bookKey(0, k), Kind: plan.Item, Tokens: 10, Bytes: 1}, 0, false)
}

// exchange passes on what both have to say.
func (p *pair) exchange(t testing.TB) error {
	t.Helper()
	for {
		a := p.follower.Ask(p.now)
		if a == nil {
			break
		}
		if err := p.session.Hear(a, p.now); err != nil {
			return err
		}
	}
	for {
		m, err := p.session.Next(p.now)
		if err != nil || m == nil {
			return err
		}
		if err := p.follower.Take(m, p.now); err != nil {
			return err
		}
	}
}

// A follower that falls behind the ring, during a snapshot or after it, is cut off. So is one that asks nothing.
func TestSlowFollowersAreCutOff(t *testing.T) {
	p := newPair(t, 2000, 64)
	for k := range 1000 {
		p.put(k)
	}
	p.session.Hear(p.follower.Ask(p.now), p.now)
	for range 4 { // hello, heartbeat, two pieces
		if m, err := p.session.Next(p.now); err != nil || m == nil {
			t.Fatal(m, err)
		}
	}
	for k := range 65 {
		p.put(1000 + k)
	}
	if _, err := p.session.Next(p.now); !errors.Is(err, ErrSlow) {
		t.Errorf("a snapshot that was overtaken: %v", err)
	}
	p.follower.Connected(p.now)
	if err := p.exchange(t); err != nil || !p.follower.Known() {
		t.Fatal(err, p.follower.Stats)
	}
	for k := range 65 {
		p.put(1100 + k)
	}
	if err := p.exchange(t); !errors.Is(err, ErrSlow) {
		t.Errorf("a follower behind the ring: %v", err)
	}
	p.follower.Connected(p.now)
	if err := p.exchange(t); err != nil || p.follower.Stats.Snapshots != 2 {
		t.Fatal(err, p.follower.Stats)
	}
	for range goneAfter / time.Second {
		p.now += time.Second
		if _, err := p.session.Next(p.now); err != nil {
			t.Fatal(err)
		}
	}
	p.now += time.Second
	if _, err := p.session.Next(p.now); !errors.Is(err, ErrSilent) {
		t.Errorf("a follower that is gone: %v", err)
	}
}

// Both sides agree on a version of the protocol, or part.
func TestProtocolVersions(t *testing.T) {
	p := newPair(t, 10, 64)
	for _, c := range []struct {
		low, high uint32
		want      error
	}{{1, 1, nil}, {1, 9, nil}, {0, 1, nil}, {2, 3, ErrProtocol}, {0, 0, ErrProtocol}} {
		s := NewPublisher("a", secret, p.books, func() Load { return Load{} }).Session()
		err := s.Hear(&clusterv1.Ask{Number: 1, Subscribe: &clusterv1.Subscribe{
			ProtocolMin: c.low, ProtocolMax: c.high, Node: "a"}}, p.now)
		if !errors.Is(err, c.want) {
			t.Errorf("%d to %d: %v, want %v", c.low, c.high, err, c.want)
		}
		if m, err := s.Next(p.now); c.want == nil && (err != nil || m.Hello.GetProtocol() != 1) {
			t.Errorf("%d to %d: %v, %v", c.low, c.high, m, err)
		}
		s.Close()
	}
	a := p.follower.Ask(p.now)
	hello := &clusterv1.Hello{Protocol: protocolMax + 1, Check: secret.check()}
	if err := p.follower.Take(&clusterv1.Message{Boot: 7, Subscription: a.Number, Hello: hello}, p.now); !errors.Is(err,
		ErrProtocol) {
		t.Errorf("a later version: %v", err)
	}
}

// Messages that no node sends are refused. They change nothing.
func TestMalformedMessages(t *testing.T) {
	p := newPair(t, 10, 64)
	p.put(1)
	if err := p.exchange(t); err != nil || !p.follower.Known() {
		t.Fatal(err)
	}
	one := []uint64{5}
	delta := func(first uint64, e *clusterv1.Entries) *clusterv1.Message {
		return &clusterv1.Message{Boot: 7, Delta: &clusterv1.Delta{First: first, Entries: e}}
	}
	for name, m := range map[string]*clusterv1.Message{
		"no boot":      {Heartbeat: &clusterv1.Heartbeat{}},
		"no events":    delta(2, nil),
		"number 0":     delta(0, &clusterv1.Entries{Keys: one, Tiers: []byte{1}}),
		"few tiers":    delta(2, &clusterv1.Entries{Keys: one}),
		"tier 4":       delta(2, &clusterv1.Entries{Keys: one, Tiers: []byte{4}}),
		"few tokens":   delta(2, &clusterv1.Entries{Keys: one, Tiers: []byte{0x81}}),
		"many tokens":  delta(2, &clusterv1.Entries{Keys: one, Tiers: []byte{1}, Tokens: []uint32{1}, Digests: one}),
		"many entries": delta(2, &clusterv1.Entries{Keys: make([]uint64, 513), Tiers: make([]byte, 513)}),
		"few sums":     {Boot: 7, Sums: &clusterv1.Sums{Seq: 1, Users: one, Others: one}},
		"bucket":       {Boot: 7, Repair: &clusterv1.Repair{Seq: 1, Buckets: []uint32{buckets}}},
		"large numbers": delta(2, &clusterv1.Entries{Keys: one, Tiers: []byte{0x81}, Tokens: []uint32{1 << 31},
			Digests: one}),
	} {
		m.Subscription = p.follower.sub
		if err := p.follower.Take(m, p.now); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, others, _ := p.router.Index().Entries(); others != 1 || !p.follower.Known() {
		t.Errorf("%d entries", others)
	}
	if err := p.session.Hear(&clusterv1.Ask{Number: 99, Buckets: []uint32{buckets}}, p.now); !errors.Is(err,
		ErrMalformed) {
		t.Error(err)
	}
	if err := p.session.Hear(&clusterv1.Ask{Number: 100, Buckets: make([]uint32, maxRepair+1)}, p.now); !errors.Is(err,
		ErrMalformed) {
		t.Error(err)
	}
}

// A node that drains gets no more requests from the router, which goes on following its feed.
func TestDrainingNodes(t *testing.T) {
	p := newPair(t, 10, 64)
	pick := func() int {
		q := &route.Request{User: 1, Prompt: schedule.Request{User: 900, Question: 10, Items: []int32{50}}}
		return p.router.Pick(q, p.now).Node
	}
	if err := p.exchange(t); err != nil || pick() != 1 {
		t.Fatal(err, "the node is not picked")
	}
	p.load.Draining = true
	for range 5 {
		p.now += Beat
		p.router.Heard(0, &route.Heartbeat{At: p.now}, p.now)
		p.put(3)
		if err := p.exchange(t); err != nil {
			t.Fatal(err)
		}
	}
	if !p.follower.Known() || !p.follower.Stats.Draining || pick() != 0 || pick() != 0 {
		t.Errorf("known %v, %+v", p.follower.Known(), p.follower.Stats)
	}
}

// The membership may call a node lost while its feed goes on. It is known again with the next message.
func TestLostNodesReturn(t *testing.T) {
	p := newPair(t, 10, 64)
	if err := p.exchange(t); err != nil || !p.follower.Known() {
		t.Fatal(err)
	}
	p.router.Lost(1)
	if p.now += Beat; p.follower.Known() || p.exchange(t) != nil || !p.follower.Known() ||
		p.follower.Stats.Snapshots != 1 {
		t.Errorf("%+v", p.follower.Stats)
	}
	p.follower.Close()
	if p.follower.Known() {
		t.Error("a node that is not followed is known")
	}
}

// Followers that subscribe at different moments get their heartbeats at the same ones, the first at once and none later
// than a Beat after the one before.
func TestHeartbeatsComeTogether(t *testing.T) {
	for _, after := range []time.Duration{0, 1, 37 * time.Millisecond, Beat - 1, Beat, 3*Beat + 1} {
		p := newPair(t, 8, 64)
		p.now += after
		began := p.now
		var beats []time.Duration
		for range 2000 { // half a millisecond each
			if a := p.follower.Ask(p.now); a != nil {
				if err := p.session.Hear(a, p.now); err != nil {
					t.Fatal(err)
				}
			}
			for {
				m, err := p.session.Next(p.now)
				if err != nil {
					t.Fatal(err)
				}
				if m == nil {
					break
				}
				if err := p.follower.Take(m, p.now); err != nil {
					t.Fatal(err)
				}
				if m.Heartbeat != nil {
					beats = append(beats, p.now)
				}
			}
			p.now = min(p.now+Beat/200, max(p.now+1, p.session.Wake()))
		}
		if len(beats) < 9 || beats[0] != began {
			t.Fatalf("after %v: %d heartbeats, the first %v late", after, len(beats), beats[0]-began)
		}
		for i, at := range beats[1:] {
			if at-beats[i] > Beat || at%Beat != 0 {
				t.Errorf("after %v: heartbeat %d comes at %v, %v after the one before", after, i+1, at, at-beats[i])
			}
		}
	}
}

package route

import (
	"slices"
	"testing"
	"time"

	"grebe/plan"
	"grebe/residency"
	"grebe/schedule"
)

const milli = time.Millisecond

// fleet returns a router that has heard of n idle nodes.
func fleet(t testing.TB, c Config, n int) *Router {
	t.Helper()
	c.MissKV, c.MissEMB, c.MissLoad = 1, 1, 1
	costs := schedule.DefaultCosts(schedule.PrefillModel{Fixed: 1, Row: .01})
	costs.Transfer[plan.Peer].Token = .02 // computing is faster
	for range n {
		c.Nodes = append(c.Nodes, Node{Costs: costs, RTT: .2})
	}
	r, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		r.Heard(i, &Heartbeat{}, 0)
	}
	return r
}

func ask(user uint64) *Request {
	return &Request{User: user, Prompt: schedule.Request{User: 900, Question: 10, Items: []int32{50, 50, 50}}}
}

func TestRoundRobinTakesTurns(t *testing.T) {
	r := fleet(t, Config{Policy: RoundRobin}, 4)
	r.Lost(2)
	turns := []int{0, 1, 3}
	first := slices.Index(turns, r.Pick(ask(1), 0).Node) // routers begin at different nodes
	for i := 1; i < 12; i++ {
		if got, want := r.Pick(ask(1), 0).Node, turns[(first+i)%3]; got != want {
			t.Fatalf("request %d goes to %d, want %d", i, got, want)
		}
	}
}

// A node that is lost moves only its own users.
func TestUsersStayWhenANodeIsLost(t *testing.T) {
	r := fleet(t, Config{Policy: UserHash}, 16)
	var home [4000]int
	var count [16]int
	for u := range home {
		home[u] = r.Pick(ask(uint64(u)), 0).Node
		count[home[u]]++
	}
	for n, c := range count {
		if c < 180 || c > 320 {
			t.Errorf("node %d has %d of %d users", n, c, len(home))
		}
	}
	r.Lost(7)
	for u := range home {
		if got := r.Pick(ask(uint64(u)), 0).Node; got == 7 || home[u] != 7 && got != home[u] {
			t.Fatalf("user %d moves from %d to %d", u, home[u], got)
		}
	}
}

// Between two heartbeats a router counts what it sends, so idle nodes share the requests.
func TestLeastLoadedCountsItsOwnRequests(t *testing.T) {
	r := fleet(t, Config{Policy: LeastLoaded}, 4)
	r.Heard(3, &Heartbeat{Backlog: 25 * milli}, 0)
	var count [4]int
	for range 9 {
		count[r.Pick(ask(1), milli).Node]++
	}
	// A request takes 1 + 10.6 ms. After two rounds the idle nodes have 23.2 ms of work each, still less than the other.
	if count != [4]int{3, 3, 3, 0} {
		t.Errorf("requests go to %v", count)
	}
}

// A heartbeat replaces what was sent before it was made, and only that.
func TestHeartbeatsReplaceOlderRequests(t *testing.T) {
	r := fleet(t, Config{Policy: LeastLoaded}, 1)
	own := 1 + 1060*.01      // the model's, for all tokens
	r.Pick(ask(1), 10*milli) // arrives at 10.1 ms
	r.Pick(ask(1), 20*milli)
	if got := r.members[0].workAt(duration(20.1)); !near(got, 2*own-10) {
		t.Errorf("work is %v ms, want two requests less 10 ms: %v", got, 2*own-10)
	}
	r.Heard(0, &Heartbeat{At: 15 * milli, Backlog: 7 * milli}, 25*milli)
	if got := r.members[0].workAt(duration(20.1)); !near(got, 7-5.1+own) {
		t.Errorf("work is %v ms, want the rest of the heartbeat's and one request: %v", got, 7-5.1+own)
	}
	r.Heard(0, &Heartbeat{At: 30 * milli}, 31*milli)
	if got := r.members[0].workAt(31 * milli); got != 0 {
		t.Errorf("work is %v ms, want none", got)
	}
}

func near(a, b float64) bool { return a-b < 1e-6 && b-a < 1e-6 }

// A node that is lost or silent is picked only when no other is there.
func TestAbsentNodesAreNotPicked(t *testing.T) {
	for p := range numPolicies {
		r := fleet(t, Config{Policy: p}, 3)
		r.Lost(1)
		for i := range 30 {
			r.Heard(0, &Heartbeat{At: time.Second, Backlog: time.Second}, time.Second)
			if got := r.Pick(ask(uint64(i)), time.Second).Node; got != 0 {
				t.Fatalf("%v picks node %d, which is absent", p, got)
			}
		}
		if got := r.Pick(ask(1), time.Minute).Node; got != 0 && got != 2 {
			t.Errorf("%v picks node %d when all are silent", p, got)
		}
		r.Lost(0)
		r.Lost(2)
		if got := r.Pick(ask(1), time.Minute).Node; got != -1 {
			t.Errorf("%v picks node %d of none", p, got)
		}
		r.Heard(1, &Heartbeat{}, time.Minute)
		if got := r.Pick(ask(1), time.Minute).Node; got != 1 {
			t.Errorf("%v picks node %d, want the one that is back", p, got)
		}
	}
}

// The calls of a busy router allocate nothing: requests, answers, heartbeats and events.
func TestNothingIsAllocated(t *testing.T) {
	for p := range numPolicies {
		r, plain := scene(t, p, 4)
		events, q := []residency.Event{{Key: key(userHash(3))}, {Key: key(itemHash(3))}}, ask(userHash(3))
		for range 40 {
			q.Items, q.Keys = append(q.Items, 1), append(q.Keys, itemHash(1))
			q.Prompt.Items = append(q.Prompt.Items, 5)
		}
		q.Prompt.Items, q.Shards, q.Tokens = q.Prompt.Items[3:], []uint32{1, 2, 3}, plain.history
		h, now, seq := &Heartbeat{Shards: []uint32{1, 5}}, time.Duration(0), uint64(1)
		r.Snapshot(0, 9, 0, nil, true)
		r.Pick(q, now)
		if n := testing.AllocsPerRun(2000, func() {
			now += 10 * milli
			h.At = now
			c := r.Pick(q, now)
			r.Answered(c.Node, c.Ms, 30+float64(seq%7), now)
			r.Heard(c.Node, h, now)
			for i := range events {
				events[i].Seq, events[i].Entry = seq, residency.Entry{
					Kind: plan.User + plan.Kind(i), Tier: plan.Tier(seq / 2 % 4), Tokens: 3}
				seq++
			}
			if !r.Apply(0, 9, events) {
				t.Fatal("the events were not taken")
			}
		}); n != 0 {
			t.Errorf("%v allocates %v times", p, n)
		}
	}
}

func TestPoliciesHaveNames(t *testing.T) {
	for p := range numPolicies {
		if q, err := ParsePolicy(p.String()); err != nil || q != p {
			t.Errorf("%v is parsed as %v, %v", p, q, err)
		}
	}
	if _, err := ParsePolicy("random"); err == nil {
		t.Error("an unknown name is parsed")
	}
}

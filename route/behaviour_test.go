package route

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"grebe/placement"
	"grebe/plan"
	"grebe/residency"
	"grebe/schedule"
)

// heartbeats has all nodes of a fleet report that they have nothing to do.
func heartbeats(r *Router, now time.Duration) {
	for n := range r.members {
		if r.members[n].heard {
			r.Heard(n, &Heartbeat{At: now}, now)
		}
	}
}

// keep tells the router that a node holds a user.
func keep(r *Router, node int, seq *uint64, user uint64, tokens int32) {
	*seq++
	e := residency.Entry{Kind: plan.User, Tier: plan.Device, Tokens: tokens}
	r.Apply(node, 1, []residency.Event{{Seq: *seq, Key: key(user), Entry: e}})
}

// An idle fleet sends a user to the same node again and again: to its home while nobody has its KV, and to the holder
// once there is one.
func TestUsersStayWhereTheyAre(t *testing.T) {
	r := fleet(t, Config{Users: 1000}, 16)
	var seqs [16]uint64
	for n := range seqs {
		r.Snapshot(n, 1, 0, nil, true)
	}
	now := time.Duration(0)
	at := func(u uint64) int {
		now += 100 * milli
		heartbeats(r, now)
		return r.Pick(ask(u), now).Node
	}
	for u := range uint64(300) {
		first := at(u)
		r.findUp(now)
		if home := r.home(u); first != home {
			t.Fatalf("user %d goes to %d, want its home %d", u, first, home)
		}
		if again := at(u); again != first {
			t.Fatalf("user %d goes to %d after %d", u, again, first)
		}
		holder := int(u % 16)
		keep(r, holder, &seqs[holder], u, 800)
		for range 3 {
			if got := at(u); got != holder {
				t.Fatalf("user %d goes to %d, but %d has its KV", u, got, holder)
			}
		}
	}
}

// A flood of requests of one user spreads over the fleet. The holder of its KV gets more of them, as long as the others
// compute it: 2.6 ms of work there, 11.6 ms elsewhere. If peers can fetch it while requests wait, all are equal.
func TestOverloadSpreads(t *testing.T) {
	for _, c := range []struct {
		peer                float64 // milliseconds per token
		fewest, most, other int     // requests of the holder, and about how many of another node
	}{{1e6, 150, 215, 41}, {.02, 48, 60, 50}} {
		r := fleet(t, Config{Users: 10, PeerUsers: true}, 16)
		seq := uint64(0)
		for n := range 16 {
			r.Snapshot(n, 1, 0, nil, true)
			r.config.Nodes[n].Costs.Transfer[plan.Peer].Token = c.peer
		}
		keep(r, 5, &seq, 1, 900)
		var count [16]int
		for range 800 {
			count[r.Pick(ask(1), 0).Node]++
		}
		for n, got := range count {
			if n == 5 && (got < c.fewest || got > c.most) || n != 5 && (got < c.other-4 || got > c.other+4) {
				t.Errorf("node %d has %d requests of %v", n, got, count)
			}
		}
	}
}

// A copy of other tokens is not reused, and an older one is as a prefix.
func TestOnlyPrefixesAreReused(t *testing.T) {
	history := make([]int32, 900)
	for i := range history {
		history[i] = int32(i * 7)
	}
	for _, c := range []struct {
		name  string
		e     residency.Entry
		reuse int
	}{
		{"older", residency.Entry{Tokens: 600, Digest: residency.Digest(history[:600])}, 600},
		{"whole", residency.Entry{Tokens: 900, Digest: residency.Digest(history)}, 900},
		{"other tokens", residency.Entry{Tokens: 600, Digest: residency.Digest(history[1:601])}, 0},
		{"longer", residency.Entry{Tokens: 901, Digest: residency.Digest(append(history, 5))}, 0},
	} {
		r := fleet(t, Config{Users: 10}, 1)
		c.e.Kind, c.e.Tier = plan.User, plan.Device
		r.Snapshot(0, 1, 0, []residency.Event{{Key: key(1), Entry: c.e}}, true)
		q := ask(1)
		q.Tokens = history
		if got := r.Pick(q, 0).Reuse; got != c.reuse {
			t.Errorf("%s: %d tokens are predicted to be reused, want %d", c.name, got, c.reuse)
		}
	}
}

// Items that a node owns by the map count without an entry in the index, as long as the node's part is known.
func TestColdItemsComeFromTheMap(t *testing.T) {
	const items = 200
	m, err := placement.Hash(placement.Config{Members: placement.Members(4), Items: items})
	if err != nil {
		t.Fatal(err)
	}
	ordinals := map[uint64]int32{}
	for i := range int32(items) {
		ordinals[itemHash(i)] = i
	}
	r := fleet(t, Config{Items: items, Owned: plan.Host, PeerItems: true, Ordinal: func(hash uint64) (int32, bool) {
		i, ok := ordinals[hash]
		return i, ok
	}}, 4)
	r.SetMap(m)
	for n := range 4 {
		var events []residency.Event
		for i := range int32(items) {
			if owner, _, _ := m.Place(i); owner == n || i == 17 {
				events = append(events, residency.Event{Key: key(itemHash(i)),
					Entry: residency.Entry{Kind: plan.Item, Tier: plan.Disk, Tokens: 20}})
			}
		}
		r.Snapshot(n, 1, 0, events, true)
	}
	if _, others, _ := r.Index().Entries(); others != 1 {
		t.Errorf("%d items are indexed, want the one that is not only on its owner", others)
	}
	q := &Request{User: 1, Prompt: schedule.Request{User: 100, Question: 5, Orders: schedule.Of(plan.ItemFirst)}}
	for i := range int32(items) {
		q.Items, q.Keys = append(q.Items, i), append(q.Keys, itemHash(i))
		q.Prompt.Items = append(q.Prompt.Items, 20)
	}
	tiers := func(node int) (count [plan.NumTiers]int) {
		r.look(q, 0)
		for _, tier := range r.tiersOn(node) {
			count[tier]++
		}
		return count
	}
	owned := 0
	for i := range int32(items) {
		if owner, _, _ := m.Place(i); owner == 2 && i != 17 {
			owned++
		}
	}
	owner17, _, _ := m.Place(17)
	want := [plan.NumTiers]int{plan.Host: owned, plan.Disk: 1, plan.Peer: items - owned - 1}
	if owner17 == 2 {
		want[plan.Host], want[plan.Disk] = owned+1, 0
	}
	if got := tiers(2); got != want {
		t.Errorf("node 2 finds %v, want %v", got, want)
	}
	r.Lost(2) // its items are gone, and it is heard again with empty memory
	r.Heard(2, &Heartbeat{}, 0)
	if got := tiers(0); got[plan.Missing] != owned {
		t.Errorf("%d items are missing, want %d of a node whose part is unknown", got[plan.Missing], owned)
	}
}

// drive sends requests at a steady rate for a time. Nodes take the predicted time, and slow ones more. It returns how
// many requests each node got.
func drive(r *Router, rng *rand.Rand, from, to time.Duration, slower func(n int) float64) []int {
	count := make([]int, len(r.members))
	for now := from; now < to; now += 5 * milli {
		if now%(100*milli) == 0 {
			heartbeats(r, now)
		}
		c := r.Pick(ask(rng.Uint64()), now)
		count[c.Node]++
		r.Answered(c.Node, c.Ms, c.Ms*(1+.1*rng.NormFloat64())+slower(c.Node), now)
	}
	return count
}

// A slow node loses its requests at once, is ejected after five seconds, and comes back when probes are answered in
// time.
func TestGrayNodesAreEjectedAndComeBack(t *testing.T) {
	for policy := range numPolicies {
		r := fleet(t, Config{Policy: policy}, 9)
		rng := rand.New(rand.NewPCG(3, uint64(policy)))
		healthy := func(int) float64 { return 0 }
		gray := func(n int) float64 {
			if n == 4 {
				return 200
			}
			return 0
		}
		if drive(r, rng, 0, 20*time.Second, healthy); r.ejected != 0 {
			t.Fatalf("%v: %d healthy nodes are ejected", policy, r.ejected)
		}
		if policy == Predicted {
			for n := range r.members { // all nodes are equal
				if e := r.penalty(n, 20*time.Second); e != 0 {
					t.Errorf("noise adds %v ms to node %d", e, n)
				}
			}
		}
		early := drive(r, rng, 20*time.Second, 24*time.Second, gray)
		if r.ejected != 0 {
			t.Errorf("%v: the node is ejected before five seconds", policy)
		}
		if policy == Predicted && early[4] > 20 {
			t.Errorf("the slow node has %d of %d requests before it is ejected", early[4], 800)
		}
		if drive(r, rng, 24*time.Second, 27*time.Second, gray); !r.members[4].ejected || r.ejected != 1 {
			t.Fatalf("%v: the slow node is not ejected", policy)
		}
		later := drive(r, rng, 27*time.Second, 60*time.Second, gray)
		if later[4] == 0 || later[4] > 140 || !r.members[4].ejected {
			t.Errorf("%v: the ejected node has %d of 6600 requests, want about 66 probes", policy, later[4])
		}
		drive(r, rng, 60*time.Second, 90*time.Second, healthy)
		if back := drive(r, rng, 90*time.Second, 100*time.Second, healthy); r.ejected != 0 || back[4] < 60 {
			t.Errorf("%v: the healthy node has %d of 2000 requests, and %d nodes are ejected", policy, back[4], r.ejected)
		}
	}
}

// At most a third of the nodes is ejected. A lost node is no longer counted.
func TestAtMostAThirdIsEjected(t *testing.T) {
	r := fleet(t, Config{}, 9)
	rng := rand.New(rand.NewPCG(3, 4))
	slow := func(n int) float64 { return float64(max(0, 100*(n-4))) }
	drive(r, rng, 0, 5*time.Second, func(int) float64 { return 0 })
	drive(r, rng, 5*time.Second, 60*time.Second, slow)
	var ejected []int
	for n := range r.members {
		if r.members[n].ejected {
			ejected = append(ejected, n)
		} else {
			r.Lost(n)
		}
	}
	if len(ejected) != 3 || ejected[0] < 5 || r.ejected != 3 {
		t.Fatalf("nodes %v are ejected, want three of the four slow ones", ejected)
	}
	if got := r.Pick(ask(1), 60*time.Second).Node; !slices.Contains(ejected, got) { // the last resort
		t.Errorf("node %d is picked, which is lost", got)
	}
	for _, n := range ejected {
		r.Lost(n)
		r.Heard(n, &Heartbeat{}, 0)
	}
	if r.ejected != 0 || r.members[ejected[0]].ejected {
		t.Errorf("%d nodes are ejected after they were lost", r.ejected)
	}
}

// Every ejected node is probed. Five probes in a row that are answered in time bring it back, and a late one starts the
// count again.
func TestProbes(t *testing.T) {
	r := fleet(t, Config{Probe: .5}, 9)
	r.typical.error, r.typical.sigma = 1, 3 // a limit of 10
	for _, n := range []int{0, 7} {
		r.members[n].ejected = true
		r.ejected++
	}
	probed := [9]int{}
	for i := range 400 {
		now := time.Duration(i) * milli
		heartbeats(r, now)
		probed[r.Pick(ask(uint64(i)), now).Node]++
	}
	if probed[0] < 70 || probed[0] > 130 || probed[7] < 70 || probed[7] > 130 {
		t.Errorf("of 400 requests %d and %d are probes, want about 100 each", probed[0], probed[7])
	}
	for i, late := range []bool{false, false, false, false, true, false, false, false, false, false} {
		if !r.members[7].ejected {
			t.Fatalf("the node is back after %d probes", i)
		}
		actual := 29.0
		if late {
			actual = 31
		}
		r.Answered(7, 20, actual, 0)
	}
	if r.members[7].ejected || !r.members[0].ejected || r.ejected != 1 {
		t.Errorf("%d nodes are ejected, want the other one only", r.ejected)
	}
}

// Nodes that are all slower than predicted are not gray.
func TestAnOverloadedFleetIsNotGray(t *testing.T) {
	r := fleet(t, Config{}, 9)
	rng := rand.New(rand.NewPCG(3, 5))
	drive(r, rng, 0, 5*time.Second, func(int) float64 { return 0 })
	drive(r, rng, 5*time.Second, 30*time.Second, func(int) float64 { return 300 * rng.Float64() })
	if r.ejected != 0 {
		t.Errorf("%d nodes are ejected", r.ejected)
	}
}

// The same calls give the same choices.
func TestChoicesAreReproducible(t *testing.T) {
	for policy := range numPolicies {
		var first []Choice
		for run := range 2 {
			r, p := scene(t, policy, 23)
			for i := range 400 {
				now := time.Duration(i) * 3 * milli
				if i%20 == 0 {
					heartbeats(r, now)
				}
				c := r.Pick(p.ask(), now)
				r.Answered(c.Node, c.Ms, c.Ms*float64(1+c.Node%3), now)
				if run == 0 {
					first = append(first, c)
				} else if c != first[i] {
					t.Fatalf("%v: request %d: %+v, and before %+v", policy, i, c, first[i])
				}
			}
		}
	}
}

func TestBadConfigurationsAreRefused(t *testing.T) {
	good := func() Config {
		return Config{Nodes: []Node{{Costs: schedule.DefaultCosts(schedule.PrefillModel{Row: 1})}}}
	}
	if _, err := New(good()); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Config){
		"nodes":   func(c *Config) { c.Nodes = nil },
		"policy":  func(c *Config) { c.Policy = numPolicies },
		"silence": func(c *Config) { c.Silence = -1 },
		"users":   func(c *Config) { c.Users = -1 },
		"items":   func(c *Config) { c.Items = -1 },
		"shards":  func(c *Config) { c.Shards = -1 },
		"owned":   func(c *Config) { c.Owned = plan.Peer },
		"ordinal": func(c *Config) { c.Ordinal = func(uint64) (int32, bool) { return 0, false } },
		"load":    func(c *Config) { c.FullLoad = -1 },
		"probe":   func(c *Config) { c.Probe = 2 },
		"kv":      func(c *Config) { c.MissKV = -1 },
		"emb":     func(c *Config) { c.MissEMB = math.Inf(1) },
		"full":    func(c *Config) { c.MissLoad = math.NaN() },
		"layers":  func(c *Config) { c.Blend.Layers = -1 },
		"first":   func(c *Config) { c.Blend.First = -1 },
		"budget":  func(c *Config) { c.Blend.Budget = 1.5 },
		"alpha":   func(c *Config) { c.Alpha = -1 },
		"beta":    func(c *Config) { c.Beta = -1 },
		"kv only": func(c *Config) { c.Policy, c.MissEMB = KVOnly, 1 },
		"staging": func(c *Config) { c.Nodes[0].Staging = -1 },
		"engines": func(c *Config) { c.Nodes[0].Engines = -1 },
		"rtt":     func(c *Config) { c.Nodes[0].RTT = -1 },
		"costs":   func(c *Config) { c.Nodes[0].Costs.Model.Row = -1 },
	} {
		c := good()
		spoil(&c)
		if _, err := New(c); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// A router learns how much other routers send to a node, so that an old report counts less the more they send.
func TestOthersSendToo(t *testing.T) {
	r := fleet(t, Config{Policy: LeastLoaded}, 2)
	work := func(n int, at time.Duration) float64 {
		r.look(ask(1), at-duration(r.config.Nodes[n].RTT/2))
		return r.work[n]
	}
	const every = 10 * milli
	for i := range 200 {
		at := time.Duration(i+1) * every
		r.Told(0, at, 0)
		r.Told(1, at, 4*milli) // though nothing was sent and the last 4 ms of work are done
		if i%2 == 0 {
			r.Heard(0, &Heartbeat{At: at}, at)
			r.Heard(1, &Heartbeat{At: at, Backlog: 4 * milli}, at)
		}
	}
	now := 200 * every
	if got := work(0, now+every); got != 0 {
		t.Errorf("a node that others do not use has %.2f ms of work", got)
	}
	for age, want := range map[time.Duration]float64{milli: 3.4, every: 4, 5 * every: 20} {
		if got := work(1, now+age); math.Abs(got-want) > .3 {
			t.Errorf("%v after a report there are %.2f ms of work, want about %.1f", age, got, want)
		}
	}
	r.Told(1, now-every, time.Second) // overtaken
	if got := work(1, now+every); got > 5 {
		t.Errorf("after an old report there are %.2f ms of work", got)
	}
}

// Rows that a node lacks are read while others compute. So they make a request wait for what they take of the node's
// links, or until one link has read them, if the queue is shorter.
func TestRowsAreReadWhileOthersCompute(t *testing.T) {
	for _, backlog := range []time.Duration{0, 5 * milli, 40 * milli} {
		r := fleet(t, Config{Shards: 8}, 1)
		r.config.Nodes[0].Engines = 4
		r.Heard(0, &Heartbeat{At: milli, Backlog: backlog, RowMs: 2}, milli)
		at := func(shards ...uint32) priced {
			q := ask(1)
			q.Shards, q.UserRows = shards, len(shards)
			r.look(q, milli)
			return r.price(0, q)
		}
		without, with := at(), at(1, 2, 3, 4)
		if want := max(2, 8-r.work[0]); !near(with.ms-without.ms, want) {
			t.Errorf("with a backlog of %v rows of 8 ms add %v ms, want %v", backlog, with.ms-without.ms, want)
		}
		if longer := at(1, 2, 3, 4, 5, 6, 7).own; !near(with.own, max(without.own, 2)) ||
			!near(longer, max(without.own, 3.5)) {
			t.Errorf("work of %v, %v and %v ms", without.own, with.own, longer)
		}
	}
}

// A node that measured badly once, or that does not tell what a row costs, still gets its share of requests that need
// rows: it would not measure again without them.
func TestABadMeasurementOfRowsIsNoLossOfRequests(t *testing.T) {
	for _, odd := range []float64{3.75, 0} {
		r, counts := fleet(t, Config{Users: 1000, Shards: 8}, 3), [3]int{}
		for i := range 3000 {
			now := time.Duration(i) * 20 * milli
			for n, ms := range []float64{.0025, .003, odd} {
				r.Heard(n, &Heartbeat{At: now, RowMs: ms}, now)
			}
			q := ask(mix(uint64(i)))
			q.Shards, q.UserRows = []uint32{1, 2, 3}, 1000
			counts[r.Pick(q, now).Node]++
		}
		for n, got := range counts {
			if got < 600 || got > 1400 {
				t.Errorf("a node that reports %v ms a row is there: node %d got %d of 3,000 requests", odd, n, got)
			}
		}
		r.Lost(2)
		if len(r.rowCosts) != 2 {
			t.Errorf("after a node was lost there are %d reports of rows", len(r.rowCosts))
		}
	}
}

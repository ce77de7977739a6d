package residency

import (
	"math/rand/v2"
	"slices"
	"testing"

	"grebe/plan"
)

// indexed is a node whose books an index follows.
type indexed struct {
	*world
	feed *Feed
	log  []Event            // all events since the boot
	logs map[uint64][]Event // of earlier boots
	sent uint64             // events that were delivered or lost
}

const indexedKeys = 150

// history returns a user's tokens. A user has two: the second one begins differently.
func history(user, which int) []int32 {
	tokens := make([]int32, 64)
	for i := range tokens {
		tokens[i] = int32(user*1000 + which*500 + i)
	}
	return tokens
}

func isUser(k int) bool { return k%3 == 0 }

// boot starts a node with empty memory.
func (n *indexed) boot(t *testing.T, rng *rand.Rand, boot uint64) {
	n.world = &world{Core: newCore(t, "lru", 20, 30), t: t, rng: rng, where: map[plan.Key]plan.Tier{},
		pinned: map[plan.Key]bool{}}
	if n.feed != nil {
		n.logs[n.feed.Boot()] = n.log
	}
	n.feed, n.log, n.sent = NewFeed(boot, 1<<14), nil, 0
	n.SetFeed(n.feed)
}

// change makes random changes and adds their events to the log.
func (n *indexed) change(most int) {
	for range n.rng.IntN(most + 1) {
		k := n.rng.IntN(indexedKeys)
		h := item(k)
		e := Entry{Kind: plan.Item, Tokens: 10}
		if isUser(k) {
			tokens := history(k, n.rng.IntN(2))[:1+n.rng.IntN(64)]
			h.Kind, h.Tokens, h.Digest = plan.User, len(tokens), Digest(tokens)
			e = Entry{Kind: plan.User, Tokens: int32(h.Tokens), Digest: h.Digest}
		}
		switch n.rng.IntN(8) {
		case 0:
			n.Stored(h.Key, e)
		case 1:
			n.Lost(h.Key)
		default:
			n.step(h)
		}
	}
	n.log, _ = n.feed.Since(n.log, n.feed.Boot(), uint64(len(n.log)), 1<<20)
}

// snapshot takes a snapshot in pieces, between which the node changes and deltas may arrive.
func (n *indexed) snapshot(x *Index, node int, complete bool) {
	var all []Event
	seq := n.feed.Seq()
	n.Core.Snapshot(func(key plan.Key, e Entry) {
		all = append(all, Event{Seq: seq, Key: key, Entry: e})
	}, nothing)
	for len(all) > 0 {
		k := 1 + n.rng.IntN(len(all))
		x.Snapshot(node, n.feed.Boot(), seq, all[:k], false)
		all = all[k:]
		n.change(3)
	}
	if complete {
		x.Snapshot(node, n.feed.Boot(), seq, nil, true)
		n.sent = seq
	}
}

// deliver sends the next events, and some that were sent before.
func (n *indexed) deliver(x *Index, node int, all bool) {
	to := uint64(len(n.log))
	if !all {
		to = n.sent + uint64(n.rng.IntN(int(to-n.sent)+1))
	}
	from := n.sent - min(n.sent, uint64(n.rng.IntN(4)))
	x.Apply(node, n.feed.Boot(), n.log[from:to])
	n.sent = to
	x.Apply(node, n.feed.Boot(), n.log[from:(from+n.sent)/2]) // once more, late
}

// after returns what the books held after an event.
func (n *indexed) after(boot, seq uint64) map[plan.Key]Entry {
	known, log := map[plan.Key]Entry{}, n.log
	if boot != n.feed.Boot() {
		log = n.logs[boot]
	}
	for _, e := range log[:seq] {
		if delete(known, e.Key); e.Tier != plan.Missing {
			known[e.Key] = e.Entry
		}
	}
	return known
}

// compareIndex compares what the index says about each key and node with what it may say.
func compareIndex(t *testing.T, x *Index, may []map[plan.Key]Entry) {
	t.Helper()
	sets := make([]uint64, 2*x.stride)
	for k := range indexedKeys {
		key := item(k).Key
		x.Others([]uint64{Hash(key)}, sets)
		var copies [2][]Copy
		for which := range copies {
			copies[which] = x.Users(nil, Hash(key), history(k, which), 64)
		}
		trusted := x.Users(nil, Hash(key), nil, 40)
		for node := range may {
			e := may[node][key]
			tier := plan.Tier(sets[node/64]>>(node%64)&1 | sets[x.stride+node/64]>>(node%64)&1<<1)
			if want := e.Tier; isUser(k) && tier != plan.Missing || !isUser(k) && tier != want {
				t.Fatalf("entry %d on node %d is %v, the books say %v", k, node, tier, want)
			}
			for which, found := range copies {
				want := Copy{Node: node, Tier: e.Tier, Tokens: e.Tokens, digest: e.Digest}
				is := isUser(k) && e.Tier != plan.Missing && Digest(history(k, which)[:e.Tokens]) == e.Digest
				if slices.Contains(found, want) != is {
					t.Fatalf("user %d with history %d: %+v, the books of node %d say %+v", k, which, found, node, e)
				}
			}
			i := slices.IndexFunc(trusted, func(c Copy) bool { return c.Node == node })
			if (i >= 0) != (isUser(k) && e.Tier != plan.Missing) || i >= 0 && trusted[i].Tokens != min(e.Tokens, 40) {
				t.Fatalf("user %d: %+v, the books of node %d say %+v", k, trusted, node, e)
			}
		}
		for _, c := range slices.Concat(copies[0], copies[1], trusted) {
			if may[c.Node][key].Tier == plan.Missing {
				t.Fatalf("node %d is said to hold user %d", c.Node, k)
			}
		}
	}
}

// The index of a node whose part is known says what the node's books said after the last event that it applied,
// whatever was lost, sent twice or interrupted by restarts. It says nothing about the others. When everything was
// delivered, it says what the books say.
func TestIndexFollowsTheBooks(t *testing.T) {
	for seed := range uint64(12) {
		rng := rand.New(rand.NewPCG(seed, 9))
		nodes := make([]*indexed, []int{1, 3, 7, 70}[seed%4])
		x, err := NewIndex(IndexConfig{Nodes: len(nodes), Users: 50 * len(nodes), Items: indexedKeys})
		if err != nil {
			t.Fatal(err)
		}
		boots := uint64(0)
		for i := range nodes {
			boots++
			nodes[i] = &indexed{logs: map[uint64][]Event{}}
			nodes[i].boot(t, rng, boots)
		}
		may := make([]map[plan.Key]Entry, len(nodes))
		check := func() {
			for i, n := range nodes {
				if may[i] = nil; x.Known(i) {
					may[i] = n.after(x.nodes[i].boot, x.nodes[i].seq)
				}
			}
			compareIndex(t, x, may)
		}
		losses, gaps := 0, 0
		for step := range 800 {
			i := rng.IntN(len(nodes))
			n := nodes[i]
			switch rng.IntN(24) {
			case 0:
				boots++
				n.boot(t, rng, boots)
			case 1: // events are lost
				n.change(20)
				if n.sent < uint64(len(n.log)) {
					n.sent++
					losses++
				}
			case 2:
				x.Lose(i)
			case 3, 4, 5:
				n.snapshot(x, i, rng.IntN(3) > 0)
			case 6:
				if was := x.Known(i); was && !x.Heard(i, n.feed.Boot(), n.feed.Seq()) {
					gaps++
				}
			case 7, 8, 9, 10:
				n.deliver(x, i, false)
			default:
				n.change(20)
			}
			if step%10 == 0 || len(nodes) < 10 && step%3 == 0 {
				check()
			}
		}
		if losses < 5 || gaps < 2 {
			t.Errorf("seed %d: %d losses and %d gaps: the draw tests too little", seed, losses, gaps)
		}
		for i, n := range nodes {
			n.change(50)
			n.snapshot(x, i, true)
			n.change(50)
			n.deliver(x, i, true)
			if !x.Known(i) || !x.Heard(i, n.feed.Boot(), n.feed.Seq()) {
				t.Fatalf("node %d is not known behind a snapshot", i)
			}
			may[i] = map[plan.Key]Entry{}
			for k := range indexedKeys {
				if e, ok := n.Lookup(item(k).Key); ok {
					may[i][item(k).Key] = e
				}
			}
		}
		compareIndex(t, x, may)
		if _, _, refused := x.Entries(); refused != 0 {
			t.Errorf("%d events found no room", refused)
		}
		for i := range nodes {
			x.remove(i)
		}
		if users, others, _ := x.Entries(); users != 0 || others != 0 || !empty(x.users.words) || !empty(x.others.words) {
			t.Errorf("%d users and %d others are left of no node", users, others)
		}
	}
}

// A full index leaves entries out, counts them, and is right about those that it has.
func TestIndexIsBounded(t *testing.T) {
	x, err := NewIndex(IndexConfig{Nodes: 2, Users: 10, Items: 10})
	if err != nil {
		t.Fatal(err)
	}
	size := x.Bytes()
	x.Snapshot(1, 5, 0, nil, true)
	put := func(seq, k int, kind plan.Kind, tier plan.Tier) {
		x.Apply(1, 5, []Event{{Seq: uint64(seq), Key: item(k).Key, Entry: Entry{Kind: kind, Tier: tier, Tokens: 3}}})
	}
	seq := 0
	for k := range 40 {
		seq++
		put(seq, k, []plan.Kind{plan.User, plan.Item}[k%2], plan.Host)
	}
	users, others, refused := x.Entries()
	if users != 10 || others != 10 || refused != 20 || x.Bytes() != size || size > 10*32+10*48+100 {
		t.Errorf("%d users and %d others in %d bytes, %d refused", users, others, x.Bytes(), refused)
	}
	for k := range 40 { // those that found no room leave, too
		seq++
		put(seq, k, plan.Preamble, plan.Missing)
	}
	if users, others, _ := x.Entries(); users+others != 0 || !x.Known(1) || x.Known(0) {
		t.Errorf("%d users and %d others are left", users, others)
	}
}

// Entries that the caller knows by other means take no room.
func TestIndexSkips(t *testing.T) {
	x, err := NewIndex(IndexConfig{Nodes: 2, Users: 10, Items: 10,
		Skip: func(node int, hash uint64) bool { return node == int(hash%2) }})
	if err != nil {
		t.Fatal(err)
	}
	for node := range 2 {
		x.Snapshot(node, 5, 0, []Event{
			{Key: item(2).Key, Entry: Entry{Kind: plan.Item, Tier: plan.Host, Tokens: 3}},
			{Key: item(4).Key, Entry: Entry{Kind: plan.User, Tier: plan.Host, Tokens: 3}},
		}, true)
	}
	sets := make([]uint64, 2)
	x.Others([]uint64{2}, sets)
	if users, others, _ := x.Entries(); users != 2 || others != 1 || sets[0] != 0 || sets[1] != 2 {
		t.Errorf("%d users and %d others, held by %b and %b", users, others, sets[0], sets[1])
	}
}

func TestIndexAllocatesNothing(t *testing.T) {
	const keys = 1000
	x, err := NewIndex(IndexConfig{Nodes: 4, Users: keys, Items: keys})
	if err != nil {
		t.Fatal(err)
	}
	x.Snapshot(2, 1, 0, nil, true)
	rng, seq := rand.New(rand.NewPCG(1, 1)), uint64(0)
	copies, sets, wanted, tokens := make([]Copy, 0, 4), make([]uint64, 2), []uint64{7}, history(3, 0)
	if n := testing.AllocsPerRun(3000, func() {
		seq++
		k := rng.IntN(keys)
		e := [1]Event{{Seq: seq, Key: item(k).Key, Entry: Entry{
			Kind: plan.User + plan.Kind(k%2), Tier: plan.Tier(rng.IntN(4)), Tokens: 3}}}
		if !x.Apply(2, 1, e[:]) || !x.Heard(2, 1, seq) {
			t.Fatal("the node's part is unknown")
		}
		x.Others(wanted, sets)
		copies = x.Users(copies[:0], uint64(k), tokens, 64)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

package residency

import (
	"math/rand/v2"
	"slices"
	"testing"

	"grebe/plan"
)

// Lookup agrees with a plain record of memory and disk: the nearest tier, the owner's keys, the kinds that ever
// existed.
func TestLookupKnowsMemoryAndDisk(t *testing.T) {
	const keys = 12
	r := rand.New(rand.NewPCG(3, 4))
	c, err := New[struct{}](Config{
		Levels: []LevelConfig{{Tier: plan.Device, Slots: 3, Bytes: 300}, {Tier: plan.Host, Slots: 4, Bytes: 400}},
		Policy: "lru", Below: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	memory, disk := map[plan.Key]Entry{}, map[plan.Key]Entry{}
	feed := NewFeed(7, 16)
	c.SetFeed(feed)
	router := &follower{known: map[plan.Key]Entry{}}
	may := func(*Held[struct{}]) bool { return true }
	moved := func(h *Held[struct{}], level int, tier plan.Tier) {
		switch c.Moved(h, level, r.IntN(4) > 0) {
		case There:
			e := memory[h.Key]
			e.Tier = tier
			memory[h.Key] = e
		case Out:
			delete(memory, h.Key)
		}
	}
	need := func(level int) {
		for c.Full(level) {
			switch h, exit := c.Need(level, may); {
			case exit == Drop:
				delete(memory, h.Key)
			case c.Full(1):
				low, _ := c.Need(1, may)
				delete(memory, low.Key)
				fallthrough
			default:
				moved(h, 1, plan.Host)
			}
		}
	}
	for step := range 1500 {
		i := r.IntN(keys)
		key := plan.Key{byte(i)}
		owner := uint32(i % 3)
		switch r.IntN(6) {
		case 0, 1:
			need(0)
			h := &Held[struct{}]{Key: key, Kind: plan.Item, Tokens: 1 + r.IntN(9), Bytes: 1, Owner: owner}
			if i%2 == 0 {
				h.Kind, h.Named, h.Digest = plan.User, true, uint64(h.Tokens)
			}
			if did, _, _ := c.Publish(h, 0, false); did == Placed {
				memory[key] = Entry{h.Kind, plan.Device, int32(h.Tokens), owner, h.Digest}
			}
		case 2:
			e := Entry{Kind: plan.Item, Tokens: int32(r.IntN(9)), Owner: owner}
			c.Stored(key, e)
			e.Tier = plan.Disk
			disk[key] = e
		case 3:
			c.Lost(key)
			delete(disk, key)
		case 4:
			if h, where := c.Use(key, func(*Held[struct{}]) bool { return false }); where == Up {
				if got, ok := c.Lookup(key); !ok || got != memory[key] {
					t.Fatalf("step %d: while it is moved %+v is known as %+v, %v", step, memory[key], got, ok)
				}
				need(0)
				moved(h, 0, plan.Device)
			}
		case 5:
			if r.IntN(4) == 0 {
				c.Delete(key)
				delete(memory, key)
			}
		}
		var owned [3][]plan.Key
		tiers := make([]plan.Tier, keys)
		var all []plan.Key
		for j := range keys {
			k := plan.Key{byte(j)}
			all = append(all, k)
			want, ok := memory[k]
			if !ok {
				want, ok = disk[k]
			}
			if got, known := c.Lookup(k); got != want || known != ok {
				t.Fatalf("step %d: key %d is known as %+v, %v, want %+v, %v", step, j, got, known, want, ok)
			}
			if tiers[j] = want.Tier; ok {
				owned[j%3] = append(owned[j%3], k)
			}
		}
		if r.IntN(12) == 0 {
			router.follow(t, c, feed)
			for j, k := range all {
				if want, _ := c.Lookup(k); router.known[k] != want {
					t.Fatalf("step %d: a follower knows key %d as %+v, it is %+v", step, j, router.known[k], want)
				}
			}
		}
		got := make([]plan.Tier, keys)
		if c.Status(all, got); !slices.Equal(got, tiers) {
			t.Fatalf("step %d: tiers %v, want %v", step, got, tiers)
		}
		for o := range owned {
			var have []plan.Key
			c.Snapshot(func(k plan.Key, e Entry) {
				if e.Owner == uint32(o) {
					have = append(have, k)
				}
			}, func() {})
			slices.SortFunc(have, func(a, b plan.Key) int { return int(a[0]) - int(b[0]) })
			if !slices.Equal(have, owned[o]) || c.Owned(uint32(o)) != len(have) {
				t.Fatalf("step %d: owner %d has %d keys, %v, want %v", step, o, c.Owned(uint32(o)), have, owned[o])
			}
		}
		if err := c.Check(func(*Held[struct{}]) error { return nil }); err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
	}
	if router.all < 5 || router.deltas < 20 {
		t.Errorf("%d snapshots and %d answers: the draw tests too little", router.all, router.deltas)
	}
	if !c.Ever(plan.User) || !c.Ever(plan.Item) || c.Ever(plan.Preamble) {
		t.Error("there were users and items, and nothing else")
	}
}

// follower knows what a feed has reported.
type follower struct {
	known       map[plan.Key]Entry
	boot, seq   uint64
	all, deltas int // snapshots, and answers without one
}

func (f *follower) follow(t *testing.T, c *Core[struct{}], feed *Feed) {
	t.Helper()
	for f.seq < feed.Seq() || f.boot != feed.Boot() {
		events, ok := feed.Since(nil, f.boot, f.seq, 5)
		if !ok {
			clear(f.known)
			c.Snapshot(func(key plan.Key, e Entry) { f.known[key] = e }, nothing)
			f.boot, f.seq = feed.Boot(), feed.Seq()
			f.all++
			continue
		}
		if f.deltas++; len(events) == 0 || len(events) > 5 {
			t.Fatalf("%d events at once", len(events))
		}
		for _, e := range events {
			if f.seq++; e.Seq != f.seq {
				t.Fatalf("event %d comes after %d", e.Seq, f.seq-1)
			}
			if delete(f.known, e.Key); e.Tier != plan.Missing {
				f.known[e.Key] = e.Entry
			}
		}
	}
}

// A feed reports which followers it cannot serve: those that follow another boot, lag behind what it keeps, or are
// ahead of it.
func TestFeed(t *testing.T) {
	f := NewFeed(3, 4)
	for i := range 6 {
		f.add(plan.Key{byte(i)}, Entry{Tier: plan.Host, Tokens: int32(i)})
	}
	for _, w := range []struct {
		boot, seq uint64
		most, n   int
		ok        bool
	}{
		{3, 6, 9, 0, true}, {3, 5, 9, 1, true}, {3, 2, 9, 4, true}, {3, 2, 3, 3, true}, {3, 1, 9, 0, false},
		{3, 0, 9, 0, false},
		{3, 7, 9, 0, false}, {2, 6, 9, 0, false},
	} {
		events, ok := f.Since(nil, w.boot, w.seq, w.most)
		if ok != w.ok || len(events) != w.n {
			t.Errorf("%+v: %d events, %v", w, len(events), ok)
		}
		for i, e := range events {
			if s := w.seq + uint64(i) + 1; e.Seq != s || e.Key != (plan.Key{byte(s - 1)}) || e.Tokens != int32(s-1) {
				t.Errorf("%+v: event %d is %+v", w, i, e)
			}
		}
	}
	if n := testing.AllocsPerRun(100, func() { f.add(plan.Key{1}, Entry{}) }); n != 0 {
		t.Errorf("an event allocates %v times", n)
	}
}

// A digest distinguishes prefixes of different tokens or lengths, and is never 0.
func TestDigest(t *testing.T) {
	seen := map[uint64]bool{0: true}
	for _, tokens := range [][]int32{nil, {0}, {0, 0}, {1}, {1, 2}, {2, 1}, {-1}, {1 << 30}, {1, 2, 3}} {
		d := Digest(tokens)
		if seen[d] || d != Digest(slices.Clone(tokens)) {
			t.Errorf("%v: digest %x is that of others, or another each time", tokens, d)
		}
		seen[d] = true
	}
}

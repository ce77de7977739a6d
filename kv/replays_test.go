package kv

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"grebe/bench/replay"
	"grebe/compute"
	"grebe/compute/computetest"
	"grebe/compute/ref"
	"grebe/internal/locktest"
	"grebe/internal/record"
	"grebe/plan"
	"grebe/residency"
)

// A log of a store has all that its decisions follow from: replayed, they are the same. What is read is what was
// written.
func TestStoresDecideWhatTheirLogsSay(t *testing.T) {
	for _, policy := range []string{"lru", "default"} {
		for _, way := range []string{"one level", "pinned host", "host", "disk", "host and disk"} {
			t.Run(policy+", "+way, func(t *testing.T) {
				var lines bytes.Buffer
				log := record.New(&lines, 1<<30)
				randomStore(t, way, policy, log.Room("kv"))
				if err := log.Close(); err != nil {
					t.Fatal(err)
				}
				r, err := replay.Run(&lines)
				if err != nil {
					t.Fatal(err)
				}
				if r.Different > 0 {
					t.Errorf("%d of %d decisions differ. The first is on %s", r.Different, r.Compared(), r.Differences[0])
				}
				want := []string{"kv put", "kv hit", "kv leave", "kv forget", "kv take"}
				if way == "disk" || way == "host and disk" {
					want = append(want, "kv write")
				}
				for _, op := range want {
					if r.Decisions[op] < 20 {
						t.Errorf("%d times %q: the draw tests too little", r.Decisions[op], op)
					}
				}
			})
		}
	}
}

// randomStore has items, users and known prefixes come, be read, grow and be deleted in a store that is too small for
// them.
func randomStore(t *testing.T, way, policy string, rec *record.Room) {
	m := ref.New().Memory()
	host := way == "pinned host" || way == "host" || way == "host and disk"
	if host {
		m = computetest.Far(ref.New(), way == "pinned host").Memory()
	}
	p := newPool(t, m, 900)
	s := New(shape, p)
	closers := []func() error{p.Close}
	if host {
		low := newPool(t, m.Host(), 900)
		if err := s.SetHost(low); err != nil {
			t.Fatal(err)
		}
		closers = append(closers, low.Close)
	}
	if err := s.SetPolicy(policy); err != nil {
		t.Fatal(err)
	}
	if way == "disk" || way == "host and disk" {
		tier := &records{all: map[plan.Key]stored{}, open: make(chan struct{})}
		close(tier.open)
		s.SetDisk(tier)
	}
	s.Record(rec)
	rng := rand.New(rand.NewPCG(71, 72))
	var all [][]int32
	reserve := func(layout Layout, tokens int, prefix *Entry) *Entry {
		e, err := s.Reserve(layout, tokens, prefix)
		if err != nil { // what is being written does not make room
			s.Drain()
			e, err = s.Reserve(layout, tokens, prefix)
		}
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	mark := func(k plan.Key) byte { return k[0]*3 + k[1]*7 }
	for step := range 2500 {
		key := plan.Key{byte(rng.IntN(40)), 1}
		switch rng.IntN(11) {
		case 0, 1, 2:
			if e, _ := s.Get(key); e != nil {
				check(t, e, e.len, mark(key))
				e.Release()
			} else {
				e := reserve(Exact, 1+int(key[0])*5%70, nil)
				fill(e, 0, mark(key))
				s.Publish(plan.Item, key, nil, e)
				e.Release()
			}
		case 10: // another node reads an item, or sends one
			var l Loan
			if s.Lend(t.Context(), key, 0, 0, &l) == nil {
				s.Return(&l)
				continue
			}
			n := 1 + int(key[0])*5%70
			a, _ := s.Expect(0, plan.Item, key, nil, n)
			pieces, err := a.Place(encodeMeta(plan.Item, n, nil), int64(shape.ChunkBytes(n, false)))
			for _, b := range pieces {
				copy(b, content(n, mark(key)))
			}
			a.End(err == nil)
		case 3, 4: // a user who has more tokens than before
			user := plan.Key{byte(rng.IntN(12)), 2}
			tokens := make([]int32, 1+rng.IntN(200))
			e, _ := s.GetPrefix(user, tokens)
			have := 0
			if e != nil {
				have = e.Len()
				check(t, e, have, mark(user))
			}
			if have < len(tokens) {
				longer := reserve(Chain, len(tokens), e)
				fill(longer, have, mark(user))
				s.Publish(plan.User, user, tokens, longer)
				longer.Release()
			}
			if e != nil {
				e.Release()
			}
		case 5, 6:
			s.Drain() // what is being written does not make room
			tokens := related(rng, all)
			if _, err := learn(s, plan.Key{1}, tokens); err != nil {
				t.Fatalf("step %d: %v", step, err)
			}
			if all = append(all, tokens); len(all) > 30 {
				all = all[1:]
			}
		case 7:
			if err := s.Delete(key); err != nil {
				t.Fatal(err)
			}
		case 8:
			tiers := make([]plan.Tier, 1)
			s.Status([]plan.Key{key}, tiers)
			e, ok := s.Lookup(key)
			want := residency.Entry{Kind: plan.Item, Tier: tiers[0], Tokens: 1 + int32(key[0])*5%70}
			if ok != (tiers[0] != plan.Missing) || ok && e != want {
				t.Fatalf("step %d: item %d is known as %+v, %v, in tier %v", step, key[0], e, ok, tiers[0])
			}
			if s.Below(key) {
				s.Fetch(t.Context(), key)
			}
		case 9:
			if rng.IntN(20) == 0 {
				s.Flush()
			}
		}
	}
	s.Drain()
	s.Close()
	var errs []error
	for _, c := range closers {
		errs = append(errs, c())
	}
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

// An entry that begins with another has its tokens, whatever the layout of the two. Full chunks of a chain are shared.
func TestPrefixesAreTakenOver(t *testing.T) {
	everywhere(t, func(t *testing.T, m compute.Memory) {
		s, p := newStore(t, m, 3000)
		rng := rand.New(rand.NewPCG(81, 82))
		lengths := []int{1, 63, 64, 65, 127, 128, 129, 192}
		for range 10 {
			lengths = append(lengths, 1+rng.IntN(300))
		}
		for _, n := range lengths {
			for _, from := range []Layout{Exact, Chain} {
				for _, to := range []Layout{Exact, Chain} {
					for _, more := range []int{0, 1, ChainTokens, 100} {
						what := fmt.Sprintf("%d tokens and %d more, layouts %v and %v", n, more, from, to)
						src, err := s.Reserve(from, n, nil)
						if err != nil {
							t.Fatal(err)
						}
						fill(src, 0, 9)
						before := p.Stats().Used
						dst, err := s.Reserve(to, n+more, src)
						if err != nil {
							t.Fatalf("%s: %v", what, err)
						}
						if dst.Len() != n+more {
							t.Fatalf("%s: %d tokens", what, dst.Len())
						}
						check(t, dst, n, 9)
						if from == Chain && to == Chain {
							chunk := int64(shape.ChunkBytes(ChainTokens, false))
							want := (int64(n+more+ChainTokens-1)/ChainTokens - int64(n)/ChainTokens) * chunk
							if got := p.Stats().Used - before; got != want {
								t.Fatalf("%s: %d bytes more, want %d", what, got, want)
							}
						}
						fill(dst, n, 77) // what is new is its own
						check(t, src, n, 9)
						src.Release()
						check(t, dst, n, 9)
						dst.Release()
					}
				}
			}
		}
		if used := p.Stats().Used; used != 0 {
			t.Errorf("%d bytes are used", used)
		}
		e, err := s.Reserve(Chain, 10, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer e.Release()
		if _, err := s.Reserve(Chain, 9, e); err == nil {
			t.Error("an entry is shorter than its prefix")
		}
	})
}

// A store that refuses a policy goes on with the one it had.
func TestARefusedPolicyChangesNothing(t *testing.T) {
	s, _ := newStore(t, compute.NewHostMemory(), 1000)
	if err := s.SetPolicy("lru"); err != nil {
		t.Fatal(err)
	}
	if err := s.SetPolicy("newest"); err == nil {
		t.Fatal("an unknown policy was taken")
	}
	d := openDisk(t, t.TempDir())
	s.SetDisk(d) // opens the books again
	add(t, s, plan.Item, plan.Key{1}, nil, 3, 1)
	if e, _ := s.Get(plan.Key{1}); e == nil {
		t.Error("nothing is kept")
	} else {
		e.Release()
	}
	if _, ok := s.Floor(); ok || s.config.Policy != "lru" {
		t.Errorf("the policy is %q", s.config.Policy)
	}
	s.Close()
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// Of what lies on disk alone the store knows what it is, and of a user which tokens.
func TestEntriesOnDiskAreLookedUp(t *testing.T) {
	s, done := withDisk(t, ref.New().Memory(), t.TempDir(), 300)
	defer done()
	tokens := make([]int32, 70)
	for i := range tokens {
		tokens[i] = int32(i)
	}
	user, item := plan.Key{1}, plan.Key{2}
	add(t, s, plan.User, user, tokens, len(tokens), 1)
	add(t, s, plan.Item, item, nil, 7, 2)
	s.Flush()
	for n := 300; ; n-- { // all make room
		if e, err := s.Reserve(Exact, n, nil); err == nil {
			e.Release()
			break
		}
	}
	for key, want := range map[plan.Key]residency.Entry{
		user: {Kind: plan.User, Tier: plan.Disk, Tokens: 70, Digest: residency.Digest(tokens)},
		item: {Kind: plan.Item, Tier: plan.Disk, Tokens: 7},
	} {
		if got, ok := s.Lookup(key); !ok || got != want {
			t.Errorf("known as %+v, %v, want %+v", got, ok, want)
		}
	}
}

// Questions about the books wait for their lock.
func TestQuestionsWaitForTheBooks(t *testing.T) {
	s, done := withDisk(t, ref.New().Memory(), t.TempDir(), 500)
	defer done()
	key := plan.Key{1}
	add(t, s, plan.User, key, make([]int32, 9), 9, 1)
	s.Flush() // nothing is left to write: who flushes then asks the books alone
	for name, call := range map[string]func(){
		"Get":        func() { s.Get(plan.Key{9}) },
		"GetPrefix":  func() { s.GetPrefix(plan.Key{9}, make([]int32, 9)) },
		"Match":      func() { s.Match(plan.Key{9}, make([]int32, 9)) },
		"clean":      func() { s.clean(s.top, 1, func() bool { return true }) },
		"Stats":      func() { s.Stats(plan.User) },
		"Flush":      s.Flush,
		"Lookup":     func() { s.Lookup(key) },
		"Status":     func() { s.Status([]plan.Key{key}, make([]plan.Tier, 1)) },
		"Peek":       func() { s.Peek([]plan.Key{key}, make([]int32, 1)) },
		"PeekPrefix": func() { s.PeekPrefix(key, make([]int32, 9)) },
		"PeekMatch":  func() { s.PeekMatch(key, make([]int32, 9)) },
		"Where":      func() { s.Where(key) },
		"Floor":      func() { s.Floor() },
		"Forecasts":  func() { s.Forecasts() },
		"Forget":     func() { s.Forget(key) },
		"Drop":       func() { s.Drop(plan.Key{2}) },
	} {
		locktest.Waits(t, name, s.mu.Lock, s.mu.Unlock, call)
	}
	b := s.below
	some := []plan.Key{{3}}
	var put, deletion *op
	var f *fetch
	for _, c := range []struct {
		name string
		call func()
	}{
		{"condemned", func() { b.condemned(key) }},
		{"join", func() { f, _ = b.join(some[0]) }},
		{"reads", func() { b.reads(f) }},
		{"leave", func() { b.leave(some[0], f) }},
		{"begin", func() { put = b.begin(some[0], true) }},
		{"beginPut", func() { b.beginPut(some[0]) }},
		{"endPut", func() { b.endPut(some[0]) }},
		{"finish", func() { b.finish(put, some...) }},
		{"condemn", func() { deletion = b.condemn(some) }},
		{"awaitPuts", func() { b.awaitPuts(some) }},
		{"finish a deletion", func() { b.finish(deletion, some...) }},
		{"Written", func() { _ = s.Written(t.Context()) }},
	} {
		locktest.Waits(t, c.name, b.mu.Lock, b.mu.Unlock, c.call)
	}
}

package kv

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"grebe/compute"
	"grebe/evict"
	"grebe/plan"
	"grebe/pool"
)

// stamps returns, for every token, a byte that names it and all before it: KV depends on them.
func stamps(tokens []int32) []byte {
	out, h := make([]byte, len(tokens)), uint32(2166136261)
	for i, t := range tokens {
		h = (h ^ uint32(t)) * 16777619
		out[i] = byte(h >> 13)
	}
	return out
}

// fillFor computes tokens [from, len) of an entry for a sequence.
func fillFor(e *Entry, from int, tokens []int32) {
	is := stamps(tokens)
	eachRow(e, from, e.len, func(t, p int, b []byte) bool {
		for i := range b {
			b[i] = is[t] + byte(p)
		}
		return true
	})
}

// wrong returns what is wrong with the content of an entry for the beginning of a sequence.
func wrong(e *Entry, tokens []int32) (err error) {
	want := stamps(tokens)
	eachRow(e, 0, e.len, func(t, p int, b []byte) bool {
		for _, is := range b {
			if is != want[t]+byte(p) && err == nil {
				err = fmt.Errorf("token %d plane %d of %d tokens is %x, want all %x", t, p, e.len, b, want[t]+byte(p))
			}
		}
		return false
	})
	return err
}

// learn does what a request does: it takes what is known of a sequence, computes the rest and inserts it.
// It returns how much was known.
func learn(s *Store, context plan.Key, tokens []int32) (known int, err error) {
	prefix, _ := s.Match(context, tokens)
	if prefix != nil {
		defer prefix.Release()
		known = prefix.Len()
		if err := wrong(prefix, tokens); err != nil {
			return known, err
		}
	}
	if known == len(tokens) {
		return known, nil
	}
	e, err := s.Reserve(Chain, len(tokens), prefix)
	if err != nil {
		return known, nil // no room: computed, but not kept
	}
	defer e.Release()
	fillFor(e, known, tokens)
	s.Insert(context, tokens, e)
	return known, wrong(e, tokens)
}

// related draws a sequence that often shares its beginning with one of those before it.
func related(r *rand.Rand, before [][]int32) []int32 {
	var out []int32
	if len(before) > 0 && r.IntN(5) > 0 {
		b := before[r.IntN(len(before))]
		out = slices.Clone(b[:r.IntN(len(b)+1)])
	}
	for range 1 + r.IntN(150) {
		out = append(out, int32(r.IntN(3)))
	}
	return out
}

// With room for all, what is found is what a scan of all sequences finds, and every page is accounted for.
func TestKnownAgreesWithLinearScan(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s, p := newStore(t, compute.NewHostMemory(), 20000)
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		var all [][]int32
		for range 20 {
			tokens := related(r, all)
			want := 0
			for _, b := range all {
				want = max(want, common(b, tokens))
			}
			if n, place := s.PeekMatch(plan.Key{1}, tokens); n != want || (n > 0) != (place == plan.Host) {
				rt.Fatalf("%d tokens are known at %v, want %d", n, place, want)
			}
			if n, err := learn(s, plan.Key{1}, tokens); n != want || err != nil {
				rt.Fatalf("%d tokens were found, want %d; %v", n, want, err)
			}
			if n, _ := s.PeekMatch(plan.Key{2}, tokens); n != 0 {
				rt.Fatalf("%d tokens are known in another context", n)
			}
			if books, st := p.Stats(), s.Stats(Prefix); books.Used != st.Bytes {
				rt.Fatalf("%d bytes are in use, %+v", books.Used, st)
			}
			all = append(all, tokens)
		}
	})
}

// In a small pool, under every policy, what is read is never evicted, content is never another's, and what
// stays is a tree.
func TestKnownUnderPressure(t *testing.T) {
	for _, policy := range evict.Names() {
		t.Run(policy, func(t *testing.T) {
			s, p := newStore(t, compute.NewHostMemory(), 1500)
			if err := s.SetPolicy(policy); err != nil {
				t.Fatal(err)
			}
			pressure(t, s, rand.New(rand.NewPCG(5, 6)))
			if err := s.known.Check(); err != nil {
				t.Error(err)
			}
			st := s.Stats(Prefix)
			if st.Evicted == 0 || p.Stats().Used != st.Bytes+s.Stats(plan.User).Bytes {
				t.Errorf("%d bytes are in use, %+v and %+v", p.Stats().Used, st, s.Stats(plan.User))
			}
		})
	}
}

func pressure(t *testing.T, s *Store, r *rand.Rand) {
	type held struct {
		e      *Entry
		tokens []int32
	}
	var all [][]int32
	var pins []held
	for step := range 800 {
		tokens := related(r, all)
		if _, err := learn(s, plan.Key{1}, tokens); err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
		if all = append(all, tokens); len(all) > 30 {
			all = slices.Delete(all, 0, 1)
		}
		switch r.IntN(6) {
		case 0:
			if e, _ := s.Match(plan.Key{1}, tokens); e != nil && len(pins) < 4 {
				pins = append(pins, held{e, tokens})
			} else if e != nil {
				e.Release()
			}
		case 1, 2:
			if len(pins) > 0 {
				pins[0].e.Release()
				pins = pins[1:]
			}
		case 3: // a user of about as much
			named(t, s, plan.Key{byte(r.IntN(20))}, r.IntN(300))
		}
		for _, pin := range pins {
			if n, _ := s.PeekMatch(plan.Key{1}, pin.tokens); n < pin.e.Len() {
				t.Fatalf("step %d: %d tokens are read, but only %d are still known", step, pin.e.Len(), n)
			}
			if err := wrong(pin.e, pin.tokens); err != nil {
				t.Fatalf("step %d: what is read changed: %v", step, err)
			}
		}
	}
	for _, pin := range pins {
		pin.e.Release()
	}
}

// named publishes a user's entry of its own.
func named(t *testing.T, s *Store, key plan.Key, tokens int) {
	t.Helper()
	e, err := s.Reserve(Chain, tokens+1, nil)
	if err != nil {
		return
	}
	s.Publish(plan.User, key, make([]int32, tokens+1), e)
	e.Release()
}

// Many requests at once, in memory that is too small for them, with users who come and are deleted.
func TestKnownConcurrently(t *testing.T) {
	everywhere(t, func(t *testing.T, m compute.Memory) {
		s, _ := newStore(t, m, 2500)
		r := rand.New(rand.NewPCG(7, 8))
		var all [][]int32
		for range 40 {
			all = append(all, related(r, all))
		}
		var wg sync.WaitGroup
		for g := range 4 {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(9, uint64(g)))
				for range 200 {
					tokens := all[r.IntN(len(all))]
					if _, err := learn(s, plan.Key{1}, tokens); err != nil {
						t.Error(err)
						return
					}
					key := plan.Key{2, byte(r.IntN(4))}
					if prefix, _ := s.Match(plan.Key{1}, tokens); prefix != nil { // a user goes on from what is known
						if e, err := s.Reserve(Chain, prefix.Len(), prefix); err == nil {
							s.Publish(plan.User, key, tokens[:prefix.Len()], e)
							e.Release()
						}
						prefix.Release()
					}
					if r.IntN(3) == 0 {
						_ = s.Delete(key)
					}
				}
			})
		}
		wg.Wait()
		if err := s.known.Check(); err != nil {
			t.Error(err)
		}
	})
}

// Of two who computed the same prefix the first one's memory stays; the other's is freed with it.
func TestInsertersOfTheSameKeepOne(t *testing.T) {
	s, p := newStore(t, compute.NewHostMemory(), 2000)
	tokens := slices.Repeat([]int32{1}, 2*ChainTokens-10)
	longer := append(slices.Clone(tokens), 1, 2, 3)
	var made []*Entry
	for _, seq := range [][]int32{tokens, tokens, longer} {
		e, err := s.Reserve(Chain, len(seq), nil)
		if err != nil {
			t.Fatal(err)
		}
		fillFor(e, 0, seq)
		made = append(made, e)
	}
	for i, seq := range [][]int32{tokens, tokens, longer} {
		s.Insert(plan.Key{1}, seq, made[i])
	}
	first := made[0].chunks[0]
	for _, e := range made {
		e.Release()
	}
	chunks := int64((len(longer) + ChainTokens - 1) / ChainTokens)
	if got, want := p.Stats().Used, chunks*int64(shape.ChunkBytes(ChainTokens, false)); got != want {
		t.Errorf("%d bytes in use for %d tokens, want %d", got, len(longer), want)
	}
	e, _ := s.Match(plan.Key{1}, longer)
	defer e.Release()
	if err := wrong(e, longer); err != nil || e.Len() != len(longer) {
		t.Errorf("%d tokens: %v", e.Len(), err)
	}
	if e.chunks[0] != first {
		t.Error("the first chunk is not that of the first to insert it")
	}
}

// Entries and prefixes make room in one order.
func TestOneOrderOfEviction(t *testing.T) {
	s, _ := newStore(t, compute.NewHostMemory(), 4*ChainTokens)
	var forgotten []plan.Key
	s.OnForget(func(k plan.Key) { forgotten = append(forgotten, k) })
	seq := func(mark int32) []int32 { return slices.Repeat([]int32{mark}, ChainTokens) }
	has := func(mark int32) bool { n, _ := s.PeekMatch(plan.Key{1}, seq(mark)); return n > 0 }
	put := func(mark int32) {
		t.Helper()
		if _, err := learn(s, plan.Key{1}, seq(mark)); err != nil {
			t.Fatal(err)
		}
	}
	put(1)
	named(t, s, plan.Key{2}, ChainTokens-1)
	put(3)
	named(t, s, plan.Key{4}, ChainTokens-1)
	put(1) // used again: the user is the oldest
	put(5)
	if e := get(s, plan.Key{2}); e != nil || !has(1) || !has(3) {
		t.Errorf("the user used least recently did not go first: user %v, prefixes %v %v", e != nil, has(1), has(3))
	}
	named(t, s, plan.Key{6}, ChainTokens-1)
	if e := get(s, plan.Key{4}); e == nil || has(3) {
		t.Error("the prefix used least recently did not go next")
	} else {
		e.Release()
	}
	if want := []plan.Key{PrefixKey(plan.Key{1}, seq(3))}; !slices.Equal(forgotten, want) {
		t.Errorf("told of %x, want %x", forgotten, want)
	}
}

// searched is memory of the host's that can be looked through.
type searched struct {
	compute.Memory
	blocks []compute.Block
}

func (m *searched) Host() compute.Memory { return m }

func (m *searched) Alloc(n int) (compute.Block, error) {
	b, err := m.Memory.Alloc(n)
	m.blocks = append(m.blocks, b)
	return b, err
}

func (m *searched) has(what []byte) bool {
	return slices.ContainsFunc(m.blocks, func(b compute.Block) bool { return bytes.Contains(b.Bytes, what) })
}

// What is evicted, covered or dropped with the store leaves no bytes behind; nor does a deleted user who
// began with what was known.
func TestNothingOfTheForgottenStays(t *testing.T) {
	m := &searched{Memory: compute.NewHostMemory()}
	s, _ := newStore(t, m, 600)
	begin := slices.Repeat([]int32{1}, ChainTokens)
	own := append(slices.Clone(begin), slices.Repeat([]int32{2}, 30)...)
	if _, err := learn(s, plan.Key{1}, begin); err != nil {
		t.Fatal(err)
	}
	prefix, _ := s.Match(plan.Key{1}, own)
	e, err := s.Reserve(Chain, len(own), prefix)
	if err != nil {
		t.Fatal(err)
	}
	prefix.Release()
	secret := []byte("computed for this user alone....")
	row := shape.HeadDim * shape.KV.Size()
	c, at := e.locate(ChainTokens + 3)
	copy(c.run.Bytes[at*row:], secret)
	s.Publish(plan.User, plan.Key{9}, own, e)
	e.Release()
	if !m.has(secret) {
		t.Fatal("the test does not find what is there")
	}
	if n, _ := s.PeekMatch(plan.Key{1}, own); n != len(begin) {
		t.Errorf("%d of the user's tokens are known to others, want the %d that were before", n, len(begin))
	}
	if err := s.Delete(plan.Key{9}); err != nil {
		t.Fatal(err)
	}
	if m.has(secret) {
		t.Error("bytes of a deleted user are in memory")
	}
	grown, err := s.Reserve(Chain, len(own), nil)
	if err != nil {
		t.Fatal(err)
	}
	copy(grown.chunks[1].run.Bytes, secret)
	s.Insert(plan.Key{1}, own, grown)
	grown.Release()
	for s.evictOne(s.top) {
	}
	if m.has(secret) || s.known.Len() != 0 {
		t.Errorf("%d runs are known, or bytes of them in memory, after all was evicted", s.known.Len())
	}
}

// BenchmarkKnown finds and gives back a history of 2,000 tokens among 1,000 that share 200.
func BenchmarkKnown(b *testing.B) {
	p, err := pool.New(int64(shape.ChunkBytes(2_100_000, false)), 4096)
	if err != nil {
		b.Fatal(err)
	}
	s := New(shape, p)
	defer s.Close()
	tokens := make([]int32, 2000)
	for i := range 1000 {
		r := rand.New(rand.NewPCG(uint64(i), 1))
		for at := 200; at < len(tokens); at++ {
			tokens[at] = int32(r.IntN(50000))
		}
		e, err := s.Reserve(Chain, len(tokens), nil)
		if err != nil {
			b.Fatal(err)
		}
		s.Insert(plan.Key{1}, tokens, e)
		e.Release()
	}
	b.ReportAllocs()
	for b.Loop() {
		e, _ := s.Match(plan.Key{1}, tokens)
		e.Release()
	}
}

// Forgetting a context frees all of it but what is read, and nothing else.
func TestForgetContext(t *testing.T) {
	s, p := newStore(t, compute.NewHostMemory(), 20000)
	r := rand.New(rand.NewPCG(3, 4))
	var all [][]int32
	for range 30 {
		tokens := related(r, all)
		all = append(all, tokens)
		for _, context := range []plan.Key{{1}, {2}} {
			if _, err := learn(s, context, tokens); err != nil {
				t.Fatal(err)
			}
		}
	}
	held, _ := s.Match(plan.Key{1}, all[29])
	before := p.Stats().Used
	s.Forget(plan.Key{1})
	s.Forget(plan.Key{3})
	if err := s.known.Check(); err != nil {
		t.Fatal(err)
	}
	for _, tokens := range all {
		gone, _ := s.PeekMatch(plan.Key{1}, tokens)
		kept, _ := s.PeekMatch(plan.Key{2}, tokens)
		if gone != 0 || kept != len(tokens) {
			t.Fatalf("of %d tokens %d are known in the context that was forgotten, and %d in the other", len(tokens), gone, kept)
		}
	}
	if err := wrong(held, all[29]); err != nil {
		t.Errorf("what is read: %v", err)
	}
	held.Release()
	if used := p.Stats().Used; used != before/2 || used != s.Stats(Prefix).Bytes {
		t.Errorf("%d of %d bytes are in use, %+v", used, before, s.Stats(Prefix))
	}
}

package kv

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"grebe/compute"
	"grebe/compute/ref"
	"grebe/evict"
	"grebe/internal/locktest"
	"grebe/internal/record"
	"grebe/plan"
	"grebe/pool"
	"grebe/residency"
)

// Keys name records on disk: they change with ComputeVersion and with nothing else.
func TestKeysStayTheSame(t *testing.T) {
	key := KeyOf(plan.Key{1}, []int32{1, -2, 300000}, fmt.Sprint("user ", ComputeVersion))
	if got := hex.EncodeToString(key[:]); got != "d765d62dc53fb7be3d9824955bf367a95b961b009aaa66f3b11d1b74cbed83e5" {
		t.Errorf("the key is %s", got)
	}
	if PrefixKey(plan.Key{1}, tokensOf(64)) == PrefixKey(plan.Key{2}, tokensOf(64)) {
		t.Error("sequences in two contexts have one key")
	}
}

// A chain has chunks of 64 tokens. Where one of them finds no room, the others are given back.
func TestChainsThatDoNotFit(t *testing.T) {
	s, p := newStore(t, ref.New().Memory(), 160)
	e, err := s.Reserve(Chain, 128, nil)
	if err != nil || len(e.chunks) != 2 || e.chunks[0].tokens != 64 {
		t.Fatalf("%d chunks: %v", len(e.chunks), err)
	}
	e.Release()
	if _, err := s.Reserve(Chain, 129, nil); !errors.Is(err, ErrFull) || p.Stats().Used != 0 {
		t.Errorf("%v, and %d bytes are held for it", err, p.Stats().Used)
	}
}

// A level has a place for every entry of one token that fits, one at least, and 524,288 at most.
func TestPlacesOfALevel(t *testing.T) {
	p := newPool(t, ref.New().Memory(), 64) // 4,096 bytes in pages of 256
	for heads, want := range map[int]int{1: 16, 8: 16, 9: 8, 16: 8, 4096: 1} {
		s := compute.Shape{Layers: 1, KVHeads: heads, HeadDim: 8, KV: compute.BF16} // 32 bytes a head
		if l := newLevel(p, &s); l.slots != want {
			t.Errorf("%d places for entries of %d bytes, want %d", l.slots, s.ChunkBytes(1, false), want)
		}
	}
	large := newPool(t, ref.New().Memory(), 4<<20) // 256 MiB, which nobody touches
	if l := newLevel(large, &shape); l.slots != 1<<19 {
		t.Errorf("%d places", l.slots)
	}
	if err := errors.Join(p.Close(), large.Close()); err != nil {
		t.Error(err)
	}
}

// Tokens of a format with scales take the scales of their chunk along, and cannot go to the middle of another one.
func TestScalesGoWithTheirTokens(t *testing.T) {
	fp8 := compute.Shape{Layers: 2, KVHeads: 2, HeadDim: 4, KV: compute.FP8}
	p, err := pool.Over(ref.New().Memory(), 1<<20, 256)
	if err != nil {
		t.Fatal(err)
	}
	s := New(fp8, p)
	src, err := s.Reserve(Chain, 100, nil)
	if err != nil {
		t.Fatal(err)
	}
	from := src.chunks[1].run.Bytes
	for i := range from {
		from[i] = byte(1 + i%251)
	}
	dst, err := s.Reserve(Chain, 110, src)
	if err != nil {
		t.Fatal(err)
	}
	head, used := fp8.HeadBytes(ChainTokens), fp8.ScaleBytes()+36*4
	for i := range 2 * 2 * 2 {
		if !bytes.Equal(dst.chunks[1].run.Bytes[i*head:][:used], from[i*head:][:used]) {
			t.Errorf("head %d has another scale or other tokens", i)
		}
	}
	if _, err := s.Reserve(Exact, 110, src); err == nil ||
		!strings.Contains(err.Error(), "copy 100 tokens: token 64 is at 0 ") {
		t.Errorf("two chunks in one: %v", err)
	}
	exact, err := s.Reserve(Exact, 100, nil)
	if err != nil {
		t.Fatal(err)
	}
	used64 := p.Stats().Used
	if _, err := s.Reserve(Chain, 110, exact); err == nil || p.Stats().Used != used64 {
		t.Errorf("one chunk in two: %v, %d bytes are held", err, p.Stats().Used-used64)
	}
	for _, e := range []*Entry{src, dst, exact} {
		e.Release()
	}
	s.Close()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// An entry that is published again under its key is there once.
func TestPublishedTwice(t *testing.T) {
	s, p := newStore(t, ref.New().Memory(), 256)
	for i, tokens := range [][]int32{nil, make([]int32, 9)} {
		e, err := s.Reserve(Exact, 9, nil)
		if err != nil {
			t.Fatal(err)
		}
		key := plan.Key{byte(i)}
		for range 3 {
			s.Publish(plan.Kind(i), key, tokens, e)
		}
		if n := e.refs.Load(); n != 2 || s.Owned(0) != 1 {
			t.Errorf("%d references, and %d entries are there", n, s.Owned(0))
		}
		e.Release()
		s.Drop(key)
		if used := p.Stats().Used; used != 0 {
			t.Errorf("%d bytes are in use after it was dropped", used)
		}
	}
}

// Whoever deletes or drops entries, OnDrop is told those that there were, wherever they were, and nothing is known of
// them.
func TestOnDropIsToldOfDeletions(t *testing.T) {
	s, _ := newStore(t, ref.New().Memory(), 256)
	s.SetDisk(newScripted())
	told := map[plan.Key]plan.Kind{}
	s.OnDrop(func(k plan.Key, kind plan.Kind) { told[k] = kind })
	for _, remove := range []func(...plan.Key){s.Drop, func(keys ...plan.Key) { _ = s.Delete(keys...) }} {
		add(t, s, plan.Item, plan.Key{1}, nil, 9, 1)
		s.Drain()
		for s.evictOne(s.top) {
		}
		add(t, s, plan.User, plan.Key{2}, make([]int32, 9), 9, 2)
		if s.Owned(0) != 2 {
			t.Fatalf("%d entries, want one below and one in memory", s.Owned(0))
		}
		clear(told)
		remove(plan.Key{1}, plan.Key{2}, plan.Key{3})
		if len(told) != 2 || told[plan.Key{1}] != plan.Item || told[plan.Key{2}] != plan.User {
			t.Errorf("told of %v", told)
		}
		if s.Owned(0) != 0 {
			t.Errorf("%d entries are known", s.Owned(0))
		}
	}
}

// refusing is a tier that deletes nothing.
type refusing struct{ *scripted }

func (refusing) Delete(...plan.Key) error { return errBroken }

func TestADeletionThatFails(t *testing.T) {
	s, _ := newStore(t, ref.New().Memory(), 256)
	s.SetDisk(refusing{newScripted()})
	add(t, s, plan.Item, plan.Key{1}, nil, 9, 1)
	if err := s.Delete(plan.Key{1}); !errors.Is(err, errBroken) {
		t.Errorf("a deletion that fails: %v", err)
	}
}

// What makes room before it was written is lost, and counted; what lies below is not.
func TestLostIsWhatWasNotWritten(t *testing.T) {
	s, _ := newStore(t, ref.New().Memory(), 256)
	s.SetDisk(newScripted())
	add(t, s, plan.Item, plan.Key{1}, nil, 9, 1)
	s.Drain()
	s.evictOne(s.top)
	if b := s.BelowStats(); b.Written != 1 || b.Lost != 0 {
		t.Errorf("%+v after an entry that was written made room", b)
	}
	add(t, s, plan.User, plan.Key{2}, make([]int32, 9), 9, 1)
	s.evictOne(s.top)
	if b := s.BelowStats(); b.Lost != 1 {
		t.Errorf("%+v after one that was not", b)
	}
}

// What is fetched is not written again. It keeps its owner below, and users are known by their tokens wherever they
// are.
func TestFetchedEntriesAreClean(t *testing.T) {
	s, _ := newStore(t, ref.New().Memory(), 256)
	tier := newScripted()
	s.SetDisk(tier)
	tokens := tokensOf(9)
	e, err := s.Reserve(Chain, 9, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.PublishFor(3, plan.User, plan.Key{1}, tokens, e)
	e.Release()
	want := residency.Entry{Kind: plan.User, Tier: plan.Host, Tokens: 9, Digest: residency.Digest(tokens), Owner: 3}
	for range 2 {
		if known, _ := s.Lookup(plan.Key{1}); known != want {
			t.Errorf("in memory it is known as %+v, want %+v", known, want)
		}
		s.Flush()
		s.evictOne(s.top)
		below := want
		below.Tier = plan.Disk
		if known, _ := s.Lookup(plan.Key{1}); known != below || s.Owned(3) != 1 {
			t.Errorf("below it is known as %+v, want %+v", known, below)
		}
		if at := s.Fetch(t.Context(), plan.Key{1}); at != plan.Host {
			t.Fatalf("fetched to %v", at)
		}
		s.Flush()
		if len(tier.order) != 1 {
			t.Errorf("written %d times", len(tier.order))
		}
	}
}

// What is dropped while it is written is not below when that has ended.
func TestDroppedWhileItIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, g := withGate(t, 256)
		add(t, s, plan.Item, plan.Key{1}, nil, 9, 1)
		<-g.begun
		s.Drop(plan.Key{1})
		close(g.open)
		s.Drain()
		if _, ok := g.Disk.Has(plan.Key{1}); ok || s.Owned(0) != 0 {
			t.Errorf("it is on disk: %v; %d entries are known", ok, s.Owned(0))
		}
	})
}

// Writes that fail are not tried again before something else is published.
func TestFailingWritesRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t, ref.New().Memory(), 64*ChainTokens)
		s, tier := New(shape, p), newScripted()
		hold := make(chan struct{})
		tier.fails = func(key plan.Key) bool { return key[0] == 2 }
		s.SetDisk(&holding{tier, hold})
		add(t, s, plan.Item, plan.Key{1}, nil, 9, 1) // the writer waits with it
		synctest.Wait()
		for i := range 40 {
			add(t, s, plan.User, plan.Key{2, byte(i)}, make([]int32, 9), 9, 1)
		}
		close(hold)
		synctest.Wait()
		if b := s.BelowStats(); b.Failed != cleanAtOnce || b.Written != 1 {
			t.Errorf("%+v, want %d that failed once", b, cleanAtOnce)
		}
		s.Close()
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
}

// holding writes items when a test lets it.
type holding struct {
	*scripted
	hold chan struct{}
}

func (h *holding) Put(key plan.Key, meta []byte, payload [][]byte) error {
	if key[0] == 1 {
		<-h.hold
	}
	return h.scripted.Put(key, meta, payload)
}

// Users that are lowered to the host's memory are written as soon as it is more than half full.
func TestLoweredUsersAreWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTiered(t, true, "lru", 4*ChainTokens, 4*ChainTokens)
		w.SetDisk(newScripted())
		for i := range 4 {
			add(t, w.Store, plan.User, plan.Key{byte(i)}, make([]int32, 9), 9, 1)
		}
		synctest.Wait()
		for i, want := range []int64{0, 0, 1} {
			w.evictOne(w.top)
			synctest.Wait()
			if b := w.BelowStats(); (b.Written > 0) != (want > 0) {
				t.Errorf("%d users were written with %d of 4 places taken", b.Written, i+1)
			}
		}
		w.close(t)
	})
}

// A user of whom the host's memory has room for a part is dropped, and leaves nothing there.
func TestHalfAUserIsNotLowered(t *testing.T) {
	w := newTiered(t, true, "lru", 4*ChainTokens, 2*ChainTokens)
	defer w.close(t)
	add(t, w.Store, plan.User, plan.Key{1}, make([]int32, 150), 150, 1)
	w.evictOne(w.top)
	if n, _ := w.Where(plan.Key{1}); n != 0 || w.host.Stats().Used != 0 {
		t.Errorf("%d tokens are there, and %d bytes of the host's in use", n, w.host.Stats().Used)
	}
}

// At most 128 entries are read at a time; the others come when these have.
func TestReadsAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := newStore(t, ref.New().Memory(), 256*8)
		tier := &records{all: map[plan.Key]stored{}, open: make(chan struct{})}
		s.SetDisk(tier)
		const n = 140
		for i := range n {
			add(t, s, plan.Item, plan.Key{byte(i)}, nil, 1, byte(i))
		}
		s.Drain()
		for s.evictOne(s.top) {
		}
		ended, stop := context.WithCancel(t.Context())
		stop()
		for i := range 20 {
			if at := s.Fetch(ended, plan.Key{byte(i)}); at != plan.Missing || tier.begun() != 0 {
				t.Fatalf("fetched to %v for one who left, after %d reads", at, tier.begun())
			}
		}
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				if at := s.Fetch(t.Context(), plan.Key{byte(i)}); at != plan.Host {
					t.Errorf("entry %d came to %v", i, at)
				}
			})
		}
		synctest.Wait()
		if tier.begun() != 128 {
			t.Errorf("%d are read at a time, want 128", tier.begun())
		}
		close(tier.open)
		wg.Wait()
	})
}

// Without memory to move an entry through it does not come, whatever the tier makes of that. The memory is freed at the
// end.
func TestTheStageIsFreed(t *testing.T) {
	m := newFaulty()
	p := newPool(t, m, 256)
	s := New(shape, p)
	tier := &records{all: map[plan.Key]stored{}, open: make(chan struct{})}
	close(tier.open)
	s.SetDisk(tier)
	add(t, s, plan.Item, plan.Key{1}, nil, 9, 5)
	s.Drain()
	s.evictOne(s.top)
	m.host.alloc.Store(true)
	if at := s.Fetch(t.Context(), plan.Key{1}); at != plan.Missing || s.Stats(plan.Item).Entries != 0 {
		t.Errorf("it came to %v", at)
	}
	m.host.alloc.Store(false)
	if at := s.Fetch(t.Context(), plan.Key{1}); at != plan.Device {
		t.Errorf("it came to %v", at)
	}
	e := get(s, plan.Key{1})
	check(t, e, 9, 5)
	e.Release()
	s.Close()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if n := m.allocs.Load() + m.host.allocs.Load(); n != 0 {
		t.Errorf("%d blocks were not freed", n)
	}
}

// A store may be stopped before it is closed, and closed twice. Nothing of it runs then.
func TestStopAndCloseTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTiered(t, true, "default", 4*ChainTokens, 4*ChainTokens)
		if err := w.Predict(); err != nil {
			t.Fatal(err)
		}
		tier := newScripted()
		w.SetDisk(tier)
		w.LowerAhead(1)
		add(t, w.Store, plan.User, plan.Key{1}, make([]int32, 9), 9, 1)
		if _, err := learn(w.Store, plan.Key{1}, tokensOf(70)); err != nil {
			t.Fatal(err)
		}
		w.Stop(t.Context())
		if len(tier.order) != 1 {
			t.Errorf("%d users were written, want 1", len(tier.order))
		}
		locktest.Waits(t, "Close", w.mu.Lock, w.mu.Unlock, w.Store.Close)
		w.close(t)
	})
}

// What follows entries and estimates how hot they are goes on when the books are made anew.
func TestReopenedBooksAreFollowed(t *testing.T) {
	s, _ := newStore(t, ref.New().Memory(), 256)
	if err := s.SetHotness(residency.HotnessConfig{Users: -1, Items: 10}); err == nil {
		t.Error("room for -1 users was taken")
	}
	if err := s.SetHotness(residency.HotnessConfig{Users: 10, Items: 10}); err != nil {
		t.Fatal(err)
	}
	s.Follow(1, 8)
	if err := s.SetPolicy("default"); err != nil {
		t.Fatal(err)
	}
	user := plan.Key{1}
	s.NoteUser(user, 1, false)
	s.Count(1)
	add(t, s, plan.User, user, make([]int32, 9), 9, 1)
	if _, coldest := s.Frequency(user, 1); coldest != 1 {
		t.Errorf("the coldest user that is cached came %v times, want 1", coldest)
	}
	if events, ok := s.Since(nil, 1, 0, 8); !ok || len(events) != 1 {
		t.Errorf("%d changes, %v", len(events), ok)
	}
}

// Only a whole chain where the device computes is made known, and one token is enough.
func TestWhatIsInserted(t *testing.T) {
	w := newTiered(t, true, "lru", 8*ChainTokens, 8*ChainTokens)
	defer w.close(t)
	known := func(tokens []int32) int { n, _ := w.PeekMatch(plan.Key{1}, tokens); return n }
	tokens := tokensOf(10)
	for _, c := range []struct {
		layout Layout
		length int
		want   int
	}{{Exact, 10, 0}, {Chain, 9, 0}, {Chain, 11, 0}, {Chain, 10, 10}} {
		e, err := w.Reserve(c.layout, c.length, nil)
		if err != nil {
			t.Fatal(err)
		}
		w.Insert(plan.Key{1}, tokens, e)
		w.Insert(plan.Key{1}, nil, e)
		e.Release()
		if n := known(tokens); n != c.want {
			t.Errorf("%d of 10 tokens are known after an entry of %d in layout %d", n, c.length, c.layout)
		}
	}
	empty, err := w.Reserve(Chain, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	w.Insert(plan.Key{2}, nil, empty)
	empty.Release()
	one := []int32{77}
	if _, err := learn(w.Store, plan.Key{1}, one); err != nil || known(one) != 1 {
		t.Errorf("%d of one token are known: %v", known(one), err)
	}
	if e, at := w.Match(plan.Key{1}, one); e == nil || at != plan.Device || e.Len() != 1 || len(e.chunks) != 1 {
		t.Errorf("one token is found in %v", at)
	} else {
		e.Release()
	}
	w.Forget(plan.Key{1})
	add(t, w.Store, plan.User, plan.Key{9}, tokens, 10, 1)
	w.evictOne(w.top)
	e, at := w.Get(plan.Key{9}) // used in place
	if at != plan.Host || e.Tier() != plan.Host {
		t.Fatalf("the user is in %v", at)
	}
	w.Insert(plan.Key{1}, tokens, e)
	e.Release()
	if known(tokens) != 0 {
		t.Error("an entry of the host's memory was made known")
	}
}

// A sequence needs two places on the books: it may split a run. Where these are free nothing has to leave.
func TestASequenceNeedsTwoPlaces(t *testing.T) {
	s, _ := newStore(t, ref.New().Memory(), 2*ChainTokens)
	var held []*Entry
	for i := range s.top.slots - 2 {
		e, err := s.Reserve(Exact, 0, nil) // takes a place and no memory
		if err != nil {
			t.Fatal(err)
		}
		s.Publish(plan.Item, plan.Key{byte(i)}, nil, e)
		held = append(held, e)
	}
	if _, err := learn(s, plan.Key{1}, tokensOf(9)); err != nil {
		t.Fatal(err)
	}
	e, _ := s.Match(plan.Key{1}, tokensOf(9))
	if e == nil {
		t.Fatal("two places were free, and nothing is known")
	}
	if _, err := learn(s, plan.Key{1}, []int32{-1}); err != nil {
		t.Fatal(err)
	}
	if n, _ := s.PeekMatch(plan.Key{1}, []int32{-1}); n != 0 {
		t.Error("one place was free, and a sequence took it")
	}
	e.Release()
	for _, e := range held {
		e.Release()
	}
}

// Known prefixes make room ahead too.
func TestForgetAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTiered(t, true, "lru", 8*ChainTokens, 8*ChainTokens)
		w.LowerAhead(int64(shape.ChunkBytes(3*ChainTokens, false)))
		for i := range 12 {
			if _, err := learn(w.Store, plan.Key{1}, []int32{int32(i), 1, 2}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if n := w.Stats(Prefix).Entries; n != min(i+1, 5) {
				t.Errorf("%d runs are known after %d, in room for 8 of which 3 are to be free", n, i+1)
			}
		}
		w.close(t)
	})
}

// Whatever the store is used for, a lesson is given to the trainer when it is complete.
func TestEveryUseTeaches(t *testing.T) {
	for name, use := range map[string]func(s *Store, i int){
		"Publish": func(s *Store, i int) { add(t, s, plan.Item, plan.Key{byte(i), byte(i >> 8), byte(i >> 16)}, nil, 1, 1) },
		"Get": func(s *Store, i int) {
			if e := get(s, plan.Key{1}); e != nil {
				e.Release()
			} else {
				add(t, s, plan.Item, plan.Key{1}, nil, 1, 1)
			}
		},
		"Insert": func(s *Store, i int) {
			e, err := s.Reserve(Chain, 1, nil)
			if err != nil {
				t.Fatal(err)
			}
			s.Insert(plan.Key{1}, []int32{int32(i)}, e)
			e.Release()
		},
		"Match": func(s *Store, i int) {
			if e, _ := s.Match(plan.Key{1}, []int32{1}); e != nil {
				e.Release()
			} else if _, err := learn(s, plan.Key{1}, []int32{1}); err != nil {
				t.Fatal(err)
			}
		},
	} {
		s, _ := newStore(t, ref.New().Memory(), 64*ChainTokens)
		if err := s.SetPolicy("default"); err != nil {
			t.Fatal(err)
		}
		s.config.Predict = true
		if err := s.open(); err != nil {
			t.Fatal(err)
		}
		s.trainer = &trainer{lessons: make(chan lesson, 1)} // nobody is taught
		i := 0
		for ; len(s.trainer.lessons) == 0 && i < 1_000_000; i++ {
			use(s, i)
		}
		if len(s.trainer.lessons) == 0 {
			t.Errorf("%s: no lesson after %d uses", name, i)
		}
	}
}

// The policy compares itself with LRU in as much memory as it has: after half went to others, in half of it.
func TestLRUHasAsMuchRoom(t *testing.T) {
	p := newPool(t, ref.New().Memory(), 16*ChainTokens)
	s := New(shape, p)
	if err := s.SetPolicy("default"); err != nil {
		t.Fatal(err)
	}
	p.SetBoundary(0.5)
	for i := range 10 * 12 { // of which 8 fit: whoever comes left last
		key := plan.Key{byte(i % 12)}
		if e := get(s, key); e != nil {
			e.Release()
			continue
		}
		add(t, s, plan.User, key, make([]int32, 9), 9, 1)
	}
	if f, ok := s.Floor(); !ok || f.LRUHits > 0 || f.Hits > 0 {
		t.Errorf("in room for 8 of 12 who take turns: %+v", f)
	}
	s.Close()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// A log begins with what the store is and has, and has all that it is asked.
func TestALogHasAllThatIsAsked(t *testing.T) { synctest.Test(t, aLogHasAllThatIsAsked) }

func aLogHasAllThatIsAsked(t *testing.T) {
	s, _ := newStore(t, ref.New().Memory(), 256)
	tier := &records{all: map[plan.Key]stored{{7}: {meta: encodeMeta(plan.Item, 9, nil)}}}
	s.SetDisk(tier)
	if err := errors.Join(s.SetPolicy("default"), s.Predict(),
		s.SetHotness(residency.HotnessConfig{Users: 10, Items: 12})); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	log := record.New(&out, 1<<20)
	s.Record(log.Room("kv"))
	keys, tiers := []plan.Key{{1}, {7}}, make([]plan.Tier, 2)
	s.Status(keys, tiers)
	s.NoteUser(plan.Key{1}, 1, true)
	s.NoteItems(keys, 1)
	s.Count(2)
	s.Frequency(plan.Key{1}, 2)
	s.Uses(keys, tiers, 2, make([]float32, 2))
	add(t, s, plan.User, plan.Key{2}, make([]int32, 9), 9, 1)
	get(s, plan.Key{2}).Release()
	if _, err := learn(s, plan.Key{1}, tokensOf(9)); err != nil {
		t.Fatal(err)
	}
	synctest.Wait() // the writer has looked: memory is half full
	s.top.pool.SetBoundary(1)
	for s.evictOne(s.top) {
	}
	s.trainer.lessons <- lesson{evict.NewLesson(evict.NewForecaster(10)), 0} // of which nothing can be learnt
	s.trainer.stop()
	s.trainer = nil
	s.Drop(plan.Key{7})
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); got != loggedOnce {
		t.Errorf("logged:\n%s", got)
	}
}

const loggedOnce = `# grebe record 1
kv0 open default + +
kv0 level host 64 16384
kv0 hotness 10 12 0 65536
kv0 page 256
kv0 stored k0:0000000000000007 item 9 0
kv0 status [k1:0000000000000001,k0]
kv0 . tiers [missing,disk]
kv0 use k1 1 +
kv0 items [k1,k0] 1
kv0 apply 2
kv0 user k1 2
kv0 . frequency 1 0
kv0 wanted [k1,k0] [missing,disk] 2
kv0 . uses [1,0]
memory0 take host 64
memory0 . at 0
kv0 publish k2:0000000000000002 user host 9 4096 + - -
kv0 . put k2 host user 9 4096
kv0 find k2 +
kv0 . hit k2 host
memory0 take host 64
memory0 . at 16
kv0 insert 9 0 k3:0bb6752e4cd121b8 4096 - -
kv0 . put k3 host prefix 9 4096
kv0 resize host 1
kv0 need host
kv0 pin k2 +
kv0 . leave k2 host
kv0 . drop k2
memory0 put host 0 16
kv0 need host
kv0 pin k3 +
kv0 . leave k3 host
kv0 . forget k3
memory0 put host 16 16
kv0 need host
kv0 model host -
kv0 lost k0
`

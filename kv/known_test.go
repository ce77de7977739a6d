package kv

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"grebe/compute/ref"
	"grebe/internal/locktest"
	"grebe/kv/disk"
	"grebe/plan"
	"grebe/residency"
)

// router knows what a store's feed told it.
type router struct {
	known     map[plan.Key]residency.Entry
	boot, seq uint64
}

// begin takes a snapshot.
func (r *router) begin(s *Store) {
	clear(r.known)
	all, boot, seq := s.Snapshot()
	r.apply(all)
	r.boot, r.seq = boot, seq
}

// follow takes all changes so far.
func (r *router) follow(s *Store) {
	for {
		events, ok := s.Since(nil, r.boot, r.seq, 100)
		if !ok {
			r.begin(s)
		}
		r.apply(events)
		if ok && len(events) == 0 {
			return
		}
	}
}

func (r *router) apply(events []residency.Event) {
	for _, e := range events {
		if delete(r.known, e.Key); e.Tier != plan.Missing {
			r.known[e.Key] = e.Entry
		}
		r.seq = e.Seq
	}
}

// The books know what the disk has, whatever the disk drops by itself. They are compared with it after users and items
// were written, read, deleted and evicted by several at once.
func TestTheBooksFollowTheDisk(t *testing.T) {
	d, err := disk.Open(t.TempDir(), disk.Options{Budget: 1 << 20, Segment: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	s := New(shape, newPool(t, ref.New().Memory(), 40*ChainTokens))
	s.SetDisk(d)
	s.Follow(5, 1<<10)
	router := &router{known: map[plan.Key]residency.Entry{}}
	ended := make(chan struct{})
	var following sync.WaitGroup
	following.Go(func() {
		for {
			select {
			case <-ended:
				return
			default:
				router.follow(s)
			}
		}
	})
	const keys = 600
	name := func(i int) plan.Key { return plan.Key{byte(i), byte(i >> 8), 1} }
	// How much is written depends on the disk: a few rounds may be needed until it drops something.
	for round := 0; round < 50 && d.Stats().Evictions == 0; round++ {
		var wg sync.WaitGroup
		for g := range 4 {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(uint64(g), uint64(round)))
				for range 1500 {
					i := r.IntN(keys)
					switch key := name(i); r.IntN(8) {
					case 0:
						if err := s.Delete(key); err != nil {
							t.Error(err)
						}
					case 1:
						s.Fetch(t.Context(), key)
					case 2:
						if e, _ := s.Get(key); e != nil {
							e.Release()
						}
					default:
						kind, tokens := plan.Item, []int32(nil)
						n := 1 + i%9
						if i%3 == 0 {
							kind, n = plan.User, 1+r.IntN(100)
							tokens = make([]int32, n)
						}
						if e, err := s.Reserve(LayoutOf(kind), n, nil); err == nil {
							s.Publish(kind, key, tokens, e)
							e.Release()
						}
					}
				}
			})
		}
		wg.Wait()
		s.Flush()
	}
	books := map[plan.Key]residency.Entry{}
	s.books.Below(func(key plan.Key, e residency.Entry) { books[key] = e })
	onDisk, inMemory := 0, 0
	for i := range keys {
		key := name(i)
		e, known := s.Lookup(key)
		_, there := d.Has(key)
		held, _ := s.Where(key)
		switch {
		case held > 0 && (!known || e.Tier != plan.Host || int(e.Tokens) != held):
			t.Fatalf("of entry %d of %d tokens in memory the books know %+v, %v", i, held, e, known)
		case held == 0 && there != known, held == 0 && known && e.Tier != plan.Disk:
			t.Fatalf("entry %d is on disk: %v, and the books know %+v, %v", i, there, e, known)
		}
		if there {
			onDisk++
		}
		if held > 0 {
			inMemory++
		}
		if _, below := books[key]; below != there {
			t.Fatalf("entry %d is on disk: %v, the books say %v", i, there, below)
		}
	}
	close(ended)
	following.Wait()
	router.follow(s)
	for i := range keys {
		if e, known := s.Lookup(name(i)); router.known[name(i)] != e {
			t.Fatalf("entry %d is known as %+v, %v, and to who follows as %+v", i, e, known, router.known[name(i)])
		}
	}
	if st := d.Stats(); st.Evictions == 0 || onDisk == 0 || inMemory == 0 {
		t.Errorf("%d entries on disk, %d in memory, %+v: too little to compare", onDisk, inMemory, st)
	}
	s.Close()
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// Snapshots are taken while others use the store. Who follows the feed from any of them knows in the end where all
// entries are.
func TestSnapshotsBesideUsers(t *testing.T) {
	d, err := disk.Open(t.TempDir(), disk.Options{Budget: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	s := New(shape, newPool(t, ref.New().Memory(), 1200))
	s.SetDisk(d)
	s.Follow(5, 1<<17)
	const keys = 2500
	name := func(i int) plan.Key { return plan.Key{byte(i), byte(i >> 8), 1} }
	publish := func(i int) {
		if e, err := s.Reserve(Exact, 1+i%3, nil); err == nil {
			s.Publish(plan.Item, name(i), nil, e)
			e.Release()
		}
	}
	for i := range keys {
		publish(i)
	}
	var using sync.WaitGroup
	var enough atomic.Bool
	for g := range 3 {
		using.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 3))
			for n := 0; n < 3000 || n < 12000 && !enough.Load(); n++ { // no more than the feed holds
				switch i := r.IntN(keys); r.IntN(8) {
				case 0:
					s.Drop(name(i))
				case 1:
					s.Fetch(t.Context(), name(i))
				default:
					publish(i)
				}
			}
		})
	}
	var routers []*router
	for range 5 {
		r := &router{known: map[plan.Key]residency.Entry{}}
		r.begin(s)
		routers = append(routers, r)
	}
	enough.Store(true)
	using.Wait()
	s.Flush()
	for n, r := range routers {
		r.follow(s)
		for i := range keys {
			if e, _ := s.Lookup(name(i)); r.known[name(i)] != e {
				t.Fatalf("snapshot %d of %d: entry %d is %+v, and is known as %+v", n, len(routers), i, e, r.known[name(i)])
			}
		}
	}
	s.Close()
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// Keys lists an owner's entries while others publish, drop and evict theirs.
func TestKeysBesideUsers(t *testing.T) {
	d, err := disk.Open(t.TempDir(), disk.Options{Budget: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	s := New(shape, newPool(t, ref.New().Memory(), 2000))
	s.SetDisk(d)
	for i := range 3 {
		s.Owner(plan.Key{byte(i)})
	}
	publish := func(owner uint32, i int) plan.Key {
		key := plan.Key{byte(i), byte(i >> 8), byte(owner)}
		e, err := s.Reserve(Exact, 1, nil)
		if err != nil {
			return key // all room is being copied to disk
		}
		s.PublishFor(owner, plan.Item, key, nil, e)
		e.Release()
		return key
	}
	want := map[plan.Key]bool{}
	for i := range 700 {
		if want[publish(1, i)] = true; i%100 == 99 {
			s.Flush() // what is evicted from memory stays on disk
		}
	}
	if n := s.Owned(1); n != len(want) {
		t.Fatalf("%d entries are owned, want %d", n, len(want))
	}
	var using sync.WaitGroup
	for g := range 2 {
		using.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 9))
			for range 4000 {
				if key := publish(2, r.IntN(3000)); r.IntN(4) == 0 {
					s.Drop(key)
				}
			}
		})
	}
	for range 20 {
		got := map[plan.Key]bool{}
		for _, key := range s.Keys(1) {
			if got[key] = true; !want[key] {
				t.Fatalf("key %v is another's", key[:3])
			}
		}
		if len(got) != len(want) {
			t.Fatalf("%d keys, want %d", len(got), len(want))
		}
	}
	using.Wait()
	s.Close()
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// What is known of entries and of how hot they are waits for the store's lock. Owners have numbers in the order in
// which they come, and the same one when they come again.
func TestWhatIsKnownWaitsForTheStore(t *testing.T) {
	s, p := newStore(t, ref.New().Memory(), 128)
	defer p.Close()
	defer s.Close()
	if err := s.SetHotness(residency.HotnessConfig{Users: 10, Items: 10}); err != nil {
		t.Fatal(err)
	}
	s.Follow(1, 8)
	keys, tiers, uses := []plan.Key{{1}}, make([]plan.Tier, 1), make([]float32, 1)
	for name, call := range map[string]func(){
		"Lookup": func() { s.Lookup(keys[0]) }, "Status": func() { s.Status(keys, tiers) },
		"Owner": func() { s.Owner(keys[0]) },
		"Owned": func() { s.Owned(0) }, "Keys": func() { s.Keys(0) }, "Ever": func() { s.Ever(plan.Item) },
		"Frequency": func() { s.Frequency(keys[0], 1) }, "Uses": func() { s.Uses(keys, tiers, 1, uses) },
		"NoteUser": func() { s.NoteUser(keys[0], 1, false) }, "NoteItems": func() { s.NoteItems(keys, 1) },
		"Count": func() { s.Count(1) }, "Follow": func() { s.Follow(1, 8) }, "Snapshot": func() { s.Snapshot() },
		"Since": func() { s.Since(nil, 1, 0, 1) }, "diskDropped": func() { s.diskDropped(nil) },
	} {
		locktest.Waits(t, name, s.mu.Lock, s.mu.Unlock, call)
	}
	s.Count(1)
	if f, _ := s.Frequency(keys[0], 1); f != 1 {
		t.Errorf("a user that came once has frequency %v", f)
	}
	if s.Uses(keys, tiers, 1, uses); uses[0] != 1 {
		t.Errorf("an item that came once has %v uses", uses[0])
	}
	if a, b, again := s.Owner(keys[0]), s.Owner(plan.Key{2}), s.Owner(keys[0]); a != 0 || b != 1 || again != 0 {
		t.Errorf("owners have numbers %d, %d and %d", a, b, again)
	}
	e, err := s.Reserve(Exact, 3, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.PublishFor(1, plan.Item, plan.Key{9}, nil, e)
	e.Release()
	if k := s.Keys(1); s.Owned(0) != 0 || s.Owned(1) != 1 || len(k) != 1 || k[0] != (plan.Key{9}) || !s.Ever(plan.Item) {
		t.Errorf("%d and %d entries are owned", s.Owned(0), s.Owned(1))
	}
	events, ok := s.Since(nil, 1, 0, 10)
	want := residency.Entry{Kind: plan.Item, Tier: plan.Host, Tokens: 3, Owner: 1}
	if !ok || len(events) != 1 || events[0].Entry != want {
		t.Errorf("the feed has %+v, %v, want %+v", events, ok, want)
	}
	all, boot, seq := s.Snapshot()
	if len(all) != 1 || all[0] != (residency.Event{Seq: seq, Key: plan.Key{9}, Entry: want}) || boot != 1 || seq != 1 {
		t.Errorf("all that is known is %+v, of boot %d and change %d", all, boot, seq)
	}
}

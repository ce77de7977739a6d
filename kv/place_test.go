package kv

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"grebe/compute"
	"grebe/compute/computetest"
	"grebe/compute/ref"
	"grebe/evict"
	"grebe/internal/record"
	"grebe/plan"
	"grebe/pool"
)

// tiered is a store in far memory with a level of the host's below it.
type tiered struct {
	*Store
	device, host *pool.Pool
}

func newTiered(t *testing.T, pinned bool, policy string, deviceTokens, hostTokens int) *tiered {
	t.Helper()
	m := computetest.Far(ref.New(), pinned).Memory()
	w := &tiered{device: newPool(t, m, deviceTokens), host: newPool(t, m.Host(), hostTokens)}
	w.Store = New(shape, w.device)
	if err := errors.Join(w.SetHost(w.host), w.SetPolicy(policy)); err != nil {
		t.Fatal(err)
	}
	return w
}

// close checks that nothing is left of what was there.
func (w *tiered) close(t *testing.T) {
	t.Helper()
	w.Store.Close()
	for name, p := range map[string]*pool.Pool{"device": w.device, "host": w.host} {
		all, err := p.Alloc(int(p.Stats().Total))
		if err != nil {
			t.Fatalf("%s: %d bytes are in use at the end", name, p.Stats().Used)
		}
		p.Free(all)
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestHostHoldsWhatLeavesTheDevice(t *testing.T) {
	for _, pinned := range []bool{false, true} {
		t.Run(fmt.Sprintf("pinned=%v", pinned), func(t *testing.T) {
			w := newTiered(t, pinned, "lru", 64, 4096)
			defer w.close(t)
			w.OnDrop(func(k plan.Key, _ plan.Kind) { t.Errorf("entry %d was dropped", k[0]) })
			for i := range 40 { // of which eight fit
				add(t, w.Store, plan.Item, plan.Key{byte(i)}, nil, 8, byte(i))
			}
			d, h := w.Stats(plan.Item, plan.Device), w.Stats(plan.Item, plan.Host)
			if d.Entries != 8 || h.Entries != 32 || d.Lowered != 32 || d.Evicted+h.Evicted != 0 {
				t.Errorf("device %+v, host %+v, want 8 and 32 entries", d, h)
			}
			for round, want := range []plan.Tier{plan.Host, plan.Host, plan.Device} {
				if !pinned && round == 1 {
					continue // it was brought up the first time
				}
				e, at := w.Get(plan.Key{3})
				if at != want {
					t.Errorf("use %d found the entry in place %d, want %d", round, at, want)
				}
				check(t, e, 8, 3)
				if inHost := e.Tier() == plan.Host; inHost != (pinned && round == 0) {
					t.Errorf("use %d is of memory of place %d", round, e.Tier())
				}
				e.Release()
			}
			_, raised := w.Where(plan.Key{3})
			if _, other := w.Where(plan.Key{4}); raised != plan.Device || other != plan.Host {
				t.Errorf("entries 3 and 4 are in %v and %v", raised, other)
			}
		})
	}
}

// Places are made free before they are needed.
func TestLowerAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTiered(t, true, "lru", 64, 4096)
		defer w.close(t)
		w.LowerAhead(int64(shape.ChunkBytes(24, false)))
		for i := range 40 {
			add(t, w.Store, plan.Item, plan.Key{byte(i)}, nil, 8, byte(i))
			synctest.Wait()
			if n := w.Stats(plan.Item, plan.Device).Entries; n > 5 {
				t.Fatalf("%d entries of 8 tokens in room for 64, of which 24 are to be free", n)
			}
		}
		for i := range 40 {
			e, at := w.Get(plan.Key{byte(i)})
			if want := map[bool]plan.Tier{true: plan.Host, false: plan.Device}[i < 35]; at != want {
				t.Errorf("entry %d is in place %d, want %d", i, at, want)
			}
			check(t, e, 8, byte(i))
			e.Release()
		}
	})
}

// A user in the host's memory grows into the device's.
func TestGrowthFromHost(t *testing.T) {
	for _, pinned := range []bool{false, true} {
		w := newTiered(t, pinned, "lru", 320, 1024)
		tokens := make([]int32, 150)
		add(t, w.Store, plan.User, plan.Key{1}, tokens, 150, 1)
		add(t, w.Store, plan.User, plan.Key{2}, tokens, 150, 2) // one of the two has to leave
		for k := range byte(2) {
			part, _ := w.GetPrefix(plan.Key{k + 1}, append(slices.Clone(tokens[:140]), 7))
			if part.Len() != 140 {
				t.Fatalf("%d tokens in common, want 140", part.Len())
			}
			grown, err := w.Reserve(Chain, 141, part)
			if err != nil {
				t.Fatal(err)
			}
			if grown.Tier() != plan.Device {
				t.Errorf("a grown entry is in place %d", grown.Tier())
			}
			check(t, grown, 140, k+1)
			grown.Release()
			part.Release()
		}
		w.close(t)
	}
}

// An entry that is read stays where it is, and what cannot go to the host's memory is dropped.
func TestNoRoomInHost(t *testing.T) {
	w := newTiered(t, true, "lru", 32, 16)
	defer w.close(t)
	dropped := 0
	w.OnDrop(func(plan.Key, plan.Kind) { dropped++ })
	for i := range 4 {
		add(t, w.Store, plan.Item, plan.Key{byte(i)}, nil, 16, byte(i))
	}
	if dropped != 1 { // the device holds two, the host one
		t.Errorf("%d of four entries were dropped, want 1", dropped)
	}
	held, at := w.Get(plan.Key{1})
	if held == nil || at != plan.Host {
		t.Fatalf("the second entry is in place %d", at)
	}
	add(t, w.Store, plan.Item, plan.Key{9}, nil, 16, 9)
	if dropped != 2 {
		t.Errorf("%d entries were dropped, want 2: the host's only place is read", dropped)
	}
	check(t, held, 16, 1)
	held.Release()
}

// model is what a store must not contradict: what is under a key, if anything is.
type modelEntry struct {
	kind   plan.Kind
	mark   byte
	tokens []int32
}

type heldEntry struct {
	e    *Entry
	n    int
	mark byte
}

// world drives a store with random operations. Its keys are its own, so that several share a store.
type world struct {
	t     *testing.T
	s     *Store
	r     *rand.Rand
	space byte
	known map[plan.Key]modelEntry
	held  []heldEntry
	found [plan.Host + 1]int
}

func (w *world) key(kind plan.Kind) plan.Key {
	return plan.Key{w.space, byte(kind), byte(w.r.IntN(12))}
}

func (w *world) step() {
	kind := []plan.Kind{plan.User, plan.Item}[w.r.IntN(2)]
	key := w.key(kind)
	switch op := w.r.IntN(20); {
	case op < 7:
		w.make(kind, key)
	case op < 15:
		w.look(kind, key)
	case op < 16:
		if err := w.s.Delete(key); err != nil {
			w.t.Fatal(err)
		}
		delete(w.known, key)
	case op < 17:
		if at := w.s.Fetch(w.t.Context(), key); at != plan.Missing && w.known[key].mark == 0 {
			w.t.Fatalf("fetched key %v, which was deleted or never there", key[:3])
		}
	case len(w.held) > 0:
		i := w.r.IntN(len(w.held))
		h := w.held[i]
		check(w.t, h.e, h.n, h.mark)
		h.e.Release()
		w.held = slices.Delete(w.held, i, i+1)
	}
}

// make publishes an item, or a user who grew out of what is cached.
func (w *world) make(kind plan.Kind, key plan.Key) {
	k, ok := w.known[key]
	if !ok {
		k = modelEntry{kind: kind, mark: byte(1 + w.r.IntN(200))}
	}
	var prefix *Entry
	if kind == plan.User {
		if w.r.IntN(4) == 0 {
			k.tokens, k.mark = nil, byte(1+w.r.IntN(200)) // another history
		}
		if prefix, _ = w.s.GetPrefix(key, k.tokens); prefix != nil {
			defer prefix.Release()
		}
		k.tokens = append(slices.Clone(k.tokens), make([]int32, 1+w.r.IntN(80))...)
		for i := range k.tokens {
			k.tokens[i] = int32(k.mark)
		}
	} else if !ok {
		k.tokens = make([]int32, 1+w.r.IntN(20))
	}
	from := 0
	if prefix != nil {
		from = prefix.Len()
	}
	e, err := w.s.Reserve(LayoutOf(kind), len(k.tokens), prefix)
	if errors.Is(err, ErrFull) {
		return
	}
	if err != nil {
		w.t.Fatal(err)
	}
	defer e.Release()
	if e.Tier() != w.s.Top() {
		w.t.Fatalf("a new entry is in place %d", e.Tier())
	}
	fill(e, from, k.mark)
	check(w.t, e, e.Len(), k.mark)
	if w.r.IntN(8) == 0 {
		return // as after a failure
	}
	w.known[key] = k
	if kind == plan.User {
		w.s.Publish(kind, key, k.tokens, e)
		return
	}
	w.s.Publish(kind, key, nil, e)
}

func (w *world) look(kind plan.Kind, key plan.Key) {
	k := w.known[key]
	var e *Entry
	var at plan.Tier
	if kind == plan.User {
		n := len(k.tokens)
		if n > 0 {
			n = 1 + w.r.IntN(n)
		}
		e, at = w.s.GetPrefix(key, k.tokens[:n])
		if e != nil && e.Len() > n {
			w.t.Fatalf("%d tokens found of %d", e.Len(), n)
		}
	} else {
		e, at = w.s.Get(key)
	}
	w.found[at]++
	if e == nil {
		if at != plan.Missing {
			w.t.Fatalf("nothing was found in place %d", at)
		}
		return
	}
	if k.mark == 0 {
		w.t.Fatalf("key %v was found, which was deleted or never there", key[:3])
	}
	if !e.usable(w.s.top) {
		w.t.Fatal("the device cannot use an entry that was found")
	}
	check(w.t, e, e.Len(), k.mark)
	if w.r.IntN(3) > 0 || len(w.held) > 6 {
		e.Release()
		return
	}
	w.held = append(w.held, heldEntry{e, e.Len(), k.mark})
}

func (w *world) end() {
	for _, h := range w.held {
		check(w.t, h.e, h.n, h.mark)
		h.e.Release()
	}
}

// Random operations, under every policy, with and without a device that reads the host's memory, files
// below it: whatever is found is right, and what was deleted is not found.
func TestRandomOperations(t *testing.T) {
	var found [plan.Host + 1]int
	for seed := range uint64(24) {
		r := rand.New(rand.NewPCG(seed, 5))
		policy := evict.Names()[seed%uint64(len(evict.Names()))]
		w := newTiered(t, r.IntN(2) == 0, policy, 100+r.IntN(600), 64+r.IntN(1500))
		if seed%3 == 0 {
			d := openDisk(t, t.TempDir())
			defer d.Close()
			w.SetDisk(d)
		}
		x := &world{t: t, s: w.Store, r: r, known: map[plan.Key]modelEntry{}}
		for range 1500 {
			x.step()
		}
		x.end()
		for i, n := range x.found {
			found[i] += n
		}
		w.close(t)
	}
	t.Logf("found nowhere %d, in the device's memory %d, in the host's %d", found[plan.Missing], found[plan.Device],
		found[plan.Host])
	if found[plan.Device] == 0 || found[plan.Host] == 0 || found[plan.Missing] == 0 {
		t.Error("the operations do not reach every place")
	}
}

// The same by several goroutines at once.
func TestRandomOperationsConcurrently(t *testing.T) {
	for seed := range uint64(4) {
		w := newTiered(t, seed%2 == 0, evict.Names()[seed], 700, 900)
		if seed > 1 {
			d := openDisk(t, t.TempDir())
			defer d.Close()
			w.SetDisk(d)
		}
		if seed%2 == 1 {
			w.LowerAhead(w.device.Stats().Total / 4)
		}
		var wg sync.WaitGroup
		for g := range 4 {
			wg.Go(func() {
				x := &world{t: t, s: w.Store, r: rand.New(rand.NewPCG(seed, uint64(g))), space: byte(g),
					known: map[plan.Key]modelEntry{}}
				for range 400 {
					x.step()
				}
				x.end()
			})
		}
		wg.Wait()
		w.close(t)
	}
}

// A hit costs no memory on the Go heap, whatever the policy.
func TestHitAllocatesNothing(t *testing.T) {
	for _, policy := range evict.Names() {
		s, _ := newStore(t, compute.NewHostMemory(), 1000)
		if err := s.SetPolicy(policy); err != nil {
			t.Fatal(err)
		}
		for i := range 50 {
			add(t, s, plan.Item, plan.Key{byte(i)}, nil, 8, byte(i))
		}
		i := 0
		if n := testing.AllocsPerRun(1000, func() {
			e, _ := s.Get(plan.Key{byte(i * 7 % 50)})
			e.Release()
			i++
		}); n > 0 {
			t.Errorf("%s: %v allocations per hit", policy, n)
		}
	}
}

func TestSetPolicyRefuses(t *testing.T) {
	s, _ := newStore(t, compute.NewHostMemory(), 100)
	if err := s.SetPolicy("newest"); !errors.Is(err, evict.ErrUnknown) {
		t.Errorf("an unknown policy: %v", err)
	}
	if err := s.SetHost(newPool(t, computetest.Far(ref.New(), true).Memory(), 10)); err == nil {
		t.Error("memory of a device's was taken as the host's")
	}
}

func BenchmarkHit(b *testing.B) {
	for _, policy := range []string{"lru", "default"} {
		b.Run(policy, func(b *testing.B) {
			p, err := pool.New(1<<30, 256)
			if err != nil {
				b.Fatal(err)
			}
			s := New(shape, p)
			if err := s.SetPolicy(policy); err != nil {
				b.Fatal(err)
			}
			const entries = 20000
			var keys []plan.Key
			for i := range entries {
				e, err := s.Reserve(Exact, 10, nil)
				if err != nil {
					b.Fatal(err)
				}
				keys = append(keys, KeyOf(plan.Key{}, []int32{int32(i)}, ""))
				s.Publish(plan.Item, keys[i], nil, e)
				e.Release()
			}
			for i := 0; b.Loop(); i++ {
				e, _ := s.Get(keys[i*7919%entries])
				e.Release()
			}
			s.Close()
			p.Close()
		})
	}
}

// Without predictions the default policy drops what LRU drops, in the same order.
func TestDefaultIsLRUWithoutPredictions(t *testing.T) {
	var drops [2][]plan.Key
	for i, policy := range []string{"lru", "default"} {
		s, _ := newStore(t, compute.NewHostMemory(), 400)
		if err := s.SetPolicy(policy); err != nil {
			t.Fatal(err)
		}
		s.OnDrop(func(k plan.Key, _ plan.Kind) { drops[i] = append(drops[i], k) })
		r := rand.New(rand.NewPCG(3, 4))
		for range 3000 {
			n := r.IntN(60)
			key := plan.Key{byte(n)}
			if e, _ := s.Get(key); e != nil {
				e.Release()
				continue
			}
			add(t, s, plan.Item, key, nil, 1+n*7%23, byte(n))
		}
	}
	if len(drops[0]) < 500 || !slices.Equal(drops[0], drops[1]) {
		t.Errorf("LRU dropped %d entries, the default %d, or not the same ones", len(drops[0]), len(drops[1]))
	}
}

// A policy chooses by what fits: it follows the boundary of the pool, which is set after the store is made.
func TestPolicyFollowsTheBoundary(t *testing.T) {
	p := newPool(t, ref.New().Memory(), 64*ChainTokens)
	s := New(shape, p)
	if err := s.SetPolicy("default"); err != nil {
		t.Fatal(err)
	}
	var lines bytes.Buffer
	log := record.New(&lines, 1<<30)
	s.Record(log.Room("kv"))
	var want []int64
	for round, share := range []float64{0, 0.5, 0.25, 0.75} {
		p.SetBoundary(share)
		if share > 0 {
			want = append(want, p.Stats().Total)
		}
		for i := range 100 { // more than fit
			add(t, s, plan.User, plan.Key{byte(round), byte(i)}, make([]int32, ChainTokens), ChainTokens, 1)
		}
		if over := p.Over(); over > 0 {
			t.Errorf("with a share of %v for others, %d bytes too many", share, over)
		}
	}
	s.Close()
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	var told []int64
	for l, err := range record.Read(&lines) {
		if err != nil {
			t.Fatal(err)
		}
		if l.Op == "resize" {
			l.Values.Text()
			told = append(told, l.Values.Int64())
		}
	}
	if !slices.Equal(told, want) {
		t.Errorf("the policy was told of %d bytes, the pool had %d", told, want)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

package kv

import (
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"grebe/compute"
	"grebe/plan"
	"grebe/residency"
)

// ask lends an entry and has it arrive at another store, as a network would.
type ask struct {
	kind   plan.Kind
	key    plan.Key
	wanted []int32 // a user's
	length int
	spoil  func(meta []byte, pieces [][]byte) // on the way
	before func()                             // called before the arrival ends
}

func (q *ask) send(t testing.TB, from, to *Store) (error, bool) {
	t.Helper()
	var l Loan
	tokens, digest := 0, uint64(0)
	if q.wanted != nil {
		tokens, digest = len(q.wanted), residency.Digest(q.wanted)
	}
	if err := from.Lend(t.Context(), q.key, tokens, digest, &l); err != nil {
		return err, false
	}
	defer from.Return(&l)
	a, first := to.Expect(0, q.kind, q.key, q.wanted, q.length)
	if !first {
		return nil, false
	}
	var sum uint32
	n := 0
	for _, p := range l.Pieces {
		sum = crc32.Update(sum, crc32.MakeTable(crc32.Castagnoli), p)
		n += len(p)
	}
	if l.Summed && l.Sum != sum {
		t.Errorf("a checksum was kept that is wrong")
	}
	l.Sum, l.Summed = sum, true
	meta := slices.Clone(l.Meta)
	if q.spoil != nil {
		q.spoil(meta, nil)
	}
	pieces, err := a.Place(meta, int64(n))
	if err == nil {
		all := slices.Concat(l.Pieces...)
		for _, p := range pieces {
			all = all[copy(p, all):]
		}
		if q.spoil != nil {
			q.spoil(nil, pieces)
		}
	}
	if q.before != nil {
		q.before()
	}
	return err, a.End(err == nil)
}

func checkKey(t *testing.T, s *Store, key plan.Key, n int, mark byte) {
	t.Helper()
	e := get(s, key)
	if e == nil {
		t.Fatal("the entry is not there")
	}
	check(t, e, n, mark)
	e.Release()
}

// content is what fill writes into a chunk of n tokens.
func content(n int, mark byte) []byte {
	row := shape.HeadDim * shape.KV.Size()
	out := make([]byte, shape.ChunkBytes(n, false))
	for p := range shape.Layers * 2 * shape.KVHeads {
		for t := range n {
			for i := range row {
				out[(p*n+t)*row+i] = mark + byte(t*13+p)
			}
		}
	}
	return out
}

func history(n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(i * 7)
	}
	return out
}

// Entries arrive as they were lent, from every kind of memory to every other.
func TestEntriesArriveAsTheyWereLent(t *testing.T) {
	everywhere(t, func(t *testing.T, m compute.Memory) {
		everywhere(t, func(t *testing.T, other compute.Memory) {
			from, _ := newStore(t, m, 1024)
			to, p := newStore(t, other, 1024)
			user := history(150)
			add(t, from, plan.Item, plan.Key{1}, nil, 9, 5)
			add(t, from, plan.User, plan.Key{2}, user, len(user), 6)
			for range 2 { // the second time it is there already
				for _, q := range []*ask{{kind: plan.Item, key: plan.Key{1}, length: 9},
					{kind: plan.User, key: plan.Key{2}, wanted: user}} {
					if err, ok := q.send(t, from, to); err != nil || !ok {
						t.Fatalf("%v: %v", q.kind, err)
					}
				}
				checkKey(t, to, plan.Key{1}, 9, 5)
				e, _ := to.GetPrefix(plan.Key{2}, user)
				if e.Len() != 150 {
					t.Fatalf("%d tokens of the user arrived", e.Len())
				}
				check(t, e, 150, 6)
				e.Release()
			}
			add(t, from, plan.User, plan.Key{3}, user, len(user), 7)
			add(t, from, plan.User, plan.Key{4}, user[:80], 80, 8)
			for _, q := range []*ask{{kind: plan.User, key: plan.Key{3}, wanted: user[:70]},
				{kind: plan.User, key: plan.Key{4}, wanted: user}} {
				if err, ok := q.send(t, from, to); err != nil || !ok {
					t.Fatalf("a prefix: %v", err)
				}
			}
			for key, n := range map[plan.Key]int{{3}: 70, {4}: 80} {
				e, _ := to.GetPrefix(key, user)
				if e.Len() != n {
					t.Fatalf("%d tokens arrived, want %d", e.Len(), n)
				}
				check(t, e, n, key[0]+4)
				e.Release()
			}
			if len(to.arrivals) != 0 || to.staged.Load() != 0 || p.Stats().Used == 0 {
				t.Errorf("%d arrivals and %d staged bytes are left", len(to.arrivals), to.staged.Load())
			}
		})
	})
}

// With host memory below the device's, entries arrive there and are lent from both.
func TestArrivalsComeToTheHost(t *testing.T) {
	for _, pinned := range []bool{false, true} {
		from, to := newTiered(t, pinned, "lru", 64, 4096), newTiered(t, pinned, "lru", 64, 4096)
		for i := range byte(40) {
			add(t, from.Store, plan.Item, plan.Key{i}, nil, 8, i)
		}
		for i := range byte(40) {
			if err, ok := (&ask{kind: plan.Item, key: plan.Key{i}, length: 8}).send(t, from.Store, to.Store); err != nil || !ok {
				t.Fatal(err)
			}
			if _, at := to.Where(plan.Key{i}); at != plan.Host {
				t.Fatalf("entry %d came to the tier %v", i, at)
			}
		}
		for i := range byte(40) {
			checkKey(t, to.Store, plan.Key{i}, 8, i)
		}
		from.close(t)
		to.close(t)
	}
}

// What arrives is dropped without a trace if it is not what was wanted, is damaged, or was deleted meanwhile.
func TestArrivalsThatLeaveNoTrace(t *testing.T) {
	everywhere(t, func(t *testing.T, m compute.Memory) {
		from, _ := newStore(t, m, 1024)
		to, p := newStore(t, m, 1024)
		user := history(100)
		other := slices.Clone(user)
		other[3]++
		add(t, from, plan.Item, plan.Key{1}, nil, 9, 5)
		add(t, from, plan.User, plan.Key{2}, user, len(user), 6)
		long := append(slices.Clone(other), 1, 2, 3)
		for name, q := range map[string]*ask{
			"another length":       {kind: plan.Item, key: plan.Key{1}, length: 8},
			"another kind":         {kind: plan.Preamble, key: plan.Key{1}, length: 9},
			"nobody has it":        {kind: plan.Item, key: plan.Key{9}, length: 9},
			"other tokens":         {kind: plan.User, key: plan.Key{2}, wanted: other},
			"other, longer tokens": {kind: plan.User, key: plan.Key{2}, wanted: long},
			"an item as a user":    {kind: plan.User, key: plan.Key{1}, wanted: user[:9]},
			"a user as an item":    {kind: plan.Item, key: plan.Key{2}, length: 100},
			"deleted item": {kind: plan.Item, key: plan.Key{1}, length: 9,
				before: func() { _ = to.Delete(plan.Key{1}) }},
			"deleted user": {kind: plan.User, key: plan.Key{2}, wanted: user,
				before: func() { _ = to.Delete(plan.Key{8}, plan.Key{2}) }},
			"dropped item": {kind: plan.Item, key: plan.Key{1}, length: 9, before: func() { to.Drop(plan.Key{1}) }},
			"meta that was changed": {kind: plan.Item, key: plan.Key{1}, length: 9,
				spoil: func(meta []byte, _ [][]byte) { clear(meta) }},
		} {
			if _, ok := q.send(t, from, to); ok {
				t.Errorf("%s: it was published", name)
			}
			if _, known := to.Lookup(q.key); known || p.Stats().Used != 0 || to.staged.Load() != 0 || len(to.arrivals) != 0 {
				t.Errorf("%s: %d bytes in use, %d staged, %d arrivals", name, p.Stats().Used, to.staged.Load(), len(to.arrivals))
			}
		}
		a, _ := to.Expect(0, plan.Item, plan.Key{1}, nil, 9)
		meta, n := encodeMeta(plan.Item, 9, nil), int64(shape.ChunkBytes(9, false))
		for range 3 { // a second copy comes from another node
			if _, err := a.Place(meta, n); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := a.Place(meta, n+1); err == nil {
			t.Error("room for a wrong number of bytes")
		}
		if a.End(true) || p.Stats().Used != 0 {
			t.Error("an entry without content is published")
		}
		if _, err := a.Place(encodeMeta(plan.Item, 9, nil), n); err != nil {
			t.Fatal(err)
		}
		a.release()
		if p.Stats().Used != 0 || to.staged.Load() != 0 {
			t.Error("a released arrival keeps memory")
		}
	})
}

// A user's entry that is longer than what arrives stays.
func TestArrivalsDoNotShortenUsers(t *testing.T) {
	from, _ := newStore(t, compute.NewHostMemory(), 1024)
	to, _ := newStore(t, compute.NewHostMemory(), 1024)
	user := history(100)
	add(t, from, plan.User, plan.Key{2}, user[:70], 70, 6)
	add(t, to, plan.User, plan.Key{2}, user, 100, 6)
	if err, ok := (&ask{kind: plan.User, key: plan.Key{2}, wanted: user}).send(t, from, to); err != nil || !ok {
		t.Fatal(err)
	}
	if n, _ := to.Where(plan.Key{2}); n != 100 {
		t.Errorf("the user has %d tokens", n)
	}
	stale := append([]int32{-1}, user...)
	add(t, to, plan.User, plan.Key{2}, stale, 101, 6)
	if err, ok := (&ask{kind: plan.User, key: plan.Key{2}, wanted: user}).send(t, from, to); err != nil || !ok {
		t.Fatal(err)
	}
	if n, _ := to.PeekPrefix(plan.Key{2}, user); n != 70 {
		t.Errorf("the user has %d tokens of the history, and an entry of another one before", n)
	}
}

// An entry is fetched once for all who want it.
func TestArrivalsAreShared(t *testing.T) {
	s, _ := newStore(t, compute.NewHostMemory(), 64)
	a, first := s.Expect(0, plan.Item, plan.Key{1}, nil, 9)
	b, second := s.Expect(0, plan.Item, plan.Key{1}, nil, 9)
	if !first || second || a != b {
		t.Fatal("two arrivals of one entry")
	}
	select {
	case <-b.Done():
		t.Error("it has ended")
	default:
	}
	a.End(false)
	<-b.Done()
	if c, first := s.Expect(0, plan.Item, plan.Key{1}, nil, 9); !first || c == a {
		t.Error("it cannot be expected again")
	} else {
		c.End(false)
	}
}

// Entries on disk are lent too. Of the device's memory few are lent at a time.
func TestLoansFromBelowAndFromTheDevice(t *testing.T) {
	s, done := withDisk(t, compute.NewHostMemory(), t.TempDir(), 64)
	add(t, s, plan.Item, plan.Key{1}, nil, 30, 5)
	s.Flush()
	for i := range 4 {
		add(t, s, plan.Item, plan.Key{byte(10 + i)}, nil, 30, 5)
		s.Drain()
	}
	to, _ := newStore(t, compute.NewHostMemory(), 64)
	if _, at := s.Where(plan.Key{1}); at != plan.Missing {
		t.Fatal("the entry is in memory")
	}
	if err, ok := (&ask{kind: plan.Item, key: plan.Key{1}, length: 30}).send(t, s, to); err != nil || !ok {
		t.Fatal(err)
	}
	checkKey(t, to, plan.Key{1}, 30, 5)
	if err := s.Delete(plan.Key{1}); err != nil {
		t.Fatal(err)
	}
	if err := s.Lend(t.Context(), plan.Key{1}, 0, 0, &Loan{}); !errors.Is(err, ErrMissing) {
		t.Errorf("a deleted entry: %v", err)
	}
	done()
	far, _ := newStore(t, memories["far"](), 1024)
	loans := make([]Loan, maxStaged+1)
	add(t, far, plan.Item, plan.Key{1}, nil, 30, 5)
	for i := range loans {
		if err := far.Lend(t.Context(), plan.Key{1}, 0, 0, &loans[i]); (err == nil) != (i < maxStaged) {
			t.Fatalf("loan %d: %v", i, err)
		} else if err != nil && !errors.Is(err, ErrBusy) {
			t.Error(err)
		}
	}
	for i := range maxStaged {
		far.Return(&loans[i])
	}
}

// A loan's bytes stay as they are, whatever happens to the entry.
func TestLoansOutliveTheirEntries(t *testing.T) {
	everywhere(t, func(t *testing.T, m compute.Memory) {
		s, p := newStore(t, m, 1024)
		add(t, s, plan.Item, plan.Key{1}, nil, 30, 5)
		var l Loan
		if err := s.Lend(t.Context(), plan.Key{1}, 0, 0, &l); err != nil {
			t.Fatal(err)
		}
		was := slices.Concat(l.Pieces...)
		if err := s.Delete(plan.Key{1}); err != nil {
			t.Fatal(err)
		}
		add(t, s, plan.Item, plan.Key{2}, nil, 900, 7)
		if !slices.Equal(was, slices.Concat(l.Pieces...)) {
			t.Error("the bytes of a loan have changed")
		}
		s.Return(&l)
		_ = s.Delete(plan.Key{2})
		if p.Stats().Used != 0 {
			t.Errorf("%d bytes are in use", p.Stats().Used)
		}
	})
}

// Stores that lend, take, publish, evict and delete at the same time never mix up entries. A user that was deleted on
// all stores is on none, unless it was published again.
func TestLoansAtRandom(t *testing.T) {
	for name, m := range memories {
		t.Run(name, func(t *testing.T) {
			stores := make([]*Store, 3)
			for i := range stores {
				stores[i], _ = newStore(t, m(), 600)
			}
			var gone atomic.Bool
			user := history(100)
			var wg sync.WaitGroup
			for w := range 6 {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(uint64(w), 3))
					for range 400 {
						at, from := stores[r.IntN(3)], stores[r.IntN(3)]
						i := byte(r.IntN(30))
						key, n := plan.Key{1, i}, 5+int(i)%20
						switch r.IntN(4) {
						case 0:
							if e, err := at.Reserve(Exact, n, nil); err == nil {
								fill(e, 0, i)
								at.Publish(plan.Item, key, nil, e)
								e.Release()
							}
						case 1:
							if e, _ := at.Get(key); e != nil {
								check(t, e, n, i)
								e.Release()
							}
						case 2:
							_ = at.Delete(key)
						default:
							if from != at {
								_, _ = (&ask{kind: plan.Item, key: key, length: n}).send(t, from, at)
								if !gone.Load() {
									_, _ = (&ask{kind: plan.User, key: plan.Key{2}, wanted: user[:40+int(i)]}).send(t, from, at)
								}
							}
						}
					}
				})
			}
			add(t, stores[0], plan.User, plan.Key{2}, user, 100, 9)
			wg.Wait()
			gone.Store(true)
			for _, s := range stores {
				if e, _ := s.GetPrefix(plan.Key{2}, user); e != nil {
					check(t, e, e.Len(), 9)
					e.Release()
				}
				if err := s.Delete(plan.Key{2}); err != nil {
					t.Error(err)
				}
			}
			for i, s := range stores {
				if _, ok := s.Lookup(plan.Key{2}); ok || len(s.arrivals) != 0 || s.staged.Load() != 0 {
					t.Errorf("store %d has the user, or arrivals: %d", i, len(s.arrivals))
				}
			}
		})
	}
}

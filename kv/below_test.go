package kv

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"grebe/compute"
	"grebe/compute/ref"
	"grebe/kv/disk"
	"grebe/plan"
	"grebe/residency"
)

func openDisk(t *testing.T, dir string) *disk.Store {
	t.Helper()
	d, err := disk.Open(dir, disk.Options{Budget: 16 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// withDisk is a store in memory for tokens tokens above a store in dir.
func withDisk(t *testing.T, m compute.Memory, dir string, tokens int) (s *Store, done func()) {
	t.Helper()
	p := newPool(t, m, tokens)
	d := openDisk(t, dir)
	s = New(shape, p)
	s.SetDisk(d)
	return s, func() {
		s.Close()
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

func add(t *testing.T, s *Store, kind plan.Kind, key plan.Key, tokens []int32, n int, mark byte) {
	t.Helper()
	e, err := s.Reserve(LayoutOf(kind), n, nil)
	if err != nil {
		t.Fatal(err)
	}
	fill(e, 0, mark)
	s.Publish(kind, key, tokens, e)
	e.Release()
}

// Items and users survive a restart and come back as they were.
func TestEntriesSurviveBelow(t *testing.T) { everywhere(t, entriesSurviveBelow) }

func entriesSurviveBelow(t *testing.T, m compute.Memory) {
	dir := t.TempDir()
	tokens := make([]int32, 100)
	for i := range tokens {
		tokens[i] = int32(i * 3)
	}
	s, done := withDisk(t, m, dir, 512)
	add(t, s, plan.Item, plan.Key{1}, nil, 9, 5)
	add(t, s, plan.User, plan.Key{2}, tokens, len(tokens), 6)
	done()

	s, done = withDisk(t, m, dir, 512)
	defer done()
	user, _ := s.Lookup(plan.Key{2})
	if want := (residency.Entry{Kind: plan.User, Tier: plan.Disk, Tokens: 100,
		Digest: residency.Digest(tokens)}); user != want {
		t.Errorf("the user is known as %+v, want %+v", user, want)
	}
	if n := s.Owned(0); n != 2 {
		t.Errorf("%d entries survived, want 2", n)
	}
	if s.Fetch(t.Context(), plan.Key{1}) != s.Top() || s.Fetch(t.Context(), plan.Key{2}) != s.Top() {
		t.Fatal("an entry cannot be fetched")
	}
	item := get(s, plan.Key{1})
	part, _ := s.GetPrefix(plan.Key{2}, tokens[:70])
	check(t, item, 9, 5)
	check(t, part, 70, 6)
	item.Release()
	part.Release()
	if s.Fetch(t.Context(), plan.Key{3}) != plan.Missing {
		t.Error("an entry that never was has been fetched")
	}
}

// Of a user with more tokens than a record can name, as many as it can are kept.
func TestLongUsersAreKeptInPart(t *testing.T) { everywhere(t, longUsersAreKeptInPart) }

func longUsersAreKeptInPart(t *testing.T, m compute.Memory) {
	if MostBelow != (disk.MaxMeta-5)/4/ChainTokens*ChainTokens {
		t.Fatalf("%d tokens of a user are kept, and a record's meta has %d bytes", MostBelow, disk.MaxMeta)
	}
	dir := t.TempDir()
	tokens := make([]int32, MostBelow+100)
	for i := range tokens {
		tokens[i] = int32(i % 1000)
	}
	s, done := withDisk(t, m, dir, 2*len(tokens)+2*ChainTokens)
	add(t, s, plan.User, plan.Key{1}, tokens[:MostBelow], MostBelow, 3)
	add(t, s, plan.User, plan.Key{2}, tokens, len(tokens), 4)
	s.Flush()
	if b := s.BelowStats(); b.Written != 2 || b.Failed > 0 {
		t.Errorf("%d users were written and %d failed, want 2 written", b.Written, b.Failed)
	}
	done()
	s, done = withDisk(t, m, dir, 2*len(tokens)+2*ChainTokens)
	defer done()
	for i, key := range []plan.Key{{1}, {2}} {
		if known, _ := s.Lookup(key); known.Tier != plan.Disk || known.Tokens != MostBelow {
			t.Errorf("user %v is known as %+v, want %d tokens on disk", key[0], known, MostBelow)
		}
		if s.Fetch(t.Context(), key) != s.Top() {
			t.Fatalf("user %v cannot be fetched", key[0])
		}
		e, _ := s.GetPrefix(key, tokens)
		if e.Len() != MostBelow {
			t.Errorf("user %v has %d tokens, want %d", key[0], e.Len(), MostBelow)
		}
		check(t, e, MostBelow, byte(3+i))
		e.Release()
	}
}

// What is evicted can be fetched again; nothing that is fetched is wrong.
func TestEvictionGoesBelow(t *testing.T) { everywhere(t, evictionGoesBelow) }

func evictionGoesBelow(t *testing.T, m compute.Memory) {
	s, done := withDisk(t, m, t.TempDir(), 256)
	defer done()
	tokens := make([]int32, 64)
	for i := range 40 {
		tokens := append([]int32{int32(i)}, tokens[1:]...)
		add(t, s, plan.User, plan.Key{byte(i)}, tokens, 64, byte(i))
		s.Flush()
	}
	for i := range 40 {
		if n, _ := s.PeekPrefix(plan.Key{byte(i)}, []int32{int32(i)}); n == 0 &&
			s.Fetch(t.Context(), plan.Key{byte(i)}) == plan.Missing {
			t.Errorf("user %d is lost", i)
			continue
		}
		e, _ := s.GetPrefix(plan.Key{byte(i)}, append([]int32{int32(i)}, tokens[1:]...))
		check(t, e, 64, byte(i))
		e.Release()
	}
}

// slowDisk waits before it writes, and tells when there was no place for what it read.
type slowDisk struct {
	Disk
	begun, proceed, missed chan struct{}
}

func (s *slowDisk) Put(key plan.Key, meta []byte, payload [][]byte) error {
	s.begun <- struct{}{}
	<-s.proceed
	return s.Disk.Put(key, meta, payload)
}

func (s *slowDisk) Get(key plan.Key, place func([]byte, int64) ([][]byte, error)) ([]byte, bool, error) {
	meta, ok, err := s.Disk.Get(key, place)
	if err != nil {
		s.missed <- struct{}{}
	}
	return meta, ok, err
}

// What is being written cannot make room, but only until it is written: an entry that is fetched meanwhile comes.
func TestFetchWaitsForAWriteThatHoldsTheRoom(t *testing.T) {
	p := newPool(t, ref.New().Memory(), 64)
	slow := &slowDisk{openDisk(t, t.TempDir()), make(chan struct{}), make(chan struct{}), make(chan struct{})}
	s := New(shape, p)
	s.SetDisk(slow)
	add(t, s, plan.Item, plan.Key{1}, nil, 40, 1) // fills more than half: another of its size does not fit beside it
	<-slow.begun
	slow.proceed <- struct{}{}
	s.Drain()
	add(t, s, plan.Item, plan.Key{2}, nil, 40, 2)
	<-slow.begun // it is held now
	at := make(chan plan.Tier)
	go func() { at <- s.Fetch(t.Context(), plan.Key{1}) }()
	<-slow.missed
	slow.proceed <- struct{}{}
	if <-at == plan.Missing {
		t.Error("the entry was not fetched, though the other could make room as soon as it was written")
	}
	if e := get(s, plan.Key{1}); e != nil {
		check(t, e, 40, 1)
		e.Release()
	}
	s.Drain()
	s.Close()
	if err := errors.Join(slow.Disk.(*disk.Store).Close(), p.Close()); err != nil {
		t.Error(err)
	}
}

// Deleting leaves none of an entry's bytes: not in memory that is free, not in a file, whether it was
// in memory, below, or on its way there.
func TestDeleteLeavesNoBytes(t *testing.T) { everywhere(t, deleteLeavesNoBytes) }

func deleteLeavesNoBytes(t *testing.T, m compute.Memory) {
	for _, flush := range []bool{false, true} {
		dir := t.TempDir()
		s, done := withDisk(t, m, dir, 256)
		mark := []byte("entry to be forgotten, 32 bytes.")
		for i := range 20 {
			e, err := s.Reserve(Exact, 8, nil)
			if err != nil {
				t.Fatal(err)
			}
			run := e.chunks[0].run
			if err := m.Write(run.Block, bytes.Repeat(mark, run.Size/len(mark))); err != nil {
				t.Fatal(err)
			}
			s.Publish(plan.Item, plan.Key{byte(i)}, nil, e)
			e.Release()
		}
		if flush {
			s.Flush()
		}
		for i := range 20 {
			if err := s.Delete(plan.Key{byte(i)}); err != nil {
				t.Fatal(err)
			}
			if get(s, plan.Key{byte(i)}) != nil {
				t.Errorf("entry %d is still there", i)
			}
		}
		s.Flush()
		if err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			data, err := os.ReadFile(path)
			if bytes.Contains(data, mark) {
				t.Errorf("flushed %v: %s still has the bytes", flush, filepath.Base(path))
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		e, err := s.Reserve(Exact, 256, nil) // all of memory
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(contentOf(e.chunks[0]), mark) {
			t.Errorf("flushed %v: memory still has the bytes", flush)
		}
		e.Release()
		done()
	}
}

// Damage below memory is a miss, never a wrong entry.
func TestDamageIsAMiss(t *testing.T) { everywhere(t, damageIsAMiss) }

func damageIsAMiss(t *testing.T, m compute.Memory) {
	dir := t.TempDir()
	s, done := withDisk(t, m, dir, 256)
	add(t, s, plan.Item, plan.Key{1}, nil, 20, 3)
	s.Flush()
	done()
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil || len(data) < 1000 {
			continue
		}
		for i := len(data) / 2; i < len(data)/2+3; i++ {
			data[i] ^= 0x5a
		}
		if err := os.WriteFile(f, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s, done = withDisk(t, m, dir, 256)
	defer done()
	if s.Fetch(t.Context(), plan.Key{1}) != plan.Missing {
		e := get(s, plan.Key{1})
		check(t, e, 20, 3) // undamaged after all: then it must be right
		e.Release()
	}
}

// slow is a tier whose reads wait.
type slow struct {
	Disk
	reads atomic.Int32
	gate  chan struct{}
}

func (s *slow) Get(key plan.Key, place func([]byte, int64) ([][]byte, error)) ([]byte, bool, error) {
	s.reads.Add(1)
	<-s.gate
	return s.Disk.Get(key, place)
}

// An entry that several want at a time is read once, and all have it, or none where it was deleted meanwhile.
func TestAnEntryIsReadOnce(t *testing.T) {
	for _, deleted := range []bool{false, true} {
		dir := t.TempDir()
		first, done := withDisk(t, ref.New().Memory(), dir, 1000)
		add(t, first, plan.Item, plan.Key{1}, nil, 20, 7)
		done()
		synctest.Test(t, func(t *testing.T) {
			p, d := newPool(t, ref.New().Memory(), 1000), openDisk(t, dir)
			s, tier := New(shape, p), &slow{Disk: d, gate: make(chan struct{})}
			s.SetDisk(tier)
			var found atomic.Int32
			var wg sync.WaitGroup
			for range 5 {
				wg.Go(func() {
					if s.Fetch(t.Context(), plan.Key{1}) != plan.Missing {
						found.Add(1)
					}
				})
			}
			synctest.Wait()
			want := int32(5)
			if deleted {
				want = 0
				if err := s.Delete(plan.Key{1}); err != nil {
					t.Error(err)
				}
			}
			close(tier.gate)
			wg.Wait()
			if tier.reads.Load() != 1 || found.Load() != want {
				t.Errorf("deleted %v: five who want an entry read it %d times, and %d have it", deleted, tier.reads.Load(),
					found.Load())
			}
			if e, _ := s.Get(plan.Key{1}); (e != nil) == deleted {
				t.Errorf("deleted %v: it is there %v", deleted, e != nil)
			} else if e != nil {
				e.Release()
			}
			s.Close()
			if err := errors.Join(d.Close(), p.Close()); err != nil {
				t.Error(err)
			}
		})
	}
}

// A deletion is over when nothing of the entry is below, nor will be: what waits to be written is not, and what is
// being written is waited for.
func TestNothingIsWrittenAfterItsDeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, d := newPool(t, ref.New().Memory(), 1000), openDisk(t, t.TempDir())
		s, tier := New(shape, p), &slowDisk{d, make(chan struct{}, 2), make(chan struct{}), nil}
		s.SetDisk(tier)
		add(t, s, plan.Item, plan.Key{1}, nil, 20, 1)
		<-tier.begun
		add(t, s, plan.Item, plan.Key{2}, nil, 20, 2) // waits behind it
		if err := s.Delete(plan.Key{2}); err != nil {
			t.Error(err)
		}
		deleted := make(chan error, 1)
		go func() { deleted <- s.Delete(plan.Key{1}) }()
		synctest.Wait()
		select {
		case <-deleted:
			t.Error("an entry's deletion was over while the entry was being written")
			deleted <- nil
		default:
		}
		close(tier.proceed)
		if err := <-deleted; err != nil {
			t.Error(err)
		}
		if s.Below(plan.Key{1}) {
			t.Error("an entry that was being written is there after its deletion")
		}
		s.Drain()
		if len(tier.begun) > 0 {
			t.Error("an entry was written after its deletion")
		}
		s.Close()
		if err := errors.Join(d.Close(), p.Close()); err != nil {
			t.Error(err)
		}
	})
}

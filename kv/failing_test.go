package kv

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"grebe/compute"
	"grebe/compute/computetest"
	"grebe/compute/ref"
	"grebe/internal/locktest"
	"grebe/plan"
	"grebe/pool"
)

// faulty is memory some of whose operations fail while a test says so.
type faulty struct {
	compute.Memory
	host                           *faulty // nil: itself
	alloc, write, read, copy, zero atomic.Bool
	allocs                         atomic.Int32 // blocks that are not freed
	copies                         func()       // called before each copy; nil: nothing
}

var errBroken = errors.New("broken")

func (f *faulty) Host() compute.Memory {
	if f.host == nil {
		return f
	}
	return f.host
}

func (f *faulty) Alloc(n int) (compute.Block, error) {
	if f.alloc.Load() {
		return compute.Block{}, errBroken
	}
	f.allocs.Add(1)
	return f.Memory.Alloc(n)
}

func (f *faulty) Free(b compute.Block) {
	f.allocs.Add(-1)
	f.Memory.Free(b)
}

func (f *faulty) Write(dst compute.Block, src []byte) error {
	if f.write.Load() {
		return errBroken
	}
	return f.Memory.Write(dst, src)
}

func (f *faulty) Read(dst []byte, src compute.Block) error {
	if f.read.Load() {
		return errBroken
	}
	return f.Memory.Read(dst, src)
}

func (f *faulty) Copy(moves ...compute.Move) error {
	if f.copies != nil {
		f.copies()
	}
	if f.copy.Load() {
		return errBroken
	}
	return f.Memory.Copy(moves...)
}

func (f *faulty) Zero(b compute.Block) error {
	if f.zero.Load() {
		return errBroken
	}
	return f.Memory.Zero(b)
}

func newFaulty() *faulty {
	far := computetest.Far(ref.New(), false).Memory()
	return &faulty{Memory: far, host: &faulty{Memory: far.Host()}}
}

// An entry that cannot be read from the device is not written below, and is counted; later it is.
func TestEntriesThatCannotBeReadAreNotBelow(t *testing.T) {
	for name, broken := range map[string]func(f *faulty) *atomic.Bool{
		"read":  func(f *faulty) *atomic.Bool { return &f.read },
		"stage": func(f *faulty) *atomic.Bool { return &f.host.alloc },
	} {
		t.Run(name, func(t *testing.T) {
			m := newFaulty()
			s, done := withDisk(t, m, t.TempDir(), 256)
			defer done()
			add(t, s, plan.User, plan.Key{1}, make([]int32, 20), 20, 3)
			broken(m).Store(true)
			s.Flush()
			if b := s.BelowStats(); b.Failed != 1 || b.Written != 0 || s.Below(plan.Key{1}) {
				t.Errorf("%+v, below %v; want one failure and nothing below", b, s.Below(plan.Key{1}))
			}
			broken(m).Store(false)
			s.Flush()
			if b := s.BelowStats(); b.Failed != 1 || b.Written != 1 || !s.Below(plan.Key{1}) {
				t.Errorf("%+v, below %v; want it below", b, s.Below(plan.Key{1}))
			}
		})
	}
}

// An entry that cannot be brought to the device is not found, and its memory is free again; later it comes.
func TestEntriesThatCannotBeWrittenAreNotFound(t *testing.T) {
	for name, broken := range map[string]func(f *faulty) *atomic.Bool{
		"write": func(f *faulty) *atomic.Bool { return &f.write },
		"stage": func(f *faulty) *atomic.Bool { return &f.host.alloc },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s, done := withDisk(t, newFaulty(), dir, 256)
			add(t, s, plan.Item, plan.Key{1}, nil, 20, 3)
			done()
			m := newFaulty()
			s, done = withDisk(t, m, dir, 256)
			defer done()
			broken(m).Store(true)
			if at := s.Fetch(t.Context(), plan.Key{1}); at != plan.Missing || get(s, plan.Key{1}) != nil {
				t.Errorf("an entry that cannot be brought is at %v", at)
			}
			if used := s.top.pool.Stats().Used; used != 0 {
				t.Errorf("%d bytes are held for it", used)
			}
			broken(m).Store(false)
			if at := s.Fetch(t.Context(), plan.Key{1}); at != s.Top() {
				t.Fatalf("it is at %v", at)
			}
			e := get(s, plan.Key{1})
			check(t, e, 20, 3)
			e.Release()
		})
	}
}

// Memory that could not be zeroed is not used again: it may hold what was deleted.
func TestMemoryThatCannotBeZeroedIsNotUsedAgain(t *testing.T) {
	m := newFaulty()
	p := newPool(t, m, 64)
	s := New(shape, p)
	add(t, s, plan.Item, plan.Key{1}, nil, 40, 7)
	m.zero.Store(true)
	if err := s.Delete(plan.Key{1}); err != nil {
		t.Fatal(err)
	}
	m.zero.Store(false)
	if e, err := s.Reserve(Exact, 40, nil); !errors.Is(err, ErrFull) {
		t.Errorf("the memory is used again: %v", err)
		e.Release()
	}
	add(t, s, plan.Item, plan.Key{2}, nil, 20, 8) // beside it
	m.zero.Store(true)
	e := get(s, plan.Key{2})
	s.Drop(plan.Key{2})
	locktest.Waits(t, "Release", s.mu.Lock, s.mu.Unlock, e.Release) // notes memory that could not be zeroed
	m.zero.Store(false)
	s.Close()
	s.Close() // frees nothing twice
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// Where entries cannot be copied nothing is lost but the copy, and no memory either.
func TestCopiesThatFail(t *testing.T) {
	m := newFaulty()
	p := newPool(t, m, 256)
	hostPool, err := pool.Over(m.Host(), int64(shape.ChunkBytes(256, false)), 256)
	if err != nil {
		t.Fatal(err)
	}
	s := New(shape, p)
	if err := s.SetHost(hostPool); err != nil {
		t.Fatal(err)
	}
	old, err := s.Reserve(Chain, 20, nil)
	if err != nil {
		t.Fatal(err)
	}
	used := p.Stats().Used
	m.copy.Store(true)
	if _, err := s.Reserve(Chain, 30, old); !errors.Is(err, errBroken) {
		t.Errorf("a prefix that cannot be copied: %v", err)
	}
	if got := p.Stats().Used; got != used {
		t.Errorf("%d bytes are held for it", got-used)
	}
	if _, err := s.Reserve(Chain, 19, old); err == nil {
		t.Error("an entry shorter than its prefix was reserved")
	}
	old.Release()
	for i := range 3 { // the third has the first lowered, which fails
		add(t, s, plan.Item, plan.Key{byte(i)}, nil, 100, byte(i))
	}
	if n, _ := s.Where(plan.Key{0}); n != 0 {
		t.Error("an entry is said to be where it could not be copied")
	}
	if st := s.Stats(plan.Item); st.Entries != 2 || st.Evicted != 1 {
		t.Errorf("%+v, want two entries and one evicted", st)
	}
	if got := hostPool.Stats().Used; got != 0 {
		t.Errorf("%d bytes of the host's are held for it", got)
	}
	m.copy.Store(false)
	add(t, s, plan.Item, plan.Key{3}, nil, 100, 3)
	if n, at := s.Where(plan.Key{1}); n != 100 || at != plan.Host {
		t.Errorf("an entry of %d tokens is at %v, want 100 at the host", n, at)
	}
	s.Close()
	if err := errors.Join(p.Close(), hostPool.Close()); err != nil {
		t.Error(err)
	}
	if n := m.allocs.Load() + m.host.allocs.Load(); n != 0 {
		t.Errorf("%d blocks were not freed", n)
	}
}

// Who wants an entry that is on its way to the device waits for it, and has it.
func TestAnEntryOnItsWayIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newFaulty()
		p := newPool(t, m, 64)
		hostPool, err := pool.Over(m.Host(), int64(shape.ChunkBytes(256, false)), 256)
		if err != nil {
			t.Fatal(err)
		}
		s := New(shape, p)
		if err := s.SetHost(hostPool); err != nil {
			t.Fatal(err)
		}
		add(t, s, plan.Item, plan.Key{1}, nil, 40, 1)
		add(t, s, plan.Item, plan.Key{2}, nil, 40, 2) // has the first lowered
		arrive := make(chan struct{})
		copies := 0
		m.copies = func() {
			if copies++; copies == 2 { // after the second entry was lowered to make room
				<-arrive
			}
		}
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				e := get(s, plan.Key{1})
				if e == nil {
					t.Error("an entry on its way was not found")
					return
				}
				check(t, e, 40, 1)
				e.Release()
			})
			synctest.Wait()
		}
		if copies != 2 {
			t.Errorf("%d copies for three who want one entry, want 2", copies)
		}
		close(arrive)
		wg.Wait()
		s.Close()
		if err := errors.Join(p.Close(), hostPool.Close()); err != nil {
			t.Error(err)
		}
	})
}

// A stage grows to what is moved through it, is zeroed behind it, and keeps no more than 64 MiB.
func TestStage(t *testing.T) {
	m := &faulty{Memory: compute.NewHostMemory()}
	var g stage
	take := func(n int) compute.Block {
		t.Helper()
		b, err := g.take(m, n)
		if err != nil {
			t.Fatal(err)
		}
		if b.Size != n || len(b.Bytes) != n {
			t.Fatalf("%d bytes, want %d", b.Size, n)
		}
		return b
	}
	give := func(b compute.Block) {
		for i := range b.Bytes {
			b.Bytes[i] = 9
		}
		g.give(b.Size)
	}
	give(take(10))
	if b := take(1 << 20); g.block.Size != 1<<20 || !bytes.Equal(b.Bytes, make([]byte, 1<<20)) {
		t.Error("the stage does not have one zeroed MiB")
	} else {
		give(b)
	}
	give(take(1<<20 + 1))
	if n := m.allocs.Load(); n != 1 {
		t.Errorf("%d blocks are held, want 1", n)
	}
	m.alloc.Store(true)
	if _, err := g.take(m, 512<<20+1); err == nil || errors.Is(err, errBroken) {
		t.Errorf("a byte more than 512 MiB: %v", err)
	}
	if _, err := g.take(m, 512<<20); !errors.Is(err, errBroken) {
		t.Errorf("512 MiB are refused: %v", err)
	}
	if _, err := g.take(m, 4<<20); !errors.Is(err, errBroken) {
		t.Errorf("without memory: %v", err)
	}
	m.alloc.Store(false)
	give(take(64 << 20))
	if n := m.allocs.Load(); n != 1 {
		t.Errorf("%d blocks are held of 64 MiB, want 1", n)
	}
	give(take(64<<20 + 1))
	if n := m.allocs.Load(); n != 0 {
		t.Errorf("%d blocks are held of more than 64 MiB, want none", n)
	}
	give(take(5))
	g.free()
	g.free()
	if n := m.allocs.Load(); n != 0 {
		t.Errorf("%d blocks were not freed", n)
	}
}

// Without a tier there is nothing below, and nothing to wait for.
func TestWithoutATier(t *testing.T) {
	s, _ := newStore(t, ref.New().Memory(), 256)
	add(t, s, plan.Item, plan.Key{1}, nil, 20, 3)
	if s.Below(plan.Key{1}) || s.Fetch(t.Context(), plan.Key{1}) != plan.Missing {
		t.Error("an entry is below")
	}
	s.Flush()
	s.Drain()
	ended, stop := context.WithCancel(t.Context())
	stop()
	if err := errors.Join(s.DrainWithin(ended), s.Written(ended), s.Delete(), s.Delete(plan.Key{1})); err != nil {
		t.Error(err)
	}
	if b := s.BelowStats(); b != (BelowStats{}) {
		t.Errorf("%+v", b)
	}
	if s.Floor(); s.Forecasts() != (Forecasts{}) {
		t.Errorf("%+v", s.Forecasts())
	}
}

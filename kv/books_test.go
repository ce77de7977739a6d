package kv

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"grebe/compute"
	"grebe/compute/ref"
	"grebe/plan"
	"grebe/pool"
)

// A deleted entry can be computed, stored and fetched again.
func TestDeletedEntriesComeAgain(t *testing.T) {
	dir := t.TempDir()
	s, done := withDisk(t, ref.New().Memory(), dir, 256)
	for mark := range byte(3) {
		add(t, s, plan.Item, plan.Key{1}, nil, 20, mark)
		s.Flush()
		if !s.Below(plan.Key{1}) {
			t.Fatalf("round %d: it is not below", mark)
		}
		if mark < 2 {
			if err := s.Delete(plan.Key{1}); err != nil {
				t.Fatal(err)
			}
		}
	}
	done()
	s, done = withDisk(t, ref.New().Memory(), dir, 256)
	defer done()
	if s.Fetch(t.Context(), plan.Key{1}) != s.Top() {
		t.Fatal("it cannot be fetched")
	}
	e := get(s, plan.Key{1})
	check(t, e, 20, 2)
	e.Release()
}

// Nothing is kept of writes, fetches and deletions that ended, and what waits for them does not wait.
func TestBooksOfWhatIsBelowAreEmptyAgain(t *testing.T) {
	dir := t.TempDir()
	s, done := withDisk(t, ref.New().Memory(), dir, 2000)
	defer done()
	for i := range 30 {
		key := plan.Key{byte(i)}
		add(t, s, plan.Item, key, nil, 20, byte(i))
		add(t, s, plan.User, plan.Key{byte(i), 1}, []int32{1, 2, 3}, 3, byte(i))
		if i%3 == 0 {
			s.Flush()
			s.Fetch(t.Context(), key)
		}
		if i%2 == 0 {
			if err := s.Delete(key, plan.Key{byte(i), 1}); err != nil {
				t.Fatal(err)
			}
		}
	}
	s.Flush()
	b := s.below
	b.mu.Lock()
	left := map[string]int{
		"open": len(b.open), "writing": len(b.writing), "deleted": len(b.deleted),
		"putting": len(b.putting), "fetches": len(b.fetches),
	}
	b.mu.Unlock()
	for what, n := range left {
		if n != 0 {
			t.Errorf("%d are left of %s", n, what)
		}
	}
	ended, stop := context.WithCancel(t.Context())
	stop()
	if err := errors.Join(s.DrainWithin(ended), s.Written(ended)); err != nil {
		t.Errorf("there is nothing to wait for: %v", err)
	}
	if s.Fetch(ended, plan.Key{1}) != plan.Missing {
		t.Error("an entry was fetched for one who left")
	}
}

// gate is a tier that writes when a test lets it.
type gate struct {
	Disk
	begun  chan struct{}
	open   chan struct{}
	most   atomic.Int32
	stored chan plan.Key // gets what was written; nil: nobody asks
}

func (g *gate) Put(key plan.Key, meta []byte, payload [][]byte) error {
	select {
	case g.begun <- struct{}{}:
	default:
	}
	<-g.open
	g.most.Add(1)
	err := g.Disk.Put(key, meta, payload)
	if g.stored != nil {
		g.stored <- key
	}
	return err
}

// withGate is a store above a tier that writes nothing until it is opened.
func withGate(t *testing.T, tokens int) (*Store, *gate) {
	t.Helper()
	p, d := newPool(t, ref.New().Memory(), tokens), openDisk(t, t.TempDir())
	s, g := New(shape, p), &gate{Disk: d, begun: make(chan struct{}, 1), open: make(chan struct{})}
	s.SetDisk(g)
	t.Cleanup(func() {
		s.Close()
		if err := errors.Join(d.Close(), p.Close()); err != nil {
			t.Error(err)
		}
	})
	return s, g
}

// Items that find the queue full are written by a flush: none is lost, and nobody waits when they are published.
func TestItemsBeyondTheQueue(t *testing.T) {
	s, g := withGate(t, 4000)
	const n = 256 + 50
	for i := range n {
		add(t, s, plan.Item, plan.Key{byte(i), byte(i >> 8)}, nil, 4, byte(i))
		if i == 0 {
			<-g.begun // the writer has it: all others wait
		}
	}
	s.mu.Lock()
	waiting := s.books.DirtyCount(s.top.index)
	s.mu.Unlock()
	if waiting != n-1-256 {
		t.Errorf("%d entries wait for a flush, want %d", waiting, n-1-256)
	}
	close(g.open)
	s.Flush()
	if b := s.BelowStats(); b.Written != n || b.Failed+b.Lost != 0 || g.most.Load() != n {
		t.Errorf("%+v of %d written once each, the tier was given %d", b, n, g.most.Load())
	}
	for i := range n {
		if !s.Below(plan.Key{byte(i), byte(i >> 8)}) {
			t.Errorf("item %d is not below", i)
		}
	}
}

// Users are written by themselves as soon as memory is more than half full, however many they are; before, none is.
func TestUsersAreWrittenWhenMemoryIsHalfFull(t *testing.T) {
	synctest.Test(t, usersAreWrittenWhenMemoryIsHalfFull)
}

func usersAreWrittenWhenMemoryIsHalfFull(t *testing.T) {
	s, g := withGate(t, 200*ChainTokens)
	const n = 150
	g.stored = make(chan plan.Key, n)
	close(g.open)
	for i := range 100 { // just half
		add(t, s, plan.User, plan.Key{byte(i)}, []int32{int32(i)}, 1, byte(i))
	}
	synctest.Wait()
	if b := s.BelowStats(); b.Written != 0 {
		t.Errorf("%d users were written while memory was half empty", b.Written)
	}
	for i := 100; i < n; i++ {
		add(t, s, plan.User, plan.Key{byte(i)}, []int32{int32(i)}, 1, byte(i))
	}
	seen := map[plan.Key]bool{}
	for range n {
		seen[<-g.stored] = true
	}
	if len(seen) != n {
		t.Errorf("%d users of %d were written", len(seen), n)
	}
}

// What was begun is gone on with without another user: nobody else wakes the writer.
func TestTheLastUsersAreWrittenToo(t *testing.T) {
	s, g := withGate(t, 200*ChainTokens)
	const n = 180
	g.stored = make(chan plan.Key, n)
	for i := range n {
		add(t, s, plan.User, plan.Key{byte(i)}, []int32{int32(i)}, 1, byte(i))
	}
	<-g.begun // it waits for the first, and all were published
	close(g.open)
	for range n {
		<-g.stored
	}
}

// Meta that was not written by this program is no entry.
func TestMetaThatMakesNoSense(t *testing.T) {
	user := encodeMeta(plan.User, 2, []int32{7, -8})
	kind, length, tokens, ok := decodeMeta(user)
	if !ok || kind != plan.User || length != 2 || len(tokens) != 2 || tokens[0] != 7 || tokens[1] != -8 {
		t.Fatalf("%v %d %v %v", kind, length, tokens, ok)
	}
	kind, length, tokens, ok = decodeMeta(encodeMeta(plan.Beam, 5, nil))
	if !ok || kind != plan.Beam || length != 5 || tokens != nil {
		t.Fatalf("%v %d %v %v", kind, length, tokens, ok)
	}
	changed := func(at int, to byte) []byte {
		b := encodeMeta(plan.User, 2, []int32{7, -8})
		b[at] = to
		return b
	}
	bad := map[string][]byte{
		"nothing": nil, "one byte": user[:1], "four bytes": user[:4], "half a token": user[:11], "fewer tokens": user[:9],
		"a byte more": append(user, 1), "no length": encodeMeta(plan.Item, 0, nil),
		"another length": changed(1, 3), "an unknown kind": changed(0, byte(plan.Beam)+1),
	}
	for name, meta := range bad {
		if _, _, _, ok := decodeMeta(meta); ok {
			t.Errorf("%s: taken", name)
		}
	}
	dir := t.TempDir()
	d := openDisk(t, dir)
	i := byte(0)
	for _, meta := range bad {
		if err := d.Put(plan.Key{i}, meta, [][]byte{make([]byte, 100)}); err != nil {
			t.Fatal(err)
		}
		i++
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	s, done := withDisk(t, ref.New().Memory(), dir, 256)
	defer done()
	if n := s.Owned(0); n != 0 {
		t.Errorf("%d of these records are listed", n)
	}
	for k := range i {
		if s.Fetch(t.Context(), plan.Key{k}) != plan.Missing {
			t.Errorf("record %d is fetched", k)
		}
	}
	if used := s.top.pool.Stats().Used; used != 0 {
		t.Errorf("%d bytes are held for them", used)
	}
}

// Peek and Where tell what there is without using it.
func TestPeekIsNoUse(t *testing.T) {
	s, _ := newStore(t, ref.New().Memory(), 60)
	add(t, s, plan.Item, plan.Key{1}, nil, 20, 1)
	add(t, s, plan.Item, plan.Key{2}, nil, 28, 2)
	n := []int32{9, 9, 9}
	s.Peek([]plan.Key{{1}, {3}, {2}}, n)
	if n[0] != 20 || n[1] != 0 || n[2] != 28 {
		t.Errorf("tokens %v, want 20, 0, 28", n)
	}
	if n, at := s.Where(plan.Key{1}); n != 20 || at != plan.Host {
		t.Errorf("%d tokens at %v", n, at)
	}
	if n, at := s.Where(plan.Key{3}); n != 0 || at != plan.Missing {
		t.Errorf("%d tokens at %v of what is not there", n, at)
	}
	add(t, s, plan.Item, plan.Key{4}, nil, 20, 4) // has one leave: the one that was not used for longest
	if a, _ := s.Where(plan.Key{1}); a != 0 {
		t.Error("looking at an entry kept it")
	}
	if a, _ := s.Where(plan.Key{2}); a != 28 {
		t.Error("another entry left")
	}
}

// A device gets an entry's chunks in order, behind those it has.
func TestChunksOfAnEntry(t *testing.T) {
	s, _ := newStore(t, ref.New().Memory(), 512)
	e, err := s.Reserve(Chain, 150, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Release()
	if e.Len() != 150 || e.Tier() != plan.Host {
		t.Errorf("%d tokens at %v", e.Len(), e.Tier())
	}
	chunks := e.AppendChunks(make([]compute.Chunk, 1))
	if len(chunks) != 4 {
		t.Fatalf("%d chunks, want 3 behind the first", len(chunks))
	}
	for i, c := range chunks[1:] {
		if c.Tokens != ChainTokens || &c.Bytes[0] != &e.chunks[i].run.Bytes[0] {
			t.Errorf("chunk %d has %d tokens, or other bytes", i, c.Tokens)
		}
	}
	empty, err := s.Reserve(Exact, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	if empty.Tier() != plan.Missing || !empty.usable(s.top) || len(empty.AppendChunks(nil)) != 0 {
		t.Error("an entry of no tokens is somewhere")
	}
	empty.Release()
	defer func() {
		if recover() == nil {
			t.Error("an entry was released more often than retained")
		}
	}()
	empty.Release()
}

// A pool of the device's memory is no place for what leaves the device.
func TestSetHostRefusesTheDevicesMemory(t *testing.T) {
	far := memories["far"]()
	p, other := newPool(t, far, 256), newPool(t, far, 256)
	s := New(shape, p)
	if err := s.SetHost(other); err == nil {
		t.Error("no error")
	}
	s.Close()
	if err := errors.Join(p.Close(), other.Close()); err != nil {
		t.Error(err)
	}
}

// Trim has entries leave until the store owns no more than its share; those in use stay, and it says so.
func TestTrim(t *testing.T) {
	p, err := pool.Over(ref.New().Memory(), int64(shape.ChunkBytes(64*ChainTokens, false)), 256)
	if err != nil {
		t.Fatal(err)
	}
	s := New(shape, p)
	for i := range 64 {
		add(t, s, plan.User, plan.Key{byte(i)}, make([]int32, ChainTokens), ChainTokens, 1)
	}
	if !s.Trim() || s.Stats(plan.User).Entries != 64 {
		t.Errorf("%d entries are left of 64 that may stay", s.Stats(plan.User).Entries)
	}
	p.SetBoundary(0.5)
	if !s.Trim() || p.Over() > 0 || s.Stats(plan.User).Entries != 32 {
		t.Errorf("%d entries are left, want 32; %d bytes too many", s.Stats(plan.User).Entries, p.Over())
	}
	var held []*Entry
	for i := range 64 {
		if e := get(s, plan.Key{byte(i)}); e != nil {
			held = append(held, e)
		}
	}
	p.SetBoundary(0.75)
	if s.Trim() || len(held) != 32 {
		t.Errorf("with %d entries in use nothing is over", len(held))
	}
	for _, e := range held {
		e.Release()
	}
	if !s.Trim() || s.Stats(plan.User).Entries != 16 {
		t.Errorf("%d entries are left, want 16", s.Stats(plan.User).Entries)
	}
	s.Close()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// Where all places for entries are taken, the oldest one leaves for a new one, though there is memory for both.
func TestEntriesLeaveForPlaces(t *testing.T) {
	s, _ := newStore(t, ref.New().Memory(), 64) // of one token and more: 16 pages, 16 places
	places := s.top.slots
	empty := func(i int) *Entry {
		e, err := s.Reserve(Exact, 0, nil) // takes a place and no memory
		if err != nil {
			t.Fatal(err)
		}
		s.Publish(plan.Item, plan.Key{byte(i)}, nil, e)
		return e
	}
	for i := range places + 3 {
		empty(i).Release()
		if e := get(s, plan.Key{byte(i)}); e == nil {
			t.Fatalf("entry %d was not published", i)
		} else {
			e.Release()
		}
	}
	for i := range places + 3 {
		e := get(s, plan.Key{byte(i)})
		if (e != nil) != (i >= 3) {
			t.Errorf("entry %d is there: %v", i, e != nil)
		}
		if e != nil {
			e.Release()
		}
	}
	if st := s.Stats(plan.Item); st.Entries != places || st.Evicted != 3 {
		t.Errorf("%+v, want %d entries and 3 evicted", st, places)
	}
	var held []*Entry // all in use: a new one finds no place, and nothing is lost
	for i := 3; i < places+3; i++ {
		held = append(held, get(s, plan.Key{byte(i)}))
	}
	empty(100).Release()
	if e := get(s, plan.Key{100}); e != nil {
		t.Error("an entry was published where all places are in use")
	}
	for _, e := range held {
		e.Release()
	}
	empty(101).Release()
	if e := get(s, plan.Key{101}); e == nil {
		t.Error("an entry was not published after the others were released")
	} else {
		e.Release()
	}
}

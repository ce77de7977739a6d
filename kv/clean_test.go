package kv

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"grebe/compute/ref"
	"grebe/plan"
	"grebe/residency"
)

// scripted is a tier in memory that refuses writes while fails says so, and notes the order of those that it takes. A
// read of a key in gates waits until its gate is closed.
type scripted struct {
	records
	fails func(plan.Key) bool
	order []plan.Key
	gates map[plan.Key]chan struct{}
}

func newScripted() *scripted {
	t := &scripted{records: records{all: map[plan.Key]stored{}, open: make(chan struct{})},
		fails: func(plan.Key) bool { return false }}
	close(t.open)
	return t
}

func (t *scripted) Put(key plan.Key, meta []byte, payload [][]byte) error {
	t.mu.Lock()
	refused := t.fails(key)
	if !refused {
		t.order = append(t.order, key)
	}
	t.mu.Unlock()
	if refused {
		return errors.New("refused")
	}
	return t.records.Put(key, meta, payload)
}

func (t *scripted) Get(key plan.Key, place func([]byte, int64) ([][]byte, error)) ([]byte, bool, error) {
	if gate := t.gates[key]; gate != nil {
		<-gate
	}
	return t.records.Get(key, place)
}

func (t *scripted) Range(func(plan.Key, []byte, int64) bool) {}

// tokensOf returns the tokens of a test's user.
func tokensOf(n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(i + 1)
	}
	return out
}

// What is written next is found without looking at what is written already, and the least recently used is written
// first.
func TestDirtyEntriesAreFoundAtOnce(t *testing.T) {
	s, _ := newStore(t, ref.New().Memory(), 200*ChainTokens)
	tier := newScripted()
	s.SetDisk(tier)
	tokens := tokensOf(ChainTokens)
	const clean = 40
	for i := range clean {
		add(t, s, plan.User, plan.Key{1, byte(i)}, tokens, len(tokens), 1)
	}
	s.Flush()
	if n := s.books.DirtyCount(0); n != 0 || len(tier.order) != clean {
		t.Fatalf("%d entries are dirty after a flush that wrote %d of %d", n, len(tier.order), clean)
	}
	for i := range 4 {
		add(t, s, plan.User, plan.Key{2, byte(i)}, tokens, len(tokens), 1)
	}
	get(s, plan.Key{2, 0}).Release() // from now on the last of them
	for i := range clean {
		get(s, plan.Key{1, byte(i)}).Release()
	}
	if n := s.books.DirtyCount(0); n != 4 {
		t.Errorf("%d entries are dirty, want 4", n)
	}
	s.Flush()
	want := []plan.Key{{2, 1}, {2, 2}, {2, 3}, {2, 0}}
	for i, key := range tier.order[clean:] {
		if key != want[i] {
			t.Errorf("entry %d is written %v, want %v", i, key[:2], want[i][:2])
		}
	}
	if len(tier.order) != clean+len(want) {
		t.Errorf("%d writes, want %d", len(tier.order), clean+len(want))
	}
}

// An entry whose write failed is not taken to be below: it is tried again, a few times, and counts as lost when it
// makes room before that succeeded.
func TestAFailedWriteIsTriedAgain(t *testing.T) {
	s, _ := newStore(t, ref.New().Memory(), 8*ChainTokens)
	tier := newScripted()
	s.SetDisk(tier)
	tokens := tokensOf(ChainTokens)
	tier.fails = func(key plan.Key) bool { return true }
	add(t, s, plan.User, plan.Key{1}, tokens, len(tokens), 1)
	add(t, s, plan.User, plan.Key{2}, tokens, len(tokens), 2)
	s.Flush()
	if b := s.BelowStats(); b.Failed != 2 || b.Written != 0 {
		t.Fatalf("%+v after a tier that takes nothing", b)
	}
	tier.mu.Lock()
	tier.fails = func(key plan.Key) bool { return key == plan.Key{2} }
	tier.mu.Unlock()
	s.Flush()
	if !s.Below(plan.Key{1}) {
		t.Error("an entry whose first write failed is never written")
	}
	for range 5 {
		s.Flush()
	}
	if b := s.BelowStats(); b.Failed != 1+residency.MaxTries || b.Written != 1 {
		t.Errorf("%+v: an entry that cannot be written is tried more than %d times", b, residency.MaxTries)
	}
	for i := range 8 { // all that is there makes room
		add(t, s, plan.User, plan.Key{3, byte(i)}, tokens, len(tokens), 3)
	}
	if b := s.BelowStats(); b.Lost < 1 {
		t.Error("an entry that could not be written made room, and is not counted as lost")
	}
}

// Who waits for writes does not wait for reads of others, and who waits for what is under way not for what began since.
func TestWaitingForWritesBesideReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := newStore(t, ref.New().Memory(), 16*ChainTokens)
		tier := newScripted()
		tier.gates = map[plan.Key]chan struct{}{{1}: make(chan struct{}), {2}: make(chan struct{})}
		s.SetDisk(tier)
		for i := range 2 {
			add(t, s, plan.Item, plan.Key{byte(1 + i)}, nil, 16, 1)
		}
		s.Drain()
		for s.evictOne(s.top) {
		}
		go s.Fetch(context.Background(), plan.Key{1})
		synctest.Wait()
		add(t, s, plan.Item, plan.Key{3}, nil, 16, 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Written(ctx); err != nil || !s.Below(plan.Key{3}) {
			t.Errorf("waiting for a write beside a read: %v, written: %v", err, s.Below(plan.Key{3}))
		}
		drained := make(chan struct{})
		go func() {
			defer close(drained)
			s.Drain()
		}()
		synctest.Wait()
		go s.Fetch(context.Background(), plan.Key{2}) // it is read when the first has come
		synctest.Wait()
		close(tier.gates[plan.Key{1}])
		synctest.Wait()
		select {
		case <-drained:
		default:
			t.Error("who waits for what is read waits for a read that began later")
		}
		close(tier.gates[plan.Key{2}])
		s.Drain()
	})
}

// Whoever wants an entry gets it also when the one who was to bring it leaves before there is a turn to read.
func TestAFetchOutlivesItsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := newStore(t, ref.New().Memory(), 16*ChainTokens)
		s.SetDisk(newScripted())
		add(t, s, plan.Item, plan.Key{1}, nil, 16, 1)
		s.Drain()
		for s.evictOne(s.top) {
		}
		for range maxReaders { // all turns are taken
			s.below.readers <- struct{}{}
		}
		first, leave := context.WithCancel(t.Context())
		go s.Fetch(first, plan.Key{1})
		synctest.Wait()
		got := make(chan plan.Tier, 2)
		for range 2 {
			go func() { got <- s.Fetch(t.Context(), plan.Key{1}) }()
		}
		synctest.Wait()
		leave()
		synctest.Wait()
		for range maxReaders {
			<-s.below.readers
		}
		for range 2 {
			if at := <-got; at == plan.Missing {
				t.Error("who waited for an entry gets nothing because another one left")
			}
		}
	})
}

// A deletion of many entries removes all of them from memory and below, in one call of the tier.
func TestManyEntriesAreDeletedAtOnce(t *testing.T) {
	s, _ := newStore(t, ref.New().Memory(), 200*ChainTokens)
	tier := &countingDeletes{scripted: newScripted()}
	s.SetDisk(tier)
	var keys []plan.Key
	for i := range 3 * deleteAtOnce / 2 {
		keys = append(keys, plan.Key{byte(i), 1})
		add(t, s, plan.Item, keys[i], nil, 16, 1)
		s.Drain()
	}
	keep := plan.Key{255, 2}
	add(t, s, plan.Item, keep, nil, 16, 1)
	s.Drain()
	if err := s.Delete(append(keys, plan.Key{254, 9})...); err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		if e, _ := s.Get(key); e != nil || s.Below(key) {
			t.Fatalf("entry %v is there after it was deleted", key[:2])
		}
	}
	if e, _ := s.Get(keep); e == nil || !s.Below(keep) {
		t.Error("another entry is gone")
	} else {
		e.Release()
	}
	if tier.calls != 1 {
		t.Errorf("the tier is asked %d times", tier.calls)
	}
	if err := s.Delete(); err != nil || tier.calls != 1 {
		t.Errorf("deleting nothing: %v, %d calls", err, tier.calls)
	}
}

// Dropped entries leave memory and the tier without a deletion there, whose syncs would take long.
func TestDroppedEntriesLeaveEveryTier(t *testing.T) {
	s, _ := newStore(t, ref.New().Memory(), 200*ChainTokens)
	drop, keep := plan.Key{1}, plan.Key{2}
	add(t, s, plan.Item, drop, nil, 16, 1)
	s.Drop(drop, plan.Key{9}) // without a tier
	if e, _ := s.Get(drop); e != nil {
		t.Fatal("a dropped entry is there")
	}
	tier := &countingDeletes{scripted: newScripted()}
	s.SetDisk(tier)
	for _, key := range []plan.Key{drop, keep} {
		add(t, s, plan.Item, key, nil, 16, 1)
	}
	s.Drain()
	s.Drop()
	s.Drop(drop, plan.Key{9})
	if e, _ := s.Get(drop); e != nil || s.Below(drop) {
		t.Error("a dropped entry is there")
	}
	if n, _ := s.Where(keep); n != 16 || !s.Below(keep) {
		t.Error("another entry is gone")
	}
	if tier.calls != 0 {
		t.Errorf("%d deletions in the tier", tier.calls)
	}
	add(t, s, plan.Item, drop, nil, 16, 1)
	s.Drain()
	if n, _ := s.Where(drop); n != 16 || !s.Below(drop) {
		t.Error("an entry cannot be published after it was dropped")
	}
}

// A dropped entry that still waits to be written is not written.
func TestDroppedEntriesAreNotWritten(t *testing.T) {
	s, _ := newStore(t, ref.New().Memory(), 200*ChainTokens)
	tier := newScripted()
	first, drop := plan.Key{1}, plan.Key{2}
	gate := make(chan struct{})
	tier.gates = map[plan.Key]chan struct{}{first: gate}
	s.SetDisk(tier)
	add(t, s, plan.Item, first, nil, 16, 1)
	add(t, s, plan.Item, drop, nil, 16, 1)
	s.Drop(drop)
	close(gate)
	s.Drain()
	if !s.Below(first) || s.Below(drop) {
		t.Errorf("below are first %v, dropped %v", s.Below(first), s.Below(drop))
	}
}

type countingDeletes struct {
	*scripted
	calls int
}

func (t *countingDeletes) Delete(keys ...plan.Key) error {
	t.calls++
	return t.scripted.Delete(keys...)
}

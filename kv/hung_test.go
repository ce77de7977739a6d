package kv

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"grebe/compute/ref"
	"grebe/internal/record"
	"grebe/plan"
	"grebe/residency"
)

// records is a tier in memory whose reads wait for a test, half done.
type records struct {
	Disk
	mu   sync.Mutex
	all  map[plan.Key]stored
	open chan struct{} // closed: reads go on
	read int           // how many were begun
	gone chan struct{} // closed: deletions go on; nil: none waits
}

type stored struct {
	meta    []byte
	payload []byte
}

func (r *records) Has(key plan.Key) (int64, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e, ok := r.all[key]
	return int64(len(e.payload)), ok
}

func (r *records) Put(key plan.Key, meta []byte, payload [][]byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []byte
	for _, p := range payload {
		all = append(all, p...)
	}
	r.all[key] = stored{meta, all}
	return nil
}

func (r *records) Get(key plan.Key, place func([]byte, int64) ([][]byte, error)) ([]byte, bool, error) {
	r.mu.Lock()
	e, ok := r.all[key]
	r.read++
	r.mu.Unlock()
	if !ok {
		return nil, false, nil
	}
	pieces, err := place(e.meta, int64(len(e.payload)))
	if err != nil {
		return nil, false, err
	}
	<-r.open
	at := 0
	for _, p := range pieces {
		at += copy(p, e.payload[at:])
	}
	return e.meta, true, nil
}

func (r *records) Delete(keys ...plan.Key) error {
	if r.gone != nil {
		<-r.gone
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range keys {
		delete(r.all, k)
	}
	return nil
}

func (r *records) Range(f func(key plan.Key, meta []byte, size int64) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, e := range r.all {
		if !f(key, e.meta, int64(len(e.payload))) {
			return
		}
	}
}

func (r *records) Drop(keys ...plan.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range keys {
		delete(r.all, k)
	}
}

func (r *records) begun() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.read
}

// A read that does not end holds nobody longer than they want to wait, and after a while nobody at all. Its memory is
// nobody else's until it ends, and what it reads is then there for others, unless it was deleted meanwhile.
func TestATierThatHangs(t *testing.T) { synctest.Test(t, aTierThatHangs) }

func aTierThatHangs(t *testing.T) {
	p := newPool(t, ref.New().Memory(), 128)
	tier := &records{all: map[plan.Key]stored{}, open: make(chan struct{})}
	s := New(shape, p)
	s.SetDisk(tier)
	var out strings.Builder
	log := record.New(&out, 1<<20)
	s.Record(log.Room("kv"))
	for i := range 4 {
		add(t, s, plan.Item, plan.Key{byte(i)}, nil, 40, byte(10+i))
		s.Drain()
	}
	fill := func() { // all that nobody uses makes room
		for n := 128; n > 0; n-- {
			if e, err := s.Reserve(Exact, n, nil); err == nil {
				e.Release()
				return
			}
		}
	}
	fill()
	fetch := func(key plan.Key, within time.Duration) (plan.Tier, time.Duration) {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		start := time.Now()
		at := s.Fetch(ctx, key)
		return at, time.Since(start)
	}
	for range 2 { // two want the same
		if at, took := fetch(plan.Key{1}, time.Second); at != plan.Missing || took != time.Second {
			t.Errorf("a read that hangs: at %v after %v, want nothing after a second", at, took)
		}
	}
	if n := tier.begun(); n != 1 {
		t.Errorf("an entry is read %d times at once", n)
	}
	if at, took := fetch(plan.Key{2}, time.Second); at != plan.Missing || took != time.Second {
		t.Errorf("another: at %v after %v, want nothing after a second", at, took)
	}
	if used := p.Stats().Used; used == 0 {
		t.Error("memory that is read into is free")
	}
	fill()
	time.Sleep(residency.HungAfter)
	if at, took := fetch(plan.Key{3}, time.Second); at != plan.Missing || took != 0 || tier.begun() > 2 {
		t.Errorf("long after: at %v after %v, %d reads, want no other to be begun", at, took, tier.begun())
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := s.DrainWithin(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nothing is read: %v", err)
	}
	if err := s.Delete(plan.Key{2}); err != nil {
		t.Error(err)
	}
	close(tier.open)
	s.Drain()
	if e, _ := s.Get(plan.Key{2}); e != nil {
		t.Error("what was deleted while it was read is there")
	}
	if at, _ := fetch(plan.Key{3}, time.Second); at == plan.Missing {
		t.Error("nothing is read from a tier that hung")
	}
	if err := log.Close(); err != nil {
		t.Error(err)
	}
	if strings.Contains(out.String(), "longest 0\n") {
		t.Error("recorded that nothing is read")
	}
	for _, want := range []string{"below0 longest 2000000000\nbelow0 . hangs -\n",
		"below0 longest 13000000000\nbelow0 . hangs +\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("not recorded: %q", want)
		}
	}
	for _, i := range []byte{1, 3} {
		e := get(s, plan.Key{i})
		check(t, e, 40, 10+i)
		e.Release()
	}
	s.Close()
	if used := p.Stats().Used; used != 0 {
		t.Errorf("%d bytes are in use", used)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// A deletion from a tier that hangs returns, with an error. Nobody gets what is deleted, nor is it written again, and
// it is gone when the tier answers.
func TestADeletionFromATierThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := newStore(t, ref.New().Memory(), 128)
		tier := &records{all: map[plan.Key]stored{}, gone: make(chan struct{})}
		s.SetDisk(tier)
		add(t, s, plan.Item, plan.Key{1}, nil, 40, 1)
		s.Drain()
		start := time.Now()
		err := s.Delete(plan.Key{1})
		if took := time.Since(start); !strings.HasPrefix(fmt.Sprint(err), "kv: delete below memory: ") ||
			took != 3*residency.HungAfter {
			t.Errorf("deleted from a tier that hangs: %v after %v", err, took)
		}
		if e, _ := s.Get(plan.Key{1}); e != nil || s.Below(plan.Key{1}) {
			t.Error("what is being deleted is there")
		}
		add(t, s, plan.Item, plan.Key{1}, nil, 40, 2) // is computed again
		synctest.Wait()
		close(tier.gone)
		s.Drain()
		if s.Below(plan.Key{1}) {
			t.Error("what was deleted is below")
		}
		if err := s.Delete(plan.Key{1}); err != nil {
			t.Error(err)
		}
	})
}

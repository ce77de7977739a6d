package serve

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	grebev1 "grebe/api/grebe/v1"
	"grebe/kv"
	"grebe/plan"
)

// slowTier is a disk whose deletions and drops wait for the test.
type slowTier struct {
	kv.Disk
	mu      sync.Mutex
	keys    []int         // number of keys of each deletion
	dropped []int         // number of keys of each drop
	gate    chan struct{} // closed: they continue
}

func (d *slowTier) Delete(keys ...plan.Key) error {
	d.mu.Lock()
	d.keys = append(d.keys, len(keys))
	d.mu.Unlock()
	<-d.gate
	return d.Disk.Delete(keys...)
}

func (d *slowTier) Drop(keys ...plan.Key) {
	d.mu.Lock()
	d.dropped = append(d.dropped, len(keys))
	d.mu.Unlock()
	<-d.gate
	d.Disk.Drop(keys...)
}

func (d *slowTier) calls() (deleted, dropped []int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]int(nil), d.keys...), append([]int(nil), d.dropped...)
}

func sum(list []int) (n int) {
	for _, x := range list {
		n += x
	}
	return n
}

// ndjson returns lines of items of so many tokens each, starting at a token.
func ndjson(items, token int) string {
	var b strings.Builder
	for i := range items {
		fmt.Fprintf(&b, `{"id":"i%d","tokens":[%d,%d],"identifier":%d}`+"\n", i, token, 100+i, 500+i)
	}
	return b.String()
}

// An import of changed items does not wait for a disk, and neither do events and rankings meanwhile. Items that
// changed together are dropped together. Only the deletion of a user waits.
func TestAnImportDoesNotWaitForDisks(t *testing.T) {
	d := &slowTier{gate: make(chan struct{})}
	w := newCacheWorldOver(t, near, 7, false, nil, func(t kv.Disk) kv.Disk { d.Disk = t; return d })
	s, err := New(Config{Models: []Model{w.model}, SLO: time.Minute})
	must(t, err)
	const items = 200
	for round := range 3 { // the second and the third change all items
		if _, err := batch(t.Context(), s, false, ndjson(items, 10+round)); err != nil {
			t.Fatalf("import %d: %v", round, err)
		}
	}
	if resp, err := s.AppendEvents(t.Context(), "ann", []*grebev1.Event{{Item: "i1"}}); err != nil || !resp.Created {
		t.Errorf("events beside the import: %v, %v", resp, err)
	}
	if _, err := s.Rank(t.Context(), &grebev1.RankRequest{User: &grebev1.User{Tokens: []int32{1, 2}},
		Candidates: []*grebev1.Item{{Id: "i1"}, {Id: "i2"}}, Prefix: "item"}); err != nil {
		t.Errorf("a ranking beside the import: %v", err)
	}
	// A deletion is answered when the user's KV is gone, so this one waits.
	gone := make(chan error)
	var open atomic.Bool
	go func() {
		err := s.DeleteUser(t.Context(), "ann")
		if !open.Load() {
			t.Error("a user is deleted before the disk answers")
		}
		gone <- err
	}()
	for there := true; there; _, there = s.catalog.User("ann") {
		runtime.Gosched()
	}
	open.Store(true)
	close(d.gate)
	if err := <-gone; err != nil {
		t.Errorf("deleting a user: %v", err)
	}
	must(t, s.Settle(t.Context()))
	deleted, dropped := d.calls()
	if len(dropped) > 2*2*items/dropsAtOnce+3 || sum(dropped) == 0 {
		t.Errorf("%d changes of items are %d drops: %v", 2*items, len(dropped), dropped)
	}
	if len(deleted) == 0 || sum(deleted) > items/10 {
		t.Errorf("one deleted user is deletions of %v keys", deleted)
	}
	if s.drops.pending != 0 || s.drops.reserved != 0 || len(s.drops.byItem) != 0 || len(s.drops.byUser) != 0 {
		t.Errorf("left: %+v", &s.drops)
	}
}

// While too many changes are pending, writers of items wait until their context ends.
func TestWritersOfItemsWaitForRoom(t *testing.T) {
	w := newFake(t)
	full, err := w.drops.reserve(t.Context(), mostDrops)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	put := func(ctx context.Context) error {
		_, _, err := w.PutItem(ctx, &grebev1.Item{Id: "new", Tokens: []int32{1}})
		return err
	}
	for i, change := range []func(context.Context) error{
		put,
		func(ctx context.Context) error {
			_, err := batch(ctx, w, false, `{"id":"new","tokens":[1]}`)
			return err
		},
		func(ctx context.Context) error { return w.DeleteItem(ctx, "i1") },
	} {
		go func() { ended <- change(ctx) }()
		for w.drops.waiters() == 0 {
			runtime.Gosched()
		}
		_, err := w.Rank(t.Context(), &grebev1.RankRequest{
			Model: "id", User: &grebev1.User{Id: "u1"}, Candidates: []*grebev1.Item{{Id: "i1"}}})
		must(t, err)
		cancel()
		if err := <-ended; codeOf(err) != Canceled {
			t.Errorf("change %d: %v for who stops waiting, want canceled", i, err)
		}
		ctx, cancel = context.WithCancel(t.Context())
		w.drops.mu.Lock()
		w.drops.signal()
		w.drops.mu.Unlock()
	}
	cancel()
	if _, err := w.AppendEvents(t.Context(), "u1", []*grebev1.Event{{Item: "i1"}}); err != nil {
		t.Errorf("events: %v", err)
	}
	if _, ok := w.catalog.Item("new"); ok {
		t.Error("an item came though its writer stopped waiting")
	}
	full()
	if err := put(t.Context()); err != nil {
		t.Errorf("with room again: %v", err)
	}
}

// waiters reports whether a writer waits for room.
func (d *drops) waiters() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.moved != nil {
		return 1
	}
	return 0
}

// If an item changes several times before its KV is removed, all its forms but the present one are removed.
func TestChangesOfAnItemAreJoined(t *testing.T) {
	w := newCacheWorldOver(t, near, 7, false, nil)
	s, err := New(Config{Models: []Model{w.model}})
	must(t, err)
	forms := [][]int32{{1, 2}, {3, 4}, {5, 6}}
	for _, tokens := range forms {
		e, err := w.store.Reserve(kv.Exact, len(tokens), nil)
		must(t, err)
		w.store.Publish(1, w.cache.ItemKey(tokens), nil, e)
		e.Release()
	}
	s.drops.running = true // nothing is removed yet
	for _, i := range []int{0, 1, 2, 0} {
		_, err := s.catalog.PutItem(&grebev1.Item{Id: "i", Tokens: forms[i]})
		must(t, err)
	}
	if s.drops.pending != 1 {
		t.Errorf("%d changes are pending for one item", s.drops.pending)
	}
	s.runDrops()
	for i, tokens := range forms {
		if n, _ := w.store.Where(w.cache.ItemKey(tokens)); (n > 0) != (i == 0) {
			t.Errorf("form %d: %d tokens are cached, and the item has form 0", i, n)
		}
	}
}

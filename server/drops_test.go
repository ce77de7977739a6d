package server

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
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

// slowTier is a disk on which deletions and drops wait for a test.
type slowTier struct {
	kv.Disk
	mu      sync.Mutex
	keys    []int         // of each deletion
	dropped []int         // of each drop
	gate    chan struct{} // closed: they go on
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

// ndjson are lines of items of so many tokens each, from a token on.
func ndjson(items, token int) string {
	var b strings.Builder
	for i := range items {
		fmt.Fprintf(&b, `{"id":"i%d","tokens":[%d,%d],"identifier":%d}`+"\n", i, token, 100+i, 500+i)
	}
	return b.String()
}

// An import of changed items waits for no disk, nor does anything else: events are appended and rankings answered
// meanwhile. Items that changed together are dropped together. Only a deleted user waits.
func TestAnImportDoesNotWaitForDisks(t *testing.T) {
	d := &slowTier{gate: make(chan struct{})}
	w := newCacheWorldOver(t, near, 7, false, nil, func(t kv.Disk) kv.Disk { d.Disk = t; return d })
	s, err := New(Config{Models: []Model{w.model}, SLO: time.Minute, MaxInFlight: 1})
	must(t, err)
	s.SetReady(true)
	ask := func(method, path, body string) *httptest.ResponseRecorder {
		t.Helper()
		rec := httptest.NewRecorder()
		s.Handler().ServeHTTP(rec, httptest.NewRequest(method, path, strings.NewReader(body)))
		return rec
	}
	const items = 200
	for round := range 3 { // the second and the third change all of them
		if rec := ask("POST", "/v1/items:batch", ndjson(items, 10+round)); rec.Code != http.StatusOK {
			t.Fatalf("import %d: %d %s", round, rec.Code, rec.Body)
		}
	}
	if rec := ask("POST", "/v1/users/ann/events", `{"events":[{"item":"i1"}]}`); rec.Code != http.StatusCreated {
		t.Errorf("events beside the import: %d %s", rec.Code, rec.Body)
	}
	if rec := ask("POST", "/v1/rank", `{"user":{"tokens":[1,2]},"candidates":[{"id":"i1"},{"id":"i2"}],"prefix":"item"}`); rec.Code != http.StatusOK {
		t.Errorf("a ranking beside the import: %d %s", rec.Code, rec.Body)
	}
	// A deleted user's KV is gone when the answer comes, so this one waits.
	gone := make(chan *httptest.ResponseRecorder)
	var open atomic.Bool
	go func() {
		rec := ask("DELETE", "/v1/users/ann", "")
		if !open.Load() {
			t.Error("a user is deleted before the disk answers")
		}
		gone <- rec
	}()
	for there := true; there; _, there = s.catalog.User("ann") {
		runtime.Gosched()
	}
	open.Store(true)
	close(d.gate)
	if rec := <-gone; rec.Code != http.StatusNoContent {
		t.Errorf("deleting a user: %d %s", rec.Code, rec.Body)
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

// While too many changes are pending whoever changes items waits, as long as they want to, and takes no ranking's place.
func TestWritersOfItemsWaitForRoom(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.MaxInFlight = 1 })
	full, err := w.drops.reserve(t.Context(), mostDrops)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	for _, r := range []*http.Request{
		httptest.NewRequest("PUT", "/v1/items/new", strings.NewReader(`{"tokens":[1]}`)),
		httptest.NewRequest("POST", "/v1/items:batch", strings.NewReader(`{"id":"new","tokens":[1]}`)),
		httptest.NewRequest("DELETE", "/v1/items/i1", nil),
	} {
		go func() {
			rec := httptest.NewRecorder()
			w.handler.ServeHTTP(rec, r.WithContext(ctx))
			ended <- rec.Code
		}()
		for w.drops.waiters() == 0 {
			runtime.Gosched()
		}
		w.rank(t, `{"model":"id","user":{"id":"u1"},"candidates":[{"id":"i1"}]}`)
		cancel()
		if code := <-ended; code != 499 {
			t.Errorf("%s: %d for who stops waiting, want 499", r.URL, code)
		}
		ctx, cancel = context.WithCancel(t.Context())
		w.drops.mu.Lock()
		w.drops.signal()
		w.drops.mu.Unlock()
	}
	cancel()
	if rec := w.ask("POST", "/v1/users/u1/events", `{"events":[{"item":"i1"}]}`); rec.Code != http.StatusOK {
		t.Errorf("events: %d %s", rec.Code, rec.Body)
	}
	if _, ok := w.catalog.Item("new"); ok {
		t.Error("an item came though its writer stopped waiting")
	}
	full()
	if rec := w.ask("PUT", "/v1/items/new", `{"tokens":[1]}`); rec.Code != http.StatusCreated {
		t.Errorf("with room again: %d %s", rec.Code, rec.Body)
	}
}

// waiters reports whether somebody waits for room.
func (d *drops) waiters() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.moved != nil {
		return 1
	}
	return 0
}

// Of an item that changes several times before anything is removed, all forms that it had are removed but the one it has.
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

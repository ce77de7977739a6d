package ahead

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	grebev1 "grebe/api/grebe/v1"
	"grebe/catalog"
	"grebe/compute"
	"grebe/compute/ref"
	"grebe/engine"
	"grebe/kv"
	"grebe/plan"
	"grebe/pool"
	"grebe/prompt"
	"grebe/reuse"
	"grebe/schedule"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var shape = compute.Shape{Layers: 2, KVHeads: 2, HeadDim: 4, KV: compute.BF16}

// idle has nothing to do.
type idle struct{}

func (idle) Backlog() (float64, int)      { return 0, 0 }
func (idle) Model() schedule.PrefillModel { return schedule.PrefillModel{Row: 0.01} }

// machine is a model that computes nothing, and keeps what it is asked to.
type machine struct {
	t     *testing.T
	store *kv.Store
	cache *reuse.Cache

	mu       sync.Mutex
	computed []int32 // first tokens of items
	fail     error
}

func newMachine(t *testing.T, tokens int) *machine {
	t.Helper()
	pages, err := pool.Over(ref.New().Memory(), int64(shape.ChunkBytes(tokens, false)), 256)
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, store: kv.New(shape, pages)}
	t.Cleanup(func() {
		m.store.Close()
		if err := pages.Close(); err != nil {
			t.Error(err)
		}
	})
	b, err := prompt.New(prompt.Config{}, nil, 1000)
	if err != nil {
		t.Fatal(err)
	}
	m.cache = reuse.New(b, reuse.Options{Store: m.store, Pool: pages, Load: idle{}, Shape: shape})
	return m
}

func (m *machine) do(_ context.Context, j *engine.Job) (*engine.Result, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	time.Sleep(time.Millisecond)
	if m.fail != nil {
		return nil, m.fail
	}
	r := &engine.Result{Kept: make([]*kv.Entry, len(j.Plan.Segments))}
	for i, s := range j.Plan.Segments {
		if !j.Segments[i].Keep {
			continue
		}
		e, err := m.store.Reserve(kv.LayoutOf(s.Kind), len(s.Tokens), nil)
		if err != nil {
			return nil, err
		}
		r.Kept[i] = e
		if s.Kind == plan.Item {
			m.computed = append(m.computed, s.Tokens[0])
		}
	}
	return r, nil
}

// took returns what was computed since the last call.
func (m *machine) took() (out []int32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	out, m.computed = m.computed, nil
	return out
}

func (m *machine) failing(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail = err
}

// world is an Indexer of one model over a catalog of n items of 4 tokens.
type world struct {
	*Indexer
	*machine
	items *catalog.Catalog
	hot   atomic.Pointer[[]Hot]
	log   strings.Builder
	end   func()
}

func newWorld(t *testing.T, n int, off bool) *world {
	w := &world{machine: newMachine(t, 4000), items: catalog.New(catalog.Options{})}
	w.hot.Store(&[]Hot{})
	for i := range n {
		w.put(t, i, int32(i))
	}
	log := slog.New(slog.NewTextHandler(&w.log, nil))
	w.Indexer = New(Options{Catalog: w.items, Hot: func() []Hot { return *w.hot.Load() }, Off: off, Log: log})
	w.Add("m", func() (Checkpoint, func()) { return Checkpoint{Cache: w.machine.cache, Do: w.machine.do}, func() {} })
	return w
}

func (w *world) put(t *testing.T, i int, first int32) {
	t.Helper()
	if _, err := w.items.PutItem(&grebev1.Item{Id: fmt.Sprint(i), Tokens: []int32{first, 1, 2, 3}}); err != nil {
		t.Fatal(err)
	}
}

// start runs the Indexer until the end of the test, or until w.end is called.
func (w *world) start(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { w.Run(ctx) })
	w.end = func() { cancel(); wg.Wait() }
	wait(time.Minute)
}

func wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// After the start all items are computed, those of histories first. What changes later is computed, nothing is computed
// twice, and it is logged.
func TestAServerComputesItsCatalogWhenIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 100, false)
		for i, h := range [][]string{{"7", "9"}, {"9", "gone"}} {
			if _, err := w.items.PutUser(&grebev1.User{Id: fmt.Sprint(i), History: h}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := w.items.PutUser(&grebev1.User{Id: "e", Events: []*grebev1.Event{
			{Item: "9"}, {Item: "3"}, {Item: "3"}}}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.items.DeleteItem("5"); err != nil {
			t.Fatal(err)
		}
		w.hot.Store(&[]Hot{{"50", 3}})
		w.start(t)
		defer w.end()
		got := w.took()
		if len(got) != 99 || !slices.Equal(got[:6], []int32{50, 9, 3, 7, 0, 1}) || slices.Contains(got, 5) {
			t.Errorf("computed %v, want all but 5, with 50, 9, 3 and 7 first", got)
		}
		p := w.Progress()[0]
		if p.State != Done || p.Items != 99 || p.Left != 0 || p.Computed != 99 || p.Tokens != 396 || p.Seconds <= 0 {
			t.Errorf("progress %+v, want 99 items done", p)
		}
		if n := strings.Count(w.log.String(), "items ahead"); n != 1 ||
			strings.Count(w.log.String(), "items computed ahead") != 1 {
			t.Errorf("%d lines say that it goes on, and not one that it ended: %s", n, w.log.String())
		}
		for i := range 3 { // more than 1 in 64
			w.put(t, 200+i, int32(200+i))
		}
		wait(time.Minute)
		if got := w.took(); !slices.Equal(got, []int32{200, 201, 202}) {
			t.Errorf("computed %v, want the added items", got)
		}
		wait(time.Hour)
		if got := w.took(); len(got) != 0 {
			t.Errorf("computed %v again", got)
		}
	})
}

// A list of other hot items has those computed that are not cached.
func TestHotItemsAreComputedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 100, false)
		w.start(t)
		defer w.end()
		w.took()
		for _, id := range []int32{10, 11, 12} { // as if they had made room
			w.store.Drop(w.machine.cache.ItemKey([]int32{id, 1, 2, 3}))
		}
		wait(time.Minute)
		if got := w.took(); len(got) != 0 {
			t.Errorf("computed %v without a reason", got)
		}
		w.hot.Store(&[]Hot{{"11", 9}, {"10", 8}, {"gone", 7}})
		wait(time.Minute)
		if got := w.took(); !slices.Equal(got, []int32{11, 10}) {
			t.Errorf("computed %v, want the hot ones", got)
		}
	})
}

// An Indexer that is off computes when it is asked to.
func TestAnIndexerIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 30, true)
		w.start(t)
		defer w.end()
		if got, p := w.took(), w.Progress()[0]; len(got) != 0 || p.State != Idle {
			t.Errorf("computed %v, %s", got, p.State)
		}
		if err := w.Ask("other"); !errors.Is(err, ErrNoModel) {
			t.Errorf("asked of a model that is not there: %v", err)
		}
		if err := w.Ask(""); err != nil {
			t.Error(err)
		}
		if s := w.Progress()[0].State; !s.Running() {
			t.Errorf("%s after it was asked", s)
		}
		wait(time.Second)
		if got, p := w.took(), w.Progress()[0]; len(got) != 30 || p.State != Done {
			t.Errorf("%d computed, %s; want 30 and done", len(got), p.State)
		}
	})
}

// Without room a pass stops, and goes on when there is room again. A failure is logged, and tried again.
func TestAPassGoesOnLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 900, false) // 3,600 tokens, and memory for 4,000
		w.failing(errors.New("on purpose"))
		w.start(t)
		defer w.end()
		if p := w.Progress()[0]; p.State != Failed || p.Error == "" || len(w.took()) > 0 {
			t.Errorf("progress %+v, want a failure", p)
		}
		w.failing(nil)
		wait(time.Minute)
		p := w.Progress()[0]
		if n := len(w.took()); p.State != Full || n != 500 || p.Left != 400 {
			t.Errorf("%d computed, progress %+v; want 500, and no room for 400", n, p)
		}
		for i := range 200 {
			w.store.Drop(w.machine.cache.ItemKey([]int32{int32(i), 1, 2, 3}))
			if _, err := w.items.DeleteItem(fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
		}
		wait(10 * time.Minute)
		if n := len(w.took()); n != 200 {
			t.Errorf("%d computed where 200 left, want 200", n)
		}
	})
}

// An item that memory has no room for does not end a pass: it is skipped and counted, and the others are computed.
func TestAPassSkipsAnItemThatIsTooLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 100, false) // memory for 4,000 tokens, of which half is for requests
		if _, err := w.items.PutItem(&grebev1.Item{Id: "3", Tokens: make([]int32, 2001)}); err != nil {
			t.Fatal(err)
		}
		w.start(t)
		defer w.end()
		p := w.Progress()[0]
		if n := len(w.took()); p.State != Done || n != 99 || p.Computed != 99 || p.TooLong != 1 || p.Left != 0 {
			t.Errorf("%d computed, progress %+v; want 99, and 1 too long", n, p)
		}
		if !strings.Contains(w.log.String(), "too_long=1") {
			t.Errorf("the log does not say that an item is too long: %s", w.log.String())
		}
	})
}

// A step that fails is logged, and its items are counted. The pass goes on behind them.
func TestAFailedStepIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 100, false)
		take := w.models[0].take
		once := errors.New("on purpose")
		w.models[0].take = func() (Checkpoint, func()) {
			c, release := take()
			do := c.Do
			c.Do = func(ctx context.Context, j *engine.Job) (*engine.Result, error) {
				err := once
				if once = nil; err != nil {
					return nil, err
				}
				return do(ctx, j)
			}
			return c, release
		}
		w.start(t)
		defer w.end()
		p := w.Progress()[0]
		if n := len(w.took()); p.State != Done || p.Failed == 0 || n != p.Computed || n+p.Failed != 100 || p.Left != 0 {
			t.Errorf("%d computed, progress %+v; want the others to have failed", n, p)
		}
		log := w.log.String()
		if want := fmt.Sprintf("items=%d error=", p.Failed); strings.Count(log, "on purpose") != 1 ||
			!strings.Contains(log, want) {
			t.Errorf("want one line with the error and %s: %s", want, log)
		}
	})
}

// Another checkpoint gets the items too. A pass for the one before it ends.
func TestAnotherCheckpointIsFilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 100, false)
		next, held := newMachine(t, 4000), 0
		serving := w.machine
		w.models = nil
		var mu sync.Mutex
		w.Add("m", func() (Checkpoint, func()) {
			mu.Lock()
			defer mu.Unlock()
			held++
			w.mu.Lock()
			defer w.mu.Unlock()
			if len(w.machine.computed) > 30 {
				serving = next
			}
			return Checkpoint{Cache: serving.cache, Do: serving.do}, func() { mu.Lock(); held--; mu.Unlock() }
		})
		w.start(t)
		if n, m := len(w.machine.took()), len(next.took()); n < 31 || n > 31+32 || m != 100 {
			t.Errorf("%d were computed for a checkpoint that was replaced and %d for the other, want few and all", n, m)
		}
		w.end()
		if held != 0 {
			t.Errorf("%d checkpoints are held at the end", held)
		}
	})
}

// A pass that someone asked for starts over if the checkpoint is replaced, even if the Indexer is off. Whoever waits
// for its end does not see another one before.
func TestAReplacedCheckpointDoesNotEndAPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 100, true)
		next := newMachine(t, 4000)
		w.models = nil
		w.Add("m", func() (Checkpoint, func()) {
			serving := w.machine
			w.mu.Lock()
			defer w.mu.Unlock()
			if len(w.machine.computed) > 30 {
				serving = next
			}
			return Checkpoint{Cache: serving.cache, Do: serving.do}, func() {}
		})
		w.start(t)
		defer w.end()
		if err := w.Ask("m"); err != nil {
			t.Fatal(err)
		}
		for w.Progress()[0].State.Running() {
			time.Sleep(100 * time.Microsecond)
		}
		if p, n := w.Progress()[0], len(next.took()); p.State != Done || p.Left != 0 || p.Computed != 100 || n != 100 {
			t.Errorf("progress %+v with %d items of the new checkpoint computed, want all 100 done", p, n)
		}
	})
}

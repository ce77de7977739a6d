package reuse

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"grebe/engine"
	"grebe/kv"
	"grebe/plan"
	"grebe/prompt"
)

// An item that changes is computed again if it was cached: in its last form and in small batches. So is an added item,
// if others were cached. Items that nobody requested are not: a large import would keep the engines from requests.
func TestCachedItemsThatChangeAreComputedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, 7, nil, "", false)
		defer m.close()
		m.opt.Load = linear{}
		var computed [][]int32 // items
		pieces := 0
		do := func(_ context.Context, j *engine.Job) (*engine.Result, error) {
			pieces++
			tokens := 0
			for _, s := range j.Plan.Segments {
				if s.Kind == plan.Item {
					computed = append(computed, s.Tokens)
					tokens += len(s.Tokens)
				}
			}
			if tokens > refreshTokens {
				t.Errorf("%d tokens at once", tokens)
			}
			return m.dryRun(t, j), nil
		}
		item := func(n, edition int32) *prompt.Item {
			return &prompt.Item{Tokens: []int32{n, edition, 1, 2, 3, 4, 5, 6}}
		}
		tokens := func(n, edition int32) []int32 { return item(n, edition).Tokens }
		apply := func(was, is *prompt.Item) {
			t.Helper()
			var old []*prompt.Item
			if was != nil {
				old = append(old, was)
			}
			if err := m.Apply([]Change{m.Changed(old, is)}); err != nil {
				t.Fatal(err)
			}
		}
		apply(nil, item(99, 0)) // new, while no item is cached
		var cached [][]int32
		for n := range int32(40) {
			cached = append(cached, tokens(n, 0))
		}
		if _, _, err := m.Precompute(t.Context(), func(ctx context.Context, j *engine.Job) (*engine.Result, error) {
			return m.dryRun(t, j), nil
		}, cached, nil); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		var want [][]int32
		for n := range int32(40) {
			apply(item(n, 0), item(n, 1))
			want = append(want, tokens(n, 1))
		}
		apply(item(5, 1), item(5, 2))                     // before it was computed
		apply(item(6, 1), nil)                            // it is deleted
		apply(item(100, 0), item(100, 1))                 // was not cached
		apply(nil, item(101, 0))                          // new
		apply(item(7, 1), item(7, 1))                     // unchanged
		want = append(want[:5:5], want[7:]...)            // 6 is gone
		want = append(want, tokens(5, 2), tokens(101, 0)) // at the end
		wg.Go(func() { m.Refresh(ctx, do, func(err error) { t.Error(err) }) })
		time.Sleep(time.Minute)
		synctest.Wait()
		if !slices.EqualFunc(computed, want, slices.Equal) {
			t.Errorf("computed %v, want %v", computed, want)
		}
		if least := len(want) * 8 / refreshTokens; pieces <= least {
			t.Errorf("%d pieces, want more than %d", pieces, least)
		}
		tiers := make([]plan.Tier, 3)
		m.opt.Store.Status([]plan.Key{m.ItemKey(tokens(3, 1)), m.ItemKey(tokens(3, 0)), m.ItemKey(tokens(5, 1))}, tiers)
		if tiers[0] == plan.Missing || tiers[1] != plan.Missing || tiers[2] != plan.Missing {
			t.Errorf("tiers %v of a new form, of an old one and of one in between", tiers)
		}
		cancel()
		wg.Wait()
	})
}

// The list of changed items is bounded, even if items are removed from it meanwhile.
func TestTheListOfChangedItemsIsBounded(t *testing.T) {
	l := changed{some: make(chan struct{}, 1), items: map[plan.Key]*changedItem{}}
	key := func(i int) plan.Key { return kv.KeyOf(plan.Key{}, []int32{int32(i)}, "") }
	for i := range 3 * mostChanged {
		l.add(key(i), []int32{int32(i)})
	}
	if len(l.items) != mostChanged {
		t.Fatalf("%d items are listed, want %d", len(l.items), mostChanged)
	}
	for i := range 5 * mostChanged { // each replaces another one
		l.remove(key(i))
		l.add(key(i+mostChanged), []int32{int32(i)})
	}
	if len(l.items) != mostChanged || len(l.order) > 2*mostChanged {
		t.Errorf("%d items are listed in %d places, want %d in at most %d", len(l.items), len(l.order), mostChanged,
			2*mostChanged)
	}
	if got := l.take(3); len(got) != 3 || got[0].key != key(5*mostChanged) {
		t.Errorf("took %d items, want the three oldest", len(got))
	}
}

// busyLoad is an engine that is busy for a part of every tenth of a second.
type busyLoad struct {
	linear
	start time.Time
	busy  time.Duration
	until time.Duration // when the last request comes
}

func (b *busyLoad) Backlog() (float64, int) {
	since := time.Since(b.start)
	if since < b.until && since%(100*time.Millisecond) < b.busy {
		return 1, 0
	}
	return 0, 0
}

// While requests come to any engine, caches compute ahead one at a time, between requests and for a tenth of the time.
// Without requests they do not pause.
func TestCachesComputeAheadInSpareTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSpare()
		const requests, piece = 20 * time.Second, 2 * time.Millisecond
		load := &busyLoad{start: time.Now(), busy: 30 * time.Millisecond, until: requests}
		leave := s.join(load)
		defer s.join(linear{})()
		ctx, cancel := context.WithCancel(t.Context())
		running := 0
		var turns [3]atomic.Int64
		var wg sync.WaitGroup
		for i := range turns {
			wg.Go(func() {
				for ctx.Err() == nil {
					_ = s.use(ctx, func() error {
						if running++; running > 1 {
							t.Error("two caches compute ahead at a time")
						}
						if ms, _ := load.Backlog(); ms > 0 {
							t.Error("a cache computes ahead while an engine is busy")
						}
						time.Sleep(piece)
						turns[i].Add(1)
						running--
						return nil
					})
				}
			})
		}
		all := func() time.Duration { return time.Duration(turns[0].Load()+turns[1].Load()+turns[2].Load()) * piece }
		time.Sleep(requests)
		if took := all(); took > requests/spareShare+piece || took < requests/spareShare/2 {
			t.Errorf("caches computed ahead for %v of %v in which requests came", took, requests)
		}
		if had := []int64{turns[0].Load(), turns[1].Load(), turns[2].Load()}; slices.Min(had) < slices.Max(had)/2 {
			t.Errorf("caches had %v turns", had)
		}
		time.Sleep(2 * spareQuiet)
		before := all()
		time.Sleep(time.Second)
		if took := all() - before; took < 990*time.Millisecond {
			t.Errorf("caches computed ahead for %v of a second without requests", took)
		}
		leave()
		cancel()
		wg.Wait()
		if len(s.loads) != 1 {
			t.Errorf("%d engines are left, want 1", len(s.loads))
		}
	})
}

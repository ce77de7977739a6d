package embed

import (
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// check fails unless refills halve the time until the cache is warm, at no price for requests.
func check(t *testing.T, r Refill) {
	t.Helper()
	t.Logf("%+v", r)
	if r.With.Seconds > 0.5*r.None.Seconds {
		t.Errorf("%s, %s: warm after %.1f s with refills and %.1f s without, want half", r.After, r.Policy, r.With.Seconds,
			r.None.Seconds)
	}
	if r.With.Mean > 1.02*r.None.Mean || r.With.P99 > 1.02*r.None.P99 {
		t.Errorf("%s, %s: latency %.3f ms with refills and %.3f ms without, P99 %.3f and %.3f ms", r.After, r.Policy,
			r.With.Mean, r.None.Mean, r.With.P99, r.None.P99)
	}
	if r.With.Bytes != r.With.Ahead*rowBytes || r.With.Ahead < refillHot/4 || r.With.Ahead > refillCache {
		t.Errorf("%s, %s: %d rows, %d bytes ahead", r.After, r.Policy, r.With.Ahead, r.With.Bytes)
	}
}

// After a restart the rows that were hot before it are fetched ahead of requests (HLM-4 in docs/explain/papers.md).
// Time is virtual.
func TestRefillAfterARestart(t *testing.T) {
	for _, policy := range []string{"lru", "default"} {
		dir := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			r, err := restarts(t.Context(), policy, dir, 2*time.Minute, time.Minute, 3)
			if err != nil {
				t.Fatal(err)
			}
			check(t, r)
		})
	}
}

// When rows become hot again that were not for minutes, the others that left with them are fetched ahead of requests.
func TestRefillWhenTheHotSetReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := returns(t.Context(), "lru", 3*time.Minute, 4*time.Minute, time.Minute, 3)
		if err != nil {
			t.Fatal(err)
		}
		check(t, r)
	})
}

// The default policy keeps the hottest rows of the old hot set, and many of the set between for minutes. A refill still
// fetches the others, and the cache is warm earlier.
func TestRefillWhenTheHotSetReturnsByDefault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := returns(t.Context(), "default", 3*time.Minute, 4*time.Minute, 2*time.Minute, 3)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%+v", r)
		if r.With.Ahead < refillHot/3 || r.With.Seconds > 0.85*r.None.Seconds || r.With.P99 > 1.02*r.None.P99 {
			t.Errorf("%+v", r)
		}
	})
}

// Rows that were deleted before a restart are not cached after it. A store that fails is asked again later.
func TestRefillAsksTheStore(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rows")
	synctest.Test(t, func(t *testing.T) {
		open := func() *warmer {
			n, err := newWarmer("lru", file, true, 9)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		n := open()
		n.serve(t.Context(), 1, 30*time.Second)
		n.close()
		n = open()
		n.store.mu.Lock()
		n.store.fails = true
		n.store.mu.Unlock()
		const deleted = 1<<32 + 5
		n.store.gone[deleted] = true
		time.Sleep(10 * time.Second)
		if s := n.refiller.Stats(); s.Failed == 0 || s.Failed > 1000 || s.Fetched > 0 {
			t.Errorf("ten seconds of an outage: %+v", s)
		}
		n.store.mu.Lock()
		n.store.fails = false
		n.store.mu.Unlock()
		time.Sleep(time.Minute)
		if s := n.refiller.Stats(); s.Fetched < refillHot/2 || s.Gone != 1 || n.cache.Get(deleted, n.out) {
			t.Errorf("after the outage: %+v; the deleted row is cached: %v", s, n.cache.Get(deleted, n.out))
		}
		n.close()
	})
}

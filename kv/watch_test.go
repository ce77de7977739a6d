package kv

import (
	"testing"

	"grebe/compute/computetest"
	"grebe/compute/ref"
	"grebe/plan"
)

// counts is a Watcher that adds up.
type counts struct {
	hit, kept, evicted int
	refused            int64
	keys               map[uint64]bool
}

func (c *counts) Refused(bytes int64) { c.refused = max(c.refused, bytes) }

func (c *counts) Hit(tokens int) { c.hit += tokens }
func (c *counts) Kept(key uint64, bytes int64, tokens int) {
	c.kept += tokens
	c.keys[key] = true
}
func (c *counts) Evicted(key uint64, bytes int64) {
	c.evicted++
	delete(c.keys, key)
}

// A watcher hears of named entries and of runs. Hits in the device's memory do not count, nor do moves to host memory.
func TestWatcher(t *testing.T) {
	m := computetest.Far(ref.New(), true).Memory()
	s, _ := newStore(t, m, 2*ChainTokens)
	host := newPool(t, m.Host(), 2*ChainTokens)
	t.Cleanup(func() {
		if err := host.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(s.Close)
	if err := s.SetHost(host); err != nil {
		t.Fatal(err)
	}
	w := &counts{keys: map[uint64]bool{}}
	s.Watch(w)
	keep := func(i byte) {
		t.Helper()
		e, err := s.Reserve(Exact, ChainTokens, nil)
		if err != nil {
			t.Fatal(err)
		}
		s.Publish(plan.Item, plan.Key{i}, nil, e)
		e.Release()
	}
	use := func(i byte) {
		t.Helper()
		e := get(s, plan.Key{i})
		if e == nil {
			t.Fatalf("entry %d is gone", i)
		}
		e.Release()
	}
	keep(1)
	use(1)
	if w.hit != 0 || w.kept != ChainTokens {
		t.Fatalf("after a hit on the device: %+v", w)
	}
	keep(2)
	keep(3) // 1 moves to host memory
	use(1)
	if w.hit != ChainTokens || w.evicted != 0 {
		t.Fatalf("after a hit in host memory: %+v", w)
	}
	for i := byte(4); i < 9; i++ {
		keep(i)
	}
	if w.evicted != 4 || len(w.keys) != 4 || w.kept != 8*ChainTokens {
		t.Fatalf("after four evictions: %+v", w)
	}
	tokens := make([]int32, ChainTokens)
	e, err := s.Reserve(Chain, ChainTokens, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.Insert(plan.Key{9}, tokens, e)
	e.Release()
	if w.kept != 9*ChainTokens {
		t.Errorf("after a run was inserted: %+v", w)
	}
}

//go:build !invariants

package kv

import (
	"math/rand/v2"
	"testing"

	"grebe/compute"
	"grebe/compute/ref"
	"grebe/plan"
)

// Self-checks never use a released view again, so these tests are of every other build.

// Released views are kept for others, 64 of them, and nothing else is.
func TestViewsAreKept(t *testing.T) {
	s, _ := newStore(t, ref.New().Memory(), 256)
	add(t, s, plan.Item, plan.Key{1}, nil, 9, 1)
	s.Drop(plan.Key{1})
	if n := len(s.views); n != 0 {
		t.Errorf("%d views are kept of an entry", n)
	}
	if _, err := learn(s, plan.Key{1}, tokensOf(9)); err != nil {
		t.Fatal(err)
	}
	var held []*Entry
	for range 70 {
		e, _ := s.Match(plan.Key{1}, tokensOf(9))
		held = append(held, e)
	}
	for _, e := range held {
		e.Release()
	}
	if n := len(s.views); n != 64 {
		t.Errorf("%d views are kept, want 64", n)
	}
}

func TestKnownHitAllocatesNothing(t *testing.T) {
	s, _ := newStore(t, compute.NewHostMemory(), 20000)
	r := rand.New(rand.NewPCG(3, 4))
	var all [][]int32
	for range 40 {
		all = append(all, related(r, all))
		if _, err := learn(s, plan.Key{1}, all[len(all)-1]); err != nil {
			t.Fatal(err)
		}
	}
	n := testing.AllocsPerRun(200, func() {
		for _, tokens := range all {
			e, _ := s.Match(plan.Key{1}, tokens)
			e.Release()
		}
	})
	if n != 0 {
		t.Errorf("%d hits allocate %v times", len(all), n)
	}
}

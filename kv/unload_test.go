package kv

import (
	"testing"

	"grebe/compute"
	"grebe/plan"
)

// Unload frees the memory of entries that are on disk and that nobody reads, and of no others.
func TestUnload(t *testing.T) { everywhere(t, unload) }

func unload(t *testing.T, m compute.Memory) {
	s, done := withDisk(t, m, t.TempDir(), 512)
	defer done()
	add(t, s, plan.Item, plan.Key{1}, nil, 9, 5)
	add(t, s, plan.Item, plan.Key{2}, nil, 9, 6)
	add(t, s, plan.User, plan.Key{3}, make([]int32, 9), 9, 7) // users are written later
	if err := s.Written(t.Context()); err != nil {
		t.Fatal(err)
	}
	read := get(s, plan.Key{2})
	s.Unload(plan.Key{1}, plan.Key{2}, plan.Key{3}, plan.Key{4})
	read.Release()
	tiers := make([]plan.Tier, 4)
	s.Status([]plan.Key{{1}, {2}, {3}, {4}}, tiers)
	if tiers[0] != plan.Disk || tiers[1] != s.Top() || tiers[2] != s.Top() || tiers[3] != plan.Missing {
		t.Errorf("tiers %v of an item, of one that is read, of one that is not on disk and of none", tiers)
	}
	if n := s.Owned(0); n != 3 {
		t.Errorf("%d entries are known, want 3", n)
	}
	if s.Fetch(t.Context(), plan.Key{1}) != s.Top() {
		t.Fatal("an entry that left memory cannot be fetched")
	}
	e := get(s, plan.Key{1})
	check(t, e, 9, 5)
	e.Release()
}

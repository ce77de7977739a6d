package reuse

import (
	"context"
	"testing"

	"grebe/plan"
	"grebe/residency"
)

// A cache knows where an entry is while it is loaded, and does not know a deleted one.
func TestACacheKnowsWhereEntriesAre(t *testing.T) {
	m := newMachine(t, 7, nil, t.TempDir(), false)
	key := m.UserKey("u", nil)
	tokens := []int32{1, 2, 3}
	m.keep(t, plan.User, key, len(tokens), tokens)
	m.toDisk(t)
	want := residency.Entry{Kind: plan.User, Tokens: 3, Tier: plan.Disk, Digest: residency.Digest(tokens)}
	if e, ok := m.store.Lookup(key); !ok || e != want {
		t.Errorf("of an entry on disk the cache knows %+v, %v, want %+v", e, ok, want)
	}
	v := m.visits.Get().(*Visit)
	v.begin(m.Cache, tokens, nil)
	v.user, v.named = key, true

	if !v.fetch(context.Background(), key) {
		t.Fatal("an entry below memory does not come")
	}
	want.Tier = m.home
	if e, ok := m.opt.Store.Lookup(key); !ok || e != want {
		t.Errorf("of an entry that was brought up the cache knows %+v, %v, want %+v", e, ok, want)
	}

	if err := m.store.Delete(key); err != nil {
		t.Fatal(err)
	}
	if e, ok := m.opt.Store.Lookup(key); ok {
		t.Errorf("of an entry that was deleted the cache knows %+v", e)
	}
}

package reuse

import (
	"context"
	"testing"

	"grebe/kv"
	"grebe/meta"
	"grebe/plan"
)

// The index does not go on to name what the store dropped, moved or never kept while a request brought it up.
func TestTheIndexFollowsTheStore(t *testing.T) {
	m := newMachine(t, 7, nil, t.TempDir(), false)
	key := m.UserKey("u", nil)
	tokens := []int32{1, 2, 3}
	e, err := m.store.Reserve(kv.Chain, len(tokens), nil)
	if err != nil {
		t.Fatal(err)
	}
	m.store.Publish(plan.User, key, tokens, e)
	e.Release()
	m.store.Flush()
	for n := int(m.opt.Pool.Stats().Total); ; n /= 2 { // it makes room
		if e, err := m.store.Reserve(kv.Exact, n/m.opt.Shape.ChunkBytes(1, false), nil); err == nil {
			e.Release()
			break
		}
	}
	v := m.visits.Get().(*Visit)
	v.begin(m.Cache, tokens, nil)
	v.user, v.named = key, true

	m.opt.Index.Drop(key) // the index forgot it, and learns what it is
	if !v.fetch(context.Background(), key) {
		t.Fatal("an entry below memory does not come")
	}
	want := meta.Entry{Kind: plan.User, Tokens: 3, Tier: m.home}
	if e, ok := m.opt.Index.Lookup(key); !ok || e != want {
		t.Errorf("of an entry that was brought up the index knows %+v, %v, want %+v", e, ok, want)
	}

	// Deleted between the store's answer and the note in the index: what is noted is that it is gone.
	if err := m.store.Delete(key); err != nil {
		t.Fatal(err)
	}
	m.opt.Index.Put(key, meta.Entry{Kind: plan.User, Tokens: 3, Tier: plan.Disk}, 0)
	m.holds(key, plan.User)
	if e, ok := m.opt.Index.Lookup(key); ok {
		t.Errorf("of an entry that was deleted meanwhile the index knows %+v", e)
	}
}

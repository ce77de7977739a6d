package reuse

import (
	"testing"

	"grebe/engine"
	"grebe/plan"
	"grebe/schedule"
)

// A query without a user is kept when its request ends. Prompts that begin with it find it, and count as a return if it
// is at least half of them.
func TestUnnamedPromptsAreKept(t *testing.T) {
	m := newMachine(t, 7, []int32{1, 2, 3}, "", false)
	m.opt.Load = linear{}
	query := make([]int32, 128)
	for i := range query {
		query[i] = int32(10 + i)
	}
	l := m.prompt.Score(query, [][]int32{{5}}, false)
	v := m.Unnamed(&l)
	job := &engine.Job{Plan: l.Plan}
	v.Attach(t.Context(), &l, job)
	v.EndUnnamed(&l, m.dryRun(t, job))
	if n, _ := m.store.PeekMatch(m.userSpace, query); n != len(query) {
		t.Fatalf("%d of %d tokens are known after the request", n, len(query))
	}
	for n, own := range map[int]bool{256: true, 257: false} {
		user := append(append([]int32{}, query...), make([]int32, n-len(query))...)
		v := m.Begin(&Request{User: user, Items: [][]int32{{5}}, Policy: schedule.User})
		if v.in.UserCached[plan.Host] != 128 || v.hit != own {
			t.Errorf("a user of %d tokens: %v cached, a return: %v, want 128 and %v", n, v.in.UserCached, v.hit, own)
		}
		v.End(&l, nil)
	}
}

// The fixed beginnings of prompts count as cached only if all of them are.
func TestFixedBeginningsAreCachedTogether(t *testing.T) {
	m := newMachine(t, 7, []int32{1, 2, 3}, "", false)
	m.opt.Load = linear{}
	m.leadIn = shared{tokens: []int32{4}, key: m.ItemKey([]int32{4})}
	put := func(s *shared) {
		e, err := m.store.Reserve(0, len(s.tokens), nil)
		if err != nil {
			t.Fatal(err)
		}
		m.store.Publish(plan.Preamble, s.key, nil, e)
		e.Release()
	}
	cached := func() bool {
		v := m.Begin(&Request{User: []int32{7}, Items: [][]int32{{5}}, Policy: schedule.None})
		return v.in.SharedCached
	}
	if cached() {
		t.Error("nothing was computed")
	}
	if put(&m.preamble); cached() {
		t.Error("the lead-in was not computed")
	}
	if put(&m.leadIn); !cached() {
		t.Error("both were computed")
	}
}

package catalog

import (
	"runtime"
	"slices"
	"sync/atomic"
	"testing"

	grebev1 "grebe/api/grebe/v1"
)

// A cut is heard by all nodes at the same version. It is made only if an item has changed since the last one.
func TestCuts(t *testing.T) {
	leader, _, _ := replica(t, Options{}, 1)
	defer leader.Close()
	follower, _, _ := replica(t, Options{}, 0)
	defer follower.Close()
	var heard [2][]uint64
	for i, c := range []*Catalog{leader, follower} {
		c.Subscribe(func(ch Change) {
			if ch.Ended && ch.Import == "" {
				heard[i] = append(heard[i], ch.Version)
			}
		})
	}
	cut := func() uint64 {
		t.Helper()
		if err := leader.Cut(t.Context()); err != nil {
			t.Fatal(err)
		}
		return leader.Stats().Version
	}
	put := func(from, id string) {
		t.Helper()
		if err := leader.ApplyImport(from, []Op{{PutItem: &grebev1.Item{Id: id}}})[0].Err; err != nil {
			t.Fatal(err)
		}
	}
	if err := copyTo(t, leader, follower); err != nil {
		t.Fatal(err)
	}
	put("", "a")
	first := cut()
	if again := cut(); again != first {
		t.Errorf("a cut without a change is version %d after %d", again, first)
	}
	if _, err := leader.PutUser(&grebev1.User{Id: "u"}); err != nil {
		t.Fatal(err)
	}
	put("import", "b")
	if v := cut(); v != first+2 {
		t.Errorf("version %d after a user and a line of an import, want %d", v, first+2)
	}
	put("", "c")
	second := cut()
	pull(t, leader, follower)
	if want := []uint64{first, second}; !slices.Equal(heard[0], want) || !slices.Equal(heard[1], want) ||
		second != first+4 {
		t.Errorf("cuts at %v on the leader and %v on the follower, want %v", heard[0], heard[1], want)
	}
}

// A node that does not lead has told its subscribers of a cut when Cut returns, not only shown it to readers.
func TestCutReturnsWhenItWasHeard(t *testing.T) {
	leader, _, _ := replica(t, Options{}, 1)
	defer leader.Close()
	follower, hook, _ := replica(t, Options{}, 0)
	defer follower.Close()
	hook.leader = leader
	if err := copyTo(t, leader, follower); err != nil {
		t.Fatal(err)
	}
	if _, err := leader.PutItem(&grebev1.Item{Id: "a"}); err != nil {
		t.Fatal(err)
	}
	pull(t, leader, follower)
	before, _ := leader.LogState()

	var heard, early atomic.Bool
	returned := make(chan error, 1)
	follower.Subscribe(func(ch Change) {
		for ch.Ended && len(returned) == 0 { // until Cut has returned, or waits for this call to end
			follower.queueMu.Lock()
			n := len(follower.queue)
			follower.queueMu.Unlock()
			if n > 0 {
				break
			}
			runtime.Gosched()
		}
		heard.Store(ch.Ended)
	})
	go func() {
		err := follower.Cut(t.Context())
		early.Store(!heard.Load())
		returned <- err
	}()
	if err := leader.AwaitShown(t.Context(), before.Shown+1); err != nil {
		t.Fatal(err)
	}
	pull(t, leader, follower)
	if err := <-returned; err != nil {
		t.Fatal(err)
	}
	if early.Load() {
		t.Error("Cut returned before the subscriber had heard of it")
	}
}

package catalog

import (
	"crypto/sha256"
	"slices"
	"testing"
	"time"

	grebev1 "grebe/api/grebe/v1"
)

// Keys on disk are a letter for the kind and the first 16 bytes of the id's digest, as FORMAT.md says.
func TestKeysOnDisk(t *testing.T) {
	h := sha256.Sum256([]byte("id"))
	for kind, key := range map[byte][]byte{'i': slicesOf(keyOf(false, "id")), 'u': slicesOf(keyOf(true, "id")),
		'd': slicesOf(deletionKey("id")), 't': slicesOf(buriedKey(true, "id"))} {
		if want := append([]byte{kind}, h[:16]...); !slices.Equal(key, want) {
			t.Errorf("the key of kind %c is %x, want %x", kind, key, want)
		}
	}
}

func slicesOf(k [keySize]byte) []byte { return k[:] }

// A deletion of a user whom the catalog does not have is pending where it was asked to track these, over a restart
// too, and changes nothing else.
func TestDeletionsOfUnknownUsers(t *testing.T) {
	for _, opt := range []Options{{TrackDeletions: true, TrackUnknown: true}, {TrackDeletions: true},
		{TrackUnknown: true}} {
		opt.SweepDelay = time.Hour
		dir := t.TempDir()
		c := open(t, dir, opt)
		if _, err := c.PutUser(&grebev1.User{Id: "u"}); err != nil {
			t.Fatal(err)
		}
		before := c.Stats()
		if was, err := c.DeleteUser("nobody"); was || err != nil {
			t.Errorf("a user who is not there was deleted: %v, %v", was, err)
		}
		if after := c.Stats(); after != before {
			t.Errorf("%+v after a deletion of nobody, %+v before", after, before)
		}
		var want []string
		if opt.TrackDeletions && opt.TrackUnknown {
			want = []string{"nobody"}
		}
		for range 2 {
			if got := c.PendingDeletions(); !slices.Equal(got, want) {
				t.Errorf("%+v: %v is pending, want %v", opt, got, want)
			}
			shut(t, c)
			c = open(t, dir, opt)
		}
		if want != nil {
			c.DeletionDone("nobody", c.PendingDeletion("nobody"))
			if got := c.PendingDeletions(); len(got) != 0 {
				t.Errorf("%v is pending though it is done", got)
			}
		}
		shut(t, c)
	}
	c := New(Options{TrackDeletions: true, TrackUnknown: true})
	if _, err := c.DeleteUser("nobody"); err != nil || len(c.PendingDeletions()) != 0 {
		t.Errorf("in memory: %v, %v", c.PendingDeletions(), err)
	}
}

// A round that deletes clears no records and takes no mark away: those of its own deletions would go with them.
func TestRoundsThatDeleteClearNothing(t *testing.T) {
	c := open(t, t.TempDir(), Options{SweepDelay: time.Hour, TrackDeletions: true})
	defer shut(t, c)
	for _, id := range []string{"a", "b"} {
		if _, err := c.PutUser(&grebev1.User{Id: id}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.DeleteUser("a"); err != nil {
		t.Fatal(err)
	}
	c.DeletionDone("a", c.PendingDeletion("a"))
	has := func(what string, key []byte, want bool) {
		t.Helper()
		if got, err := c.store.has(key); got != want || err != nil {
			t.Errorf("%s is on disk: %v, %v; want %v", what, got, err, want)
		}
	}
	a, b := deletionKey("a"), deletionKey("b")
	round := func(verbs ...mutation) {
		group := []*writer{}
		for i := range verbs {
			group = append(group, &writer{muts: verbs[i : i+1]})
		}
		c.round(group)
	}
	round(mutation{verb: deleteUser, id: "b"}, mutation{verb: clearDeletions}, mutation{verb: sweepDone})
	has("the record of a", a[:], true)
	has("the record of b", b[:], true)
	has("the mark of deleted bytes", sweepKey, true)
	round(mutation{verb: clearDeletions})
	has("the record of a", a[:], false)
	has("the record of b", b[:], true)
	if v := c.PendingDeletion("b"); v == 0 {
		t.Error("the deletion of b is not pending")
	}
	round(mutation{verb: sweepDone}) // bytes of b are still to be swept
	has("the mark of deleted bytes", sweepKey, true)
}

// What is done in one round sees what came before it in the same round.
func TestChangesOfOneRound(t *testing.T) {
	c := New(Options{MaxItems: 1, MaxUsers: 1})
	group := []*writer{}
	for _, op := range []Op{
		{PutItem: &grebev1.Item{Id: "a"}}, {DeleteItem: "a"}, {PutItem: &grebev1.Item{Id: "b"}},
		{PutItem: &grebev1.Item{Id: "c"}},
		{PutUser: &grebev1.User{Id: "u"}}, {DeleteUser: "u"}, {PutUser: &grebev1.User{Id: "v"}}, {DeleteUser: "u"},
	} {
		w := &writer{muts: make([]mutation, 1)}
		w.muts[0].prepare(&op, 100)
		group = append(group, w)
	}
	c.round(group)
	for i, want := range []string{"created", "changed", "created", "full", "created", "changed", "created", "same"} {
		r := group[i].muts[0].Result
		got := map[bool]string{true: "created", false: "changed"}[r.Created]
		switch {
		case r.Err != nil:
			got = "full"
		case !r.Changed:
			got = "same"
		}
		if got != want {
			t.Errorf("change %d: %s, want %s", i, got, want)
		}
	}
	if s := c.Stats(); s.Items != 1 || s.Users != 1 || s.Version != 6 {
		t.Errorf("%+v", s)
	}
	if _, ok := c.Item("b"); !ok {
		t.Error("b is not there")
	}
	// A catalog that failed takes none of a round.
	c.failed = ErrFailed
	w := &writer{muts: []mutation{{verb: deleteItem, id: "b"}}}
	if c.round([]*writer{w}); w.muts[0].Err != ErrFailed {
		t.Errorf("after a failure: %v", w.muts[0].Err)
	}
	if _, ok := c.Item("b"); !ok {
		t.Error("b was deleted after a failure")
	}
}

// Of many writers a round takes as many as its bytes allow, and the others come next.
func TestRoundsAreBounded(t *testing.T) {
	c := New(Options{})
	text := make([]int32, 1<<20) // a megabyte, at least
	var rounds []int
	last := uint64(0)
	c.Subscribe(func(ch Change) {
		if ch.Version == last+1 && len(rounds) > 0 {
			rounds[len(rounds)-1]++
		}
		last = ch.Version
	})
	for i := range 20 {
		op := Op{PutItem: &grebev1.Item{Id: string(rune('a' + i)), Tokens: text}}
		w := &writer{muts: make([]mutation, 1), wake: make(chan bool, 1)}
		w.muts[0].prepare(&op, 100)
		c.queue = append(c.queue, w)
	}
	c.busy = true
	for len(c.queue) > 0 {
		rounds = append(rounds, 0)
		last = c.Stats().Version
		c.lead()
	}
	total := 0
	for i, n := range rounds {
		if total += n; n > 9 || n == 0 || i == 0 && n < 8 {
			t.Errorf("rounds of %v writers of a megabyte", rounds)
			break
		}
	}
	if total != 20 || c.busy {
		t.Errorf("%d of 20 writers had their turn, somebody leads: %v", total, c.busy)
	}
}

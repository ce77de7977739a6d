package catalog

import (
	"os"
	"slices"
	"testing"
	"time"

	grebev1 "grebe/api/grebe/v1"
)

// A kill between the commit of a deletion and its subscribers leaves the deletion pending, so that the next process can
// carry it out. It stays pending, over restarts and a new user of that id, until it is done; then its record goes.
func TestDeletionsStayPendingUntilDone(t *testing.T) {
	dir, killed := t.TempDir(), t.TempDir()
	opt := Options{SweepDelay: time.Millisecond, TrackDeletions: true}
	// nothing is written while the folder is copied
	c := open(t, dir, Options{SweepDelay: time.Hour, TrackDeletions: true})
	put := func(c *Catalog) {
		t.Helper()
		if _, err := c.PutUser(&grebev1.User{Id: "somebody-in-particular", Tokens: []int32{1}}); err != nil {
			t.Fatal(err)
		}
	}
	put(c)
	c.Subscribe(func(ch Change) {
		if ch.NewUser != nil {
			return
		}
		if err := os.CopyFS(killed, os.DirFS(dir)); err != nil { // what a kill at this moment leaves
			t.Error(err)
		}
	})
	if _, err := c.DeleteUser("somebody-in-particular"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.DeleteUser("nobody"); err != nil {
		t.Fatal(err)
	}
	shut(t, c)

	c = open(t, killed, opt)
	want := []string{"somebody-in-particular"}
	if got := c.PendingDeletions(); !slices.Equal(got, want) {
		t.Fatalf("after a kill before the subscribers %q is pending, want %q", got, want)
	}
	first := c.PendingDeletion(want[0])
	put(c)
	c.DeletionDone(want[0], first+100) // of another deletion
	c.DeletionDone("nobody", 1)
	waitSwept(t, c)
	shut(t, c)

	c = open(t, killed, opt)
	if got := c.PendingDeletions(); !slices.Equal(got, want) {
		t.Fatalf("%q is pending, want %q", got, want)
	}
	if _, err := c.DeleteUser(want[0]); err != nil {
		t.Fatal(err)
	}
	second := c.PendingDeletion(want[0])
	if c.DeletionDone(want[0], first); second <= first || len(c.PendingDeletions()) != 1 {
		t.Fatalf("a deletion at version %d ended one at version %d", first, second)
	}
	c.DeletionDone(want[0], second)
	for c.deletions.anyDone() {
		time.Sleep(time.Millisecond) // until the sweep has cleared it
	}
	waitSwept(t, c)
	if got := c.PendingDeletions(); len(got) != 0 {
		t.Fatalf("%q is pending though it is done", got)
	}
	shut(t, c)
	if files := holds(t, killed, []byte(want[0])); len(files) > 0 {
		t.Errorf("%v name a user whose deletion is done", files)
	}
	c = open(t, killed, opt)
	defer shut(t, c)
	if got := c.PendingDeletions(); len(got) != 0 {
		t.Fatalf("%q is pending after a restart though it is done", got)
	}
}

package proto

import (
	"math/rand/v2"
	"path/filepath"
	"testing"

	"grebe/internal/durable/durabletest"
)

// removal is what an index owes its caller: a user who was removed is gone.
type removal struct{ gone bool }

// Copy implements durabletest.Lives.
func (r *removal) Copy() *removal { return &removal{r.gone} }

// A file of prototypes is written whole or not at all, and durably: a kill or a power cut between any two changes of
// the folder, in any order, leaves the index before or the one after, and after Write returned the one after. A user
// who was removed does not come back, and neither does one whom the index that was opened does not have.
func TestWriteSurvivesPowerCuts(t *testing.T) {
	x, _, _ := written(t)
	d := durabletest.NewDisk()
	dir := t.TempDir()
	stop, err := d.Mount(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	file := filepath.Join(dir, "m.proto")
	if err := x.Write(file); err != nil {
		t.Fatal(err)
	}
	source := x.prototypes[0].Source
	if pages := x.Remove(source); len(pages) == 0 {
		t.Fatal("nothing to remove")
	}
	l := &durabletest.Lives[*removal]{Every: 1}
	l.Use = func(_ *durabletest.Disk, owed *removal, _ string) {
		if err := x.Write(file); err != nil {
			t.Fatal(err)
		}
		owed.gone = true
	}
	l.Check = func(d *durabletest.Disk, owed *removal, what string) {
		at := t.TempDir()
		stop, err := d.Mount(at)
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
		y, err := Open(filepath.Join(at, "m.proto"))
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		defer y.Close()
		there := false
		for j := range y.prototypes {
			there = there || y.prototypes[j].Count > 0 && y.prototypes[j].Source == source
		}
		if there && owed.gone {
			t.Errorf("%s: a removed user came back", what)
		}
		owed.gone = !there
	}
	owed := &removal{}
	l.Run(d, owed, rand.New(rand.NewPCG(1, 61)), "write")
	l.Check(d.Cut(nil), owed, "a power cut after Write returned")
	if l.Tried() < 25 {
		t.Errorf("kills and power cuts were tried %d times", l.Tried())
	}
}

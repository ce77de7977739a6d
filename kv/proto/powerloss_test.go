package proto

import (
	"path/filepath"
	"testing"

	"grebe/internal/durable"
	"grebe/internal/durable/durabletest"
)

// A file of prototypes is written whole or not at all, and durably: a kill or a power cut between any two changes of the
// folder leaves the index before or the one after, and after Write returned the one after. So a user who was removed
// does not come back.
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
	var disks []*durabletest.Disk
	d.Before = func(durable.Kind, string) error {
		// A kill, and then a power cut; or the cut alone, which leaves the same.
		disks = append(disks, d.Kill(), d.Kill().Cut(nil))
		return nil
	}
	if err := x.Write(file); err != nil {
		t.Fatal(err)
	}
	d.Before = nil
	before := len(disks)
	disks = append(disks, d.Kill(), d.Kill().Cut(nil))
	for i, c := range disks {
		at := t.TempDir()
		stop, err := c.Mount(at)
		if err != nil {
			t.Fatal(err)
		}
		y, err := Open(filepath.Join(at, "m.proto"))
		if err != nil {
			t.Fatalf("boundary %d of %d: %v", i, len(disks), err)
		}
		there := false
		for j := range y.prototypes {
			there = there || y.prototypes[j].Count > 0 && y.prototypes[j].Source == source
		}
		if there && i >= before {
			t.Errorf("a removed user came back with a power cut after Write returned")
		}
		if err := y.Close(); err != nil {
			t.Error(err)
		}
		stop()
	}
	if before < 8 {
		t.Errorf("%d boundaries were tried", before)
	}
}

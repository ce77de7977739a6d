package ingest

import (
	"path/filepath"
	"testing"

	"grebe/internal/durable/durabletest"
)

// The state of an import survives a power cut whole. Once the import is done it is gone for good: a state that came
// back would make the next import of the file skip lines.
func TestImportStateSurvivesPowerCuts(t *testing.T) {
	d := durabletest.NewDisk()
	dir := t.TempDir()
	stop, err := d.Mount(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	s := &importState{name: filepath.Join(dir, "imports", "state.json"), Offset: 10, Digest: "known"}
	for range 2 {
		if err := s.save(nil); err != nil {
			t.Fatal(err)
		}
		if files := d.Cut(nil).Files(); len(files) != 1 || len(d.Cut(nil).Contents()) == 0 {
			t.Errorf("after a power cut there are %v with %q", files, d.Cut(nil).Contents())
		}
	}
	if err := s.remove(); err != nil {
		t.Fatal(err)
	}
	if files := d.Cut(nil).Files(); len(files) != 0 {
		t.Errorf("the state of an import that is done came back: %v", files)
	}
	if err := s.remove(); err != nil {
		t.Errorf("removed twice: %v", err)
	}
}

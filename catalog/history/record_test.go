package history

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"grebe/catalog"
)

// TestRecordWritesWhatOpenDoes compares the files of both, for a first version and for one after it.
func TestRecordWritesWhatOpenDoes(t *testing.T) {
	w := newWorld()
	r := rand.New(rand.NewPCG(5, 6))
	for range 300 {
		w.change(r)
	}
	options := func(dir string) Options {
		return Options{Dir: dir, Now: func() time.Time { return time.Unix(int64(w.version), 0) }}
	}
	opened, recorded := t.TempDir(), t.TempDir()
	for range 2 {
		mustDo(t, must(Open(slices.Values(w.entries()), w.version, options(opened))).Close())
		mustDo(t, Record(slices.Values(w.entries()), w.version, options(recorded)))
		names := must(os.ReadDir(opened))
		if len(names) < 2 || len(names) != len(must(os.ReadDir(recorded))) {
			t.Fatalf("%d files, %d of Record", len(names), len(must(os.ReadDir(recorded))))
		}
		for _, name := range names {
			want := must(os.ReadFile(filepath.Join(opened, name.Name())))
			if got := must(os.ReadFile(filepath.Join(recorded, name.Name()))); !slices.Equal(got, want) {
				t.Errorf("%s: %d bytes differ from %d", name.Name(), len(got), len(want))
			}
		}
		w.version++
		w.items["new"] = catalog.Entry{Item: w.entries()[0].Item, Version: w.version}
	}
}

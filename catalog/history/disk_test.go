package history

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"grebe/catalog"
	"grebe/prompt"
)

// A log that cannot be read is an error, and it is left as it is: it may be whole.
func TestALogThatCannotBeRead(t *testing.T) {
	dir, w := t.TempDir(), newWorld()
	w.fill(100)
	h := must(Open(slices.Values(w.entries()), w.version, w.options(dir)))
	for i := range 60 { // two generations
		w.put(fmt.Sprint("item", i), 3, 3)
		w.remember(must(h.Apply(w.delta())))
	}
	want := len(h.Versions())
	mustDo(t, h.Close())
	before := contentsOfFolder(t, dir)
	for _, fault := range []error{syscall.EIO, syscall.EMFILE, os.ErrPermission} {
		opt := w.options(dir)
		opt.readFile = func(name string) ([]byte, error) { return nil, &os.PathError{Op: "read", Path: name, Err: fault} }
		if _, err := Open(slices.Values(w.entries()), w.version, opt); !errors.Is(err, fault) {
			t.Fatalf("%v: %v", fault, err)
		}
		if fmt.Sprint(contentsOfFolder(t, dir)) != fmt.Sprint(before) {
			t.Fatalf("%v: the files have changed", fault)
		}
	}
	h = must(Open(slices.Values(w.entries()), w.version, w.options(dir)))
	defer h.Close()
	if len(h.Versions()) != want || h.Damaged() != 0 {
		t.Errorf("%d versions, %d damaged; want %d, none", len(h.Versions()), h.Damaged(), want)
	}
}

// On a disk that stays full the history does not begin a generation with every change, and keeps no more than two of
// them in memory. When there is room again what comes is on disk.
func TestADiskThatStaysFull(t *testing.T) {
	dir, w := t.TempDir(), newWorld()
	w.fill(100)
	opt := w.options(dir)
	opt.Keep = 1000
	now := time.Unix(1e9, 0)
	opt.Now = func() time.Time { return now }
	h := must(Open(slices.Values(w.entries()), w.version, opt))
	lift := limitFiles(t, 50)
	generations := map[*Generation]bool{}
	for i := range 200 {
		w.put(fmt.Sprint("item", i%100), 5, int32(i))
		if _, err := h.Apply(w.delta()); err == nil {
			t.Fatal("a version was written to a full disk")
		}
		generations[h.current] = true
		held := map[*Generation]bool{}
		for _, v := range h.Versions() {
			if v.gen.failed {
				held[v.gen] = true
			}
		}
		if len(held) > 2 {
			t.Fatalf("after %d changes %d generations that are not on disk are in memory", i+1, len(held))
		}
	}
	if len(generations) > 200/20+2 { // the log's length asks for one every 20 changes
		t.Errorf("%d generations were begun in no time", len(generations))
	}
	lift()
	now = now.Add(2 * longestPause)
	w.put("item1", 9, 9)
	w.remember(must(h.Apply(w.delta())))
	mustDo(t, h.Close())
	h = must(Open(slices.Values(w.entries()), w.version, opt))
	defer h.Close()
	if h.Damaged() != 0 || h.Head().Number != w.version {
		t.Errorf("%d damaged, version %d, want %d", h.Damaged(), h.Head().Number, w.version)
	}
	w.check(t, h, h.Head())
}

// A version whose items file is gone is reported as damaged, at a start and when it is loaded.
func TestAMissingItemsFile(t *testing.T) {
	dir, w := t.TempDir(), newWorld()
	w.fill(50)
	opt := w.options(dir)
	opt.Keep = 100
	h := must(Open(slices.Values(w.entries()), w.version, opt))
	first := h.Head()
	for i := range 60 {
		w.put(fmt.Sprint("item", i), 3, 3)
		must(h.Apply(w.delta()))
	}
	old := h.Versions()[0]
	if old.gen == h.current {
		t.Fatal("no second generation has begun")
	}
	h.Unload(old)
	mustDo(t, os.Remove(old.gen.file("items")))
	if err := h.Load(old); !errors.Is(err, ErrDamaged) || h.Damaged() != 1 {
		t.Errorf("loading version %d: %v, %d damaged", first.Number, err, h.Damaged())
	}
	g := &Generation{dir: filepath.Join(dir, "none"), begun: head{number: 1}}
	if _, err := g.list(h); !errors.Is(err, ErrDamaged) {
		t.Errorf("listing a generation that is gone: %v", err)
	}
	mustDo(t, h.Close())
}

// What was added to the catalog last, and is not in the log, is there after a start.
func TestTheNewestItemsAreRestored(t *testing.T) {
	dir, w := t.TempDir(), newWorld()
	w.fill(20)
	mustDo(t, must(Open(slices.Values(w.entries()), w.version, w.options(dir))).Close())
	for i := range 3 {
		w.version++
		id := fmt.Sprint("new", i)
		w.items[id] = catalog.Entry{Item: &prompt.Item{ID: id, Codes: []int32{1, 1}}, Version: w.version}
	}
	h := must(Open(slices.Values(w.entries()), w.version, w.options(dir)))
	defer h.Close()
	w.remember(h.Head())
	w.check(t, h, h.Head())
	if h.Head().Items != 23 {
		t.Errorf("%d items, want 23", h.Head().Items)
	}
}

package history

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"grebe/catalog"
	"grebe/internal/durable"
	"grebe/internal/durable/durabletest"
)

// mounted returns a folder that shows a disk.
func mounted(t *testing.T, d *durabletest.Disk) (dir string, unmount func()) {
	t.Helper()
	dir = t.TempDir() // a test that fails must leave nothing
	stop := must(d.Mount(dir))
	return filepath.Join(dir, "versions"), func() {
		stop()
		mustDo(t, os.RemoveAll(dir))
	}
}

// owed is what a history owes its callers: the versions that Apply acknowledged, or that could be seen.
type owed struct {
	version  uint64 // of the catalog
	items    map[string]catalog.Entry
	versions []uint64
}

// Copy implements durabletest.Lives.
func (o *owed) Copy() *owed { return &owed{o.version, maps.Clone(o.items), slices.Clone(o.versions)} }

// Versions of a catalog: a kill, a power cut, and both in turn, at every change of a file or a folder, with and
// without syncs that fail, and right after them. Every version that Apply acknowledged, or that a process listed, is
// there and whole, and the last one is what the catalog has.
func TestVersionsSurviveKillsAndPowerCuts(t *testing.T) {
	n, campaign := durabletest.Sequences(4)
	tried := 0
	for seed := range n {
		r := rand.New(rand.NewPCG(seed, 51))
		w, d, o := newWorld(), durabletest.NewDisk(), &owed{items: map[string]catalog.Entry{}}
		for life := range 5 {
			l := w.lives(t, r, seed%2 == 1)
			if l.Every = 1 + r.IntN(3); campaign && seed < 2 {
				l.Every = 1
			}
			d, o = l.Run(d, o, r, fmt.Sprintf("seed %d, life %d", seed, life))
			w.version, w.items, w.changed = o.version, maps.Clone(o.items), nil
			maps.DeleteFunc(w.was, func(version uint64, _ map[string]catalog.Entry) bool { return version > o.version })
			tried += l.Tried()
		}
	}
	t.Logf("%d sequences: opened %d times after a kill or a power cut", n, tried)
}

func (w *world) lives(t *testing.T, r *rand.Rand, fails bool) *durabletest.Lives[*owed] {
	opt := func(dir string) Options {
		o := w.options(dir)
		o.Keep, o.Compact = 1000, 12
		return o
	}
	failing := false
	l := &durabletest.Lives[*owed]{Fail: func(kind durable.Kind, _ string) error {
		if failing && kind == durable.OpSync {
			return syscall.EIO
		}
		return nil
	}}
	l.Check = func(d *durabletest.Disk, o *owed, what string) {
		cut := *w
		cut.version, cut.items = o.version, maps.Clone(o.items)
		dir, unmount := mounted(t, d)
		h, err := Open(slices.Values(cut.entries()), cut.version, opt(dir))
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		cut.pay(t, h, o, what)
		mustDo(t, h.Close())
		unmount()
	}
	l.Use = func(d *durabletest.Disk, o *owed, what string) {
		dir, unmount := mounted(t, d)
		h, err := Open(slices.Values(w.entries()), w.version, opt(dir))
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		o.version, o.items = w.version, maps.Clone(w.items)
		w.pay(t, h, o, what)
		for range 10 {
			for range 1 + r.IntN(3) + 30*(r.IntN(4)/3) { // at times so many that a generation begins
				w.change(r)
			}
			o.version, o.items = w.version, maps.Clone(w.items)
			failing = fails && r.IntN(5) == 0
			v, err := h.Apply(w.delta())
			failing = false
			w.remember(v)
			if err == nil && v.Number == w.version { // else nothing changed
				o.versions = append(o.versions, v.Number)
			}
		}
		mustDo(t, h.Close())
		unmount()
	}
	return l
}

// pay checks all versions, and that those that are owed are among them. Callers can see all of them, so they are owed
// from then on.
func (w *world) pay(t *testing.T, h *History, o *owed, what string) {
	t.Helper()
	w.remember(h.Head())
	var have []uint64
	for _, v := range h.Versions() {
		w.check(t, h, v)
		have = append(have, v.Number)
	}
	for _, number := range o.versions {
		if !slices.Contains(have, number) {
			t.Fatalf("%s: version %d was acknowledged and is gone: %v", what, number, have)
		}
	}
	o.versions = slices.Clone(have)
}

// Generations that are removed with their last version stay removed: they name items that were deleted.
func TestRemovedVersionsStayRemoved(t *testing.T) {
	w, d, r := newWorld(), durabletest.NewDisk(), rand.New(rand.NewPCG(1, 2))
	dir, unmount := mounted(t, d)
	defer unmount()
	opt := w.options(dir)
	opt.Keep, opt.Compact = 2, 10
	h := must(Open(slices.Values(w.entries()), w.version, opt))
	defer h.Close()
	for range 60 {
		w.change(r)
		must(h.Apply(w.delta()))
	}
	kept := map[uint64]bool{}
	for _, v := range h.Versions() {
		kept[v.First().Number] = true
	}
	for _, name := range d.Cut(nil).Files() {
		if n, ok := generationOf(filepath.Base(name)); ok && !kept[n] {
			t.Errorf("%s is back after a power cut", name)
		}
		if strings.HasSuffix(name, durable.PartSuffix) {
			t.Errorf("%s is left", name)
		}
	}
}

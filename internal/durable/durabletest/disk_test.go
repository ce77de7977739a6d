package durabletest

import (
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"grebe/internal/durable"
)

// mounted returns a disk and the real folder that it follows.
func mounted(t *testing.T, d *Disk) string {
	t.Helper()
	dir := t.TempDir()
	stop, err := d.Mount(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return dir
}

func text(s string) func(io.Writer) error {
	return func(w io.Writer) error { _, err := io.WriteString(w, s); return err }
}

// see returns the files of a disk with their contents.
func see(d *Disk) string {
	var out []string
	for _, name := range d.Files() {
		out = append(out, name+"="+string(d.find(name).pages.Data))
	}
	return strings.Join(out, " ")
}

// What a killed process wrote is there for the next one, and still goes with a power cut.
func TestKillKeepsWhatACutDrops(t *testing.T) {
	d := NewDisk()
	dir := mounted(t, d)
	if err := durable.WriteFile(filepath.Join(dir, "a"), text("one")); err != nil {
		t.Fatal(err)
	}
	f, err := durable.OpenFile(filepath.Join(dir, "a"), false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("two"), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := durable.OpenFile(filepath.Join(dir, "b"), true); err != nil {
		t.Fatal(err)
	}
	next := d.Kill()
	if got := see(next); got != "a=two b=" {
		t.Errorf("after a kill: %s", got)
	}
	if got := see(next.Cut(nil)); got != "a=one" {
		t.Errorf("after a kill and a power cut: %s", got)
	}
	// The next process makes it durable.
	again := mounted(t, next)
	g, err := durable.OpenFile(filepath.Join(again, "a"), false)
	if err = errors.Join(err, g.Sync(), durable.SyncDir(again)); err != nil {
		t.Fatal(err)
	}
	if got := see(next.Cut(nil)); got != "a=two b=" {
		t.Errorf("after a sync by the next process: %s", got)
	}
	if got := see(d.Cut(nil)); got != "a=one" {
		t.Errorf("the first process sees the second's syncs: %s", got)
	}
	if f.Close() != nil || g.Close() != nil {
		t.Error("close")
	}
	seen := map[string]bool{}
	for seed := range uint64(50) {
		seen[see(d.Cut(rand.New(rand.NewPCG(seed, 1))))] = true
	}
	for _, want := range []string{"a=one", "a=two", "a=one b=", "a=two b="} {
		if !seen[want] {
			t.Errorf("no power cut left %q", want)
		}
	}
	if len(seen) != 4 {
		t.Errorf("power cuts left %v", seen)
	}
}

// After a failed sync a later one does not help, but writing again does.
func TestFailedSyncLeavesPagesClean(t *testing.T) {
	d := NewDisk()
	dir := mounted(t, d)
	f, err := durable.OpenFile(filepath.Join(dir, "a"), true)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	write := func(s string) {
		t.Helper()
		if _, err := f.WriteAt([]byte(s), 0); err != nil {
			t.Fatal(err)
		}
	}
	write("one")
	if err := errors.Join(f.Sync(), durable.SyncDir(dir)); err != nil {
		t.Fatal(err)
	}
	write("two")
	d.Before = func(kind durable.Kind, _ string) error {
		if kind == durable.OpSync {
			return errors.New("no")
		}
		return nil
	}
	if err := f.Sync(); err == nil {
		t.Fatal("the sync did not fail")
	}
	d.Before = nil
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if got := see(d); got != "a=two" {
		t.Errorf("before the power cut: %s", got)
	}
	if got := see(d.Kill().Cut(nil)); got != "a=one" {
		t.Errorf("a sync after a failed one wrote pages that were clean: %s", got)
	}
	write("two")
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if got := see(d.Cut(nil)); got != "a=two" {
		t.Errorf("written again: %s", got)
	}
}

// Names, folders and sizes are durable when the sync that they need was made, and not before.
func TestNamesAreDurableAfterASyncOfTheirFolder(t *testing.T) {
	d := NewDisk()
	dir := mounted(t, d)
	if err := os.Mkdir(filepath.Join(dir, "unseen"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := durable.MkdirAll(filepath.Join(dir, "x", "y")); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "x", "y", "a")
	for _, s := range []string{"one", "three"} {
		if err := durable.WriteFile(name, text(s)); err != nil {
			t.Fatal(err)
		}
		if got := see(d.Cut(nil)); got != "x/y/a="+s {
			t.Errorf("after WriteFile: %s", got)
		}
	}
	if err := durable.Unlink(name); err != nil {
		t.Fatal(err)
	}
	if got := see(d.Cut(nil)); got != "x/y/a=three" || see(d) != "" {
		t.Errorf("removed without a sync: %s", got)
	}
	if err := durable.Remove(name); err != nil {
		t.Fatal(err)
	}
	if got := see(d.Cut(nil)); got != "" {
		t.Errorf("removed: %s", got)
	}
	if err := durable.WriteFile(name, text("four")); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(durable.RemoveAll(filepath.Join(dir, "x")),
		durable.RemoveAll(filepath.Join(dir, "nothing"))); err != nil {
		t.Fatal(err)
	}
	if got := see(d.Cut(nil)); got != "" || d.Cut(nil).find("x") != nil {
		t.Errorf("the whole folder removed: %s", got)
	}
}

// A file that is cut off or grows has its old length after a power cut.
func TestSizesAreDurableAfterASync(t *testing.T) {
	var p Pages
	p.WriteAt([]byte("hello"), 0)
	p.Sync()
	p.Resize(2)
	if c := p.Cut(nil); string(c.Data) != "hello" {
		t.Errorf("a cut off file: %q", c.Data)
	}
	p.FailSync()
	p.Sync()
	if c := p.Cut(nil); string(c.Data) != "hello" || p.Durable() {
		t.Errorf("cut off, and the sync failed: %q", c.Data)
	}
	p.Resize(2)
	p.Sync()
	if c := p.Cut(nil); string(c.Data) != "he" || !p.Durable() {
		t.Errorf("cut off again and synced: %q", c.Data)
	}
	p.WriteAt([]byte(strings.Repeat("x", 2000)), 2)
	if c := p.Cut(nil); string(c.Data) != "he" {
		t.Errorf("a file that grew: %q", c.Data)
	}
}

// Pebble's own view of the disk is the same.
func TestPebbleFS(t *testing.T) {
	d := NewDisk()
	f := d.FS()
	if err := f.MkdirAll("db/x", 0o700); err != nil {
		t.Fatal(err)
	}
	w, err := f.Create("db/x/a", vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("one")); err != nil {
		t.Fatal(err)
	}
	if err := w.Sync(); err != nil {
		t.Fatal(err)
	}
	if got := see(d.Cut(nil)); got != "" {
		t.Errorf("no folder is synced: %s", got)
	}
	for _, name := range []string{"", "db", "db/x"} {
		dir, err := f.OpenDir(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := dir.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	if got := see(d.Cut(nil)); got != "db/x/a=one" {
		t.Errorf("all folders are synced: %s", got)
	}
	if names, err := f.List("db/x"); err != nil || !slices.Equal(names, []string{"a"}) {
		t.Errorf("%v, %v", names, err)
	}
	if _, err := f.Lock("db/LOCK"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Lock("db/LOCK"); err == nil {
		t.Error("locked twice")
	}
	if _, err := d.Kill().FS().Lock("db/LOCK"); err != nil {
		t.Error("a killed process holds its lock")
	}
}

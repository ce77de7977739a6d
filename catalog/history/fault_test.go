package history

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"grebe/catalog"
	"grebe/prompt"
)

// put changes one item, which has codes.
func (w *world) put(id string, codes ...int32) {
	w.version++
	w.changed = append(w.changed, id)
	w.items[id] = catalog.Entry{Item: &prompt.Item{ID: id, Codes: codes}, Version: w.version}
}

func (w *world) fill(n int) {
	for i := range n {
		w.put(fmt.Sprint("item", i), int32(i), 7)
	}
	w.changed = nil
}

// limitFiles lets no file grow beyond n bytes, until the test ends or the returned function is called.
func limitFiles(t *testing.T, n uint64) (lift func()) {
	t.Helper()
	signal.Ignore(syscall.SIGXFSZ)
	var before syscall.Rlimit
	mustDo(t, syscall.Getrlimit(syscall.RLIMIT_FSIZE, &before))
	mustDo(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: n, Max: before.Max}))
	lift = func() { _ = syscall.Setrlimit(syscall.RLIMIT_FSIZE, &before) }
	t.Cleanup(lift)
	return lift
}

// A version that could not be written leaves a gap in the log, over which later ones do not lead: they
// need a generation of their own.
func TestVersionsAfterOneThatWasNotWritten(t *testing.T) {
	dir, w := t.TempDir(), newWorld()
	w.fill(100)
	h := must(Open(slices.Values(w.entries()), w.version, w.options(dir)))
	lift := limitFiles(t, 50) // the frame is cut off; the log can be truncated to what it was
	w.put("item1", 3, 3)
	if v, err := h.Apply(w.delta()); err == nil || v.Number != w.version {
		t.Fatalf("version %d, error %v: want %d, and that it is not on disk", v.Number, err, w.version)
	}
	lift()
	for i := range 3 {
		w.put(fmt.Sprint("item", i), 4, 4)
		w.remember(must(h.Apply(w.delta())))
	}
	want := h.Versions()
	mustDo(t, h.Close())
	h = must(Open(slices.Values(w.entries()), w.version, w.options(dir)))
	defer h.Close()
	if h.Damaged() != 0 {
		t.Errorf("%d files are damaged after a restart", h.Damaged())
	}
	for _, v := range want[len(want)-3:] {
		got, ok := h.Find(v.Number)
		if !ok || got.Digest != v.Digest {
			t.Fatalf("version %d, which was written, is lost", v.Number)
		}
		w.check(t, h, got)
	}
}

// Whoever reads an old version takes nothing from those who go on from it.
func TestPriorStaysLoaded(t *testing.T) {
	w := newWorld()
	w.fill(50)
	h := must(Open(slices.Values(w.entries()), w.version, w.options(t.TempDir())))
	defer h.Close()
	old := h.Head()
	for i := range 30 { // which come and go: more than w.options compacts at, but not many changes
		w.put(fmt.Sprint("item", i), 5, 5)
	}
	v := must(h.Apply(w.delta()))
	mustDo(t, h.Load(old))
	h.Unload(old)
	prior, _ := v.Prior()
	if prior == nil {
		t.Fatal("no new generation has begun")
	}
	if prior.gen.table == nil {
		t.Fatal("what the generation begins with was let go while it is asked for")
	}
}

// A folder's name is no pattern: files are removed whatever it is.
func TestFolderWithBrackets(t *testing.T) {
	w, r := newWorld(), rand.New(rand.NewPCG(8, 1))
	opt := w.options(filepath.Join(t.TempDir(), "data[1]*"))
	h := must(Open(slices.Values([]catalog.Entry{}), 0, opt))
	for range 300 {
		w.put("x", r.Int32N(1000))
		must(h.Apply(w.delta()))
	}
	mustDo(t, h.Close())
	n := 0
	for _, e := range must(os.ReadDir(opt.Dir)) {
		if e.Name()[0] == 'i' {
			n++
		}
	}
	if n > opt.Keep {
		t.Errorf("%d generations have files, but %d versions are kept", n, opt.Keep)
	}
}

// What a kill in the middle of a removal left is removed at the next start: it may name deleted items.
func TestLeftFilesAreRemoved(t *testing.T) {
	dir, w := t.TempDir(), newWorld()
	w.fill(10)
	mustDo(t, must(Open(slices.Values(w.entries()), w.version, w.options(dir))).Close())
	left := []string{fmt.Sprintf("log-%020d", 3), fmt.Sprintf("index-0011223344556677-%020d", 3)}
	for _, name := range append(slices.Clone(left), "activated.json", "README") {
		mustDo(t, os.WriteFile(filepath.Join(dir, name), []byte("{}"), 0o600))
	}
	h := must(Open(slices.Values(w.entries()), w.version, w.options(dir)))
	defer h.Close()
	var names []string
	for _, e := range must(os.ReadDir(dir)) {
		names = append(names, e.Name())
	}
	for _, name := range left {
		if slices.Contains(names, name) {
			t.Errorf("%s is still there", name)
		}
	}
	if !slices.Contains(names, "activated.json") || !slices.Contains(names, "README") || h.Damaged() != 0 {
		t.Errorf("%d damaged, and the folder has %v", h.Damaged(), names)
	}
}

// A file that cannot be opened is not a damaged one: nothing is thrown away for it.
func TestFilesThatCannotBeOpened(t *testing.T) {
	dir, w := t.TempDir(), newWorld()
	w.fill(50)
	h := must(Open(slices.Values(w.entries()), w.version, w.options(dir)))
	old := h.Head()
	for i := range 41 {
		w.put(fmt.Sprint("item", i), 5, 5)
	}
	must(h.Apply(w.delta()))
	w.put("item1", 6, 6)
	must(h.Apply(w.delta()))
	items := old.gen.file("items")
	limit := noMoreFiles(t)
	err := h.Load(old)
	limit()
	if err == nil || h.Damaged() != 0 {
		t.Errorf("no file can be opened: error %v, %d damaged", err, h.Damaged())
	}
	mustDo(t, h.Load(old))
	mustDo(t, h.Close())
	limit = noMoreFiles(t)
	h, err = Open(slices.Values(w.entries()), w.version, w.options(dir))
	limit()
	if err == nil {
		t.Errorf("it opens, with %d damaged", h.Damaged())
		h.Close()
	}
	if _, err := os.Stat(items); err != nil {
		t.Errorf("a file that could not be opened was removed: %v", err)
	}
}

// noMoreFiles lets no file be opened, until the returned function is called.
func noMoreFiles(t *testing.T) (lift func()) {
	t.Helper()
	var before syscall.Rlimit
	mustDo(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before))
	mustDo(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 3, Max: before.Max}))
	lift = func() { _ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before) }
	t.Cleanup(lift)
	return lift
}

// A damaged generation is removed, and no other: least of all the first one of a catalog that was empty.
func TestADamagedGenerationIsRemoved(t *testing.T) {
	dir, w := t.TempDir(), newWorld()
	h := must(Open(slices.Values([]catalog.Entry{}), 0, w.options(dir)))
	w.remember(h.Head())
	for i := range 41 {
		w.put(fmt.Sprint("item", i), 5, 5)
	}
	must(h.Apply(w.delta()))
	bad := h.Head().gen.file("items")
	mustDo(t, h.Close())
	mustDo(t, os.Truncate(bad, 90))
	h = must(Open(slices.Values(w.entries()), w.version, w.options(dir)))
	v, ok := h.Find(0)
	if !ok {
		t.Fatal("the generation before went with the damaged one")
	}
	w.check(t, h, v)
	if h.Damaged() != 1 {
		t.Errorf("%d damaged", h.Damaged())
	}
	mustDo(t, h.Close())
	h = must(Open(slices.Values(w.entries()), w.version, w.options(dir)))
	if h.Damaged() != 0 {
		t.Errorf("%d damaged at the next start", h.Damaged())
	}
	mustDo(t, h.Close())
}

// Postings count what they hold, also what they find for a question with many values.
func TestPostingsAreCounted(t *testing.T) {
	w := newWorld()
	h := must(Open(slices.Values([]catalog.Entry{}), 0, w.options("")))
	many := make([]string, 20)
	for i := range many {
		many[i] = fmt.Sprint(i % 12)
	}
	long := string(make([]byte, 1<<20))
	for step := range 30 {
		w.put(fmt.Sprint("item", step), 1)
		w.items[fmt.Sprint("item", step)].Item.Attributes = map[string][]string{"a": {fmt.Sprint(step % 12)}}
		table := must(h.Apply(w.delta())).Table()
		switch step % 3 {
		case 0:
			table.Having("a", []string{fmt.Sprint(step % 12), "3", "6"})
		case 1:
			table.Having("a", many)
		default:
			table.Having("a", []string{long, "9"})
			table.Having(long, []string{"9"})
		}
		held := 0
		for a, p := range table.found.kept {
			if held += len(p.slots); len(a.name)+len(a.value) > 100 {
				t.Fatalf("step %d: an attribute of %d bytes is kept", step, len(a.name)+len(a.value))
			}
		}
		if held != table.found.total {
			t.Fatalf("step %d: the postings hold %d slots and count %d", step, held, table.found.total)
		}
	}
}

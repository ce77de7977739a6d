package history

import (
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"grebe/catalog"
	"grebe/prompt"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("GREBE_TEST_WRITE"); dir != "" {
		writeUntilKilled(dir)
	}
	goleak.VerifyTestMain(m)
}

// world is a catalog in its plainest form, and all that it has been.
type world struct {
	version uint64
	items   map[string]catalog.Entry
	was     map[uint64]map[string]catalog.Entry // at the versions that were applied
	clock   time.Time
	changed []string
}

func newWorld() *world {
	return &world{items: map[string]catalog.Entry{}, was: map[uint64]map[string]catalog.Entry{}, clock: time.Unix(1e9, 0)}
}

func (w *world) entries() []catalog.Entry {
	out := slices.Collect(maps.Values(w.items))
	slices.SortFunc(out, func(a, b catalog.Entry) int { return int(int64(a.Version) - int64(b.Version)) })
	return out
}

func (w *world) change(r *rand.Rand) {
	w.version++
	id := fmt.Sprint("item", r.IntN(80))
	w.changed = append(w.changed, id)
	if r.IntN(3) == 0 {
		delete(w.items, id)
		return
	}
	it := &prompt.Item{ID: id, Identifier: r.Int32N(3) - 1}
	if r.IntN(2) == 0 {
		it.Text = fmt.Sprint("text ", r.IntN(100))
	}
	if r.IntN(3) == 0 {
		it.Tokens = make([]int32, r.IntN(3))
	}
	for range r.IntN(4) { // none at times
		it.Codes = append(it.Codes, r.Int32N(1000)-2)
	}
	for i := range r.IntN(3) {
		if it.Attributes == nil {
			it.Attributes = map[string][]string{}
		}
		it.Attributes[fmt.Sprint("a", i)] = []string{fmt.Sprint(r.IntN(3)), fmt.Sprint(r.IntN(3))}
	}
	w.items[id] = catalog.Entry{Item: it, Version: w.version}
}

// delta is what changed since it was last called.
func (w *world) delta() Delta {
	d := Delta{w.version, catalog.NewChanges()}
	for _, id := range w.changed {
		e := w.items[id]
		d.Changes.Add(catalog.Change{ID: id, Version: e.Version, NewItem: e.Item})
	}
	w.changed = nil
	return d
}

// countBare returns how many items have no codes.
func countBare(items []catalog.Entry) (bare int) {
	for _, e := range items {
		if len(e.Item.Codes) == 0 {
			bare++
		}
	}
	return bare
}

// added is a delta with items.
func added(version uint64, items ...catalog.Entry) Delta {
	d := Delta{version, catalog.NewChanges()}
	for _, e := range items {
		d.Changes.Add(catalog.Change{ID: e.Item.ID, Version: e.Version, NewItem: e.Item})
	}
	return d
}

func (w *world) remember(v *Version) {
	if w.was[v.Number] == nil {
		w.was[v.Number] = maps.Clone(w.items)
	}
}

func (w *world) options(dir string) Options {
	return Options{Dir: dir, Keep: 6, Compact: 40, Now: func() time.Time {
		w.clock = w.clock.Add(time.Second)
		return w.clock
	}}
}

type fataler interface {
	Helper()
	Fatalf(string, ...any)
	Fatal(...any)
}

// check holds a version against what the catalog was.
func (w *world) check(t fataler, h *History, v *Version) {
	t.Helper()
	if err := h.Load(v); err != nil {
		t.Fatal(err)
	}
	table, live := v.Table(), v.Live()
	var digest Digest
	got := map[string]bool{}
	last := uint64(0)
	for _, slot := range live {
		id := table.ID(slot)
		e := w.was[v.Number][id]
		if e.Item == nil || got[id] || !slices.Equal(table.Codes(nil, slot), e.Item.Codes) {
			t.Fatalf("version %d has %s with codes %v, want %v", v.Number, id, table.Codes(nil, slot), e.Item)
		}
		if it, whole := table.Item(slot); !whole || !reflect.DeepEqual(it, e.Item) {
			t.Fatalf("version %d has %+v, want %+v", v.Number, it, e.Item)
		}
		if found, ok := table.Find(id, func(s uint32) bool { return slices.Contains(live, s) }); !ok || found != slot {
			t.Fatalf("%s is found in slot %d, want %d", id, found, slot)
		}
		if e.Version < last {
			t.Fatalf("slots are not in the order of changes")
		}
		got[id], last = true, e.Version
		digest = digest.plus(digestOf(content(nil, e.Item)))
	}
	was := w.was[v.Number]
	bare := countBare(slices.Collect(maps.Values(was)))
	if len(got) != len(was) || v.Items != len(was)-bare || v.Bare != bare || v.Digest != digest {
		t.Fatalf("version %d has %d items, says %d and %d without codes, want %d and %d; digest %v, want %v",
			v.Number, len(got), v.Items, v.Bare, len(was)-bare, bare, v.Digest, digest)
	}
	w.checkAttributes(t, v, live)
	h.Unload(v)
}

func (w *world) checkAttributes(t fataler, v *Version, live []uint32) {
	t.Helper()
	table := v.Table()
	for i, slots := range table.Having("a0", []string{"0", "1", "2", "1", "3"}) {
		want := []uint32{}
		for _, slot := range live {
			if slices.Contains(w.was[v.Number][table.ID(slot)].Item.Attributes["a0"], []string{"0", "1", "2", "1", "3"}[i]) {
				want = append(want, slot)
			}
		}
		got := slices.DeleteFunc(slices.Clone(slots), func(s uint32) bool { return !slices.Contains(live, s) })
		if !slices.Equal(got, want) || !slices.IsSorted(slots) {
			t.Fatalf("version %d: value %d is in slots %v, want %v", v.Number, i, got, want)
		}
	}
}

// checkSteps holds the way from each version to the next of its generation against both.
func checkSteps(t fataler, h *History) {
	t.Helper()
	all := h.Versions()
	for i := 1; i < len(all); i++ {
		from, to := all[i-1], all[i]
		if !from.Before(to) {
			continue
		}
		if err := h.Load(to); err != nil {
			t.Fatal(err)
		}
		removed, added := to.Since(from)
		live := slices.DeleteFunc(from.Live(), func(s uint32) bool { return slices.Contains(removed, s) })
		if live = append(live, added...); !slices.Equal(live, to.Live()) {
			t.Fatalf("from %d to %d: -%v +%v", from.Number, to.Number, removed, added)
		}
		h.Unload(to)
	}
}

// A version with many changes begins a generation, whose items are in its file and not in memory. Versions before it
// stay, and are read again where they are needed. Where its files cannot be written it is made in memory.
func TestManyChangesBeginAGeneration(t *testing.T) {
	dir, w, r := filepath.Join(t.TempDir(), "versions"), newWorld(), rand.New(rand.NewPCG(3, 3))
	w.fill(20)
	h := must(Open(slices.Values(w.entries()), w.version, w.options(dir)))
	w.remember(h.Head())
	for range 300 {
		w.change(r)
	}
	v := must(h.Apply(w.delta()))
	w.remember(v)
	if before, _ := v.Prior(); !v.Base() || before != nil || h.current.table.base.owner == nil {
		t.Fatal("the version does not lie in a file of its own")
	}
	for _, v := range h.Versions() {
		w.check(t, h, v)
	}
	w.change(r)
	if v := must(h.Apply(w.delta())); v.Base() {
		t.Error("one change begins a generation")
	}
	w.remember(h.Head())
	mustDo(t, h.Close())
	h = must(Open(slices.Values(w.entries()), w.version, w.options(dir)))
	if n := len(h.Versions()); n != 3 || h.Damaged() > 0 {
		t.Errorf("after a restart there are %d versions, want 3; %d damaged", n, h.Damaged())
	}
	for _, v := range h.Versions() {
		w.check(t, h, v)
	}
	for range 300 {
		w.change(r)
	}
	mustDo(t, os.MkdirAll(filepath.Join(dir, fmt.Sprintf("items-%0*d.part", numberDigits, w.version), "x"), 0o700))
	v, err := h.Apply(w.delta())
	w.remember(v)
	if v.Number != w.version {
		t.Errorf("version %d, want %d: %v", v.Number, w.version, err)
	}
	w.check(t, h, v)
	mustDo(t, h.Close())
}

// Whatever changes, and however often the process starts again, every version that is kept has exactly
// the items that the catalog had then.
func TestVersionsAreWhatTheCatalogWas(t *testing.T) {
	dirs := t.TempDir()
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		dir := ""
		if rapid.Bool().Draw(t, "durable") {
			dir = filepath.Join(dirs, fmt.Sprint(n))
		}
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 2))
		w := newWorld()
		h, err := Open(slices.Values(w.entries()), w.version, w.options(dir))
		if err != nil {
			t.Fatal(err)
		}
		w.remember(h.Head())
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			for range rapid.OneOf(rapid.IntRange(0, 20), rapid.IntRange(60, 90)).Draw(t, "changes") {
				w.change(r)
			}
			if dir != "" && rapid.IntRange(0, 5).Draw(t, "restart") == 0 {
				if err := h.Close(); err != nil {
					t.Fatal(err)
				}
				w.changed = nil
				h, err = Open(slices.Values(w.entries()), w.version, w.options(dir))
			} else {
				_, err = h.Apply(w.delta())
			}
			if err != nil {
				t.Fatal(err)
			}
			w.remember(h.Head())
		}
		for _, v := range h.Versions() {
			w.check(t, h, v)
		}
		checkSteps(t, h)
		if len(h.Versions()) > 6 || h.Damaged() > 0 {
			t.Fatalf("%d versions, %d damaged", len(h.Versions()), h.Damaged())
		}
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// A catalog that did not change is read, not written.
func TestNothingIsWrittenAtAStartWithoutChanges(t *testing.T) {
	dir, w, r := t.TempDir(), newWorld(), rand.New(rand.NewPCG(1, 1))
	for range 200 {
		w.change(r)
	}
	h := must(Open(slices.Values(w.entries()), w.version, w.options(dir)))
	w.changed = nil
	for range 5 {
		w.change(r)
		must(h.Apply(w.delta()))
	}
	want := h.Versions()
	mustDo(t, h.Close())
	before := contentsOfFolder(t, dir)
	w.version += 3 // users changed
	h = must(Open(slices.Values(w.entries()), w.version, w.options(dir)))
	defer h.Close()
	if got := contentsOfFolder(t, dir); !reflect.DeepEqual(got, before) {
		t.Error("the files changed")
	}
	if h.current.table.base.owner == nil {
		t.Error("the items are not mapped")
	}
	for i, v := range h.Versions() {
		if v.Number != want[i].Number || v.Digest != want[i].Digest || !v.Created.Equal(want[i].Created) {
			t.Errorf("version %d of %v is read as %d of %v", want[i].Number, want[i].Created, v.Number, v.Created)
		}
	}
}

func contentsOfFolder(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, name := range must(filepath.Glob(filepath.Join(dir, "*"))) {
		info := must(os.Stat(name))
		out[filepath.Base(name)] = string(must(os.ReadFile(name))) + info.ModTime().String()
	}
	return out
}

// Whatever happens to the files, the last version is what the catalog has, those before are right or gone,
// and the damage is logged and counted.
func TestDamagedFiles(t *testing.T) {
	dir, w, r := t.TempDir(), newWorld(), rand.New(rand.NewPCG(3, 3))
	for range 100 {
		w.change(r)
	}
	opt := w.options(dir)
	opt.Keep = 30
	h := must(Open(slices.Values(w.entries()), w.version, opt))
	w.remember(h.Head())
	for range 25 {
		for range 3 {
			w.change(r)
		}
		w.remember(must(h.Apply(w.delta())))
	}
	mustDo(t, h.Close())
	names := must(filepath.Glob(filepath.Join(dir, "*")))
	if len(names) < 4 {
		t.Fatalf("two generations are wanted: %v", names)
	}
	for trial := range 100 {
		bad := filepath.Join(t.TempDir(), "v")
		mustDo(t, os.CopyFS(bad, os.DirFS(dir)))
		name := filepath.Join(bad, filepath.Base(names[r.IntN(len(names))]))
		data := must(os.ReadFile(name))
		if len(data) == 0 {
			continue
		}
		if at := r.IntN(len(data)); trial%2 == 0 {
			data[at] ^= 1 << r.IntN(8)
		} else {
			data = data[:at]
		}
		mustDo(t, os.WriteFile(name, data, 0o600))
		var log bytes.Buffer
		opt.Dir = bad
		opt.Logger = slog.New(slog.NewTextHandler(&log, nil))
		h, err := Open(slices.Values(w.entries()), w.version, opt)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		w.remember(h.Head())
		w.check(t, h, h.Head())
		for _, v := range h.Versions() {
			if h.Load(v) == nil {
				w.check(t, h, v)
			}
		}
		if damaged := h.Damaged(); damaged > 0 != strings.Contains(log.String(), "damaged") || damaged == 0 && trial%2 == 0 {
			t.Fatalf("%s: %d damaged, and the log says %s", name, damaged, log.String())
		}
		mustDo(t, h.Close())
	}
}

// What belongs to another catalog is not used.
func TestAnotherCatalog(t *testing.T) {
	for name, change := range map[string]func(*world){
		"earlier": func(w *world) { *w = *newWorld(); w.change(rand.New(rand.NewPCG(9, 9))) },
		"of other items": func(w *world) {
			w.items["item1"] = catalog.Entry{Item: &prompt.Item{ID: "item1", Codes: []int32{9, 9, 9}},
				Version: w.items["item1"].Version}
		},
	} {
		dir, w, r := t.TempDir(), newWorld(), rand.New(rand.NewPCG(5, 5))
		for w.items["item1"].Item == nil || len(w.items["item1"].Item.Codes) == 0 {
			w.change(r)
		}
		mustDo(t, must(Open(slices.Values(w.entries()), w.version, w.options(dir))).Close())
		change(w)
		w.was = map[uint64]map[string]catalog.Entry{}
		h := must(Open(slices.Values(w.entries()), w.version, w.options(dir)))
		w.remember(h.Head())
		w.check(t, h, h.Head())
		if h.Damaged() != 1 || len(h.Versions()) != 1 {
			t.Errorf("%s: %d damaged, %d versions", name, h.Damaged(), len(h.Versions()))
		}
		mustDo(t, h.Close())
	}
}

// A disk that fails costs no version in memory, and the next generation brings all of it to disk.
func TestAFullDisk(t *testing.T) {
	dir, w, r := t.TempDir(), newWorld(), rand.New(rand.NewPCG(7, 7))
	for range 50 {
		w.change(r)
	}
	h := must(Open(slices.Values(w.entries()), w.version, w.options(dir)))
	mustDo(t, h.current.log.Close())
	w.items["new"] = catalog.Entry{Item: &prompt.Item{ID: "new", Codes: []int32{1}}, Version: w.version + 1}
	w.version++
	w.changed = append(w.changed, "new")
	v := must(h.Apply(w.delta())) // the log cannot be written: a new generation begins
	if v.Number != w.version || !v.Base() {
		t.Errorf("version %d, want %d in a new generation", v.Number, w.version)
	}
	w.remember(v)
	w.check(t, h, h.Head())
	mustDo(t, h.Close())
	h = must(Open(slices.Values(w.entries()), w.version, w.options(dir)))
	w.check(t, h, h.Head())
	if h.Head().Number != w.version {
		t.Errorf("after a restart version %d, want %d", h.Head().Number, w.version)
	}
	mustDo(t, h.Close())
}

// Versions in use stay; of the others more are kept of the recent past than of the distant one.
func TestThin(t *testing.T) {
	w, r := newWorld(), rand.New(rand.NewPCG(8, 8))
	opt := w.options(t.TempDir())
	used := uint64(0)
	opt.InUse = func(v uint64) bool { return v == used }
	h := must(Open(slices.Values([]catalog.Entry{}), 0, opt))
	for i := range 200 {
		w.items["x"] = catalog.Entry{Item: &prompt.Item{ID: "x", Codes: []int32{r.Int32N(1000)}}, Version: w.version + 1}
		w.version++
		w.changed = []string{"x"}
		v := must(h.Apply(w.delta()))
		if i == 50 {
			used = v.Number
		}
	}
	var ages []int
	for _, v := range h.Versions() {
		ages = append(ages, int(w.version-v.Number))
	}
	if len(ages) != 6 || ages[5] != 0 || ages[4] > 3 || ages[0] < 100 || !slices.Contains(ages, int(w.version-used)) {
		t.Errorf("versions of %v changes ago are kept", ages)
	}
	mustDo(t, h.Close())
	files := must(filepath.Glob(filepath.Join(opt.Dir, "items-*")))
	if len(files) > 6 {
		t.Errorf("%d generations have files", len(files))
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func mustDo(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

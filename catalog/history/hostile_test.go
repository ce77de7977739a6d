package history

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"grebe/catalog"
	"grebe/internal/locktest"
	"grebe/prompt"
)

// itemsFile is a file of items as writeItems makes it, with a checksum that is right, of whatever it is given.
func itemsFile(magic string, h head, n uint64, marks []uint64, blob []byte) []byte {
	b := append([]byte(magic), h.encode()...)
	b = binary.LittleEndian.AppendUint64(b, n)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(blob)))
	for _, m := range marks {
		b = binary.LittleEndian.AppendUint64(b, m)
	}
	b = append(b, blob...)
	return binary.LittleEndian.AppendUint64(b, uint64(crc32.Checksum(b, castagnoli)))
}

// Files of items whose checksums are right and whose contents are not are refused.
func TestItemsFilesThatCannotBe(t *testing.T) {
	var s segment
	for i := range 20 {
		s.add(uint64(i+1), content(nil, &prompt.Item{ID: fmt.Sprint(i), Codes: []int32{1}}))
	}
	good := head{number: 5, created: time.Unix(1, 0), items: 20, digest: s.digest()}
	bare := good
	bare.items, bare.bare = 15, 5
	if h, got, err := parseItems(itemsFile(itemsMagic, good, 20, s.marks, s.blob)); err != nil || h.number != 5 ||
		got.n != 20 || got.plain {
		t.Fatalf("a good file: %+v, %v", h, err)
	}
	if _, _, err := parseItems(itemsFile(itemsMagic, bare, 20, s.marks, s.blob)); err != nil {
		t.Errorf("items without codes: %v", err)
	}
	if _, got, err := parseItems(itemsFile(plainMagic, good, 20, s.marks, s.blob)); err != nil || !got.plain {
		t.Errorf("the format before: %v", err)
	}
	digest, few, negative, negativeBare := good, good, good, good
	digest.digest[1]++
	few.items = 19
	negative.items, negative.bare = -5, 25
	negativeBare.items, negativeBare.bare = 25, -5
	short := append([]byte{2}, s.blob[1:]...) // the first record ends early
	for name, b := range map[string][]byte{
		"another magic":               itemsFile("grebeIT3", good, 20, s.marks, s.blob),
		"another digest":              itemsFile(itemsMagic, digest, 20, s.marks, s.blob),
		"fewer items":                 itemsFile(itemsMagic, few, 20, s.marks, s.blob),
		"a negative number":           itemsFile(itemsMagic, negative, 20, s.marks, s.blob),
		"another negative number":     itemsFile(itemsMagic, negativeBare, 20, s.marks, s.blob),
		"bare ones of format 1":       itemsFile(plainMagic, bare, 20, s.marks, s.blob),
		"a mark elsewhere":            itemsFile(itemsMagic, good, 20, []uint64{0, s.marks[1] + 1}, s.blob),
		"a first mark elsewhere":      itemsFile(itemsMagic, good, 20, []uint64{1, s.marks[1]}, s.blob),
		"a mark too many":             itemsFile(itemsMagic, good, 20, append(slices.Clone(s.marks), 7), s.blob),
		"a byte too many":             itemsFile(itemsMagic, good, 20, s.marks, append(slices.Clone(s.blob), 0)),
		"a byte too few":              itemsFile(itemsMagic, good, 20, s.marks, s.blob[:len(s.blob)-1]),
		"a short record":              itemsFile(itemsMagic, good, 20, s.marks, short),
		"nothing":                     {},
		"no more than its fixed part": itemsFile(itemsMagic, head{created: time.Unix(1, 0)}, 0, nil, nil)[:95],
	} {
		if _, _, err := parseItems(b); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, empty, err := parseItems(itemsFile(itemsMagic, head{created: time.Unix(1, 0)}, 0, nil, nil)); err != nil ||
		empty.n != 0 {
		t.Errorf("no items: %v", err)
	}
	flipped := itemsFile(itemsMagic, good, 20, s.marks, s.blob)
	flipped[len(flipped)-1] ^= 1
	if _, _, err := parseItems(flipped); !errors.Is(err, ErrDamaged) {
		t.Errorf("another checksum: %v", err)
	}
}

// A head is read back as it was written, and refused with any byte changed.
func TestHeads(t *testing.T) {
	h := head{number: 1 << 40, created: time.Unix(1e9, 5), bare: 3, items: 4, digest: Digest{5, 6}}
	b := h.encode()
	if got, err := decodeHead(b); err != nil || got.number != h.number || !got.created.Equal(h.created) || got.bare != 3 ||
		got.items != 4 || got.digest != h.digest || len(b) != headSize {
		t.Fatalf("%+v, %v", got, err)
	}
	for i := range b {
		b[i] ^= 1
		if _, err := decodeHead(b); !errors.Is(err, ErrDamaged) {
			t.Errorf("byte %d changed: %v", i, err)
		}
		b[i] ^= 1
	}
	if _, err := decodeHead(b[:headSize-1]); !errors.Is(err, ErrDamaged) {
		t.Errorf("a byte too few: %v", err)
	}
}

// logFrame is a frame of a log with a checksum that is right.
func logFrame(body []byte) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(body)))
	return append(binary.LittleEndian.AppendUint64(b, uint64(crc32.Checksum(body, castagnoli))), body...)
}

// A log is read as far as its frames are whole.
func TestLogsThatCannotBe(t *testing.T) {
	h := head{number: 5, created: time.Unix(1, 0), items: 2}
	var s segment
	s.add(7, []byte("\x01a\x00\x00"))
	body := append(h.encode(), 2, 4, 6, 1)
	good := logFrame(append(slices.Clone(body), s.blob...))
	frames, size, unsure, err := readLog(append(slices.Clone(good), good...))
	if err != nil || unsure || len(frames) != 2 || size != int64(2*len(good)) || frames[1].at != int64(len(good)) {
		t.Fatalf("%d frames in %d bytes, %v", len(frames), size, err)
	}
	if f := frames[1]; f.version != 5 || f.items != 2 || !slices.Equal(f.removed, []uint32{4, 6}) || len(f.added) != 1 ||
		f.added[0].version != 7 || f.added[0].id() != "a" {
		t.Errorf("a frame is read as %+v", f)
	}
	for name, end := range map[string][]byte{
		"15 bytes":             good[:15],
		"half a frame":         good[:len(good)-1],
		"no head":              logFrame(h.encode()[:headSize-1]),
		"a record too few":     logFrame(body),
		"half a record":        logFrame(append(slices.Clone(body), s.blob[:len(s.blob)-1]...)),
		"an empty record":      logFrame(append(slices.Clone(body), 0)),
		"a record of no bytes": logFrame(append(slices.Clone(body), 1, 255)),
		"a length of 2^63":     binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, 1<<63), 0),
	} {
		frames, size, _, err := readLog(append(slices.Clone(good), end...))
		if !errors.Is(err, ErrDamaged) || len(frames) != 1 || size != int64(len(good)) {
			t.Errorf("%s at the end: %d frames, %d bytes, %v", name, len(frames), size, err)
		}
	}
}

// A frame that does not lead from the version before it ends the log, though its checksum is right. What comes after it
// is cut off.
func TestFramesThatDoNotFit(t *testing.T) {
	for name, change := range map[string]func(g *Generation, f *frame){
		"the version before":  func(g *Generation, f *frame) { f.version = g.now.number },
		"a slot that is not":  func(g *Generation, f *frame) { f.removed = []uint32{uint32(g.table.Slots())} },
		"a slot out of use":   func(g *Generation, f *frame) { f.removed = []uint32{1}; f.added = nil },
		"another digest":      func(g *Generation, f *frame) { f.digest[0]++ },
		"another number":      func(g *Generation, f *frame) { f.items++ },
		"items without codes": func(g *Generation, f *frame) { f.bare++ },
	} {
		dir, w := t.TempDir(), newWorld()
		w.fill(30)
		opt := w.options(dir)
		h := must(Open(slices.Values(w.entries()), w.version, opt))
		w.put("item1", 9, 9)
		w.remember(must(h.Apply(w.delta())))
		before := h.Head()
		g := h.current
		e := catalog.Entry{Item: &prompt.Item{ID: "new", Codes: []int32{1, 1}}, Version: w.version + 1}
		f := frame{version: w.version + 1, created: time.Unix(2e9, 0), added: []record{{e.Version, content(nil, e.Item)}},
			items: g.now.items + 1, digest: g.now.digest.plus(digestOf(content(nil, e.Item)))}
		if err := g.fits(&f); err != nil {
			t.Fatalf("a frame that fits: %v", err)
		}
		change(g, &f)
		if err := g.fits(&f); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
		mustDo(t, g.write(&f))
		log := g.file("log")
		mustDo(t, h.Close())
		size := must(os.Stat(log)).Size()
		h = must(Open(slices.Values(w.entries()), w.version, w.options(dir)))
		if h.Damaged() != 1 || h.Head().Number != before.Number || must(os.Stat(log)).Size() >= size {
			t.Errorf("%s: %d damaged, version %d, want %d", name, h.Damaged(), h.Head().Number, before.Number)
		}
		w.check(t, h, h.Head())
		mustDo(t, h.Close())
		h = must(Open(slices.Values(w.entries()), w.version, w.options(dir)))
		if h.Damaged() != 0 {
			t.Errorf("%s: damaged at the next start too", name)
		}
		mustDo(t, h.Close())
	}
}

// Older generations whose files are not what they should be are removed at a start, and counted; the others stay.
func TestOldGenerationsThatAreDamaged(t *testing.T) {
	for name, change := range map[string]func(b []byte) []byte{
		"another magic": func(b []byte) []byte { b[0]++; return b },
		"a wrong head":  func(b []byte) []byte { b[len(itemsMagic)] ^= 1; return b },
		"another version": func(b []byte) []byte {
			h := must(decodeHead(b[8:]))
			h.number++
			copy(b[8:],
				h.encode())
			return b
		},
		"half a head": func(b []byte) []byte { return b[:40] },
		"nothing":     func(b []byte) []byte { return nil },
	} {
		dir, w := t.TempDir(), newWorld()
		w.fill(30)
		opt := w.options(dir)
		h := must(Open(slices.Values(w.entries()), w.version, opt))
		old := h.Head().gen.file("items")
		for i := range 41 {
			w.put(fmt.Sprint("item", i), 5, 5)
		}
		w.remember(must(h.Apply(w.delta())))
		w.put("item1", 6, 6)
		w.remember(must(h.Apply(w.delta())))
		if h.Head().gen.file("items") == old {
			t.Fatal("no new generation has begun")
		}
		mustDo(t, h.Close())
		mustDo(t, os.WriteFile(old, change(must(os.ReadFile(old))), 0o600))
		h = must(Open(slices.Values(w.entries()), w.version, w.options(dir)))
		if h.Damaged() != 1 || len(h.Versions()) != 2 {
			t.Errorf("%s: %d damaged, %d versions", name, h.Damaged(), len(h.Versions()))
		}
		w.check(t, h, h.Head())
		if _, err := os.Stat(old); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: the file is left: %v", name, err)
		}
		mustDo(t, h.Close())
	}
}

// A version whose log ends before it cannot be loaded, and is dropped when it is forgotten. The last one never is.
func TestVersionsAreForgotten(t *testing.T) {
	dir, w := t.TempDir(), newWorld()
	w.fill(30)
	h := must(Open(slices.Values(w.entries()), w.version, w.options(dir)))
	w.put("item1", 6, 6)
	cut := must(h.Apply(w.delta()))
	first := h.Versions()[0]
	for i := range 41 {
		w.put(fmt.Sprint("item", i), 5, 5)
	}
	must(h.Apply(w.delta()))
	w.put("item1", 7, 7)
	head := must(h.Apply(w.delta()))
	mustDo(t, h.Load(cut))
	h.Unload(cut)
	mustDo(t, os.Truncate(cut.gen.file("log"), 0))
	if err := h.Load(cut); !errors.Is(err, ErrDamaged) {
		t.Errorf("a version that its log does not have: %v", err)
	}
	mustDo(t, h.Load(first))
	h.Unload(first)
	files := func() int { return len(must(filepath.Glob(filepath.Join(dir, "items-*")))) }
	h.Forget(cut)
	h.Forget(cut) // it is not there any more
	if _, ok := h.Find(cut.Number); ok || len(h.Versions()) != 3 || files() != 2 {
		t.Errorf("%d versions and %d files after one was forgotten", len(h.Versions()), files())
	}
	h.Forget(first)
	if len(h.Versions()) != 2 || files() != 1 {
		t.Errorf("%d versions and %d files after its generation was forgotten", len(h.Versions()), files())
	}
	h.Forget(head)
	if h.Head() != head {
		t.Error("the last version was forgotten")
	}
	if _, ok := h.Find(12345); ok {
		t.Error("a version that never was is found")
	}
	mustDo(t, h.Close())
}

// Damage that others find counts.
func TestHurt(t *testing.T) {
	h := must(Open(slices.Values([]catalog.Entry{}), 0, Options{}))
	h.Hurt("x", errors.New("y"))
	if h.Damaged() != 1 {
		t.Errorf("%d damaged", h.Damaged())
	}
	if name := h.Head().IndexFile("x"); name != "" {
		t.Errorf("a history in memory names the file %s", name)
	}
}

// Versions and their files are named after the generation.
func TestFilesOfGenerations(t *testing.T) {
	for name, want := range map[string]uint64{
		"items-00000000000000000012": 12, "index-abc-00000000000000000000": 0, "log-00000000000000000012.part": 12,
	} {
		if n, ok := generationOf(name); !ok || n != want {
			t.Errorf("%s: %d, %v", name, n, ok)
		}
	}
	for _, name := range []string{"items-12", "items", "-", "", "items-0000000000000000001x",
		"items-000000000000000000012", "activated.json"} {
		if n, ok := generationOf(name); ok {
			t.Errorf("%s is of generation %d", name, n)
		}
	}
}

// What a part of the log comes to leaves out the items that came and went in it.
func TestSinceLeavesOutWhatCameAndWent(t *testing.T) {
	w := newWorld()
	w.fill(10)
	h := must(Open(slices.Values(w.entries()), w.version, w.options("")))
	from := h.Head()
	w.put("item1", 6, 6) // slot 10
	w.put("new", 1, 1)   // slot 11
	must(h.Apply(w.delta()))
	w.put("item1", 7, 7) // slot 12, for slot 10
	w.version++
	w.changed = append(w.changed, "new", "item2")
	delete(w.items, "new")
	delete(w.items, "item2")
	to := must(h.Apply(w.delta()))
	removed, added := to.Since(from)
	slices.Sort(removed)
	if !slices.Equal(removed, []uint32{1, 2}) || !slices.Equal(added, []uint32{12}) {
		t.Errorf("-%v +%v, want -[1 2] +[12]", removed, added)
	}
	if !from.Before(to) || to.Before(from) || !from.Before(from) || !from.Base() || to.Base() {
		t.Error("the order of two versions is wrong")
	}
}

// Items of imports get their slots when the import ends, out of the order of their versions: a start finds nothing
// changed.
func TestItemsOutOfOrderAreFollowed(t *testing.T) {
	dir, w := t.TempDir(), newWorld()
	w.fill(20)
	h := must(Open(slices.Values(w.entries()), w.version, w.options(dir)))
	entry := func(id string, version uint64) catalog.Entry {
		e := catalog.Entry{Item: &prompt.Item{ID: id, Codes: []int32{int32(version)}}, Version: version}
		w.items[id] = e
		return e
	}
	late := entry("late", 30) // of another change than that of the import
	must(h.Apply(added(31, late)))
	must(h.Apply(added(40, entry("import1", 25), entry("import2", 26))))
	w.version = 40
	w.remember(h.Head())
	digest := h.Head().Digest
	mustDo(t, h.Close())
	h = must(Open(slices.Values(w.entries()), w.version, w.options(dir)))
	if len(h.Versions()) != 3 || h.Damaged() != 0 || h.Head().Digest != digest {
		t.Errorf("%d versions, %d damaged after a start", len(h.Versions()), h.Damaged())
	}
	mustDo(t, h.Close())
	delete(w.items, "import1")
	entry("between", 28)
	w.version = 41
	h = must(Open(slices.Values(w.entries()), w.version, w.options(dir)))
	defer h.Close()
	if h.Head().Number != 41 || h.Head().Items != 23-1+1 || h.Damaged() != 0 {
		t.Errorf("version %d with %d items, %d damaged", h.Head().Number, h.Head().Items, h.Damaged())
	}
	for id, want := range map[string]bool{"import1": false, "import2": true, "between": true, "late": true} {
		if _, ok := h.Head().Table().Find(id, h.current.lives); ok != want {
			t.Errorf("item %s is there: %v", id, ok)
		}
	}
}

// A table has the items that it was made of, whether few or many slots are asked for.
func TestTables(t *testing.T) {
	var items []*prompt.Item
	for i := range 100 {
		it := &prompt.Item{ID: fmt.Sprint("i", i), Text: "t", Identifier: int32(i) - 1}
		for c := range i % 4 {
			it.Codes = append(it.Codes, int32(c-1))
		}
		if i%5 == 0 {
			it.Tokens = make([]int32, i%3)
			it.Attributes = map[string][]string{fmt.Sprint("a", i%10): {"x", "y"}, "b": {}}
		}
		items = append(items, it)
	}
	table := NewTable(items)
	if table.Slots() != 100 {
		t.Fatalf("%d slots", table.Slots())
	}
	for _, n := range []int{0, 1, 5, 6, 7, 50, 100} {
		var slots, seen []uint32
		for i := range n {
			slots = append(slots, uint32(i*100/n))
		}
		table.Paths(slots, func(slot uint32, codes []int32) {
			seen = append(seen, slot)
			if !slices.Equal(codes, items[slot].Codes) {
				t.Errorf("slot %d has the codes %v, want %v", slot, codes, items[slot].Codes)
			}
		})
		if !slices.Equal(seen, slots) {
			t.Errorf("%d slots are asked for: %v are seen", n, seen)
		}
	}
	for i, it := range items {
		slot, ok := table.Find(it.ID, func(uint32) bool { return true })
		got, whole := table.Item(slot)
		if !ok || slot != uint32(i) || !whole || got.ID != it.ID || got.Identifier != it.Identifier ||
			(got.Tokens == nil) != (it.Tokens == nil) ||
			len(got.Tokens) != len(it.Tokens) || len(got.Attributes) != len(it.Attributes) || len(got.Codes) != len(it.Codes) {
			t.Errorf("item %d is %+v, want %+v", i, got, it)
		}
	}
	if _, ok := table.Find("none", func(uint32) bool { return true }); ok {
		t.Error("an item that is not there is found")
	}
	if has, all := table.Named("c"); has || !slices.Equal(all, []string{"a0", "a5", "b"}) {
		t.Errorf("an attribute that no item has: %v, %v", has, all)
	}
	for range 2 {
		if has, _ := table.Named("a5"); !has {
			t.Error("an attribute that items have is not there")
		}
	}
	if got := table.Having("a5", []string{"y", "none"}); len(got[0]) != 10 || got[0][0] != 5 || len(got[1]) != 0 {
		t.Errorf("items with a value: %v", got)
	}
}

// Of too many names of attributes all are taken to be there; names that come later are found.
func TestNamesOfAttributes(t *testing.T) {
	w := newWorld()
	h := must(Open(slices.Values([]catalog.Entry{}), 0, w.options("")))
	named := func(id string, names ...string) *Table {
		w.put(id, 1)
		w.items[id].Item.Attributes = map[string][]string{}
		for _, n := range names {
			w.items[id].Item.Attributes[n] = []string{"x"}
		}
		return must(h.Apply(w.delta())).Table()
	}
	table := named("one", "a", "b")
	if has, all := table.Named("c"); has || !slices.Equal(all, []string{"a", "b"}) {
		t.Errorf("%v, %v", has, all)
	}
	if has, _ := named("two", "c").Named("c"); !has {
		t.Error("a name that came later is not found")
	}
	var many []string
	for i := range maxNames - 3 {
		many = append(many, fmt.Sprint("n", i))
	}
	table = named("three", many...)
	if has, all := table.Named("none"); has || len(all) != maxNames {
		t.Errorf("of %d names: %v, %d", maxNames, has, len(all))
	}
	if has, _ := named("four", "one more").Named("none"); !has {
		t.Errorf("more than %d names are remembered", maxNames)
	}
}

// What is remembered of attributes is bounded in number and in slots.
func TestPostingsAreBounded(t *testing.T) {
	var items []*prompt.Item
	for i := range 3000 {
		items = append(items, &prompt.Item{ID: fmt.Sprint(i), Attributes: map[string][]string{"a": {"all", fmt.Sprint(i)}}})
	}
	table := NewTable(items)
	ask := func(from, n int) {
		var values []string
		for i := range n {
			values = append(values, fmt.Sprint(from+i))
		}
		for i, slots := range table.Having("a", values) {
			if want := from + i; want < 3000 && (len(slots) != 1 || slots[0] != uint32(want)) {
				t.Fatalf("value %d is in slots %v", want, slots)
			}
		}
	}
	kept := func() int { return len(table.found.kept) }
	if ask(0, maxAtOnce+1); kept() != 0 {
		t.Errorf("%d are remembered of nine at once", kept())
	}
	if ask(0, maxAtOnce); kept() != maxAtOnce {
		t.Errorf("%d are remembered of eight at once", kept())
	}
	for i := range maxPostings / maxAtOnce {
		ask(i*maxAtOnce, maxAtOnce)
	}
	if kept() != maxPostings || table.found.total != maxPostings {
		t.Errorf("%d are remembered, with %d slots; want %d", kept(), table.found.total, maxPostings)
	}
	if ask(2000, 1); kept() != 0 || table.found.total != 0 {
		t.Errorf("one more, and %d are remembered, with %d slots", kept(), table.found.total)
	}
	table.Having("a", []string{"all"})
	if table.found.total != 3000 {
		t.Errorf("%d slots are counted, want 3,000", table.found.total)
	}
	long := strings.Repeat("x", maxNamed-1)
	table.Having("a", []string{long, long + "x"})
	if table.found.kept[attribute{"a", long}] == nil || table.found.kept[attribute{"a", long + "x"}] != nil {
		t.Error("names and values of 1,024 bytes are remembered, longer ones are not")
	}
	p := &postings{}
	for i, w := range []struct {
		total int
		keeps bool
	}{{minPosted, true}, {1, false}, {minPosted + 1, false}} {
		p.keep(table, fmt.Sprint(i), map[string]*posting{"x": {}}, w.total)
		if (p.kept[attribute{fmt.Sprint(i), "x"}] != nil) != w.keeps {
			t.Errorf("%d more slots beside those before are remembered: %v", w.total, !w.keeps)
		}
	}
}

// Without options a history has the documented ones.
func TestDefaults(t *testing.T) {
	var o Options
	o.setDefaults()
	if o.Keep != 16 || o.Compact != 16384 || o.InUse(1) || o.Logger == nil || o.Now().IsZero() {
		t.Errorf("%+v", o)
	}
	o = Options{Keep: 1, Compact: 1}
	if o.setDefaults(); o.Keep != 1 || o.Compact != 1 {
		t.Errorf("%+v", o)
	}
	g := &Generation{baseSlots: 400, ops: make([]uint32, 100)}
	for least, want := range map[int]bool{99: false, 100: false, 101: false, 40: false} {
		if g.long(least) != want {
			t.Errorf("100 changes of 400 items, at least %d: long %v", least, !want)
		}
	}
	if g.ops = append(g.ops, 0); !g.long(40) || !g.long(100) || g.long(101) {
		t.Error("101 changes of 400 items are a reason for the next generation")
	}
}

// After a disk failed, the next attempt is after a pause that doubles up to a minute, and begins anew when one
// succeeded.
func TestPausesOfAFailingDisk(t *testing.T) {
	dir, w := filepath.Join(t.TempDir(), "versions"), newWorld()
	w.fill(30)
	opt := w.options(dir)
	now := time.Unix(1e9, 0)
	opt.Now = func() time.Time { return now }
	h := must(Open(slices.Values(w.entries()), w.version, opt))
	apply := func() error {
		w.put("item1", 1, int32(w.version))
		_, err := h.Apply(w.delta())
		return err
	}
	mustDo(t, h.current.log.Close()) // what is appended to it fails
	mustDo(t, os.Rename(dir, dir+".away"))
	mustDo(t, os.WriteFile(dir, nil, 0o600)) // no folder can be made there
	for i, pause := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		g := h.current
		if err := apply(); err == nil || h.current == g {
			t.Fatalf("attempt %d: %v, a new generation %v", i, err, h.current != g)
		}
		g = h.current
		now = now.Add(pause*time.Second - 1)
		if err := apply(); err == nil || h.current != g {
			t.Errorf("attempt %d: %v after less than %ds, a new generation %v", i, err, pause, h.current != g)
		}
		now = now.Add(1)
	}
	mustDo(t, os.Remove(dir))
	mustDo(t, os.Rename(dir+".away", dir))
	if err := apply(); err != nil {
		t.Fatal(err)
	}
	if h.pause != 0 {
		t.Errorf("the next pause is %v", 2*h.pause)
	}
	w.remember(h.Head())
	mustDo(t, h.Close())
	h = must(Open(slices.Values(w.entries()), w.version, opt))
	w.check(t, h, h.Head())
	mustDo(t, h.Close())
}

// What a history has changes under its lock alone.
func TestHistoryCallsWaitForTheLock(t *testing.T) {
	w := newWorld()
	w.fill(10)
	h := must(Open(slices.Values(w.entries()), w.version, w.options(t.TempDir())))
	v := h.Head()
	table := v.Table()
	locktest.Waits(t, "Damaged", h.mu.Lock, h.mu.Unlock, func() { h.Damaged() })
	locktest.Waits(t, "Hurt", h.mu.Lock, h.mu.Unlock, func() { h.Hurt("", nil) })
	locktest.Waits(t, "Apply", h.mu.Lock, h.mu.Unlock, func() { _, _ = h.Apply(Delta{}) })
	locktest.Waits(t, "Load", h.mu.Lock, h.mu.Unlock, func() { _ = h.Load(v) })
	locktest.Waits(t, "Unload", h.mu.Lock, h.mu.Unlock, func() { h.Unload(v) })
	locktest.Waits(t, "Forget", h.mu.Lock, h.mu.Unlock, func() { h.Forget(v) })
	locktest.Waits(t, "Having", table.found.mu.Lock, table.found.mu.Unlock, func() { table.Having("a", []string{"b"}) })
	locktest.Waits(t, "Named", table.found.mu.Lock, table.found.mu.Unlock, func() { table.Named("a") })
	locktest.Waits(t, "Close", h.mu.Lock, h.mu.Unlock, func() { _ = h.Close() })
}

// A file can be mapped, also an empty one; one that is not there cannot.
func TestMap(t *testing.T) {
	name := filepath.Join(t.TempDir(), "x")
	if _, _, err := Map(name); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	for _, text := range []string{"", "some text"} {
		mustDo(t, os.WriteFile(name, []byte(text), 0o600))
		if data, owner, err := Map(name); err != nil || string(data) != text {
			t.Errorf("%q is mapped as %q, %v", text, data, err)
		} else {
			runtime.KeepAlive(owner)
		}
	}
	if _, _, err := Map(t.TempDir()); err == nil {
		t.Error("a folder is mapped")
	}
}

// A digest is 32 hexadecimal digits, which do not depend on the order of items.
func TestDigests(t *testing.T) {
	if got := (Digest{1, 0xab}).String(); got != "000000000000000100000000000000ab" {
		t.Errorf("%s", got)
	}
	a, b := digestOf([]byte("a")), digestOf([]byte("b"))
	if a.plus(b) != b.plus(a) || a.plus(b).minus(a) != b || a == b {
		t.Error("sums of digests")
	}
}

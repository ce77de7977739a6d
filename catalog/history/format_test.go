package history

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"grebe/catalog"
	"grebe/prompt"
)

// format1 are the files of testdata/format1, which a build before texts were kept has written, and the
// catalog that they belong to.
func format1(t *testing.T) (dir string, items []catalog.Entry) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "versions")
	mustDo(t, os.CopyFS(dir, os.DirFS("testdata/format1")))
	item := func(version uint64, id string, codes ...int32) catalog.Entry {
		return catalog.Entry{Item: &prompt.Item{ID: id, Text: "text of " + id, Identifier: 7, Codes: codes,
			Attributes: map[string][]string{"kind": {"a", "b"}}}, Version: version}
	}
	return dir, []catalog.Entry{item(3, "bare"), item(4, "i3", 5, 6), item(5, "i2", 9, 9)}
}

// A folder of the format before opens: its versions can be read, the head keeps its number, and from
// there on items are whole.
func TestFormat1IsRead(t *testing.T) {
	for name, change := range map[string]func([]catalog.Entry) []catalog.Entry{
		"as it was": func(items []catalog.Entry) []catalog.Entry { return items },
		"changed since": func(items []catalog.Entry) []catalog.Entry {
			return append(items, catalog.Entry{Item: &prompt.Item{ID: "new", Codes: []int32{1, 1}}, Version: 8})
		},
	} {
		dir, items := format1(t)
		items = change(items)
		for range 2 { // the second time what the first has written
			h := must(Open(slices.Values(items), 9, Options{Dir: dir}))
			if h.Damaged() != 0 {
				t.Errorf("%s: %d damaged", name, h.Damaged())
			}
			head := h.Head()
			if want := uint64(6 + 3*(len(items)-3)); head.Number != want {
				t.Errorf("%s: the head is version %d, want %d", name, head.Number, want)
			}
			slot, ok := head.Table().Find("i2", func(uint32) bool { return true })
			if it, whole := head.Table().Item(slot); !ok || !whole || it.Text != "text of i2" {
				t.Errorf("%s: the head has i2 as %+v", name, it)
			}
			if _, ok := head.Table().Find("bare", func(uint32) bool { return true }); !ok {
				t.Errorf("%s: an item without codes is not in the head", name)
			}
			for _, number := range []uint64{4, 5} {
				v, ok := h.Find(number)
				if !ok {
					t.Fatalf("%s: version %d is lost", name, number)
				}
				mustDo(t, h.Load(v))
				slot, _ := v.Table().Find("i1", func(uint32) bool { return true })
				if it, whole := v.Table().Item(slot); whole || it.ID != "i1" || len(it.Codes) != 2 || len(v.Live()) != 3 {
					t.Errorf("%s: version %d has i1 as %+v of %d", name, number, it, len(v.Live()))
				}
				h.Unload(v)
			}
			mustDo(t, h.Close())
		}
	}
}

// Lengths in a file of items are checked one by one: a sum of them may overflow.
func TestItemsFileWithALengthThatOverflows(t *testing.T) {
	h := head{number: 1, created: time.Unix(1, 0), items: 1}
	for _, f := range []struct{ n, size uint64 }{
		{1, ^uint64(0) - 7}, // with one mark the sum is 0
		{1 << 62, 0},
		{1, 1 << 40},
		{16, 0},
	} {
		h.items = int(f.n)
		b := append([]byte(itemsMagic), h.encode()...)
		b = binary.LittleEndian.AppendUint64(b, f.n)
		b = binary.LittleEndian.AppendUint64(b, f.size)
		b = binary.LittleEndian.AppendUint64(b, uint64(crc32.Checksum(b, castagnoli)))
		if _, _, err := parseItems(b); !errors.Is(err, ErrDamaged) {
			t.Errorf("%d items in %d bytes: %v", f.n, f.size, err)
		}
	}
}

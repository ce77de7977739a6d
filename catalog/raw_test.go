package catalog

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	grebev1 "grebe/api/grebe/v1"
	"grebe/internal/pebbleopen"
)

// rewrite sets a key of a closed catalog's files; a nil value removes it.
func rewrite(t *testing.T, dir string, key, value []byte) {
	t.Helper()
	lock, err := pebble.LockDirectory(dir, vfs.Default)
	if err != nil {
		t.Fatal(err)
	}
	db, err := pebbleopen.Open(dir, pebbleOptions(lock, slog.New(slog.DiscardHandler), vfs.Default))
	if err != nil {
		t.Fatal(err)
	}
	if value == nil {
		err = db.Delete(key, pebble.Sync)
	} else {
		err = db.Set(key, value, pebble.Sync)
	}
	if err := errors.Join(err, db.Close(), lock.Close()); err != nil {
		t.Fatal(err)
	}
}

// stored is a closed catalog of the items a and b and the users u and v, of whom u has appended events. It has had 5
// changes.
func stored(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "catalog")
	c := open(t, dir, Options{})
	for _, op := range []Op{
		{PutItem: &grebev1.Item{Id: "a", Tokens: []int32{1}}}, {PutItem: &grebev1.Item{Id: "b"}},
		{PutUser: &grebev1.User{Id: "u"}}, {PutUser: &grebev1.User{Id: "v"}},
	} {
		if r := c.Apply([]Op{op})[0]; r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	if _, _, _, err := c.AppendEvents("u", []*grebev1.Event{{Item: "a"}}); err != nil {
		t.Fatal(err)
	}
	shut(t, c)
	return dir
}

// Entries that cannot be what a catalog wrote are damage: the catalog is refused with a remedy, doctor counts them,
// and a repair removes them alone.
func TestEntriesThatCannotBeRead(t *testing.T) {
	item, user, events := itemRecord(&grebev1.Item{Id: "a"}), userRecord(&grebev1.User{Id: "u"}),
		eventsRecord([]*grebev1.Event{{Item: "a"}})
	of := func(kind byte, r record) []byte { return appendFrame(nil, frame{kind, 3, r}) }
	long := binary.AppendUvarint(of(wholeFrame, nil)[:9], 1<<40)
	for name, w := range map[string]struct {
		user  bool
		value []byte
	}{
		"an item of no bytes":              {false, []byte{}},
		"an item of 8 bytes":               {false, make([]byte, 8)},
		"an item of another kind":          {false, of(eventsFrame, item)},
		"an item and more":                 {false, append(of(wholeFrame, item), 0)},
		"an item that is cut off":          {false, of(wholeFrame, item[:len(item)-1])},
		"an item without its record":       {false, of(wholeFrame, nil)[:9]},
		"an item longer than its file":     {false, long},
		"an item one byte too short":       {false, of(wholeFrame, item)[:len(of(wholeFrame, item))-1]},
		"a user of no bytes":               {true, []byte{}},
		"a user that begins with events":   {true, of(eventsFrame, events)},
		"a user that is cut off":           {true, of(wholeFrame, user[:len(user)-1])},
		"a user with a second whole frame": {true, append(of(wholeFrame, user), of(wholeFrame, user)...)},
		"a user with half a frame":         {true, append(of(wholeFrame, user), 2)},
		"a user with cut events":           {true, append(of(wholeFrame, user), of(eventsFrame, events[:len(events)-1])...)},
	} {
		t.Run(name, func(t *testing.T) {
			dir := stored(t)
			if problems, err := Examine(dir); len(problems) > 0 || err != nil {
				t.Fatalf("a sound catalog: %q, %v", problems, err)
			}
			id := "a"
			if w.user {
				id = "u"
			}
			key := keyOf(w.user, id)
			rewrite(t, dir, key[:], w.value)
			refused(t, dir, name)
			if problems, err := Examine(dir); err != nil || !slices.Equal(problems, []string{"1 entry cannot be read"}) {
				t.Errorf("examined: %q, %v", problems, err)
			}
			loss, err := Repair(dir)
			if err != nil || loss == nil || !strings.Contains(strings.Join(loss.Lost, "; "), "1 entry cannot be read") {
				t.Fatalf("repaired: %+v, %v", loss, err)
			}
			if again, err := Repair(dir); again != nil || err != nil {
				t.Errorf("repaired twice: %+v, %v", again, err)
			}
			c := open(t, dir, Options{})
			items, users, version := c.Counts()
			if _, ok := c.Item("a"); ok == !w.user || items+users != 3 || version != "5" {
				t.Errorf("after the repair: %d items, %d users, version %s, item a %v", items, users, version, ok)
			}
			shut(t, c)
		})
	}
}

// Records of deletions, the format and the version are checked too.
func TestWhatBelongsToNoEntryIsChecked(t *testing.T) {
	deletion := deletionKey("u")
	eight := func(n uint64) []byte { return binary.LittleEndian.AppendUint64(nil, n) }
	for name, w := range map[string]struct {
		key, value []byte
		want       string // "": it opens
	}{
		"a deletion without an id":         {deletion[:], eight(3), "8 bytes"},
		"a deletion":                       {deletion[:], append(eight(3), 'u'), ""},
		"a format of another build":        {formatKey, eight(2), "format 2"},
		"half a format":                    {formatKey, eight(1)[:4], "4 bytes"},
		"no format":                        {formatKey, nil, ""},
		"half a version":                   {versionKey, eight(5)[:7], "7 bytes"},
		"a key that nobody knows of":       {[]byte("zzz"), []byte("zzz"), ""},
		"an entry of a kind of the future": {append([]byte("q"), deletion[1:]...), []byte("zzz"), ""},
	} {
		dir := stored(t)
		rewrite(t, dir, w.key, w.value)
		c, err := Open(dir, Options{})
		switch {
		case w.want == "" && err != nil, w.want != "" && (err == nil || !strings.Contains(err.Error(), w.want)):
			t.Errorf("%s: %v, want %q", name, err, w.want)
		case err == nil:
			if items, users, version := c.Counts(); items != 2 || users != 2 || version != "5" {
				t.Errorf("%s: %d items, %d users, version %s", name, items, users, version)
			}
			if pending := c.PendingDeletion("u"); name == "a deletion" && pending != 3 {
				t.Errorf("%s: pending since %d", name, pending)
			}
		}
		if c != nil {
			shut(t, c)
		}
		// A refused catalog is closed: it can be opened by others.
		if err := locked(dir, func(*pebble.Options) error { return nil }); err != nil {
			t.Errorf("%s: the folder stays locked: %v", name, err)
		}
	}
}

// A repair names the changes that are lost, by the numbers that were recorded with the last one, and versions go on
// from there.
func TestRepairNamesLostChanges(t *testing.T) {
	note := pebbleopen.Note{9, 4, 2}
	s := &surveyed{items: 3, users: 2, version: 7, newest: 6}
	want := []string{"items: there were 4, and there are 3", "changes 8 to 9"}
	if got := s.missing(note); !slices.Equal(got, want) {
		t.Errorf("missing %q, want %q", got, want)
	}
	for _, s := range []*surveyed{{items: 4, users: 2, version: 9}, {items: 4, users: 2, newest: 9}} {
		if got := s.missing(note); len(got) != 0 {
			t.Errorf("%+v: missing %q, want nothing", s, got)
		}
	}
	dir := stored(t)
	key := keyOf(false, "b")
	rewrite(t, dir, key[:], []byte{1})
	rewrite(t, dir, versionKey, binary.LittleEndian.AppendUint64(nil, 2)) // an old one
	loss, err := Repair(dir)
	if err != nil || loss == nil {
		t.Fatalf("%+v, %v", loss, err)
	}
	c := open(t, dir, Options{})
	if _, _, version := c.Counts(); version != "5" {
		t.Errorf("versions go on from %s, want 5: an entry has it", version)
	}
	if _, version, _ := c.Lookup("a"); version != 1 {
		t.Errorf("item a has version %d, want 1", version)
	}
	shut(t, c)
}

// What is not there is sound and needs no repair. What cannot be opened is an error.
func TestFoldersThatAreNoCatalogs(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "none")
	if problems, err := Examine(dir); len(problems) > 0 || err != nil {
		t.Errorf("examined: %q, %v", problems, err)
	}
	if loss, err := Repair(dir); loss != nil || err != nil {
		t.Errorf("repaired: %+v, %v", loss, err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder was made: %v", err)
	}
	file := write(t, "file", "no folder")
	for name, f := range map[string]func() error{
		"Examine": func() error { _, err := Examine(file); return err },
		"Repair":  func() error { _, err := Repair(file); return err },
		"Open":    func() error { _, err := Open(file, Options{}); return err },
		"Open below": func() error {
			_, err := Open(filepath.Join(file, "below"), Options{})
			return err
		},
	} {
		if err := f(); err == nil || errors.Is(err, ErrLocked) {
			t.Errorf("%s of a file: %v", name, err)
		}
	}
	open := stored(t)
	c, err := Open(open, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Examine(open); !errors.Is(err, ErrLocked) {
		t.Errorf("an open catalog was examined: %v", err)
	}
	shut(t, c)
	// A repair that was cut off after it had moved the folder away is taken up.
	if err := os.Rename(open, open+".repairing"); err != nil {
		t.Fatal(err)
	}
	if _, err := Repair(open); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(open + ".repairing"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the old folder is left: %v", err)
	}
}

// The limits hold for a catalog that is read from disk: as large as they are is not too large.
func TestLimitsOfACatalogOnDisk(t *testing.T) {
	dir := stored(t)
	c := open(t, dir, Options{})
	memory := c.Stats().Memory
	shut(t, c)
	for _, w := range []struct {
		opt Options
		ok  bool
	}{
		{Options{MaxItems: 2, MaxUsers: 2, MaxMemory: memory}, true},
		{Options{MaxItems: 1}, false}, {Options{MaxUsers: 1}, false}, {Options{MaxMemory: memory - 1}, false},
	} {
		c, err := Open(dir, w.opt)
		if w.ok && err != nil || !w.ok && !errors.Is(err, ErrFull) {
			t.Errorf("%+v: %v", w.opt, err)
		}
		if c != nil {
			shut(t, c)
		}
	}
}

// A catalog keeps its id, its statistics and its digest over restarts; another one has another id.
func TestACatalogKeepsWhatDescribesIt(t *testing.T) {
	dir := stored(t)
	c := open(t, dir, Options{})
	first := c.Stats()
	shut(t, c)
	c = open(t, dir, Options{})
	if again := c.Stats(); again != first || !again.Durable || again.Version != 5 || again.Items != 2 || again.Users != 2 {
		t.Errorf("%+v, before %+v", again, first)
	}
	shut(t, c)
	other := New(Options{})
	if s := other.Stats(); s.ID == first.ID || s.Durable {
		t.Errorf("another catalog, in memory: %+v", s)
	}
	// The digest tells of the items alone: not of their order, versions or users.
	for _, id := range []string{"b", "x", "a"} {
		m := &grebev1.Item{Id: id}
		if id == "a" {
			m.Tokens = []int32{1}
		}
		if _, err := other.PutItem(m); err != nil {
			t.Fatal(err)
		}
	}
	if other.Stats().Digest == first.Digest {
		t.Error("one more item does not change the digest")
	}
	if _, err := other.DeleteItem("x"); err != nil {
		t.Fatal(err)
	}
	if got := other.Stats().Digest; got != first.Digest {
		t.Errorf("digest %s of the same items, want %s", got, first.Digest)
	}
}

// Deleted users are remembered by name until they are put again, over restarts too. Items and others are not.
func TestBuriedUsers(t *testing.T) {
	dir := stored(t)
	c := open(t, dir, Options{})
	check := func(when, id string, want bool) {
		t.Helper()
		if got, err := c.Buried(id); got != want || err != nil {
			t.Errorf("%s: user %s is deleted: %v, %v; want %v", when, id, got, err, want)
		}
	}
	check("before", "u", false)
	for _, op := range []Op{{DeleteUser: "u"}, {DeleteUser: "nobody"}, {DeleteItem: "a"}} {
		if r := c.Apply([]Op{op})[0]; r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	for _, when := range []string{"at once", "after a restart"} {
		check(when, "u", true)
		check(when, "v", false)
		check(when, "nobody", false)
		check(when, "a", false)
		shut(t, c)
		c = open(t, dir, Options{})
	}
	if _, _, _, err := c.AppendEvents("u", []*grebev1.Event{{Item: "b"}}); err != nil {
		t.Fatal(err)
	}
	check("put again", "u", false)
	shut(t, c)
	if got, err := New(Options{}).Buried("u"); got || err != nil {
		t.Errorf("a catalog in memory: %v, %v", got, err)
	}
}

package pebbleopen

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

func repaired(t *testing.T, dir string) *Loss {
	t.Helper()
	opt := options()
	lock, err := pebble.LockDirectory(dir, vfs.Default)
	if err != nil {
		t.Fatal(err)
	}
	opt.Lock = lock
	loss, err := Repair(dir, opt)
	if err := errors.Join(err, lock.Close()); err != nil {
		t.Fatal(err)
	}
	return loss
}

func flipped(t *testing.T, name string, at int) {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	data[at] ^= 1
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// A repair keeps all that can be read, says what it could not, and a second one finds nothing to do. Keys with the
// damaged byte are lost, those around it are not.
func TestRepair(t *testing.T) {
	sound := closedDatabase(t)
	for _, c := range []struct {
		what   string
		damage func(dir string)
		keys   [2]int // at least and at most
		lost   bool
	}{
		{"lost marker", func(dir string) { os.Remove(theFile(t, dir, "marker.manifest*")) }, [2]int{40, 40}, false},
		{"lost format", func(dir string) { os.Remove(theFile(t, dir, "marker.format*")) }, [2]int{40, 40}, false},
		{"lost manifest", func(dir string) { os.Remove(theFile(t, dir, "MANIFEST*")) }, [2]int{40, 40}, false},
		{"lost log", func(dir string) { os.Remove(theFile(t, dir, "*.log")) }, [2]int{20, 20}, true},
		// an old log may have it
		{"lost table", func(dir string) { os.Remove(theFile(t, dir, "*.sst")) }, [2]int{20, 40}, true},
		{"options", func(dir string) {
			os.WriteFile(theFile(t, dir, "OPTIONS*"), []byte("[Version]\n  pebble_version=0.1\n[Options]\n  comparer=other\n"),
				0o600)
		}, [2]int{40, 40}, false},
		{"header in the log", func(dir string) { flipped(t, theFile(t, dir, "*.log"), 6) }, [2]int{39, 39}, true},
		{"key in the log", func(dir string) { flipped(t, theFile(t, dir, "*.log"), 400) }, [2]int{39, 39}, true},
		{"end of the log", func(dir string) { os.Truncate(theFile(t, dir, "*.log"), 300) }, [2]int{20, 39}, true},
		{"manifest", func(dir string) { flipped(t, theFile(t, dir, "MANIFEST*"), 30) }, [2]int{40, 40}, false},
		{"table", func(dir string) { flipped(t, theFile(t, dir, "*.sst"), 10) }, [2]int{20, 40}, true},
		{"all small files", func(dir string) {
			os.Remove(theFile(t, dir, "marker.manifest*"))
			os.Remove(theFile(t, dir, "marker.format*"))
			os.Remove(filepath.Join(dir, LedgerFile))
		}, [2]int{40, 40}, false},
	} {
		dir := copyFolder(t, sound)
		c.damage(dir)
		loss := repaired(t, dir)
		if loss == nil {
			t.Errorf("%s: nothing was found", c.what)
			continue
		}
		if len(loss.Lost) > 0 != c.lost || len(loss.Problems) == 0 {
			t.Errorf("%s: %+v", c.what, loss)
		}
		n, err := keys(t, dir)
		if n < c.keys[0] || n > c.keys[1] || err != nil {
			t.Errorf("%s: %d keys, %v; want %v; %+v", c.what, n, err, c.keys, loss)
		}
		if again := repaired(t, dir); again != nil {
			t.Errorf("%s: repaired twice: %+v", c.what, again)
		}
	}
}

// A repair does not touch a sound database.
func TestRepairLeavesASoundDatabase(t *testing.T) {
	dir := closedDatabase(t)
	before := listing(t, dir)
	if loss := repaired(t, dir); loss != nil {
		t.Errorf("%+v", loss)
	}
	if listing(t, dir) != before {
		t.Error("it was changed")
	}
}

// A repair that is cut off between its two renames leaves a folder that Open refuses and the next repair finishes.
func TestARepairThatIsCutOffIsFinished(t *testing.T) {
	dir := closedDatabase(t)
	flipped(t, theFile(t, dir, "*.log"), 400)
	repaired(t, dir)
	if err := os.Rename(dir, dir+repairing); err != nil {
		t.Fatal(err)
	}
	if n, err := keys(t, dir); !errors.Is(err, ErrDamaged) {
		t.Fatalf("opened with %d keys, %v", n, err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if loss := repaired(t, dir); loss == nil {
		t.Fatal("nothing was found")
	}
	if n, err := keys(t, dir); n != 39 || err != nil {
		t.Errorf("%d keys, %v", n, err)
	}
}

// A rebuilt database has the last value of every key: overwritten, deleted and merged ones too.
func TestARebuiltDatabaseHasTheLastValues(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "db")
	db, err := Open(dir, options())
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for round := range 4 {
		for i := range 300 {
			key, value := fmt.Sprintf("k%03d", i), fmt.Sprintf("<%d.%d>", round, i)
			switch (i + round) % 4 {
			case 0:
				err = db.Set([]byte(key), []byte(value), pebble.NoSync)
				want[key] = value
			case 1:
				err = db.Merge([]byte(key), []byte(value), pebble.NoSync)
				want[key] += value
			case 2:
				if i%3 == 0 {
					err = db.Delete([]byte(key), pebble.NoSync)
					delete(want, key)
				}
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if round < 3 {
			if err := db.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := errors.Join(db.LogData(nil, pebble.Sync), db.Close()); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(theFile(t, dir, "MANIFEST*")); err != nil {
		t.Fatal(err)
	}
	if loss := repaired(t, dir); loss == nil || len(loss.Lost) > 0 || loss.Kept == "" {
		t.Fatalf("%+v", loss)
	}
	if db, err = Open(dir, options()); err != nil {
		t.Fatal(err)
	}
	it, err := db.NewIter(nil)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for ok := it.First(); ok; ok = it.Next() {
		if n++; want[string(it.Key())] != string(it.Value()) {
			t.Fatalf("%s is %s, want %s", it.Key(), it.Value(), want[string(it.Key())])
		}
	}
	if n != len(want) {
		t.Errorf("%d keys, want %d", n, len(want))
	}
	if err := errors.Join(it.Close(), db.Close()); err != nil {
		t.Error(err)
	}
}

// Pebble reads a manifest up to its first damaged record. A repair does not take the tables that this one lists for
// all.
func TestRepairOfTheEndOfAManifest(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "db")
	opt := options()
	opt.Cleaner = Eraser() // no old log has the keys
	db, err := Open(dir, opt)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		if err := db.Set(fmt.Appendf(nil, "key%02d", i), []byte("value"), pebble.Sync); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(db.Flush(), db.Close()); err != nil {
		t.Fatal(err)
	}
	name := theFile(t, dir, "MANIFEST*")
	info, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	flipped(t, name, int(info.Size())-1)
	if loss := repaired(t, dir); loss == nil || len(loss.Lost) > 0 {
		t.Fatalf("%+v", loss)
	}
	if n, err := keys(t, dir); n != 20 || err != nil {
		t.Errorf("%d of 20 keys after a repair that lost nothing, %v", n, err)
	}
}

package pebbleopen

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

func options() *pebble.Options {
	return &pebble.Options{Logger: silent{}, FormatMajorVersion: pebble.FormatTableFormatV6}
}

// closedDatabase is a folder with a database: keys of a table, and keys of the log alone.
func closedDatabase(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "db")
	db, err := Open(dir, options())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 40 {
		if err := db.Set(fmt.Appendf(nil, "key%02d", i), fmt.Appendf(nil, "value%02d", i), pebble.Sync); err != nil {
			t.Fatal(err)
		}
		if i == 19 {
			if err := db.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	db.SetNote(Note{40})
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

func copyFolder(t *testing.T, dir string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "db")
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
}

// theFile returns the one file of a folder that matches.
func theFile(t *testing.T, dir, pattern string) string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(names) == 0 {
		t.Fatalf("%s in %s: %q, %v", pattern, dir, names, err)
	}
	return names[len(names)-1]
}

// listing is the names, sizes and contents of a folder's files, but those that opening may change.
func listing(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if e.Name() != "LOCK" {
			fmt.Fprintf(&b, "%s %x\n", e.Name(), data)
		}
	}
	return b.String()
}

// keys opens a database and returns how many keys it has.
func keys(t *testing.T, dir string) (int, error) {
	t.Helper()
	db, err := Open(dir, options())
	if err != nil {
		return 0, err
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	it, err := db.NewIter(nil)
	if err != nil {
		return 0, err
	}
	n := 0
	for ok := it.First(); ok; ok = it.Next() {
		n++
	}
	return n, it.Close()
}

// A byte that is flipped anywhere in a log or a manifest, a file that is cut off or missing: Open refuses, says how to
// go on, and leaves every file as it is. Without the ledger Pebble opens such databases with fewer keys, or none.
func TestOpenRefusesADamagedDatabase(t *testing.T) {
	sound := closedDatabase(t)
	damage := map[string]func(string) error{
		"lost marker":   func(dir string) error { return os.Remove(theFile(t, dir, "marker.manifest*")) },
		"lost log":      func(dir string) error { return os.Remove(theFile(t, dir, "*.log")) },
		"lost manifest": func(dir string) error { return os.Remove(theFile(t, dir, "MANIFEST*")) },
		"lost table":    func(dir string) error { return os.Remove(theFile(t, dir, "*.sst")) },
		"lost format":   func(dir string) error { return os.Remove(theFile(t, dir, "marker.format*")) },
		"short table":   func(dir string) error { return os.Truncate(theFile(t, dir, "*.sst"), 100) },
		"short log":     func(dir string) error { return os.Truncate(theFile(t, dir, "*.log"), 100) },
		"short manifest": func(dir string) error {
			name := theFile(t, dir, "MANIFEST*")
			info, err := os.Stat(name)
			return errors.Join(err, os.Truncate(name, info.Size()-1))
		},
	}
	for _, pattern := range []string{"*.log", "MANIFEST*"} {
		data, err := os.ReadFile(theFile(t, sound, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for at := 0; at < len(data); at += 1 + len(data)/60 {
			damage[fmt.Sprintf("%s byte %d", pattern, at)] = func(dir string) error {
				changed := append([]byte(nil), data...)
				changed[at] ^= 0x40
				return os.WriteFile(theFile(t, dir, pattern), changed, 0o600)
			}
		}
	}
	for what, do := range damage {
		dir := copyFolder(t, sound)
		if err := do(dir); err != nil {
			t.Fatal(err)
		}
		before := listing(t, dir)
		n, err := keys(t, dir)
		if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "grebe doctor --repair") {
			t.Errorf("%s: opened with %d keys, %v", what, n, err)
		}
		if listing(t, dir) != before {
			t.Errorf("%s: opening changed the folder", what)
		}
	}
}

// A ledger that is damaged or missing costs nothing but a line in the log.
func TestADamagedLedgerIsMadeAnew(t *testing.T) {
	sound := closedDatabase(t)
	for what, do := range map[string]func(name string) error{
		"missing": os.Remove,
		"empty":   func(name string) error { return os.Truncate(name, 0) },
		"short":   func(name string) error { return os.Truncate(name, 20) },
		"garbage": func(name string) error { return os.WriteFile(name, []byte(strings.Repeat("x", 300)), 0o600) },
		"longer": func(name string) error {
			data, err := os.ReadFile(name)
			return errors.Join(err, os.WriteFile(name, append(data, "tail"...), 0o600))
		},
	} {
		dir := copyFolder(t, sound)
		if err := do(filepath.Join(dir, LedgerFile)); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if n, err := keys(t, dir); n != 40 || err != nil {
				t.Errorf("%s ledger: %d keys, %v", what, n, err)
			}
		}
	}
}

// The ledger never describes more than is on the disk: a database opens with all acknowledged keys after power cuts
// that lose what was not synced, at every key.
func TestALedgerOutlivesPowerCuts(t *testing.T) {
	disk := vfs.NewCrashableMem()
	db, err := open(disk)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 30 {
		if err := db.Set(fmt.Appendf(nil, "key%02d", i), []byte("value"), pebble.Sync); err != nil {
			t.Fatal(err)
		}
		db.SetNote(Note{uint64(i)})
		if i%7 == 6 {
			if err := db.Flush(); err != nil {
				t.Fatal(err)
			}
		}
		cut := disk.CrashClone(vfs.CrashCloneCfg{})
		again, err := open(cut)
		if err != nil {
			t.Fatalf("after %d keys: %v", i+1, err)
		}
		for k := range i + 1 {
			_, closer, err := again.Get(fmt.Appendf(nil, "key%02d", k))
			if err != nil {
				t.Fatalf("after %d keys, key %d: %v", i+1, k, err)
			}
			closer.Close()
		}
		if err := again.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// A block that is damaged while the database is open is an error of the reads that hit it, and counted. The process
// goes on.
func TestADamagedBlockIsAnError(t *testing.T) {
	dir := closedDatabase(t)
	name := theFile(t, dir, "*.sst")
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	data[10] ^= 1
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
	db, err := Open(dir, options())
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := db.Get([]byte("key03")); !pebble.IsCorruptionError(err) || !errors.Is(Damage(dir, err), ErrDamaged) {
		t.Errorf("a key of a damaged block: %v", err)
	}
	if db.Corruptions() == 0 {
		t.Error("the damage was not counted")
	}
	_, closer, err := db.Get([]byte("key33"))
	if err != nil {
		t.Fatalf("a key of the log: %v", err)
	}
	if err := errors.Join(closer.Close(), db.Close()); err != nil {
		t.Error(err)
	}
}

// A manifest that cannot be written, as on a full disk, makes a database fail: it says so, and reads go on. Pebble
// alone ends the process then.
func TestAManifestThatCannotBeWrittenIsNotFatal(t *testing.T) {
	d := &disk{FS: vfs.NewMem()}
	db, err := open(d)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Set([]byte("key"), []byte("value"), pebble.Sync); err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	d.full = "MANIFEST"
	d.mu.Unlock()
	if _, err := db.AsyncFlush(); err != nil {
		t.Fatal(err)
	}
	for db.Failed() == nil {
		if d.writes.Load() > 100 {
			t.Fatal("the manifest is written again and again")
		}
		runtime.Gosched()
	}
	value, closer, err := db.Get([]byte("key"))
	if err != nil || string(value) != "value" {
		t.Fatalf("%q, %v", value, err)
	}
	if err := closer.Close(); err != nil {
		t.Error(err)
	}
}

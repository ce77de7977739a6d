package pebbleopen

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// disk is one that is full for files of some kind.
type disk struct {
	vfs.FS
	mu     sync.Mutex
	full   string       // part of their names; empty: it is not full
	writes atomic.Int64 // that failed
}

func (d *disk) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := d.FS.Create(name, c)
	return &file{f, d, name}, err
}

type file struct {
	vfs.File
	disk *disk
	name string
}

func (f *file) Write(p []byte) (int, error) {
	f.disk.mu.Lock()
	full := f.disk.full != "" && strings.Contains(f.name, f.disk.full)
	f.disk.mu.Unlock()
	if full {
		f.disk.writes.Add(1)
		return 0, syscall.ENOSPC
	}
	return f.File.Write(p)
}

type silent struct{}

func (silent) Infof(string, ...any)      {}
func (silent) Errorf(string, ...any)     {}
func (silent) Fatalf(f string, _ ...any) { panic(f) }

func open(fs vfs.FS) (*DB, error) {
	return Open("db", &pebble.Options{FS: fs, Logger: silent{}, FormatMajorVersion: pebble.FormatTableFormatV6})
}

// written is a disk with a database whose last write is in its log alone.
func written(t *testing.T) *vfs.MemFS {
	t.Helper()
	fs := vfs.NewCrashableMem()
	db, err := open(fs)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Set([]byte("key"), []byte("value"), pebble.Sync), db.Close()); err != nil {
		t.Fatal(err)
	}
	return fs
}

// A database on a disk that is full for its tables, or for the list of them, or for all, cannot be opened. That is an
// error, after which nothing is tried any more, and it has all that it had once there is room.
func TestOpenOnAFullDisk(t *testing.T) {
	for _, full := range []string{".sst", "MANIFEST", "db"} {
		fs := written(t)
		d := &disk{FS: fs.CrashClone(vfs.CrashCloneCfg{}), full: full}
		if db, err := open(d); err == nil || db != nil || !strings.Contains(err.Error(), syscall.ENOSPC.Error()) {
			t.Fatalf("opened on a disk that is full for %q: %v", full, err)
		}
		if n := d.writes.Load(); n < 1 || n > 10 {
			t.Errorf("a disk that is full for %q was tried %d times", full, n)
		}
		db, err := open(d.FS.(*vfs.MemFS).CrashClone(vfs.CrashCloneCfg{}))
		if err != nil {
			t.Fatal(err)
		}
		value, closer, err := db.Get([]byte("key"))
		if err != nil || string(value) != "value" {
			t.Fatalf("after a disk was full for %q: %q, %v", full, value, err)
		}
		if err := errors.Join(closer.Close(), db.Close()); err != nil {
			t.Error(err)
		}
	}
}

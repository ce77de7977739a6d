// Package durable changes files and folders so that the changes survive a power cut.
//
// A file's contents are durable after a sync of the file. A name that was created, renamed or removed is durable after
// a sync of its folder, and a new folder after a sync of its parent. WriteFile, Remove, RemoveAll and MkdirAll do all
// of that before they return; File, Rename, Unlink and SyncDir are their parts, for callers that make several changes
// at once.
//
// Tests replay power cuts: Watch hands every change below a folder to a Watcher, which may refuse it. Without watchers
// a change costs one atomic load.
package durable

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
)

// Kind is what an Op does.
type Kind string

// The kinds of changes.
const (
	OpOpen     Kind = "open"     // Path is opened for writing, and created if it is not there
	OpWrite    Kind = "write"    // Data at Off of File
	OpTruncate Kind = "truncate" // File to Off bytes
	OpSync     Kind = "sync"     // File
	OpRename   Kind = "rename"   // Path to To
	OpRemove   Kind = "remove"   // Path, a file or an empty folder
	OpMkdir    Kind = "mkdir"    // Path
	OpSyncDir  Kind = "syncdir"  // the folder Path
)

// Op is one change.
type Op struct {
	Kind     Kind
	Path, To string // absolute
	File     *File
	Off      int64
	Data     []byte // MUST NOT be kept
	Truncate bool   // Open empties the file
}

// Watcher sees changes. Do MUST call run to make the change, or return an error instead.
type Watcher interface {
	Do(op Op, run func() error) error
}

type watch struct {
	dir string
	w   Watcher
}

var (
	watchMu sync.Mutex
	watches atomic.Pointer[[]watch]
)

// Watch hands changes below a folder to w until stop is called. It is for tests.
func Watch(dir string, w Watcher) (stop func(), err error) {
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	watchMu.Lock()
	defer watchMu.Unlock()
	all := []watch{{dir, w}}
	if old := watches.Load(); old != nil {
		all = append(all, *old...)
	}
	watches.Store(&all)
	return func() { unwatch(w) }, nil
}

func unwatch(w Watcher) {
	watchMu.Lock()
	defer watchMu.Unlock()
	var left []watch
	for _, x := range *watches.Load() {
		if x.w != w {
			left = append(left, x)
		}
	}
	if left == nil {
		watches.Store(nil)
		return
	}
	watches.Store(&left)
}

// do makes a change, through the watcher of its folder if there is one.
func do(op Op, run func() error) error {
	all := watches.Load()
	if all == nil {
		return run()
	}
	var err error
	if op.Path, err = filepath.Abs(op.Path); err != nil {
		return err
	}
	if op.To != "" {
		if op.To, err = filepath.Abs(op.To); err != nil {
			return err
		}
	}
	for _, x := range *all {
		if op.Path == x.dir || strings.HasPrefix(op.Path, x.dir+string(filepath.Separator)) {
			return x.w.Do(op, run)
		}
	}
	return run()
}

// File is a file that is open for writing.
type File struct {
	f    *os.File
	path string
}

// OpenFile opens a file for writing and creates it if it is not there. Its name is durable after SyncDir.
func OpenFile(name string, truncate bool) (*File, error) {
	f := &File{path: name}
	flag := os.O_CREATE | os.O_WRONLY
	if truncate {
		flag |= os.O_TRUNC
	}
	err := do(Op{Kind: OpOpen, Path: name, File: f, Truncate: truncate}, func() (err error) {
		f.f, err = os.OpenFile(name, flag, 0o600)
		return err
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

// WriteAt implements io.WriterAt.
func (f *File) WriteAt(b []byte, off int64) (n int, err error) {
	err = do(Op{Kind: OpWrite, Path: f.path, File: f, Off: off, Data: b}, func() error {
		n, err = f.f.WriteAt(b, off)
		return err
	})
	return n, err
}

// Truncate cuts the file, or fills it up with zeros.
func (f *File) Truncate(size int64) error {
	return do(Op{Kind: OpTruncate, Path: f.path, File: f, Off: size}, func() error { return f.f.Truncate(size) })
}

// Sync makes the file's contents durable. After an error what was written since the last sync may be lost even if a
// later sync succeeds: write it again, best to another file.
func (f *File) Sync() error {
	return do(Op{Kind: OpSync, Path: f.path, File: f}, f.f.Sync)
}

// Size returns the file's length in bytes.
func (f *File) Size() (int64, error) {
	st, err := f.f.Stat()
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}

// Close closes the file. It makes nothing durable.
func (f *File) Close() error { return f.f.Close() }

// appender writes to a file from an offset on.
type appender struct {
	f  *File
	at int64
}

func (a *appender) Write(b []byte) (int, error) {
	n, err := a.f.WriteAt(b, a.at)
	a.at += int64(n)
	return n, err
}

// Rename renames a file, which replaces the one of that name. It is durable after SyncDir.
func Rename(from, to string) error {
	return do(Op{Kind: OpRename, Path: from, To: to}, func() error { return os.Rename(from, to) })
}

// SyncDir makes the names in a folder durable.
func SyncDir(dir string) error {
	return do(Op{Kind: OpSyncDir, Path: dir}, func() error {
		d, err := os.Open(dir)
		if err != nil {
			return err
		}
		err = d.Sync()
		if errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported) {
			err = nil // the file system keeps names durable by itself, or not at all
		}
		return errors.Join(err, d.Close())
	})
}

// MkdirAll makes a folder and its parents, for this user alone, durably.
func MkdirAll(dir string) error {
	if st, err := os.Stat(dir); err == nil && st.IsDir() {
		// A process that was killed may have made it and not synced its parent.
		if err := SyncDir(filepath.Dir(dir)); err != nil && !errors.Is(err, fs.ErrPermission) {
			return err
		}
		return nil
	}
	parent := filepath.Dir(dir)
	if _, err := os.Stat(parent); errors.Is(err, fs.ErrNotExist) {
		if err := MkdirAll(parent); err != nil {
			return err
		}
	}
	err := do(Op{Kind: OpMkdir, Path: dir}, func() error { return os.Mkdir(dir, 0o700) })
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return SyncDir(parent)
}

// Unlink removes a file or an empty folder. It is durable after SyncDir.
func Unlink(name string) error {
	return do(Op{Kind: OpRemove, Path: name}, func() error { return os.Remove(name) })
}

// Remove removes a file or an empty folder, durably. A name that is not there is no error, and is gone durably too:
// a process that was killed may have removed it.
func Remove(name string) error {
	if err := Unlink(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return syncParent(name)
}

// RemoveAll removes a file or a folder with all that is in it, durably. A name that is not there is no error. A power
// cut before it returns may leave any part of it.
func RemoveAll(name string) error {
	return errors.Join(removeTree(name), syncParent(name))
}

func syncParent(name string) error {
	err := SyncDir(filepath.Dir(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func removeTree(name string) error {
	st, err := os.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && st.IsDir() {
		entries, listErr := os.ReadDir(name)
		err = listErr
		for _, e := range entries {
			err = errors.Join(err, removeTree(filepath.Join(name, e.Name())))
		}
	}
	if err != nil {
		return err
	}
	return Unlink(name)
}

// PartSuffix ends the names of files that WriteFile has not finished.
const PartSuffix = ".part"

// WriteFile makes a file whole or not at all: after a crash at any moment the name has the old contents or the new
// ones. The contents are written to another name first, which begins with name and ends with PartSuffix. A crash may
// leave that file: see RemoveParts.
func WriteFile(name string, write func(io.Writer) error) error {
	part := fmt.Sprintf("%s.%08x%s", name, rand.Uint32(), PartSuffix)
	f, err := OpenFile(part, true)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(&appender{f: f}, 1<<20)
	err = write(w)
	if err == nil {
		err = w.Flush()
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = Rename(part, name)
	}
	if err != nil {
		return errors.Join(err, Unlink(part))
	}
	return SyncDir(filepath.Dir(name))
}

// RemoveParts removes, durably, what unfinished writes left in a folder: files whose names end in PartSuffix or begin
// with one of the prefixes. Call it when nobody writes there. A folder that is not there has none.
func RemoveParts(dir string, prefixes ...string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	found := false
	for _, e := range entries {
		name := e.Name()
		left := strings.HasSuffix(name, PartSuffix) ||
			slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
		if left && !e.IsDir() {
			found = true
			errs = append(errs, Unlink(filepath.Join(dir, name)))
		}
	}
	if found {
		errs = append(errs, SyncDir(dir))
	}
	return errors.Join(errs...)
}

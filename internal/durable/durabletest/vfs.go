package durabletest

import (
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"grebe/internal/durable"
)

// FS returns the disk as Pebble takes it.
func (d *Disk) FS() vfs.FS { return pebbleFS{d} }

// pebbleFS is a disk as Pebble sees it.
type pebbleFS struct{ d *Disk }

func (p pebbleFS) Create(name string, _ vfs.DiskWriteCategory) (vfs.File, error) {
	n, err := p.d.create(name, true)
	return p.handle(name, n, err)
}

func (p pebbleFS) handle(name string, n *node, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &handle{d: p.d, n: n, path: name}, nil
}

func (p pebbleFS) Link(from, to string) error {
	return p.d.change(durable.OpOpen, to, func() error {
		n := p.d.find(from)
		dir, name, err := p.d.parent(to)
		switch {
		case err != nil:
			return err
		case n == nil:
			return &fs.PathError{Op: "link", Path: from, Err: fs.ErrNotExist}
		case dir.names[name] != nil:
			return &fs.PathError{Op: "link", Path: to, Err: fs.ErrExist}
		}
		dir.set(name, n)
		return nil
	})
}

func (p pebbleFS) Open(name string, _ ...vfs.OpenOption) (vfs.File, error) {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	n := p.d.find(name)
	if n == nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return &handle{d: p.d, n: n, path: name}, nil
}

func (p pebbleFS) OpenReadWrite(name string, _ vfs.DiskWriteCategory, _ ...vfs.OpenOption) (vfs.File, error) {
	n, err := p.d.create(name, false)
	return p.handle(name, n, err)
}

func (p pebbleFS) OpenDir(name string) (vfs.File, error) { return p.Open(name) }
func (p pebbleFS) Remove(name string) error              { return p.d.remove(name) }
func (p pebbleFS) RemoveAll(name string) error {
	if err := p.d.remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
func (p pebbleFS) Rename(from, to string) error { return p.d.rename(from, to) }

func (p pebbleFS) ReuseForWrite(from, to string, _ vfs.DiskWriteCategory) (vfs.File, error) {
	if err := p.d.rename(from, to); err != nil {
		return nil, err
	}
	return p.Open(to)
}

func (p pebbleFS) MkdirAll(dir string, _ os.FileMode) error {
	path := ""
	for _, e := range elements(dir) {
		path = filepath.Join(path, e)
		if err := p.d.mkdir(path); err != nil {
			return err
		}
	}
	return nil
}

type unlocker func()

func (u unlocker) Close() error { u(); return nil }

func (p pebbleFS) Lock(name string) (io.Closer, error) {
	if _, err := p.d.create(name, false); err != nil {
		return nil, err
	}
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	if p.d.locks[name] {
		return nil, errors.New("the file is locked")
	}
	p.d.locks[name] = true
	return unlocker(func() {
		p.d.mu.Lock()
		defer p.d.mu.Unlock()
		delete(p.d.locks, name)
	}), nil
}

func (p pebbleFS) List(dir string) ([]string, error) {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	n := p.d.find(dir)
	if n == nil || n.names == nil {
		return nil, &fs.PathError{Op: "open", Path: dir, Err: fs.ErrNotExist}
	}
	return slices.Sorted(maps.Keys(n.names)), nil
}

func (p pebbleFS) Stat(name string) (vfs.FileInfo, error) {
	f, err := p.Open(name)
	if err != nil {
		return nil, err
	}
	return f.Stat()
}

func (pebbleFS) PathBase(path string) string    { return filepath.Base(path) }
func (pebbleFS) PathJoin(elem ...string) string { return filepath.Join(elem...) }
func (pebbleFS) PathDir(path string) string     { return filepath.Dir(path) }
func (pebbleFS) Unwrap() vfs.FS                 { return nil }
func (pebbleFS) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{AvailBytes: 1 << 40, TotalBytes: 1 << 40}, nil
}

// handle is an open file or folder. It is for one goroutine, as Pebble's are, but for ReadAt.
type handle struct {
	d    *Disk
	n    *node
	path string
	at   int64 // of Read and Write
}

func (h *handle) Close() error                 { return nil }
func (h *handle) Preallocate(_, _ int64) error { return nil }
func (h *handle) Prefetch(_, _ int64) error    { return nil }
func (h *handle) Fd() uintptr                  { return vfs.InvalidFd }
func (h *handle) SyncTo(int64) (bool, error)   { return false, nil } // it promises nothing
func (h *handle) SyncData() error              { return h.Sync() }

func (h *handle) Sync() error {
	if h.n.names != nil {
		return h.d.syncDir(h.path)
	}
	return h.d.sync(h.n, h.path)
}

func (h *handle) Read(b []byte) (int, error) {
	n, err := h.ReadAt(b, h.at)
	h.at += int64(n)
	if n > 0 {
		err = nil
	}
	return n, err
}

func (h *handle) ReadAt(b []byte, off int64) (int, error) {
	h.d.mu.Lock()
	defer h.d.mu.Unlock()
	if off >= int64(len(h.n.pages.Data)) {
		return 0, io.EOF
	}
	n := copy(b, h.n.pages.Data[off:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (h *handle) Write(b []byte) (int, error) {
	n, err := h.WriteAt(b, h.at)
	h.at += int64(n)
	return n, err
}

func (h *handle) WriteAt(b []byte, off int64) (int, error) {
	if err := h.d.write(h.n, h.path, b, off); err != nil {
		return 0, err
	}
	return len(b), nil
}

func (h *handle) Stat() (vfs.FileInfo, error) {
	h.d.mu.Lock()
	defer h.d.mu.Unlock()
	return info{filepath.Base(h.path), int64(len(h.n.pages.Data)), h.n.names != nil}, nil
}

// info describes a file.
type info struct {
	name string
	size int64
	dir  bool
}

func (i info) Name() string           { return i.name }
func (i info) Size() int64            { return i.size }
func (i info) ModTime() time.Time     { return time.Time{} }
func (i info) IsDir() bool            { return i.dir }
func (i info) Sys() any               { return nil }
func (i info) DeviceID() vfs.DeviceID { return vfs.DeviceID{} }
func (i info) Mode() os.FileMode {
	if i.dir {
		return os.ModeDir | 0o700
	}
	return 0o600
}

package disk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"grebe/internal/durable"
)

// folder has the operations on a directory that the store needs, and file those on a file in it. Tests
// implement them with faults and power cuts.
type folder interface {
	List() ([]string, error)
	Create(name string) (file, error)
	Open(name string) (file, error)
	Remove(name string) error
	Sync() error // makes Create and Remove durable
	// Mark notes which segment is about to be synced, 0 for none. The note survives a kill of the process, but maybe not
	// a power cut. A note that cannot be written is left out.
	Mark(segment uint32)
	Marked() uint32
	Punches() bool
	Close() error // releases the folder for other processes
}

type file interface {
	io.ReaderAt
	io.WriterAt
	Size() (int64, error)
	Truncate(size int64) error
	Punch(off, n int64) error          // makes a range zero and frees it
	NextData(off int64) (int64, error) // first offset ≥ off that may be non-zero; io.EOF if none
	Sync() error                       // makes writes durable
	Writeback(off, n int64)            // starts to write a range to the disk, without any guarantee
	Close() error
}

const lockName = "LOCK"

// osFolder is a directory. While it is open, no other process can use it.
type osFolder struct {
	path string
	lock *os.File
}

func openFolder(path string) (folder, error) {
	if err := durable.MkdirAll(path); err != nil {
		return nil, fmt.Errorf("disk: make directory: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(path, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("disk: open lock: %w", err)
	}
	err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return &osFolder{path, lock}, nil
	}
	_ = lock.Close() // nothing was written
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, fmt.Errorf("disk: %s: %w", path, ErrInUse)
	}
	return nil, fmt.Errorf("disk: lock %s: %w", path, err)
}

func (d *osFolder) List() ([]string, error) {
	entries, err := os.ReadDir(d.path)
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, err
}

func (d *osFolder) open(name string, flag int) (file, error) {
	f, err := os.OpenFile(filepath.Join(d.path, name), os.O_RDWR|flag, 0o600)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (d *osFolder) Create(name string) (file, error) { return d.open(name, os.O_CREATE|os.O_EXCL) }
func (d *osFolder) Open(name string) (file, error)   { return d.open(name, 0) }
func (d *osFolder) Remove(name string) error         { return os.Remove(filepath.Join(d.path, name)) }
func (d *osFolder) Close() error                     { return d.lock.Close() }
func (d *osFolder) Punches() bool                    { return punches(d.lock) }

func (d *osFolder) Sync() error { return durable.SyncDir(d.path) }

func (d *osFolder) Mark(segment uint32) {
	// A failure, as on a full disk, does harm only if the sync fails too and the process is killed right after it.
	_, _ = d.lock.WriteAt(binary.LittleEndian.AppendUint32(nil, segment), 0)
}

func (d *osFolder) Marked() uint32 {
	var b [4]byte
	if _, err := d.lock.ReadAt(b[:], 0); err != nil {
		return 0 // nothing was marked yet
	}
	return binary.LittleEndian.Uint32(b[:])
}

type osFile struct{ *os.File }

func (f osFile) Size() (int64, error) {
	i, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return i.Size(), nil
}

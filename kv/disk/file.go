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

// folder is what the store needs of a directory, file of a file in it. Tests put faults and power
// cuts behind them.
type folder interface {
	List() ([]string, error)
	Create(name string) (file, error)
	Open(name string) (file, error)
	Remove(name string) error
	Sync() error // makes Create and Remove durable
	// Mark notes which segment is about to be synced, 0 for none. A process that is killed leaves the note; it need not
	// survive a power cut, and one that cannot be written is none.
	Mark(segment uint32)
	Marked() uint32
	Punches() bool
	Close() error // lets another process have the folder
}

type file interface {
	io.ReaderAt
	io.WriterAt
	Size() (int64, error)
	Truncate(size int64) error
	Punch(off, n int64) error          // makes a range zero and frees it
	NextData(off int64) (int64, error) // first offset ≥ off that may be non-zero; io.EOF if none
	Sync() error                       // makes writes durable
	Writeback(off, n int64)            // starts to write a range to the disk; promises nothing
	Close() error
}

const lockName = "LOCK"

// osFolder is a directory that this process alone may use while it is open.
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
	// Where this fails, as on a full disk, only a kill right after a sync that failed too could do harm.
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

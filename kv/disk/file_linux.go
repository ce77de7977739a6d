package disk

import (
	"errors"
	"io"
	"os"
	"syscall"
)

const (
	fallocKeepSize  = 1
	fallocPunchHole = 2
	seekData        = 3
	syncRangeWrite  = 2
)

// punches reports whether the file system of f can free holes of one block.
func punches(f *os.File) bool {
	var s syscall.Statfs_t
	if err := syscall.Fstatfs(int(f.Fd()), &s); err != nil || s.Bsize > block {
		return false
	}
	return osFile{f}.Punch(0, block) == nil
}

func (f osFile) Punch(off, n int64) error {
	return again(func() error {
		return syscall.Fallocate(int(f.Fd()), fallocPunchHole|fallocKeepSize, off, n)
	})
}

func (f osFile) Sync() error {
	return again(func() error { return syscall.Fdatasync(int(f.Fd())) })
}

// Writeback ignores errors: the next Sync of the file returns write errors.
func (f osFile) Writeback(off, n int64) {
	_ = syscall.SyncFileRange(int(f.Fd()), off, n, syncRangeWrite)
}

func (f osFile) NextData(off int64) (int64, error) {
	at, err := f.Seek(off, seekData)
	switch {
	case errors.Is(err, syscall.ENXIO):
		return 0, io.EOF
	case errors.Is(err, syscall.EINVAL): // the file system does not support it
		return off, nil
	}
	return at, err
}

func again(f func() error) error {
	for {
		if err := f(); err != syscall.EINTR {
			return err
		}
	}
}

package embed

import (
	"errors"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"grebe/internal/pebbleopen"
)

// ErrLocked says that another process has the tables open.
var ErrLocked = errors.New("the tables are in use by another process")

// ExamineFolder reads all tables of a folder that no process has open, and says what is wrong with them. It changes
// nothing.
func ExamineFolder(dir string) (problems []string, err error) {
	err = lockedFolder(dir, func(opt *pebble.Options) error {
		problems, err = pebbleopen.Examine(dir, opt)
		return err
	})
	return problems, err
}

// RepairFolder makes tables usable that OpenFolder refuses as damaged, or that have damaged blocks: it keeps all rows
// that can be read. It returns nil when nothing is wrong with them.
func RepairFolder(dir string) (loss *pebbleopen.Loss, err error) {
	if err := pebbleopen.Resume(dir); err != nil {
		return nil, err
	}
	err = lockedFolder(dir, func(opt *pebble.Options) error {
		loss, err = pebbleopen.Repair(dir, opt)
		return err
	})
	return loss, err
}

// lockedFolder calls do with the folder's lock, unless there is no such folder.
func lockedFolder(dir string, do func(*pebble.Options) error) error {
	return pebbleopen.Locked(dir, ErrLocked, func(lock *pebble.Lock) error {
		opt := folderOptions(vfs.Default)
		opt.Lock = lock
		return do(opt)
	})
}

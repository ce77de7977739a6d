package embed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"grebe/internal/pebbleopen"
)

// ErrLocked says that another process has the tables open.
var ErrLocked = errors.New("the tables are in use by another process")

// ExamineFolder reads all tables of a folder that no process has open, and says what is wrong with them. It changes nothing.
func ExamineFolder(dir string) ([]string, error) {
	var problems []string
	err := lockedFolder(dir, func(opt *pebble.Options) (err error) {
		problems, err = pebbleopen.Examine(dir, opt)
		return err
	})
	return problems, err
}

// RepairFolder makes tables usable that OpenFolder refuses as damaged, or that have damaged blocks: it keeps all rows that can be
// read. It returns nil when nothing is wrong with them.
func RepairFolder(dir string) (*pebbleopen.Loss, error) {
	if _, err := os.Stat(dir + ".repairing"); err == nil { // it may have been cut off when the folder was moved away
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	var loss *pebbleopen.Loss
	err := lockedFolder(dir, func(opt *pebble.Options) (err error) {
		loss, err = pebbleopen.Repair(dir, opt)
		return err
	})
	return loss, err
}

// lockedFolder calls do with the folder's lock, unless there is no such folder.
func lockedFolder(dir string, do func(*pebble.Options) error) error {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	lock, err := pebble.LockDirectory(dir, vfs.Default)
	if err != nil {
		var path *fs.PathError
		if errors.As(err, &path) {
			return fmt.Errorf("embed: lock %s: %w", dir, err)
		}
		return fmt.Errorf("embed: lock %s: %w", dir, ErrLocked)
	}
	opt := folderOptions(vfs.Default)
	opt.Lock = lock
	return errors.Join(do(opt), lock.Close())
}

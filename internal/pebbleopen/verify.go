package pebbleopen

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/atomicfs"
)

// ErrDamaged says that files of a database are damaged or missing.
var ErrDamaged = errors.New("the database is damaged")

// DamageError is an ErrDamaged that says what is wrong. Nothing was changed: all that is left can still be repaired.
type DamageError struct {
	Dir      string
	Problems []string
}

func (e *DamageError) Error() string {
	return fmt.Sprintf("the database in %s is damaged: %s. Nothing was changed. Restore the folder from a backup, or run "+
		"`grebe doctor --repair` to keep what can be read and see what is lost", e.Dir, strings.Join(e.Problems, "; "))
}

func (e *DamageError) Is(target error) bool { return target == ErrDamaged }

// Damage returns err as a DamageError where it is about damaged files, and err itself where it is about something else,
// such as a full disk or a file that may not be opened.
func Damage(dir string, err error) error {
	if err == nil || errors.Is(err, ErrDamaged) {
		return err
	}
	if pebble.IsCorruptionError(err) {
		return &DamageError{dir, []string{err.Error()}}
	}
	var system syscall.Errno
	if errors.As(err, &system) && system != syscall.ENOENT {
		return err
	}
	return &DamageError{dir, []string{err.Error()}}
}

// repairing is the suffix of the folder in which Repair builds a database anew.
const repairing = ".repairing"

// verify compares a database with its ledger, before Pebble opens it: Pebble would remove files that it does not know.
// It returns a ledger that describes the files, and why that had to be made anew; empty: it did not.
func verify(dir string, disk vfs.FS) (l *ledger, renewed string, err error) {
	names, err := disk.List(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, "", err
	}
	manifest, err := atomicfs.ReadMarker(disk, dir, "manifest")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, "", &DamageError{dir, []string{err.Error()}}
	}
	data := slices.ContainsFunc(names, func(n string) bool { return isLog(n) || isTable(n) })
	l, err = readLedger(dir, disk)
	switch {
	case errors.Is(err, errLedger):
		l, renewed = &ledger{files: map[string]extent{}}, "it was damaged"
	case errors.Is(err, fs.ErrNotExist):
		if l = (&ledger{files: map[string]extent{}}); data {
			renewed = "it was missing"
		}
	case err != nil:
		return nil, "", err
	}
	if manifest == "" && !data && !l.hasLogs() { // new, or its creation was cut off
		if _, err := disk.Stat(dir + repairing); err == nil {
			return nil, "", &DamageError{dir, []string{"a repair was cut off"}}
		}
		return &ledger{files: map[string]extent{}}, renewed, nil
	}
	if _, known := l.files[manifest]; manifest != "" && !known && renewed == "" {
		// A manifest is recorded before it becomes the current one.
		l, renewed = &ledger{files: map[string]extent{}, note: l.note},
			"another program, or an older one, has written to the database"
	}
	problems, err := l.compare(dir, disk, names, manifest)
	if err != nil {
		return nil, "", err
	}
	if len(problems) > 0 {
		return nil, "", &DamageError{dir, problems}
	}
	if renewed != "" {
		err = l.take(dir, disk, names, manifest)
	}
	return l, renewed, err
}

func (l *ledger) hasLogs() bool {
	for name := range l.files {
		if isLog(name) {
			return true
		}
	}
	return false
}

// compare says what is wrong with the recorded files. It forgets manifests other than the current one.
func (l *ledger) compare(dir string, disk vfs.FS, names []string, manifest string) (problems []string, err error) {
	switch {
	case manifest == "":
		problems = append(problems, "marker.manifest.*, which names the current manifest, is missing")
	case !slices.Contains(names, manifest):
		problems = append(problems, manifest+" is missing")
	}
	for _, name := range slices.Sorted(maps.Keys(l.files)) {
		if !isLog(name) && name != manifest {
			delete(l.files, name)
			continue
		}
		problem, err := l.files[name].check(disk, disk.PathJoin(dir, name))
		if err != nil {
			return nil, err
		}
		if problem != "" && !(name == manifest && len(problems) > 0) {
			problems = append(problems, name+" "+problem)
		}
	}
	return problems, nil
}

// check compares a file with what was synced of it, and says what is wrong.
func (e extent) check(disk vfs.FS, path string) (problem string, err error) {
	f, err := disk.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "is missing", nil
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := crc32.New(castagnoli)
	n, err := io.Copy(sum, io.LimitReader(f, int64(e.length)))
	switch {
	case err != nil:
		return "", err
	case uint64(n) < e.length:
		return fmt.Sprintf("has %d bytes, and %d were written", n, e.length), nil
	case sum.Sum32() != e.sum:
		return fmt.Sprintf("was changed somewhere in its first %d bytes", n), nil
	}
	return "", nil
}

// take records the logs and the manifest as they are.
func (l *ledger) take(dir string, disk vfs.FS, names []string, manifest string) error {
	for _, name := range names {
		if !isLog(name) && name != manifest {
			continue
		}
		f, err := disk.Open(disk.PathJoin(dir, name))
		if err != nil {
			return err
		}
		sum := crc32.New(castagnoli)
		n, err := io.Copy(sum, f)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
		l.files[name] = extent{uint64(n), sum.Sum32()}
	}
	return nil
}

package pebbleopen

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/atomicfs"
)

// Loss says what a repair found and could not keep.
type Loss struct {
	Problems []string // what was damaged
	Lost     []string // what could not be read; empty: nothing was lost
	Kept     string   // folder with the damaged files as they were; empty: they were repaired in place
	Note     Note     // last one that was recorded before the damage
}

// Locked calls do with the lock of a database's folder, unless there is no such folder. Where another process has the
// lock it returns taken.
func Locked(dir string, taken error, do func(*pebble.Lock) error) error {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	lock, err := pebble.LockDirectory(dir, vfs.Default)
	if err != nil {
		var path *fs.PathError
		if errors.As(err, &path) {
			taken = err
		}
		return fmt.Errorf("lock %s: %w", dir, taken)
	}
	return errors.Join(do(lock), lock.Close())
}

// Resume makes the folder of a database whose repair was cut off when the damaged one had been moved away, so that it
// can be locked and repaired again.
func Resume(dir string) error {
	if _, err := os.Stat(dir + repairing); err != nil {
		return nil
	}
	return os.MkdirAll(dir, 0o700)
}

// Examine reads a whole database and says what is wrong with it. It changes nothing. The caller holds the folder's
// lock, and gives it in opt. A folder without a database is in order.
func Examine(dir string, opt *pebble.Options) ([]string, error) {
	r := repairer{dir: dir, opt: opt, disk: opt.FS}
	if r.disk == nil {
		r.disk = vfs.Default
	}
	return r.examine(nil)
}

// Read calls visit for every key of a closed database, and changes nothing. The caller holds the folder's lock.
func Read(dir string, opt *pebble.Options, visit func(key, value []byte)) error {
	r := repairer{dir: dir, opt: opt, disk: opt.FS}
	if r.disk == nil {
		r.disk = vfs.Default
	}
	return r.readAll(nil, visit)
}

// Repair makes a database usable that Open or a read refuses as damaged. It returns nil when nothing is wrong. Where a
// small file can be made anew it does that. Otherwise it copies all that can be read into a new database, and keeps the
// damaged folder beside it. It may be cut off at any moment, and run again. The caller holds the folder's lock.
func Repair(dir string, opt *pebble.Options) (*Loss, error) {
	r := repairer{dir: dir, opt: opt, disk: opt.FS}
	if r.disk == nil {
		r.disk = vfs.Default
	}
	problems, err := r.examine(nil)
	if err != nil {
		return nil, fmt.Errorf("examine %s: %w", dir, err)
	}
	if len(problems) == 0 {
		return nil, nil
	}
	loss := &Loss{Problems: problems}
	if l, err := readLedger(dir, r.disk); err == nil {
		loss.Note = l.note
	}
	if done, err := r.finish(); done || err != nil {
		return loss, err
	}
	if done, err := r.small(); done || err != nil {
		return loss, err
	}
	return loss, r.rebuild(loss)
}

type repairer struct {
	dir  string
	opt  *pebble.Options
	disk vfs.FS
}

// examine says what is wrong. Files for which hidden is true are taken as missing.
func (r *repairer) examine(hidden func(name string) bool) ([]string, error) {
	var damage *DamageError
	if _, _, err := verify(r.dir, hiding{r.disk, hidden}); errors.As(err, &damage) {
		return damage.Problems, nil
	} else if err != nil {
		return nil, err
	}
	manifest, err := atomicfs.ReadMarker(r.disk, r.dir, "manifest")
	if errors.Is(err, fs.ErrNotExist) || err == nil && manifest == "" {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := r.readAll(hidden, func(_, _ []byte) {}); err == nil {
		return nil, nil
	} else if err = Damage(r.dir, err); errors.As(err, &damage) {
		return damage.Problems, nil
	} else {
		return nil, err
	}
}

// reader opens the database without changing it; unchecked: also where tables are missing.
func (r *repairer) reader(hidden func(name string) bool, unchecked bool) (db *pebble.DB, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	own := r.opt.Clone()
	own.FS, own.ReadOnly, own.DisableConsistencyCheck = hiding{r.disk, hidden}, true, unchecked
	own.Logger = quiet{}
	own.EventListener = &pebble.EventListener{DataCorruption: func(pebble.DataCorruptionInfo) {}}
	return pebble.Open(r.dir, own)
}

// quiet drops what Pebble says; errors come back from calls.
type quiet struct{}

func (quiet) Infof(string, ...any)            {}
func (quiet) Errorf(string, ...any)           {}
func (quiet) Fatalf(format string, as ...any) { panic(fmt.Sprintf(format, as...)) }

func (r *repairer) readAll(hidden func(name string) bool, visit func(key, value []byte)) error {
	db, err := r.reader(hidden, false)
	if err != nil {
		return err
	}
	defer db.Close()
	it, err := db.NewIter(nil)
	if err != nil {
		return err
	}
	for ok := it.First(); ok; ok = it.Next() {
		value, err := it.ValueAndErr()
		if err != nil {
			return errors.Join(err, it.Close())
		}
		visit(it.Key(), value)
	}
	return it.Close()
}

// finish ends a repair that was cut off after the damaged folder had been moved away.
func (r *repairer) finish() (bool, error) {
	if _, err := r.disk.Stat(r.dir + repairing); err != nil {
		return false, nil
	}
	names, err := r.disk.List(r.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if slices.ContainsFunc(names, func(n string) bool { return isLog(n) || isTable(n) || recorded(n) }) {
		return false, r.disk.RemoveAll(r.dir + repairing) // it was cut off before
	}
	return true, errors.Join(r.disk.RemoveAll(r.dir), r.disk.Rename(r.dir+repairing, r.dir),
		syncDir(r.disk.PathDir(r.dir), r.disk))
}

// small makes files anew whose content is known: markers and options.
func (r *repairer) small() (bool, error) {
	names, err := r.disk.List(r.dir)
	if err != nil {
		return false, err
	}
	has := func(prefix string) bool {
		return slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, prefix) })
	}
	if !has("marker.manifest.") {
		if name := r.wholeManifest(names); name != "" {
			if err := r.mark("manifest", name); err != nil {
				return false, err
			}
		}
	}
	if !has("marker.format-version.") {
		if err := r.mark("format-version", r.opt.FormatMajorVersion.String()); err != nil {
			return false, err
		}
	}
	if problems, err := r.examine(nil); err != nil || len(problems) == 0 {
		return err == nil, err
	}
	options := func(name string) bool { return strings.HasPrefix(name, "OPTIONS-") } // Pebble writes them at every start
	if problems, err := r.examine(options); err != nil || len(problems) > 0 {
		return false, err
	}
	for _, name := range names {
		if options(name) {
			if err := r.disk.Remove(r.disk.PathJoin(r.dir, name)); err != nil {
				return false, err
			}
		}
	}
	return true, syncDir(r.dir, r.disk)
}

// wholeManifest returns the newest manifest that is as it was synced; empty: none is.
func (r *repairer) wholeManifest(names []string) string {
	l, err := readLedger(r.dir, r.disk)
	if err != nil {
		return ""
	}
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(l.files))) {
		if isLog(name) || !slices.Contains(names, name) {
			continue
		}
		if problem, err := l.files[name].check(r.disk, r.disk.PathJoin(r.dir, name)); err == nil && problem == "" {
			return name
		}
	}
	return ""
}

func (r *repairer) mark(name, value string) error {
	m, _, err := atomicfs.LocateMarker(r.disk, r.dir, name)
	if err != nil {
		return err
	}
	return errors.Join(m.Move(value), m.Close())
}

// rebuild copies what can be read into a new database and puts that in the place of the damaged one.
func (r *repairer) rebuild(loss *Loss) error {
	fresh, sorted := r.dir+repairing, r.dir+".sorting"
	if err := errors.Join(r.disk.RemoveAll(fresh), r.disk.RemoveAll(sorted)); err != nil {
		return err
	}
	if err := r.copyTo(fresh, sorted, loss); err != nil {
		return fmt.Errorf("copy what can be read of %s: %w", r.dir, err)
	}
	if err := r.disk.RemoveAll(sorted); err != nil {
		return err
	}
	for n := 1; loss.Kept == ""; n++ {
		name := fmt.Sprintf("%s.damaged-%d", r.dir, n)
		if _, err := r.disk.Stat(name); errors.Is(err, fs.ErrNotExist) {
			loss.Kept = name
		}
	}
	parent := r.disk.PathDir(r.dir)
	return errors.Join(r.disk.Rename(r.dir, loss.Kept), syncDir(parent, r.disk), r.disk.Rename(fresh, r.dir),
		syncDir(parent, r.disk))
}

func (r *repairer) copyTo(fresh, sorted string, loss *Loss) error {
	opt := r.opt.Clone()
	opt.Lock, opt.Logger = nil, quiet{}
	if err := errors.Join(r.disk.MkdirAll(fresh, 0o700), r.disk.MkdirAll(sorted, 0o700)); err != nil {
		return err
	}
	tmp, err := Open(sorted, opt)
	if err != nil {
		return err
	}
	s := &salvage{disk: r.disk, dir: r.dir, to: tmp, batch: tmp.NewBatch(), loss: loss}
	err = errors.Join(s.read(r.liveTables(loss)), s.flush())
	if err == nil {
		var db *DB
		if db, err = Open(fresh, opt); err == nil {
			db.SetNote(loss.Note)
			err = errors.Join(fold(tmp.DB, db.DB), db.Close())
		}
	}
	return errors.Join(err, tmp.Close())
}

// liveTables returns the names of the tables that the manifest lists, nil where it cannot be read or is not as it was
// synced: Pebble reads a manifest up to its first damaged record, and so might not know the newest tables. Others may
// be older than what was deleted since.
func (r *repairer) liveTables(loss *Loss) map[string]bool {
	err := r.manifest()
	var db *pebble.DB
	if err == nil {
		db, err = r.reader(func(name string) bool { return isLog(name) || strings.HasPrefix(name, "OPTIONS-") }, true)
	}
	if err != nil {
		loss.Problems = append(loss.Problems, "the list of tables cannot be read: entries that were deleted shortly before "+
			"may be back")
		return nil
	}
	defer db.Close()
	levels, err := db.SSTables()
	if err != nil {
		loss.Lost = append(loss.Lost, fmt.Sprintf("tables are missing, with the entries that they held: %v", err))
		return nil
	}
	live := map[string]bool{}
	for _, level := range levels {
		for _, table := range level {
			live[fmt.Sprintf("%06d.sst", uint64(table.BackingSSTNum))] = true
		}
	}
	return live
}

// manifest returns what is wrong with the manifest in use, as far as the ledger tells.
func (r *repairer) manifest() error {
	name, err := atomicfs.ReadMarker(r.disk, r.dir, "manifest")
	if err != nil {
		return err
	}
	l, err := readLedger(r.dir, r.disk)
	if err != nil {
		return nil // nothing is known
	}
	e, ok := l.files[name]
	if !ok {
		return nil
	}
	problem, err := e.check(r.disk, r.disk.PathJoin(r.dir, name))
	if err == nil && problem != "" {
		err = errors.New(problem)
	}
	return err
}

// hiding is a file system without some files.
type hiding struct {
	vfs.FS
	hidden func(name string) bool // nil: none
}

func (h hiding) List(dir string) ([]string, error) {
	names, err := h.FS.List(dir)
	if h.hidden != nil {
		names = slices.DeleteFunc(names, h.hidden)
	}
	return names, err
}

// fold writes the last value of every key of sorted to db.
func fold(sorted, db *pebble.DB) error {
	it, err := sorted.NewIter(nil)
	if err != nil {
		return err
	}
	defer it.Close()
	b := db.NewBatch()
	var key, value []byte
	there := false
	put := func() error {
		if there {
			if err := b.Set(key, value, nil); err != nil {
				return err
			}
		}
		if b.Len() < batchBytes {
			return nil
		}
		err := b.Commit(pebble.NoSync)
		b = db.NewBatch()
		return err
	}
	for ok := it.First(); ok; ok = it.Next() {
		k, err := unescape(it.Key())
		if err != nil {
			return err
		}
		if key == nil || string(k) != string(key) {
			if err := put(); err != nil {
				return err
			}
			key, value, there = k, nil, false
		}
		switch v := it.Value(); pebble.InternalKeyKind(v[0]) {
		case pebble.InternalKeyKindSet, pebble.InternalKeyKindSetWithDelete:
			value, there = append([]byte(nil), v[1:]...), true
		case pebble.InternalKeyKindMerge: // values are joined, as Pebble's default does
			value, there = append(value, v[1:]...), true
		default:
			value, there = nil, false
		}
	}
	if err := errors.Join(it.Error(), put(), b.Commit(pebble.Sync)); err != nil {
		return err
	}
	return db.Compact(context.Background(), []byte{0}, []byte{0xFF}, false)
}

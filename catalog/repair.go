package catalog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"grebe/internal/human"
	"grebe/internal/pebbleopen"
)

// Examine reads a whole catalog that no process has open and says what is wrong with it. It changes nothing.
func Examine(dir string) (problems []string, err error) {
	err = locked(dir, func(opt *pebble.Options) error {
		problems, err = pebbleopen.Examine(dir, opt)
		if err != nil || len(problems) > 0 {
			return err
		}
		s, err := survey(dir, opt)
		problems = s.problems()
		return err
	})
	return problems, err
}

// Repair makes a catalog usable that Open refuses as damaged: it keeps all entries that can be read. It returns nil
// when nothing is wrong with it. The version goes on from the last one that was recorded.
func Repair(dir string) (loss *pebbleopen.Loss, err error) {
	if err := pebbleopen.Resume(dir); err != nil {
		return nil, err
	}
	err = locked(dir, func(opt *pebble.Options) error {
		loss, err = repair(dir, opt)
		return err
	})
	return loss, err
}

func repair(dir string, opt *pebble.Options) (*pebbleopen.Loss, error) {
	loss, err := pebbleopen.Repair(dir, opt)
	if err != nil {
		return loss, err
	}
	s, err := survey(dir, opt)
	if err != nil {
		return loss, err
	}
	if loss == nil && len(s.problems()) == 0 {
		return nil, nil
	}
	if loss == nil {
		loss = &pebbleopen.Loss{Problems: s.problems()}
	}
	loss.Lost = append(loss.Lost, s.problems()...)
	if note := loss.Note; note[0] > 0 {
		loss.Lost = append(loss.Lost, s.missing(note)...)
	}
	return loss, s.mend(dir, opt, loss.Note)
}

// locked calls do with the options of a catalog whose folder is locked, unless there is no such folder.
func locked(dir string, do func(*pebble.Options) error) error {
	return pebbleopen.Locked(dir, ErrLocked, func(lock *pebble.Lock) error {
		return do(pebbleOptions(lock, slog.New(slog.DiscardHandler), vfs.Default))
	})
}

// surveyed is what a database holds.
type surveyed struct {
	items, users int
	version      uint64
	newest       uint64   // version of an entry
	bad          [][]byte // keys of entries that cannot be read
	log          []byte   // where the log ends and begins; nil: there is none
	records      uint64   // of the log
}

func survey(dir string, opt *pebble.Options) (*surveyed, error) {
	s := &surveyed{}
	c := New(Options{})
	err := pebbleopen.Read(dir, opt, func(key, value []byte) {
		if string(key) == string(versionKey) && len(value) == 8 {
			s.version = binary.LittleEndian.Uint64(value)
		}
		if string(key) == string(logKey) {
			s.log = append([]byte{}, value...)
		}
		if key[0] == recordKind {
			s.records++
		}
		if len(key) != keySize || key[0] != 'i' && key[0] != 'u' {
			return
		}
		if err := c.readEntry(key[0], value); err != nil {
			s.bad = append(s.bad, append([]byte(nil), key...))
		}
	})
	if errors.Is(err, pebble.ErrDBDoesNotExist) {
		err = nil
	}
	s.items, s.users = c.items.n, len(c.users)
	all := c.items.list(c.items.n)
	defer all.free()
	for e := range all.entries() {
		s.newest = max(s.newest, e.version)
	}
	for _, e := range c.users {
		s.newest = max(s.newest, e.version)
	}
	return s, err
}

func (s *surveyed) problems() (out []string) {
	if len(s.bad) > 0 {
		out = append(out, human.Count(len(s.bad), "entry")+" cannot be read")
	}
	if s.log != nil && (len(s.log) != 2*markSize || readMark(s.log).Index-readMark(s.log[markSize:]).Index != s.records) {
		out = append(out, fmt.Sprintf("the log of changes, with %s, is not complete",
			human.Count(int64(s.records), "record")))
	}
	return out
}

// missing compares with the numbers that were recorded with the last change.
func (s *surveyed) missing(note pebbleopen.Note) []string {
	var out []string
	for _, n := range []struct {
		what     string
		had, has uint64
	}{{"items", note[1], uint64(s.items)}, {"users", note[2], uint64(s.users)}} {
		if n.had != n.has {
			out = append(out, fmt.Sprintf("%s: there were %d, and there are %d", n.what, n.had, n.has))
		}
	}
	if last := max(s.version, s.newest); last < note[0] {
		out = append(out, fmt.Sprintf("changes %d to %d", last+1, note[0]))
	}
	return out
}

// mend removes what cannot be read and makes sure that versions grow. A cluster's member forgets its place in the log:
// it may lack entries, so it takes a snapshot of the leader.
func (s *surveyed) mend(dir string, opt *pebble.Options, note pebbleopen.Note) error {
	db, err := pebbleopen.Open(dir, opt)
	if err != nil {
		return err
	}
	version := max(s.version, s.newest, note[0])
	b := db.NewBatch()
	for _, key := range s.bad {
		err = errors.Join(err, b.Delete(key, nil))
	}
	err = errors.Join(err, b.Delete(logKey, nil), b.DeleteRange([]byte{recordKind}, []byte{recordKind + 1}, nil))
	err = errors.Join(err, b.Set(versionKey, binary.LittleEndian.AppendUint64(nil, version), nil),
		b.Set(formatKey, binary.LittleEndian.AppendUint64(nil, format), nil), b.Commit(pebble.Sync))
	db.SetNote(pebbleopen.Note{version, uint64(s.items), uint64(s.users)})
	return errors.Join(err, db.Close())
}

package catalog

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"grebe/internal/durable"
	"grebe/internal/pebbleopen"
)

// store is a catalog on disk. FORMAT.md describes what it writes.
type store struct {
	db      *pebbleopen.DB
	lock    *pebble.Lock
	sweeper *pebbleopen.Sweeper
	buried  atomic.Bool // there may be users who were deleted, see Buried
}

// format is the version of what is on disk.
const format = 1

// Keys of what belongs to no entry.
var (
	formatKey  = []byte("mformat")
	versionKey = []byte("mversion")
	idKey      = []byte("mid")
	sweepKey   = []byte("msweep") // there while deleted bytes may be in the files
)

// Frames of a value.
const (
	wholeFrame  = 1 // a whole item or user
	eventsFrame = 2 // events appended to the user before it
)

const keySize = 17

// keyOf returns the key of an entry: its kind and a digest of its id. The id itself stands in values
// only, because keys also stand in the store's manifest, which a sweep does not rewrite.
func keyOf(user bool, id string) [keySize]byte {
	var k [keySize]byte
	k[0] = 'i'
	if user {
		k[0] = 'u'
	}
	h := sha256.Sum256([]byte(id))
	copy(k[1:], h[:])
	return k
}

// CheckFree returns ErrLocked if another process, or this one, has the folder open.
func CheckFree(dir string) error {
	return pebbleopen.Locked(dir, ErrLocked, func(*pebble.Lock) error { return nil })
}

// Open opens the catalog in a folder, which is made when it is not there. The caller MUST Close it.
// One process at a time has a folder open: another one gets ErrLocked.
func Open(dir string, opt Options) (*Catalog, error) {
	c := New(opt)
	if err := c.open(dir); err != nil {
		if pebble.IsCorruptionError(err) || errors.Is(err, errRecord) {
			err = &pebbleopen.DamageError{Dir: dir, Problems: []string{err.Error()}}
		}
		return nil, fmt.Errorf("catalog: open %s: %w", dir, err)
	}
	return c, nil
}

func (c *Catalog) open(dir string) error {
	s, err := openStore(dir, c.opt.Logger, c.opt.disk)
	if err != nil {
		return err
	}
	if err := c.read(s); err != nil {
		return errors.Join(err, s.close())
	}
	if c.id, err = s.identify(c.id); err != nil {
		return errors.Join(err, s.close())
	}
	if err := c.openLog(s); err != nil {
		return errors.Join(err, s.close())
	}
	pending, err := s.has(sweepKey)
	if err != nil {
		return errors.Join(err, s.close())
	}
	buried, err := s.anyBuried()
	if err != nil {
		return errors.Join(err, s.close())
	}
	s.buried.Store(buried)
	c.store = s
	if pending && c.log != nil {
		c.log.deleted = c.log.last
	}
	c.startSweeper(pending)
	return nil
}

// Close waits for the writes under way and closes the files. Reads go on to work. After ErrFailed the
// files stay open until the process ends, since a store that failed may not be able to close.
func (c *Catalog) Close() error {
	if c.store == nil {
		return nil
	}
	last := &writer{wake: make(chan bool, 1)}
	c.queueMu.Lock()
	if c.closed {
		c.queueMu.Unlock()
		return nil
	}
	c.closed = true
	c.queue = append(c.queue, last)
	lead := !c.busy
	c.busy = true
	c.queueMu.Unlock()
	if lead || <-last.wake {
		c.lead()
	}
	c.mu.RLock()
	failed := c.failed
	c.mu.RUnlock()
	if failed != nil {
		c.store.sweeper.Cancel()
		return fmt.Errorf("catalog: close: %w", failed)
	}
	c.store.sweeper.Stop()
	if err := c.store.close(); err != nil {
		return fmt.Errorf("catalog: close: %w", err)
	}
	return nil
}

func openStore(dir string, log *slog.Logger, disk vfs.FS) (*store, error) {
	if disk == nil {
		disk = vfs.Default
		if err := durable.MkdirAll(dir); err != nil {
			return nil, err
		}
	}
	lock, err := pebble.LockDirectory(dir, disk)
	if err != nil {
		var path *fs.PathError
		if errors.As(err, &path) {
			return nil, err
		}
		return nil, ErrLocked
	}
	s := &store{lock: lock}
	if s.db, err = pebbleopen.Open(dir, pebbleOptions(lock, log, disk)); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	if err := s.checkFormat(); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func pebbleOptions(lock *pebble.Lock, log *slog.Logger, disk vfs.FS) *pebble.Options {
	return &pebble.Options{
		FS:                 disk,
		Lock:               lock,
		FormatMajorVersion: pebble.FormatTableFormatV6,
		MemTableSize:       16 << 20,
		Cleaner:            pebbleopen.Eraser(),
		Logger:             newLogger(log),
	}
}

func (s *store) close() error {
	return errors.Join(s.db.Close(), s.lock.Close())
}

func (s *store) checkFormat() error {
	v, err := s.number(formatKey)
	switch {
	case errors.Is(err, pebble.ErrNotFound):
		return s.db.Set(formatKey, binary.LittleEndian.AppendUint64(nil, format), pebble.Sync)
	case err != nil:
		return err
	case v != format:
		return fmt.Errorf("the files have format %d, and this build reads format %d", v, format)
	}
	return nil
}

// identify returns the catalog's id, which is fresh where it has none yet.
func (s *store) identify(fresh string) (string, error) {
	v, closer, err := s.db.Get(idKey)
	if errors.Is(err, pebble.ErrNotFound) {
		return fresh, s.db.Set(idKey, []byte(fresh), pebble.Sync)
	}
	if err != nil {
		return "", err
	}
	id := string(v)
	return id, closer.Close()
}

func (s *store) has(key []byte) (bool, error) {
	_, closer, err := s.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, closer.Close()
}

func (s *store) number(key []byte) (uint64, error) {
	v, closer, err := s.db.Get(key)
	if err != nil {
		return 0, err
	}
	defer closer.Close()
	if len(v) != 8 {
		return 0, fmt.Errorf("%s has %d bytes", key, len(v))
	}
	return binary.LittleEndian.Uint64(v), nil
}

// read fills an empty catalog from its store.
func (c *Catalog) read(s *store) error {
	version, err := s.number(versionKey)
	if err != nil && !errors.Is(err, pebble.ErrNotFound) {
		return err
	}
	c.totals.version = version
	it, err := s.db.NewIter(nil)
	if err != nil {
		return err
	}
	defer it.Close()
	for ok := it.First(); ok; ok = it.Next() {
		if err := c.readEntry(it.Key()[0], it.Value()); err != nil {
			return fmt.Errorf("entry %x: %w", it.Key(), err)
		}
		if c.totals.bytes > c.opt.MaxMemory || c.items.n > c.opt.MaxItems || len(c.users) > c.opt.MaxUsers {
			return fmt.Errorf("%w: it holds more than %d items, %d users or %d bytes of memory: raise the limit",
				ErrFull, c.opt.MaxItems, c.opt.MaxUsers, c.opt.MaxMemory)
		}
	}
	return it.Error()
}

func (c *Catalog) readEntry(kind byte, value []byte) error {
	switch kind {
	case 'i':
		return c.readItem(value)
	case 'u':
		return c.readUser(value)
	case deletionKind:
		return c.deletions.read(value)
	}
	return nil
}

func (c *Catalog) readItem(value []byte) error {
	e, err := parseItem(value)
	if err != nil {
		return err
	}
	c.items.put(e.record, e.version)
	c.totals.bytes += e.size()
	c.totals.digest = c.totals.digest.plus(e.digest())
	return nil
}

func (c *Catalog) readUser(value []byte) error {
	e, err := parseUser(value, c.opt.MaxHistory)
	if err != nil {
		return err
	}
	c.users[e.user.Id] = e
	c.totals.bytes += e.size
	return nil
}

// parseItem reads the value of an item. The entry shares its memory.
func parseItem(value []byte) (*itemEntry, error) {
	f, rest, err := nextFrame(value)
	if err != nil || len(rest) > 0 || f.kind != wholeFrame {
		return nil, errRecord
	}
	if _, err := newItem(f.record); err != nil {
		return nil, err
	}
	return &itemEntry{record: f.record, version: f.version}, nil
}

// parseUser reads the value of a user.
func parseUser(value []byte, maxHistory int) (*userEntry, error) {
	f, rest, err := nextFrame(value)
	if err != nil || f.kind != wholeFrame {
		return nil, errRecord
	}
	e, err := newUser(f.record)
	if err != nil {
		return nil, err
	}
	e.version = f.version
	for len(rest) > 0 {
		if f, rest, err = nextFrame(rest); err != nil || f.kind != eventsFrame {
			return nil, errRecord
		}
		events, size, err := newEvents(f.record)
		if err != nil {
			return nil, err
		}
		e, _ = grown(e, e.user.Id, events, size, maxHistory)
		e.version = f.version
	}
	return e, nil
}

// frame is one piece of a value. A user's value is a whole frame and those of events appended since.
type frame struct {
	kind    byte
	version uint64
	record  record
}

func appendFrame(dst []byte, f frame) []byte {
	dst = append(dst, f.kind)
	dst = binary.LittleEndian.AppendUint64(dst, f.version)
	dst = binary.AppendUvarint(dst, uint64(len(f.record)))
	return append(dst, f.record...)
}

func nextFrame(b []byte) (f frame, rest []byte, err error) {
	if len(b) < 9 {
		return f, nil, errRecord
	}
	f.kind, f.version = b[0], binary.LittleEndian.Uint64(b[1:])
	n, k := binary.Uvarint(b[9:])
	if k <= 0 || n > uint64(len(b)-9-k) {
		return f, nil, errRecord
	}
	b = b[9+k:]
	f.record = b[:n:n]
	return f, b[n:], nil
}

// batch collects what a round writes. It fails when it is committed, if at all.
type batch struct {
	s   *store
	b   *pebble.Batch
	db  *pebbleopen.DB
	buf []byte
	err error
}

func (s *store) batch() *batch { return &batch{s: s, b: s.db.NewBatch(), db: s.db} }

func (b *batch) close() { b.b.Close() }

func (b *batch) empty() bool { return b.b.Empty() && b.err == nil }

func (b *batch) note(err error) { b.err = errors.Join(b.err, err) }

func (b *batch) put(user bool, id string, version uint64, r record) {
	key := keyOf(user, id)
	b.buf = appendFrame(b.buf[:0], frame{wholeFrame, version, r})
	b.note(b.b.Set(key[:], b.buf, nil))
}

// append adds events to a user that is there. The store joins the pieces of a value in order.
func (b *batch) append(id string, version uint64, r record) {
	key := keyOf(true, id)
	b.buf = appendFrame(b.buf[:0], frame{eventsFrame, version, r})
	b.note(b.b.Merge(key[:], b.buf, nil))
}

func (b *batch) delete(user bool, id string) {
	key := keyOf(user, id)
	b.note(b.b.Delete(key[:], nil))
	b.note(b.b.Set(sweepKey, []byte{1}, nil))
}

func (b *batch) unmark() { b.note(b.b.Delete(sweepKey, nil)) }

// commit makes the batch durable. After an error of the store reads go on to work.
func (b *batch) commit(version uint64) error {
	b.note(b.b.Set(versionKey, binary.LittleEndian.AppendUint64(nil, version), nil))
	if b.err != nil {
		return b.err
	}
	return b.db.Try(func() error { return b.b.Commit(pebble.Sync) })
}

// logger passes on what the store says in trouble. A store without room on its disk tries again hundreds of times a
// second: the same is not said again for a while.
type logger struct {
	log *slog.Logger
	now func() time.Duration

	mu     sync.Mutex
	silent time.Duration // until then
	left   int           // messages that were left out since the last
}

// logPause is for how long the store's next trouble is not told.
const logPause = 5 * time.Second

func newLogger(log *slog.Logger) *logger {
	start := time.Now()
	return &logger{log: log, now: func() time.Duration { return time.Since(start) }, silent: -1}
}

func (*logger) Infof(string, ...any) {}

func (l *logger) Errorf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if now <= l.silent {
		l.left++
		return
	}
	l.log.Error("the catalog's store", "message", fmt.Sprintf(format, args...), "left_out", l.left)
	l.silent, l.left = now+logPause, 0
}

// Fatalf is told of what the store cannot survive. It must not return.
func (l *logger) Fatalf(format string, args ...any) {
	panic("catalog: the store failed: " + fmt.Sprintf(format, args...))
}

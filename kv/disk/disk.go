// Package disk keeps records in files so that they survive a restart: the tier below memory. A record
// is a key, a little meta and a payload; what they mean is the caller's business.
//
// It is a cache, and checksums decide what is in it. Records are appended to segment files; a record
// counts once its header stands, and the header is written last. Killing the process at any moment
// leaves every record whose Put returned and nothing half-written. A power cut may also lose records
// written since the last Sync, by this process or by one that was killed. A torn or corrupted record is a miss and a counter, never wrong bytes
// and never an error. Delete is durable when it returns, and leaves no byte of the record in the
// files. FORMAT.md describes the files.
//
// Invariants
//   - The bytes held by all files, in blocks of 4 KiB, never exceed Options.Budget; the record used
//     longest ago makes room. File systems that punch holes free it at once; on others whole segments
//     are rewritten when half of one is dead.
//   - What no record owns is zero: space is erased before it is given back, and Open erases what a
//     crash left.
//   - A place in a segment is written by one record only, so a reader that finds its record at the
//     same place after reading knows that what it read was that record.
//
// Lock order: Store.w, then Store.mu. Store.w serialises whatever changes files; Store.mu guards the
// index and the books and is never held during I/O. Readers take only Store.mu.
package disk

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"grebe/internal/durable"
	"grebe/plan"
)

// MaxMeta is the most bytes of meta a record may have.
const MaxMeta = 64 << 10

var (
	ErrInUse    = errors.New("the directory is in use by another process")
	ErrClosed   = errors.New("disk: store is closed")
	ErrTooLarge = errors.New("record does not fit the budget")
	ErrNoRoom   = errors.New("no room: readers hold what was evicted")
)

// Options of a store. Its memory is bounded by Budget: the index takes about 70 bytes per record, and a
// record takes at least 4 KiB of files.
type Options struct {
	Budget  int64        // bytes that all files together may hold; required, 1 MiB to 16 TiB
	Version [32]byte     // digest of what made the records; those of another version are reclaimed by Open
	Segment int64        // bytes of a segment file; default Budget/256, at least 64 MiB; 64 KiB to Budget/4
	Logger  *slog.Logger // told of damage found; default none
}

func (o *Options) validate() error {
	if o.Budget < 1<<20 || o.Budget > maxBytes {
		return fmt.Errorf("disk: budget of %d bytes, want 1 MiB to 16 TiB", o.Budget)
	}
	if o.Segment < 0 {
		return fmt.Errorf("disk: segments of %d bytes", o.Segment)
	}
	if o.Segment == 0 {
		o.Segment = max(o.Budget/256, 64<<20)
	}
	o.Segment = max(min(o.Segment, o.Budget/4)/block*block, 16*block)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

// Stats are counts since Open, except the first four, which are amounts now.
type Stats struct {
	Entries   int   // records that can be found
	LiveBytes int64 // bytes of files those records take, with headers and padding
	DiskBytes int64 // bytes that all files hold; never above Options.Budget
	Segments  int

	Hits, Misses     uint64
	ChecksumFailures uint64 // records found damaged when read, and dropped
	ReadErrors       uint64 // records the system failed to read, and dropped
	WriteErrors      uint64 // puts, erasures and syncs that failed
	TornRecords      uint64 // remains of unfinished or damaged records found by Open, and erased
	StaleRecords     uint64 // records of another version or replaced, found by Open, and erased
	Evictions        uint64 // records dropped to make room
	Compactions      uint64 // segments rewritten
}

// extent is a range of a segment that awaits erasure.
type extent struct {
	seg    *segment
	off, n int64
}

// Store is a directory of records. Its methods may be called concurrently.
type Store struct {
	opt         Options
	dir         folder
	punch       bool // holes can be punched
	maxSegments int

	writing, erasing, reading *durable.Trouble

	w        sync.Mutex
	version  [32]byte // of the records that are written
	active   *segment // takes the next record; may be nil
	nextSeg  uint32
	seq      uint64
	doomed   []*segment // dropped, and the file is still to be removed
	unlinked bool       // a removal of a file is not durable yet

	mu        sync.Mutex
	index     *index
	segs      map[uint32]*segment
	pending   []extent // no record's any more, not yet erased
	live      int64
	held      int64 // bytes of all files
	lingering int64 // part of held: removed files that readers keep open
	closed    bool
	stats     Stats
	report    func(keys []plan.Key) // nil: nobody is told of drops
	dropped   []plan.Key            // not reported yet
}

// OnDrop has f called with the keys of records that the store drops: evicted, damaged, deleted or lost in a compaction. A key may have
// a record again when f is called, so f asks Has. Drops are reported without Store.mu held. OnDrop MUST be called before the
// store is used concurrently.
func (s *Store) OnDrop(f func(keys []plan.Key)) { s.report = f }

// reportDrops reports what was dropped. The caller does not hold mu.
func (s *Store) reportDrops() {
	if s.report == nil {
		return
	}
	s.mu.Lock()
	keys := s.dropped
	s.dropped = nil
	s.mu.Unlock()
	if len(keys) > 0 {
		s.report(keys)
	}
}

// Open opens the store in a directory, which it makes if needed and owns until Close. It reads the
// headers of all records, not their payloads.
func Open(path string, opt Options) (*Store, error) {
	if err := opt.validate(); err != nil {
		return nil, err
	}
	dir, err := openFolder(path)
	if err != nil {
		return nil, err
	}
	s, err := open(dir, opt)
	if err != nil {
		_ = dir.Close() // the reason to fail is err
		return nil, fmt.Errorf("disk: open %s: %w", path, err)
	}
	return s, nil
}

func open(dir folder, opt Options) (*Store, error) {
	s := &Store{
		opt:         opt,
		version:     opt.Version,
		dir:         dir,
		punch:       dir.Punches(),
		maxSegments: int(2*opt.Budget/opt.Segment) + 8,
		index:       newIndex(),
		segs:        map[uint32]*segment{},
		nextSeg:     1,
	}
	s.writing = durable.NewTrouble(opt.Logger, "disk: records cannot be written")
	s.erasing = durable.NewTrouble(opt.Logger, "disk: old records cannot be erased, which is tried again")
	s.reading = durable.NewTrouble(opt.Logger, "disk: records cannot be read, and are dropped")
	if err := s.recover(); err != nil {
		s.closeFiles()
		return nil, err
	}
	return s, nil
}

// Sync makes all records durable, so that a power cut cannot lose them.
func (s *Store) Sync() error {
	s.w.Lock()
	defer s.w.Unlock()
	if s.isClosed() {
		return ErrClosed
	}
	return s.sync()
}

// sync erases what awaits it and makes every segment durable. The caller holds w.
func (s *Store) sync() error {
	return s.despiteFailedSyncs(func() error {
		err := s.drain()
		for _, seg := range s.segments() {
			if seg.dirty {
				err = errors.Join(err, s.syncSegment(seg))
			}
		}
		return errors.Join(err, s.syncFolder())
	})
}

// despiteFailedSyncs calls f, and once more if f failed and the segments whose sync failed could be rewritten. It
// rewrites those that an earlier call left, first. The caller holds w.
func (s *Store) despiteFailedSyncs(f func() error) error {
	if err := s.rewriteFailed(); err != nil {
		return err
	}
	err := f()
	if err == nil || s.rewriteFailed() != nil {
		return err
	}
	return f()
}

// errFailedBefore is why a segment is not used that a process before failed to sync.
var errFailedBefore = errors.New("a process before could not sync it")

// syncSegment makes a segment durable. A sync that fails leaves the pages clean: a later one would succeed without
// writing them. So the segment is not used any more, and its records are copied to another. The caller holds w.
func (s *Store) syncSegment(seg *segment) error {
	if seg.failed != nil {
		return fmt.Errorf("disk: segment %d is to be rewritten since a sync failed: %w", seg.id, seg.failed)
	}
	s.dir.Mark(seg.id) // else a kill right after a failed sync would leave no sign of it
	defer s.dir.Mark(0)
	if err := seg.f.Sync(); err != nil {
		s.countWriteError()
		s.fail(seg, err)
		return fmt.Errorf("disk: sync segment %d: %w", seg.id, err)
	}
	seg.dirty, seg.erased = false, false
	return nil
}

// fail notes that a sync of a segment failed, in the file too: a process that follows this one finds the same pages, and
// must not trust them either.
func (s *Store) fail(seg *segment, err error) {
	seg.failed = err
	if seg == s.active {
		s.active = nil
	}
	if _, err := seg.f.WriteAt(failedMark, failedMarkAt); err != nil {
		s.opt.Logger.Error("disk: mark a segment whose sync failed", "segment", seg.id, "error", err)
	}
}

// rewriteFailed copies the records of segments whose sync failed to others and removes them. The caller holds w.
func (s *Store) rewriteFailed() error {
	var errs []error
	for _, seg := range s.segments() {
		if seg.failed != nil {
			errs = append(errs, s.compact(seg))
		}
	}
	return errors.Join(errs...)
}

func (s *Store) syncFolder() error {
	if !s.unlinked {
		return nil
	}
	if err := s.dir.Sync(); err != nil {
		s.countWriteError()
		return fmt.Errorf("disk: sync directory: %w", err)
	}
	s.unlinked = false
	return nil
}

// Close makes all records durable and lets go of the directory. Reads under way finish.
func (s *Store) Close() error {
	s.w.Lock()
	defer s.w.Unlock()
	if s.isClosed() {
		return nil
	}
	err := s.sync()
	s.closeFiles()
	return errors.Join(err, s.dir.Close())
}

func (s *Store) closeFiles() {
	s.mu.Lock()
	s.closed = true
	var last []*segment
	for _, seg := range s.segs {
		if seg.refs--; seg.refs == 0 {
			last = append(last, seg)
		}
	}
	s.mu.Unlock()
	for _, seg := range last {
		_ = seg.f.Close() // synced or given up before
	}
}

func (s *Store) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// Failing returns why records cannot be written, read or erased at present; nil: they can.
func (s *Store) Failing() error {
	return cmp.Or(s.writing.Failing(), s.erasing.Failing(), s.reading.Failing())
}

// Stats returns the store's counts.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Entries, st.LiveBytes, st.DiskBytes, st.Segments = s.index.len, s.live, s.held, len(s.segs)
	return st
}

func (s *Store) countWriteError() {
	s.mu.Lock()
	s.stats.WriteErrors++
	s.mu.Unlock()
}

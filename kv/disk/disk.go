// Package disk keeps records in files, so that they survive a restart. It is the tier below memory. A record
// has a key, a little metadata and a payload, whose meaning is up to the caller.
//
// The store is a cache, and checksums decide whether a record is valid. Records are appended to segment
// files. The header of a record is written last and makes it valid. If the process is killed, every record
// whose Put returned is there, and no other one is half-written. A power cut may also lose records that were
// written since the last Sync, by this process or by one that was killed. A torn or corrupted record counts
// as a miss and in a metric; it is never an error and never returns wrong bytes. When Delete returns, it is
// durable, and the files have no byte of the record. FORMAT.md describes the files.
//
// Invariants
//   - The size of all files, in blocks of 4 KiB, never exceeds Options.Budget. The least recently used
//     record is evicted first. File systems that punch holes free its space at once; on others a segment
//     is rewritten when half of it is dead.
//   - Space that belongs to no record is zero. Space is erased before it is freed, and Open erases what a
//     crash left.
//   - Each place in a segment is written by one record only. So a reader whose record is still at the same
//     place after the read knows that it read that record.
//
// Lock order: Store.w, then Store.mu. Store.w serialises changes of files. Store.mu guards the index and the
// counters and is never held during I/O. Readers take only Store.mu.
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

// MaxMeta is the most bytes of metadata of a record.
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
	Version [32]byte     // digest of what records depend on; Open removes records of other versions
	Segment int64        // bytes of a segment file; default Budget/256, at least 64 MiB; 64 KiB to Budget/4
	Logger  *slog.Logger // logs damage; default none
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

// Stats are counts since Open, except the first four, which are current amounts.
type Stats struct {
	Entries   int   // records that can be found
	LiveBytes int64 // bytes of files those records take, with headers and padding
	DiskBytes int64 // bytes that all files hold; never above Options.Budget
	Budget    int64 // Options.Budget
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

// extent is a range of a segment that has to be erased.
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
	active   *segment // takes the next record; may be nil
	nextSeg  uint32
	seq      uint64
	doomed   []*segment // dropped segments whose files are not removed yet
	unlinked bool       // the removal of a file is not durable yet

	mu        sync.Mutex
	index     *index
	segs      map[uint32]*segment
	pending   []extent // extents that belong to no record and are not erased yet
	live      int64
	held      int64 // bytes of all files
	lingering int64 // part of held: removed files that readers keep open
	closed    bool
	stats     Stats
	report    func(keys []plan.Key) // nil: drops are not reported
	dropped   []plan.Key            // keys to report
}

// OnDrop has f called with the keys of records that were evicted, found damaged, deleted, or lost in a compaction. A
// key may have a new record when f is called, so f has to ask Has. f is called without Store.mu held. OnDrop MUST be
// called before the store is used concurrently.
func (s *Store) OnDrop(f func(keys []plan.Key)) { s.report = f }

// reportDrops reports the dropped keys. The caller does not hold mu.
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

// Open opens the store in a directory. It creates the directory if needed and owns it until Close. It reads
// the headers of all records but not their payloads.
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
		_ = dir.Close() // err is the error to return
		return nil, fmt.Errorf("disk: open %s: %w", path, err)
	}
	return s, nil
}

func open(dir folder, opt Options) (*Store, error) {
	s := &Store{
		opt:         opt,
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

// sync erases all pending extents and makes every segment durable. The caller holds w.
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

// despiteFailedSyncs first rewrites the segments whose sync failed in an earlier call. Then it calls f. If f fails, and
// the segments whose sync failed can be rewritten, it calls f once more. The caller holds w.
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

// errFailedBefore is the error of a segment that an earlier process failed to sync. Such a segment is not used.
var errFailedBefore = errors.New("an earlier process could not sync it")

// syncSegment makes a segment durable. After a failed sync the system marks the pages as clean, and a later sync would
// succeed without writing them. So the segment gets no more records, and its records are copied to another one. The
// caller holds w.
func (s *Store) syncSegment(seg *segment) error {
	if seg.failed != nil {
		return fmt.Errorf("disk: segment %d is to be rewritten since a sync failed: %w", seg.id, seg.failed)
	}
	s.dir.Mark(seg.id) // so that the next process knows of a failed sync even after a kill
	defer s.dir.Mark(0)
	if err := seg.f.Sync(); err != nil {
		s.countWriteError()
		s.fail(seg, err)
		return fmt.Errorf("disk: sync segment %d: %w", seg.id, err)
	}
	seg.dirty, seg.erased = false, false
	return nil
}

// fail notes that a sync of a segment failed, in the file too: the next process finds the same pages and must not trust
// them either.
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

// Close makes all records durable and releases the directory. Reads under way finish.
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
		_ = seg.f.Close() // it was synced, or its sync failed, before
	}
}

func (s *Store) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// Failing returns the reason why records cannot be written, read or erased at present, or nil.
func (s *Store) Failing() error {
	return cmp.Or(s.writing.Failing(), s.erasing.Failing(), s.reading.Failing())
}

// Stats returns the store's counts.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Entries, st.LiveBytes, st.DiskBytes, st.Segments = s.index.len, s.live, s.held, len(s.segs)
	st.Budget = s.opt.Budget
	return st
}

func (s *Store) countWriteError() {
	s.mu.Lock()
	s.stats.WriteErrors++
	s.mu.Unlock()
}

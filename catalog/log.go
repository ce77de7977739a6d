package catalog

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/cockroachdb/pebble/v2"
)

// A replicated catalog has a log. Each round of writes is one record, in the same batch as its effect, so both are
// durable or neither is. A follower applies the leader's records and has the same versions and contents.
//
// Readers and subscribers see a record only after it is committed: Log.Commit returned on the leader, or a follower's
// Show was called. Until then it waits: it is on disk and in no map.

var (
	// ErrNotLeader reports that another node must carry out a write. Nothing was changed.
	ErrNotLeader = errors.New("this node does not lead the catalog")
	// ErrUnavailable reports that nobody can carry out a write at the moment. Nothing was changed.
	ErrUnavailable = errors.New("the catalog takes no writes at the moment")
	// ErrUncertain reports that a write may have taken effect, or may take effect later.
	ErrUncertain = errors.New("it is not known whether the write took effect")
	// ErrGap reports that records do not continue a log.
	ErrGap = errors.New("the records do not continue the log")
	// ErrMember reports a write to a member's catalog from outside its cluster.
	ErrMember = errors.New("the catalog belongs to a cluster: write to a running member")
)

// Log is how a replicated catalog reaches the other nodes.
type Log interface {
	// Term returns the term in which this node may write, or an error if it may not.
	Term() (uint64, error)
	// Commit waits until a record is on the disks of all nodes that need it. After an error the outcome is unknown.
	Commit(Mark) error
	// Seen waits until readers of the other nodes in sync see a record, but not for long: a node that lags delays no
	// writer.
	Seen(ctx context.Context, index uint64)
	// Forward has the leader carry out a request with Catalog.Serve, and returns its reply. A request that is repeatable
	// may be sent again after an unknown outcome. It returns ErrLeads if this node leads.
	Forward(ctx context.Context, request []byte, repeatable bool) (reply []byte, err error)
}

// ErrLeads is returned by Log.Forward if the write can be carried out here.
var ErrLeads = errors.New("this node leads the catalog")

// Mark is a place in a log. Indices count from 1. A leader's records have its term.
type Mark struct{ Term, Index uint64 }

// Record is one round of writes.
type Record struct {
	Mark
	Data []byte // entries; FORMAT.md
}

// LogState describes a log.
type LogState struct {
	ID         string // of the catalog; equal on all members
	Last       Mark   // the last record on disk
	Shown      uint64 // index of the last record that readers see
	Erased     uint64 // index of the last shown record that deletes; after a start or a copy, that of the last record
	Version    uint64 // of the catalog on disk
	Waiting    bool   // records wait to be shown whose writers have given up, or that another node has made
	Incomplete bool   // a copy of another node's catalog was interrupted
}

// replicated is the log of a catalog.
type replicated struct {
	most int64 // bytes of records that are kept

	mu         sync.Mutex
	hook       Log
	last       Mark
	floor      Mark    // records up to this one are gone
	sizes      []int32 // of the records after floor
	bytes      int64   // their sum
	version    uint64  // of the catalog on disk
	shown      uint64
	erased     uint64   // see LogState
	waiting    []Record // on disk, not shown
	deleted    Mark     // the last shown record with a deletion: the sweep removes records up to it
	holds      map[*Snapshot]uint64
	incomplete bool
	changed    chan struct{} // closed when last or shown change
}

var (
	logKey  = []byte("mlog")
	noteKey = []byte("mcluster")
	copyKey = []byte("mcopy") // there while a copy of another node's catalog is not complete
)

const (
	recordKind = 'l'
	markSize   = 16
	leastSize  = 256 // bytes that a small record counts as: it bounds their number
)

func recordKey(index uint64) []byte { return binary.BigEndian.AppendUint64([]byte{recordKind}, index) }

func appendMark(b []byte, m Mark) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, m.Term), m.Index)
}

func readMark(b []byte) Mark {
	return Mark{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])}
}

// openLog reads the log of a catalog that was filled from its store.
func (c *Catalog) openLog(s *store) error {
	v, closer, err := s.db.Get(logKey)
	member := err == nil
	if err != nil && !errors.Is(err, pebble.ErrNotFound) {
		return err
	}
	incomplete, err := s.has(copyKey)
	if err != nil {
		return err
	}
	if !c.opt.Replicated {
		if member {
			c.member = true
			err = closer.Close()
		}
		if incomplete {
			err = errors.Join(err, errors.New("a copy of another node's catalog was interrupted: start this node as a member "+
				"of its cluster"))
		}
		return err
	}
	l := &replicated{most: c.opt.LogBytes, version: c.totals.version, incomplete: incomplete,
		changed: make(chan struct{}), holds: map[*Snapshot]uint64{}}
	c.log, c.uncut = l, true
	if !member {
		return nil
	}
	if len(v) != 2*markSize {
		return errors.Join(fmt.Errorf("%s has %d bytes: %w", logKey, len(v), errRecord), closer.Close())
	}
	l.last, l.floor = readMark(v), readMark(v[markSize:])
	l.shown, l.erased = l.last.Index, l.last.Index
	return errors.Join(closer.Close(), l.measure(s))
}

// measure finds the sizes of all records.
func (l *replicated) measure(s *store) error {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: recordKey(l.floor.Index + 1),
		UpperBound: []byte{recordKind + 1}})
	if err != nil {
		return err
	}
	for ok := it.First(); ok; ok = it.Next() {
		l.sizes = append(l.sizes, size(len(it.Value())))
		l.bytes += int64(l.sizes[len(l.sizes)-1])
	}
	err = errors.Join(it.Error(), it.Close())
	if err == nil && uint64(len(l.sizes)) != l.last.Index-l.floor.Index {
		err = fmt.Errorf("%d records of the log, want %d: %w", len(l.sizes), l.last.Index-l.floor.Index, errRecord)
	}
	return err
}

func size(n int) int32 { return int32(max(n, leastSize)) }

// Attach connects a replicated catalog with the other nodes. Before it no write is possible.
func (c *Catalog) Attach(hook Log) {
	c.log.mu.Lock()
	defer c.log.mu.Unlock()
	c.log.hook = hook
}

// LogState returns the log's state, and a channel that is closed when it changes.
func (c *Catalog) LogState() (LogState, <-chan struct{}) {
	c.mu.RLock()
	id := c.id
	c.mu.RUnlock()
	l := c.log
	l.mu.Lock()
	defer l.mu.Unlock()
	return LogState{ID: id, Last: l.last, Shown: l.shown, Erased: l.erased, Version: l.version,
		Waiting: len(l.waiting) > 0, Incomplete: l.incomplete}, l.changed
}

func (l *replicated) outside() Log {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hook
}

// term returns the term in which a round may write.
func (l *replicated) term() (uint64, error) {
	l.mu.Lock()
	hook, waits := l.hook, len(l.waiting) > 0
	l.mu.Unlock()
	if hook == nil || waits {
		return 0, ErrUnavailable
	}
	return hook.Term()
}

func (l *replicated) waits() bool {
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting) > 0
}

// wake tells those who wait for a change. The caller has the lock.
func (l *replicated) wake() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// extend puts records into a batch, which the caller then commits. It returns what to call after that.
func (l *replicated) extend(b *batch, records []Record, version uint64) (written func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	sizes, bytes, last := l.sizes, l.bytes, l.last
	for _, r := range records {
		key := recordKey(r.Index)
		b.buf = append(binary.LittleEndian.AppendUint64(b.buf[:0], r.Term), r.Data...)
		b.note(b.b.Set(key, b.buf, nil))
		sizes = append(sizes, size(len(b.buf)))
		bytes += int64(size(len(b.buf)))
		last = r.Mark
	}
	floor := l.floor
	if bytes > l.most {
		floor = l.drop(b, &sizes, &bytes, l.limit(l.last.Index, bytes > 4*l.most), l.most/2)
	}
	b.note(b.b.Set(logKey, appendMark(appendMark(nil, last), floor), nil))
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.last, l.floor, l.sizes, l.bytes, l.version = last, floor, sizes, bytes, version
		l.wake()
	}
}

// limit returns the index up to which records may be dropped: nodes that receive a snapshot need those behind it.
func (l *replicated) limit(index uint64, force bool) uint64 {
	if force {
		return index
	}
	for _, held := range l.holds {
		index = min(index, held)
	}
	return index
}

// drop removes records up to an index, the oldest first, until at most left bytes are left. It returns the new floor.
func (l *replicated) drop(b *batch, sizes *[]int32, bytes *int64, upTo uint64, left int64) Mark {
	n := 0
	for *bytes > left && n < len(*sizes) && l.floor.Index+uint64(n) < upTo {
		*bytes -= int64((*sizes)[n])
		n++
	}
	if n == 0 {
		return l.floor
	}
	floor := Mark{Index: l.floor.Index + uint64(n)}
	if floor.Index == l.last.Index {
		floor.Term = l.last.Term
	} else {
		v, closer, err := b.db.Get(recordKey(floor.Index))
		if err != nil {
			b.note(err)
			return l.floor
		}
		floor.Term = binary.LittleEndian.Uint64(v)
		b.note(closer.Close())
	}
	b.note(b.b.DeleteRange(recordKey(l.floor.Index+1), recordKey(floor.Index+1), nil))
	*sizes = append([]int32(nil), (*sizes)[n:]...)
	return floor
}

// Holds reports whether the log continues from a mark: the record there is of that term, and those after it are kept.
func (c *Catalog) Holds(m Mark) (bool, error) {
	l := c.log
	l.mu.Lock()
	floor, last := l.floor, l.last
	l.mu.Unlock()
	switch {
	case m.Index == 0 || m.Index < floor.Index || m.Index > last.Index: // before the log began, catalogs may differ
		return false, nil
	case m.Index == floor.Index:
		return m == floor, nil
	}
	v, closer, err := c.store.db.Get(recordKey(m.Index))
	if errors.Is(err, pebble.ErrNotFound) {
		return false, nil // it was dropped meanwhile
	}
	if err != nil {
		return false, err
	}
	term := binary.LittleEndian.Uint64(v)
	return term == m.Term, closer.Close()
}

// Records returns records that are on disk, from an index on, as many as fit into most bytes but at least one if there
// is one. It returns ErrGap if the first is not kept any more.
func (c *Catalog) Records(from uint64, most int) (out []Record, err error) {
	c.log.mu.Lock()
	last := c.log.last.Index
	c.log.mu.Unlock()
	if from > last {
		return nil, nil
	}
	it, err := c.store.db.NewIter(&pebble.IterOptions{LowerBound: recordKey(from), UpperBound: recordKey(last + 1)})
	if err != nil {
		return nil, err
	}
	bytes := 0
	for ok := it.First(); ok && (bytes < most || len(out) == 0); ok = it.Next() {
		index, v := binary.BigEndian.Uint64(it.Key()[1:]), it.Value()
		if index != from+uint64(len(out)) {
			break
		}
		out = append(out, Record{Mark{binary.LittleEndian.Uint64(v), index}, append([]byte(nil), v[8:]...)})
		bytes += len(v)
	}
	if err := errors.Join(it.Error(), it.Close()); err != nil {
		return nil, err
	}
	if len(out) == 0 {
		return nil, ErrGap
	}
	return out, nil
}

// alone calls f while nobody else changes the catalog.
func (c *Catalog) alone(ctx context.Context, f func() error) error {
	w := &writer{alone: f}
	if err := c.enqueue(ctx, w); err != nil {
		return err
	}
	return w.err
}

// BeginTerm appends an empty record of a new term, which is higher than all terms of the log. It waits to be shown.
func (c *Catalog) BeginTerm(ctx context.Context, term uint64) (m Mark, err error) {
	err = c.alone(ctx, func() error {
		last := c.log.last
		if term <= last.Term {
			return fmt.Errorf("catalog: term %d follows term %d: %w", term, last.Term, ErrGap)
		}
		m = Mark{term, last.Index + 1}
		return c.extend([]Record{{Mark: m}})
	})
	return m, err
}

// Extend appends records of a leader and makes them durable. They wait until Show. It returns ErrGap if they do not
// follow the last record, or are of an older term.
func (c *Catalog) Extend(ctx context.Context, records []Record) error {
	return c.alone(ctx, func() error {
		last := c.log.last
		for _, r := range records {
			if r.Index != last.Index+1 || r.Term < last.Term {
				return fmt.Errorf("catalog: term %d, index %d after term %d, index %d: %w", r.Term, r.Index, last.Term, last.Index,
					ErrGap)
			}
			last = r.Mark
		}
		return c.extend(records)
	})
}

// extend writes records and their effects. The caller is alone.
func (c *Catalog) extend(records []Record) error {
	if c.log.incomplete {
		return fmt.Errorf("catalog: the copy is not complete: %w", ErrGap)
	}
	b := c.store.batch()
	defer b.close()
	version := c.log.version
	for _, r := range records {
		for e, err := range entriesOf(r.Data) {
			if err != nil {
				return fmt.Errorf("catalog: record %d: %w", r.Index, err)
			}
			b.replay(e, c.opt.TrackDeletions)
			version = e.version
		}
	}
	written := c.log.extend(b, records, version)
	if err := b.commit(version); err != nil {
		return c.fail(err)
	}
	written()
	c.log.wait(records...)
	return nil
}

// wait notes that records are durable and not shown.
func (l *replicated) wait(records ...Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = append(l.waiting, records...)
}

// fail notes that the disk failed.
func (c *Catalog) fail(err error) error {
	err = fmt.Errorf("%w: %w", ErrFailed, err)
	c.opt.Logger.Error("the catalog takes no more writes", "error", err)
	c.mu.Lock()
	c.failed = err
	c.mu.Unlock()
	return err
}

// Show shows the records up to an index to readers and subscribers.
func (c *Catalog) Show(ctx context.Context, index uint64) error {
	if l := c.log; !l.waits() {
		return nil
	}
	return c.alone(ctx, func() error {
		for {
			c.log.mu.Lock()
			waiting := c.log.waiting
			c.log.mu.Unlock()
			if len(waiting) == 0 || waiting[0].Index > index {
				return nil
			}
			if err := c.show(waiting[0]); err != nil {
				return err
			}
			c.log.mu.Lock()
			c.log.waiting = c.log.waiting[1:]
			c.log.mu.Unlock()
		}
	})
}

func (c *Catalog) show(rec Record) error {
	r, watches := c.newRound(0)
	for e, err := range entriesOf(rec.Data) {
		if err == nil {
			err = r.replay(e)
		}
		if err != nil {
			return fmt.Errorf("catalog: record %d: %w", rec.Index, err)
		}
	}
	r.publish()
	c.log.showed(rec.Mark, r.deletes())
	r.tell(watches)
	return nil
}

func (l *replicated) showed(m Mark, deletes bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shown = m.Index
	if deletes {
		l.deleted, l.erased = m, m.Index
	}
	l.wake()
}

// dropDeleted removes records that may have contents of what was deleted. The sweep then removes their bytes.
func (c *Catalog) dropDeleted() {
	l := c.log
	if l == nil || !l.owesSweep() {
		return
	}
	_ = c.alone(context.Background(), func() error { // an error is the disk's, and sticky
		b := c.store.batch()
		defer b.close()
		l.mu.Lock()
		sizes, bytes := l.sizes, l.bytes
		floor := l.drop(b, &sizes, &bytes, l.limit(l.deleted.Index, false), 0)
		b.note(b.b.Set(logKey, appendMark(appendMark(nil, l.last), floor), nil))
		version := l.version
		l.mu.Unlock()
		if err := b.commit(version); err != nil {
			return c.fail(err)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.floor, l.sizes, l.bytes = floor, sizes, bytes
		return nil
	})
}

// owesSweep reports whether records with deleted contents are kept.
func (l *replicated) owesSweep() bool {
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deleted.Index > l.floor.Index
}

// Note returns what SetNote stored last; nil: nothing.
func (c *Catalog) Note() ([]byte, error) {
	v, closer, err := c.store.db.Get(noteKey)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return append([]byte(nil), v...), closer.Close()
}

// SetNote stores what the owner of the log wants to remember of its cluster. It is this node's own, in no record.
func (c *Catalog) SetNote(ctx context.Context, note []byte) error {
	return c.alone(ctx, func() error {
		b := c.store.batch()
		defer b.close()
		b.note(b.b.Set(noteKey, note, nil))
		if err := b.commit(c.log.version); err != nil {
			return c.fail(err)
		}
		return nil
	})
}

// AwaitShown waits until readers see the record at an index.
func (c *Catalog) AwaitShown(ctx context.Context, index uint64) error {
	for {
		state, changed := c.LogState()
		if state.Shown >= index {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

package kv

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"grebe/internal/record"
	"grebe/plan"
	"grebe/residency"
)

// Disk keeps whole entries. A disk.Store is one. Its methods may be called concurrently.
type Disk interface {
	Has(key plan.Key) (size int64, ok bool)
	Put(key plan.Key, meta []byte, payload [][]byte) error
	Get(key plan.Key, place func(meta []byte, n int64) ([][]byte, error)) (meta []byte, ok bool, err error)
	Delete(keys ...plan.Key) error
	Drop(keys ...plan.Key) // forgets entries and does not wait until they are erased
	Range(f func(key plan.Key, meta []byte, size int64) bool)
}

// dropper is a Disk that drops entries on its own, to make room, and reports them.
type dropper interface {
	OnDrop(f func(keys []plan.Key))
}

// versioner is a Disk that notes what each entry depends on, and when it is opened erases entries of other versions
// than its own. Its own version is that of the first owner. Put writes entries of that version.
type versioner interface {
	PutAs(version [32]byte, key plan.Key, meta []byte, payload [][]byte) error
}

// below writes entries to the disk, the tier below memory, in a goroutine of its own.
type below struct {
	disk  Disk
	queue chan pending  // items to write: these are written as soon as they are published
	kick  chan struct{} // a user was published
	wg    sync.WaitGroup

	mu      sync.Mutex
	idle    *sync.Cond            // signalled when a put ends
	open    map[*op]struct{}      // writes, fetches and deletions, queued or under way
	writing map[plan.Key]int      // number of operations per key
	deleted map[plan.Key]struct{} // keys of writing that are or were being deleted
	putting map[plan.Key]int      // number of puts under way per key
	fetches map[plan.Key]*fetch   // under way
	readers chan struct{}         // holds one element for each fetch that reads

	// held is read-locked while an entry is referenced for a write. Such an entry cannot be evicted.
	held sync.RWMutex

	written, lost, failed atomic.Int64

	rec *record.Room // records how long reads take; lines are written with mu held
}

// op is a write, a fetch or a deletion.
type op struct {
	put  bool          // a write
	done chan struct{} // closed when it ends
}

// fetch is a read of an entry that is under way. Other requests for the entry wait for it.
type fetch struct {
	done  chan struct{}
	at    plan.Tier
	left  bool      // it was not read: its caller stopped waiting for a turn
	since time.Time // start of the read; guarded by below.mu
}

const (
	// maxReaders is the most entries that are read at a time, and so the most threads that a hung disk blocks.
	maxReaders = 128
	// cleanAtOnce is the number of users that are written before the next queued items.
	cleanAtOnce = 32
)

// pending is an entry that waits to be written. It holds a reference, and its write is begun on the books.
type pending struct {
	p  *published
	e  *Entry
	op *op
}

// spillQueue is the most items that wait to be written. An item that finds the queue full is written
// before it is evicted, if there is time.
const spillQueue = 256

// SetDisk has entries written to d too. Items are written when they are published. Users change often, so
// they are written when memory is more than half full, the least recently used first. So entries are
// usually on disk before they are evicted. SetDisk MUST be called before the store is used. Close ends the
// writes.
func (s *Store) SetDisk(d Disk) {
	b := &below{
		disk: d, queue: make(chan pending, spillQueue), kick: make(chan struct{}, 1), open: map[*op]struct{}{},
		deleted: map[plan.Key]struct{}{}, writing: map[plan.Key]int{}, putting: map[plan.Key]int{},
		fetches: map[plan.Key]*fetch{},
		readers: make(chan struct{}, maxReaders),
	}
	b.idle = sync.NewCond(&b.mu)
	s.below = b
	s.config.Below = true
	if r, ok := d.(dropper); ok {
		r.OnDrop(s.diskDropped)
	}
	s.reopen()
	b.wg.Go(s.spill)
}

// loadBelow adds the entries on disk to the books.
func (s *Store) loadBelow() {
	if s.below == nil {
		return
	}
	s.below.disk.Range(func(key plan.Key, meta []byte, _ int64) bool {
		if kind, n, tokens, ok := decodeMeta(meta); ok {
			s.books.Stored(key, belowEntry(kind, n, tokens))
		}
		return true
	})
}

// belowEntry describes an entry on disk. Tokens are a user's.
func belowEntry(kind plan.Kind, length int, tokens []int32) residency.Entry {
	e := residency.Entry{Kind: kind, Tokens: int32(length)}
	if tokens != nil {
		e.Digest = residency.Digest(tokens)
	}
	return e
}

// diskDropped removes the entries that the disk dropped from the books, except those that it has again by now.
func (s *Store) diskDropped(keys []plan.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range keys {
		if !s.Below(key) {
			s.lost(key)
		}
	}
}

// lost removes an entry on disk from the books. It is called with mu held.
func (s *Store) lost(key plan.Key) {
	if s.below == nil {
		return
	}
	if s.rec.On() {
		s.rec.In("lost", [32]byte(key))
	}
	s.books.Lost(key)
}

// storedBelow notes on the books that an entry was written to disk, unless the disk has dropped it already or it is
// being deleted. The disk reports later drops. It is called with mu held.
func (s *Store) storedBelow(key plan.Key, e residency.Entry) {
	if !s.Below(key) {
		return
	}
	if s.rec.On() {
		s.rec.In("stored", [32]byte(key), e.Kind, e.Tokens, int(e.Owner))
	}
	s.books.Stored(key, e)
}

// hold takes a reference to an entry whose write was begun on the books. It is called with mu held, so that a deletion
// either comes before it or sees it.
func (s *Store) hold(p *published) pending {
	e := p.Value.entry
	e.Retain()
	return pending{p, e, s.below.begin(p.Key, true)}
}

// offer queues a published entry for writing.
func (s *Store) offer(w pending) {
	b := s.below
	if b == nil {
		return
	}
	if w.p == nil {
		s.kick()
		return
	}
	select {
	case b.queue <- w:
	default:
		s.end(w, residency.Entry{}, false, false)
		w.e.Release()
		b.finish(w.op, w.p.Key)
	}
}

// end notes the end of a write on the books; e describes what was written. An entry that was not written stays dirty,
// until too many writes have failed.
func (s *Store) end(w pending, e residency.Entry, written, failed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if written {
		s.storedBelow(w.p.Key, e)
	}
	if s.rec.On() {
		s.rec.In("written", [32]byte(w.p.Key), written, failed)
	}
	s.books.Written(w.p, written, failed)
}

// kick wakes the writer for users, which are written before they are evicted.
func (s *Store) kick() {
	if s.below == nil {
		return
	}
	select {
	case s.below.kick <- struct{}{}:
	default:
	}
}

func (b *below) begin(key plan.Key, put bool) *op {
	o := &op{put: put, done: make(chan struct{})}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.writing[key]++
	b.open[o] = struct{}{}
	return o
}

// condemn begins a deletion. Operations under way for the keys have no effect, and no other one begins until the
// deletion is finished.
func (b *below) condemn(keys []plan.Key) *op {
	o := &op{done: make(chan struct{})}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, key := range keys {
		b.writing[key]++
		b.deleted[key] = struct{}{}
	}
	b.open[o] = struct{}{}
	return o
}

// erase completes a deletion that condemn began. When it returns nil, the disk has none of the keys and no put of them
// is under way. If the disk does not answer, erase returns an error after a while, and the deletion continues in the
// background.
func (b *below) erase(keys []plan.Key, o *op) error {
	done := make(chan error, 1)
	go func() {
		b.awaitPuts(keys)
		err := b.disk.Delete(keys...)
		b.finish(o, keys...)
		done <- err
	}()
	for range 3 { // one wait may end early if the process was suspended
		select {
		case err := <-done:
			return err
		case <-time.After(residency.HungAfter):
		}
	}
	return errors.New("the disk does not answer: the deletion continues in the background")
}

// awaitPuts waits for the puts of condemned keys that are under way.
func (b *below) awaitPuts(keys []plan.Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, key := range keys {
		for b.putting[key] > 0 {
			b.idle.Wait()
		}
	}
}

// beginPut reports whether an entry may be put on disk. If so, the caller MUST call endPut.
func (b *below) beginPut(key plan.Key) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.deleted[key]; ok {
		return false
	}
	b.putting[key]++
	return true
}

func (b *below) endPut(key plan.Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.putting[key]--; b.putting[key] == 0 {
		delete(b.putting, key)
	}
	b.idle.Broadcast()
}

// condemned reports whether the key is being deleted.
func (b *below) condemned(key plan.Key) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, ok := b.deleted[key]
	return ok
}

// finish ends an operation.
func (b *below) finish(o *op, keys ...plan.Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, key := range keys {
		if b.writing[key]--; b.writing[key] == 0 {
			delete(b.writing, key)
			delete(b.deleted, key)
		}
	}
	delete(b.open, o)
	close(o.done)
}

func (s *Store) spill() {
	b := s.below
	for {
		select {
		case w, open := <-b.queue:
			if !open {
				return
			}
			s.write(w)
		case <-b.kick:
			last := s.levels[len(s.levels)-1]
			if s.clean(last, cleanAtOnce, func() bool { books := last.pool.Stats(); return books.Used > books.Total/2 }) {
				s.kick() // after the queued items
			}
		}
	}
}

// write writes an entry to disk and reports whether the disk has it. It takes over the reference and ends the write.
func (s *Store) write(w pending) bool {
	b, p := s.below, w.p
	defer b.finish(w.op, p.Key)
	b.held.RLock()
	defer b.held.RUnlock()
	defer w.e.Release()
	e, written := s.put(w)
	s.end(w, e, written, !written)
	if written && b.condemned(p.Key) { // deleted during the write
		b.disk.Drop(p.Key)
	}
	return written
}

// put puts an entry on disk, unless it was deleted, and describes what the disk has then.
func (s *Store) put(w pending) (below residency.Entry, written bool) {
	b, p := s.below, w.p
	if !b.beginPut(p.Key) {
		return below, false
	}
	defer b.endPut(p.Key)
	e, tokens := w.e, p.Value.tokens
	if len(tokens) > MostBelow {
		e, tokens = e.Leading(MostBelow), tokens[:MostBelow]
		defer e.Release()
	}
	meta, put := encodeMeta(p.Kind, e.len, tokens), b.disk.Put
	if v, ok := b.disk.(versioner); ok && p.Owner != 0 {
		space := s.space(p.Owner)
		put = func(key plan.Key, meta []byte, payload [][]byte) error { return v.PutAs(space, key, meta, payload) }
	}
	err := s.withPayload(e, func(payload [][]byte) error { return put(p.Key, meta, payload) })
	if err != nil {
		b.failed.Add(1)
		return below, false
	}
	b.written.Add(1)
	below = belowEntry(p.Kind, e.len, tokens)
	below.Owner = p.Owner
	return below, true
}

// clean writes up to n dirty entries of a level, the least recently used first, while more returns true. It reports
// whether there may be others.
func (s *Store) clean(l *level, n int, more func() bool) bool {
	failed := false
	for ; n > 0 && more(); n-- {
		s.mu.Lock()
		if s.rec.On() {
			s.rec.In("clean", l.place)
		}
		p := s.books.Dirty(l.index)
		if p == nil {
			s.mu.Unlock()
			return false
		}
		w := s.hold(p)
		s.mu.Unlock()
		failed = !s.write(w) || failed
	}
	return n == 0 && !failed // after a failure the next published user starts another try
}

// MostBelow is the most tokens of a user that are kept on disk, counted from the first. The token ids are the record's
// metadata, which has a limit of 64 KiB.
const MostBelow = (64<<10 - 5) / 4 / ChainTokens * ChainTokens

// The metadata of an entry on disk or on its way to another node: its kind, its length, and a user's tokens.
func encodeMeta(kind plan.Kind, length int, tokens []int32) []byte {
	return appendMeta(nil, kind, length, tokens)
}

func appendMeta(b []byte, kind plan.Kind, length int, tokens []int32) []byte {
	b = binary.LittleEndian.AppendUint32(append(b, byte(kind)), uint32(length))
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, uint32(t))
	}
	return b
}

func decodeMeta(b []byte) (kind plan.Kind, length int, tokens []int32, ok bool) {
	if len(b) < 5 || len(b)%4 != 1 {
		return
	}
	kind, length = plan.Kind(b[0]), int(binary.LittleEndian.Uint32(b[1:]))
	for b = b[5:]; len(b) > 0; b = b[4:] {
		tokens = append(tokens, int32(binary.LittleEndian.Uint32(b)))
	}
	return kind, length, tokens, kind <= plan.Beam && length > 0 && (tokens == nil || len(tokens) == length)
}

// Below reports whether an entry is on disk.
func (s *Store) Below(key plan.Key) bool {
	if s.below == nil {
		return false
	}
	_, ok := s.below.disk.Has(key)
	return ok && !s.below.condemned(key)
}

// Fetch reads an entry from disk and publishes it, in host memory if there is such a level. It returns the tier that
// the entry came to. It returns plan.Missing if the disk does not have the entry, the record is damaged, memory has no
// room, or ctx ended first. Concurrent calls for an entry share one read.
//
// A read cannot be cancelled. If all its callers have left, it continues and keeps its memory until it ends. Drain and
// Close wait for it.
func (s *Store) Fetch(ctx context.Context, key plan.Key) plan.Tier {
	if ctx.Err() != nil || !s.Below(key) {
		return plan.Missing
	}
	b := s.below
	for {
		f, first := b.join(key)
		if f == nil {
			return plan.Missing
		}
		if first {
			select {
			case b.readers <- struct{}{}:
			case <-ctx.Done():
				f.left = true
				b.leave(key, f)
				return plan.Missing
			}
			o := b.begin(key, false)
			b.reads(f)
			go s.bring(key, f, o)
		}
		select {
		case <-f.done:
		case <-ctx.Done():
			return plan.Missing
		}
		if !f.left {
			return f.at
		}
		// Its reader gave up: try to become the reader.
	}
}

// bring reads an entry whose fetch was begun, and ends the fetch.
func (s *Store) bring(key plan.Key, f *fetch, o *op) {
	b := s.below
	defer func() { <-b.readers }()
	defer b.leave(key, f)
	defer b.finish(o, key)
	var err error
	f.at, err = s.fetch(key)
	if errors.Is(err, ErrFull) { // entries that could make room may be about to be written
		b.rest()
		f.at, _ = s.fetch(key)
	}
}

// join returns the fetch of an entry, or nil when the disk hangs. If first is true, the caller has to read the entry
// and MUST call leave.
func (b *below) join(key plan.Key) (f *fetch, first bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.hangs() {
		return nil, false
	}
	if f = b.fetches[key]; f != nil {
		return f, false
	}
	f = &fetch{done: make(chan struct{})}
	b.fetches[key] = f
	return f, true
}

// hangs reports whether a read takes so long that the disk counts as hung. It is called with the lock held.
func (b *below) hangs() bool {
	var longest time.Duration
	for _, f := range b.fetches {
		if !f.since.IsZero() {
			longest = max(longest, time.Since(f.since))
		}
	}
	hangs := residency.Hangs(longest)
	if longest > 0 {
		b.rec.In("longest", longest)
		b.rec.Did("hangs", hangs)
	}
	return hangs
}

// reads notes that the read of a fetch starts now.
func (b *below) reads(f *fetch) {
	b.mu.Lock()
	f.since = time.Now()
	b.mu.Unlock()
}

func (b *below) leave(key plan.Key, f *fetch) {
	b.mu.Lock()
	delete(b.fetches, key)
	b.mu.Unlock()
	close(f.done)
}

// rest waits for the writes under way.
func (b *below) rest() {
	b.held.Lock()
	defer b.held.Unlock()
}

func (s *Store) fetch(key plan.Key) (plan.Tier, error) {
	to := s.levels[len(s.levels)-1]
	var kind plan.Kind
	var tokens []int32
	var e *Entry
	var in filling
	_, ok, err := s.below.disk.Get(key, func(meta []byte, _ int64) ([][]byte, error) {
		of, length, named, ok := decodeMeta(meta)
		if !ok {
			return nil, fmt.Errorf("kv: meta of %d bytes makes no sense", len(meta))
		}
		var err error
		kind, tokens = of, named
		if e, err = s.reserve(to, LayoutOf(kind), length, nil); err != nil {
			return nil, err
		}
		return in.begin(s, e)
	})
	if e == nil {
		return plan.Missing, err
	}
	defer e.Release()
	if err = errors.Join(err, in.end(ok && err == nil)); !ok || err != nil {
		return plan.Missing, err
	}
	p := newPublished(key, kind, tokens, e)
	p.Fetched()
	if !s.publish(p, to, nil) {
		return plan.Missing, nil
	}
	return to.place, nil
}

// LayoutOf returns the layout of entries of a kind: users grow, all others have their final length.
func LayoutOf(k plan.Kind) Layout {
	if k == plan.User {
		return Chain
	}
	return Exact
}

// BelowStats count writes to disk.
type BelowStats struct {
	Written int64 // entries
	Lost    int64 // evicted before they were written
	Failed  int64 // writes
}

// BelowStats returns the counts.
func (s *Store) BelowStats() BelowStats {
	if s.below == nil {
		return BelowStats{}
	}
	return BelowStats{Written: s.below.written.Load(), Lost: s.below.lost.Load(), Failed: s.below.failed.Load()}
}

// Flush writes all entries to disk that are not there. It tries each of them once.
func (s *Store) Flush() { s.flush(context.Background()) }

// flush is Flush with a context: it stops when ctx ends.
func (s *Store) flush(ctx context.Context) {
	if s.below == nil {
		return
	}
	for _, l := range s.levels {
		s.mu.Lock()
		n := s.books.DirtyCount(l.index)
		s.mu.Unlock()
		s.clean(l, n, func() bool { return ctx.Err() == nil })
	}
	s.Drain()
}

// Drain waits for the writes and reads that were queued or under way when it was called.
func (s *Store) Drain() { _ = s.DrainWithin(context.Background()) }

// DrainWithin is Drain with a context. It returns the cause if ctx ends first.
func (s *Store) DrainWithin(ctx context.Context) error {
	return s.await(ctx, func(*op) bool { return true })
}

// Written waits for the writes that were queued or under way when it was called, but not for reads. It returns the
// cause if ctx ends first.
func (s *Store) Written(ctx context.Context) error {
	return s.await(ctx, func(o *op) bool { return o.put })
}

// await waits for the operations under way now that which selects.
func (s *Store) await(ctx context.Context, which func(*op) bool) error {
	b := s.below
	if b == nil {
		return nil
	}
	var all []*op
	b.mu.Lock()
	for o := range b.open {
		if which(o) {
			all = append(all, o)
		}
	}
	b.mu.Unlock()
	for _, o := range all {
		select {
		case <-o.done:
		case <-ctx.Done():
			return fmt.Errorf("kv: wait for the disk below memory: %w", ctx.Err())
		}
	}
	return nil
}

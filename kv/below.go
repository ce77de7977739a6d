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

// Disk keeps whole entries below memory. A disk.Store is one. Its methods may be called concurrently.
type Disk interface {
	Has(key plan.Key) (size int64, ok bool)
	Put(key plan.Key, meta []byte, payload [][]byte) error
	Get(key plan.Key, place func(meta []byte, n int64) ([][]byte, error)) (meta []byte, ok bool, err error)
	Delete(keys ...plan.Key) error
	Drop(keys ...plan.Key) // forgets entries without waiting for their erasure
	Range(f func(key plan.Key, meta []byte, size int64) bool)
}

// dropper is a Disk that drops entries by itself and reports them.
type dropper interface {
	OnDrop(f func(keys []plan.Key))
}

// below writes entries to a disk from a goroutine of its own.
type below struct {
	disk  Disk
	queue chan pending  // items, which are written when they are published
	kick  chan struct{} // a user was published
	wg    sync.WaitGroup

	mu      sync.Mutex
	idle    *sync.Cond            // signalled when a put ends
	open    map[*op]struct{}      // writes, fetches and deletions, queued or under way
	writing map[plan.Key]int      // how many of them each key has
	deleted map[plan.Key]struct{} // those of writing whose key is or was being deleted
	putting map[plan.Key]int      // those of writing that the disk is being given
	fetches map[plan.Key]*fetch   // under way
	readers chan struct{}         // holds one for each of them that reads

	// held is read-locked while an entry is held to be written: until then it cannot make room.
	held sync.RWMutex

	written, lost, failed atomic.Int64

	rec *record.Room // of how long reads take; lines are written with mu held
}

// op is a write, a fetch or a deletion.
type op struct {
	put  bool          // a write
	done chan struct{} // closed at its end
}

// fetch is an entry that is being brought up: who wants it too waits for that.
type fetch struct {
	done  chan struct{}
	at    plan.Tier
	left  bool      // it was not read: who was to bring it stopped waiting for a turn
	since time.Time // it is read; guarded by below.mu
}

const (
	// maxReaders bounds the entries that are read at a time. A disk that hangs holds no more threads than these.
	maxReaders = 128
	// cleanAtOnce is how many users are written before queued items have their turn.
	cleanAtOnce = 32
)

// pending is an entry that is to be written; it holds a reference and a begun write.
type pending struct {
	p  *published
	e  *Entry
	op *op
}

// spillQueue is how many items may wait to be written; what finds no place is written when it is
// about to be evicted, if there is time.
const spillQueue = 256

// SetDisk keeps entries on d too: items when they are published; users, which change often, when
// memory is more than half full, the least recently used first, so that what is evicted is usually
// there already. It MUST be called before the store is used. Close stops it.
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

// loadBelow tells the books what the disk has.
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

// belowEntry describes an entry below memory. Tokens are those of a user.
func belowEntry(kind plan.Kind, length int, tokens []int32) residency.Entry {
	e := residency.Entry{Kind: kind, Tokens: int32(length)}
	if tokens != nil {
		e.Digest = residency.Digest(tokens)
	}
	return e
}

// diskDropped tells the books what the disk dropped. An entry that was written again meanwhile is there.
func (s *Store) diskDropped(keys []plan.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range keys {
		if !s.Below(key) {
			s.lost(key)
		}
	}
}

// lost tells the books that an entry is not below memory. Called with mu held.
func (s *Store) lost(key plan.Key) {
	if s.below == nil {
		return
	}
	if s.rec.On() {
		s.rec.In("lost", [32]byte(key))
	}
	s.books.Lost(key)
}

// storedBelow tells the books that an entry was written below memory, unless the disk dropped it already or it is
// being deleted. The disk reports what it drops later. Called with mu held.
func (s *Store) storedBelow(key plan.Key, e residency.Entry) {
	if !s.Below(key) {
		return
	}
	if s.rec.On() {
		s.rec.In("stored", [32]byte(key), e.Kind, e.Tokens, int(e.Owner))
	}
	s.books.Stored(key, e)
}

// hold holds an entry whose write the books began. It is called with mu held, so that a deletion comes before it or knows of it.
func (s *Store) hold(p *published) pending {
	e := p.Value.entry
	e.Retain()
	return pending{p, e, s.below.begin(p.Key, true)}
}

// offer has a published entry written.
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

// end notes how the write of an entry ended; e is what was written. What was not written is tried later, what failed a few times more.
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

// kick has users written that are about to be evicted.
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

// condemn begins a deletion: what is under way for the keys will not last, and nothing of them is begun any more until the deletion is finished.
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

// erase ends a deletion that was begun. When it returns nil, nothing of the keys is below memory or being put there.
// If the disk does not answer, it returns an error after a while, and the deletion goes on by itself.
func (b *below) erase(keys []plan.Key, o *op) error {
	done := make(chan error, 1)
	go func() {
		b.awaitPuts(keys)
		err := b.disk.Delete(keys...)
		b.finish(o, keys...)
		done <- err
	}()
	for range 3 { // a wait may be over at once where the process was stopped
		select {
		case err := <-done:
			return err
		case <-time.After(residency.HungAfter):
		}
	}
	return errors.New("the disk does not answer: the deletion goes on by itself")
}

// awaitPuts returns when nothing of keys that are condemned is being put.
func (b *below) awaitPuts(keys []plan.Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, key := range keys {
		for b.putting[key] > 0 {
			b.idle.Wait()
		}
	}
}

// beginPut reports whether an entry may be given to the disk; then endPut MUST follow.
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

// finish ends what was begun.
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
				s.kick() // after items that wait
			}
		}
	}
}

// write puts an entry below, and reports whether it is there. It takes over its reference and its begun write.
func (s *Store) write(w pending) bool {
	b, p := s.below, w.p
	defer b.finish(w.op, p.Key)
	b.held.RLock()
	defer b.held.RUnlock()
	defer w.e.Release()
	e, written := s.put(w)
	s.end(w, e, written, !written)
	if written && b.condemned(p.Key) { // dropped while it was written
		b.disk.Drop(p.Key)
	}
	return written
}

// put gives an entry to the disk, unless it was deleted, and returns what is there then.
func (s *Store) put(w pending) (below residency.Entry, written bool) {
	b, p := s.below, w.p
	if !b.beginPut(p.Key) {
		return below, false
	}
	defer b.endPut(p.Key)
	e, tokens := w.e, p.Value.tokens
	if len(tokens) > MostBelow {
		e, tokens = e.leading(MostBelow), tokens[:MostBelow]
		defer e.Release()
	}
	err := s.withPayload(e, func(payload [][]byte) error { return b.disk.Put(p.Key, encodeMeta(p.Kind, e.len, tokens), payload) })
	if err != nil {
		b.failed.Add(1)
		return below, false
	}
	b.written.Add(1)
	below = belowEntry(p.Kind, e.len, tokens)
	below.Owner = p.Owner
	return below, true
}

// clean writes up to n of a level's dirty entries, the least recently used first, while more says so. It reports whether
// there may be others to write.
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
	return n == 0 && !failed // what failed is tried again when the next user is published
}

// MostBelow is how many tokens of a user are kept below memory, the first ones. Their numbers are the record's meta, of
// which a disk takes 64 KiB.
const MostBelow = (64<<10 - 5) / 4 / ChainTokens * ChainTokens

// Meta of an entry below memory: kind, length, and a user's tokens.
func encodeMeta(kind plan.Kind, length int, tokens []int32) []byte {
	b := binary.LittleEndian.AppendUint32([]byte{byte(kind)}, uint32(length))
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

// Below reports whether an entry is below memory.
func (s *Store) Below(key plan.Key) bool {
	if s.below == nil {
		return false
	}
	_, ok := s.below.disk.Has(key)
	return ok && !s.below.condemned(key)
}

// Fetch brings an entry up into memory and publishes it: into the host's memory if there is a level of it. It returns
// the disk that the entry came to, or plan.Missing: nothing is below, the record is damaged, memory has no room, or ctx
// ended first. Concurrent calls share one read.
//
// A read cannot be stopped. If all callers have left, it goes on, keeps its entry's memory until it ends, and Drain and
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
		// Nobody brings it any more: the next who wants it does.
	}
}

// bring reads what was begun.
func (s *Store) bring(key plan.Key, f *fetch, o *op) {
	b := s.below
	defer func() { <-b.readers }()
	defer b.leave(key, f)
	defer b.finish(o, key)
	var err error
	f.at, err = s.fetch(key)
	if errors.Is(err, ErrFull) { // what could make room may just be written
		b.rest()
		f.at, _ = s.fetch(key)
	}
}

// join returns the fetch of an entry, and whether the caller is the first, who brings it and MUST leave; nil when the disk hangs.
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

// hangs reports whether a read takes so long that the disk is taken to hang. The lock is held.
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

// reads notes that a fetch reads from now on.
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

// rest waits until what is being written is.
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
	if !s.publish(p, to) {
		return plan.Missing, nil
	}
	return to.place, nil
}

// LayoutOf says how entries of a kind are cut: users grow, the rest has its final length.
func LayoutOf(k plan.Kind) Layout {
	if k == plan.User {
		return Chain
	}
	return Exact
}

// BelowStats count what went below memory.
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

// Flush writes everything below that is not there yet. What cannot be written is tried once.
func (s *Store) Flush() { s.flush(context.Background()) }

// flush is Flush, and leaves what is not written when ctx ends.
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

// Drain returns when everything is written below that was to be, and all is read that was being read, when it was called.
func (s *Store) Drain() { _ = s.DrainWithin(context.Background()) }

// DrainWithin is Drain, or returns why ctx ended before.
func (s *Store) DrainWithin(ctx context.Context) error {
	return s.await(ctx, func(*op) bool { return true })
}

// Written returns when everything is written below that was to be when it was called, or why ctx ended before. It
// does not wait for what others read from there.
func (s *Store) Written(ctx context.Context) error {
	return s.await(ctx, func(o *op) bool { return o.put })
}

// await waits for some of what is under way now.
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

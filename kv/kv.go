// Package kv keeps the keys and values of users and items, so that they are computed once.
//
// An Entry holds the KV of a run of tokens, in chunks of pool pages. An item has one chunk of its exact
// length. A user has a chain of chunks of ChainTokens tokens, so that a longer history shares the full
// chunks of a shorter one.
//
// No entry can be stale. An item's key is a digest of everything that its KV depends on. A user's key
// is a digest of the same without the tokens, and of the user's id. The store keeps the user's tokens
// beside the entry and reuses only the leading ones that a request has too.
//
// A write has two phases. Reserve returns an entry that only its caller can see. Publish makes the
// filled entry findable. A published entry never changes. Readers hold references: Get and Reserve
// return one that the caller MUST Release. Eviction drops only the store's own reference, so memory in
// use is never freed.
//
// Sequences without a name are kept as known prefixes (Insert, Match) in a radix tree. Each node has a
// run of chunks. Runs and entries are evicted in one order, but of the runs only leaves.
//
// The top level of memory is the device's, which the host may not see, so all access goes through
// compute.Memory. Below it there may be host memory (SetHost), which takes the entries that the top
// level evicts, and below that a disk (SetDisk). Package residency decides which entry leaves, where it
// goes and which entry is written to disk. The store asks it under its lock, copies without the lock,
// and reports the result.
//
// Other nodes of a cluster read entries by Lend and send them to an Arrival. Arrived KV is published as if it had been
// computed here. Deletes take precedence over arrivals.
//
// Lock order: Store.mu, then the pool's lock or that of the disk's index.
package kv

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"grebe/compute"
	"grebe/internal/record"
	"grebe/kv/radix"
	"grebe/plan"
	"grebe/pool"
	"grebe/residency"
)

// ChainTokens is the length of the chunks of a chain.
const ChainTokens = 64

// ComputeVersion is part of all keys and of the version of records on disk. It is raised by the fix of a bug that made
// KV wrong, so that KV from before the fix is not reused.
//
//	3: devices read the KV of another layer for prompts with more than 64 entries in the host's memory
const ComputeVersion = 3

// ErrFull means that there is no room because all entries are in use.
var ErrFull = errors.New("kv: no room: everything cached is in use")

// KeyOf returns a digest of everything that an entry depends on. It includes the length of each part, so
// only a collision of SHA-256 gives different parts the same key.
func KeyOf(context plan.Key, tokens []int32, id string) plan.Key {
	h := sha256.New()
	h.Write(context[:])
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(len(tokens)))
	h.Write(b[:])
	if len(tokens) > 0 {
		h.Write(unsafe.Slice((*byte)(unsafe.Pointer(&tokens[0])), 4*len(tokens)))
	}
	io.WriteString(h, id)
	var k plan.Key
	h.Sum(k[:0])
	return k
}

// Layout says how an entry is cut into chunks.
type Layout uint8

const (
	Exact Layout = iota // one chunk of the exact length: items
	Chain               // chunks of ChainTokens: users, which grow
)

// chunk is memory shared by the entries that contain it.
type chunk struct {
	run    pool.Run
	level  *level
	tokens int
	refs   atomic.Int32
}

// Entry is the KV of a run of tokens.
type Entry struct {
	store  *Store
	len    int
	chunks []*chunk // all on one level
	bytes  int64    // size of the chunks, spare room included
	view   bool     // made by Match, and recycled for another one
	refs   atomic.Int32
	sum    atomic.Uint64 // checksum of the content as lent, above it bit 32; 0: not known
}

// newEntry returns an entry without chunks and with one reference.
func (s *Store) newEntry(tokens int) *Entry {
	e := &Entry{store: s, len: tokens}
	e.refs.Store(1)
	return e
}

// add appends a chunk and takes over its reference.
func (e *Entry) add(c *chunk) {
	e.chunks = append(e.chunks, c)
	e.bytes += int64(c.run.Size)
}

// usable reports whether a device that computes in top's memory can use the entry in place.
func (e *Entry) usable(top *level) bool {
	return len(e.chunks) == 0 || top.usable(&e.chunks[0].run.Block)
}

// Tier returns the tier where the entry lies. An entry without tokens lies nowhere.
func (e *Entry) Tier() plan.Tier {
	if len(e.chunks) == 0 {
		return plan.Missing
	}
	return e.chunks[0].level.place
}

// Len returns the number of tokens.
func (e *Entry) Len() int { return e.len }

// AppendChunks appends the entry's chunks to dst in a device's form. They are valid while the caller
// holds a reference.
func (e *Entry) AppendChunks(dst []compute.Chunk) []compute.Chunk {
	for _, c := range e.chunks {
		dst = append(dst, c.run.Chunk(c.tokens, false))
	}
	return dst
}

// Retain adds a reference, which MUST be released.
func (e *Entry) Retain() { e.refs.Add(1) }

// Release drops a reference. The last one frees the memory.
func (e *Entry) Release() {
	switch n := e.refs.Add(-1); {
	case n < 0:
		panic("kv: entry released more often than retained")
	case n == 0:
		e.store.free(e)
	}
}

// Store holds the published entries of one model.
type Store struct {
	shape  compute.Shape
	top    *level // where the device computes
	host   *level // nil: entries that leave the top level are dropped
	levels []*level
	config residency.Config
	hot    *residency.Hotness  // nil: hotness is not estimated
	feed   *residency.Feed     // nil: there are no followers
	owners map[plan.Key]uint32 // by the context of their keys: see Owner
	spaces []plan.Key          // the contexts, by owner

	dropped   func(plan.Key, plan.Kind)
	forgotten func(plan.Key)
	below     *below   // nil: there is no disk
	ahead     *ahead   // nil: entries move to host memory only when their room is needed
	trainer   *trainer // nil: nothing is predicted
	watcher   Watcher  // nil: nobody watches
	rec       *record.Room
	memory    *record.Room          // records the order in which chunks are allocated and freed
	inPlace   func(*published) bool // usableInPlace

	mu       sync.Mutex
	checks   checks
	books    *residency.Core[body] // which level holds which entry
	moved    *sync.Cond            // signalled when the copy of an entry ended
	soiled   []*chunk              // chunks that could not be zeroed
	staging  [2]stage              // for writes to disk, and for reads
	lending  chan *stage           // free stages of loans
	staged   atomic.Int64          // bytes of arrivals that wait outside of the device's memory
	arrivals map[plan.Key]*Arrival // entries that may come from other nodes
	known    *radix.Tree[run]
	path     []*node     // nodes of the last Match
	views    chan *Entry // released views, for the next Match
}

// published is an entry on the books, guarded by Store.mu.
type published = residency.Held[body]

// body is the store's part of a published entry.
type body struct {
	entry  *Entry
	tokens []int32 // a user's tokens
	node   *node   // nil: not a run
}

// run is the value of a node in the tree of known prefixes.
type run struct{ *published }

// newPublished describes an entry for the books. Tokens are a user's, nil for other entries.
func newPublished(key plan.Key, kind plan.Kind, tokens []int32, e *Entry) *published {
	p := &published{Key: key, Kind: kind, Tokens: e.len, Bytes: e.bytes, Named: tokens != nil,
		Value: body{entry: e, tokens: tokens}}
	if p.Named {
		p.Digest = residency.Digest(tokens)
	}
	return p
}

// New returns a store for models of the given shape that evicts the least recently used entry. It does
// not own the pool.
func New(shape compute.Shape, p *pool.Pool) *Store {
	s := &Store{
		shape: shape, config: residency.Config{Policy: "lru", Chunk: ChainTokens},
		known: radix.New[run](ChainTokens), views: make(chan *Entry, maxViews),
		owners: map[plan.Key]uint32{}, lending: make(chan *stage, maxStaged),
		dropped: func(plan.Key, plan.Kind) {}, forgotten: func(plan.Key) {},
	}
	for range maxStaged {
		s.lending <- &stage{}
	}
	s.moved, s.inPlace = sync.NewCond(&s.mu), s.usableInPlace
	s.top = newLevel(p, &shape)
	s.levels = []*level{s.top}
	s.reopen()
	return s
}

// reopen makes new books. The policy is known to exist.
func (s *Store) reopen() {
	if err := s.open(); err != nil {
		panic(err)
	}
}

// open makes new books. It is called before the store is used.
func (s *Store) open() error {
	s.config.Levels = nil
	for i, l := range s.levels {
		l.index = i
		s.config.Levels = append(s.config.Levels, residency.LevelConfig{
			Tier: l.place, Slots: l.slots, Bytes: l.pool.Stats().Total})
	}
	books, err := residency.New[body](s.config)
	if err != nil {
		return fmt.Errorf("kv: %w", err)
	}
	s.books = books
	s.books.SetHotness(s.hot)
	s.books.SetFeed(s.feed)
	s.loadBelow()
	return nil
}

// SetPolicy sets the eviction policy, by its name in package evict. It MUST be called before the store is
// used.
func (s *Store) SetPolicy(name string) error {
	before := s.config.Policy
	s.config.Policy = name
	err := s.open()
	if err != nil {
		s.config.Policy = before
	}
	return err
}

// SetHost adds p, a pool of host memory, as the level that takes the entries that the device's memory
// evicts. The first use of such an entry is in place, if the device can read it there. Other uses copy it
// to the device's memory. SetHost MUST be called before the store is used. The store does not own p.
func (s *Store) SetHost(p *pool.Pool) error {
	host := newLevel(p, &s.shape)
	if host.place != plan.Host {
		return errors.New("kv: the pool below the device's is not of the host's memory")
	}
	s.host, s.levels = host, []*level{s.top, host}
	return s.open()
}

// Top returns the tier of the top level, where computed entries go.
func (s *Store) Top() plan.Tier { return s.top.place }

// Memory returns the bytes of the device's and of the host's memory from which the store takes pages. Embeddings may
// use a part of them.
func (s *Store) Memory() (device, host int64) {
	for _, l := range s.levels {
		if l.place == plan.Device {
			device += l.pool.Stats().Arena
		} else {
			host += l.pool.Stats().Arena
		}
	}
	return device, host
}

// OnDrop has f called, without locks held, with the key and kind of every entry that is evicted from memory or deleted.
// It MUST be called before the store is used.
func (s *Store) OnDrop(f func(plan.Key, plan.Kind)) { s.dropped = f }

// Reserve returns an unpublished entry for tokens tokens. The leading ones are those of prefix, which may
// be nil: full chunks are shared, the rest is copied. Reserve evicts entries if it needs room. The caller
// owns the reference, fills in the new tokens, and publishes or releases the entry.
func (s *Store) Reserve(layout Layout, tokens int, prefix *Entry) (*Entry, error) {
	return s.reserve(s.top, layout, tokens, prefix)
}

func (s *Store) reserve(to *level, layout Layout, tokens int, prefix *Entry) (*Entry, error) {
	e := s.newEntry(tokens)
	have := 0
	if prefix != nil {
		if prefix.len > tokens {
			return nil, fmt.Errorf("kv: reserve %d tokens behind a prefix of %d", tokens, prefix.len)
		}
		for _, c := range prefix.chunks {
			if layout != Chain || c.level != to || c.tokens != ChainTokens || have+c.tokens > prefix.len {
				break
			}
			c.refs.Add(1)
			e.add(c)
			have += c.tokens
		}
	}
	for at := have; at < tokens; {
		n := tokens - at
		if layout == Chain {
			n = ChainTokens
		}
		c, err := s.newChunk(to, n)
		if err != nil {
			e.Release()
			s.watchRefused(to, tokens)
			return nil, err
		}
		e.add(c)
		at += n
	}
	if prefix != nil && have < prefix.len {
		if err := s.copyTokens(e, prefix, have, prefix.len); err != nil {
			e.Release()
			return nil, err
		}
	}
	return e, nil
}

// copyTokens copies tokens [from, to) of src to dst in all layers. In a format with scales, the tokens of a
// chunk share scales, which come first. There tokens must keep their places in chunks and take the scales
// with them.
func (s *Store) copyTokens(dst, src *Entry, from, to int) error {
	row, scale := s.shape.HeadDim*s.shape.KV.Size(), s.shape.ScaleBytes()
	var moves []compute.Move
	for t := from; t < to; {
		sc, st := src.locate(t)
		dc, dt := dst.locate(t)
		n := min(to-t, sc.tokens-st, dc.tokens-dt)
		if scale > 0 && (st > 0 || dt > 0) {
			return fmt.Errorf("kv: copy %d tokens: token %d is at %d of a chunk and would be at %d of one with other scales",
				to-from, t, st, dt)
		}
		moves = append(moves, compute.Move{
			Dst: dc.run.Slice(dt*row, dc.run.Size-dt*row), Src: sc.run.Slice(st*row, sc.run.Size-st*row), Width: scale + n*row,
			Rows: s.shape.Layers * 2 * s.shape.KVHeads, DstStride: s.shape.HeadBytes(dc.tokens),
			SrcStride: s.shape.HeadBytes(sc.tokens),
		})
		t += n
	}
	if err := s.top.pool.Memory().Copy(moves...); err != nil {
		return fmt.Errorf("kv: copy %d tokens: %w", to-from, err)
	}
	return nil
}

// locate returns the chunk of a token and the token's index in it.
func (e *Entry) locate(t int) (*chunk, int) {
	for _, c := range e.chunks {
		if t < c.tokens {
			return c, t
		}
		t -= c.tokens
	}
	panic("kv: token beyond the entry")
}

// Publish makes a filled entry findable under key. The store takes a reference of its own, and the caller
// keeps its one. Tokens are a user's, and the store keeps them; for other entries, whose key is a digest
// of the tokens, they are nil. A user's older entry under the key is replaced. Any other older entry
// stays, because it has the same content.
func (s *Store) Publish(kind plan.Kind, key plan.Key, tokens []int32, e *Entry) {
	s.PublishFor(0, kind, key, tokens, e)
}

// PublishFor is Publish for one of several caches that share the store: see Owner.
func (s *Store) PublishFor(owner uint32, kind plan.Kind, key plan.Key, tokens []int32, e *Entry) {
	p := newPublished(key, kind, tokens, e)
	p.Owner = owner
	s.publish(p, s.top, nil)
}

// publish puts an entry on a level and reports whether the entry can be found there. A clean entry was read from disk,
// and one with an arrival comes from another node; these are not published if their key was deleted meanwhile.
func (s *Store) publish(p *published, to *level, from *Arrival) bool {
	s.mu.Lock()
	for s.books.Full(to.index) && s.books.Get(p.Key) == nil {
		s.mu.Unlock()
		if !s.evictOne(to) {
			return false // all places on the books have entries in use
		}
		s.mu.Lock()
	}
	was := s.books.Get(p.Key)
	if p.Clean() && s.below.condemned(p.Key) || from != nil && (from.deleted || from.covered(was)) {
		s.mu.Unlock()
		return from != nil && !from.deleted
	}
	same := was != nil && was.Value.entry == p.Value.entry
	if s.rec.On() {
		s.recordPublish(p, to, same)
	}
	fresh := !p.Clean()
	did, old, write := s.books.Publish(p, to.index, same)
	if did == residency.Placed {
		p.Value.entry.Retain()
		s.watchKept(p)
	}
	var w pending
	if write {
		w = s.hold(p)
	}
	s.learn()
	s.unlock()
	if did == residency.Kept {
		return true
	}
	if fresh {
		s.offer(w)
	}
	if old != nil {
		old.Value.entry.Release()
	}
	s.ahead.wake()
	return did == residency.Placed
}

// Get returns the entry under key and the tier where it was, or nil. The caller gets a reference and MUST
// release it.
func (s *Store) Get(key plan.Key) (*Entry, plan.Tier) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, at := s.find(key)
	if p == nil {
		return nil, plan.Missing
	}
	p.Value.entry.Retain()
	return p.Value.entry, at
}

// GetPrefix returns the part of the user's entry under key that is a prefix of tokens, and the tier where
// it was; nil if they share no token. The caller gets a reference and MUST release it.
func (s *Store) GetPrefix(key plan.Key, tokens []int32) (*Entry, plan.Tier) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.books.Get(key); p == nil {
		return nil, plan.Missing
	} else if n := common(p.Value.tokens, tokens); n == 0 {
		return nil, plan.Missing
	} else {
		if s.rec.On() {
			s.rec.In("asked", [32]byte(key), len(tokens), n)
		}
		s.books.Asked(p, len(tokens), n)
	}
	p, at := s.find(key)
	if p == nil {
		return nil, plan.Missing
	}
	n := common(p.Value.tokens, tokens) // find may have returned another entry, if this one was moved and replaced
	if n == 0 {
		return nil, plan.Missing
	}
	e := p.Value.entry
	if n == e.len {
		e.Retain()
		return e, at
	}
	return e.Leading(n), at
}

// common returns how many leading tokens a and b share.
func common(a, b []int32) int {
	n, at := min(len(a), len(b)), 0
	for n-at >= compared && *(*[compared]int32)(a[at:]) == *(*[compared]int32)(b[at:]) {
		at += compared
	}
	for ; at < n; at++ {
		if a[at] != b[at] {
			return at
		}
	}
	return n
}

// compared tokens are compared at a time: a user has thousands, and requests of others wait.
const compared = 64

// Leading returns an entry of the first n tokens that shares their chunks. The caller gets a reference to it, MUST
// release it, and MUST hold one to e meanwhile.
func (e *Entry) Leading(n int) *Entry {
	v := e.store.newEntry(n)
	v.share(e.chunks, n)
	return v
}

// share appends the first chunks, as many as n tokens need, and returns how many of the n tokens they do not have.
func (e *Entry) share(chunks []*chunk, n int) int {
	for _, c := range chunks {
		if n <= 0 {
			break
		}
		c.refs.Add(1)
		e.add(c)
		n -= c.tokens
	}
	return n
}

// Peek sets tokens[i] to the number of tokens of the entry under keys[i], 0 if there is none. It does not
// count as a use.
func (s *Store) Peek(keys []plan.Key, tokens []int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range keys {
		tokens[i] = 0
		if p := s.books.Get(keys[i]); p != nil {
			tokens[i] = int32(p.Tokens)
		}
	}
}

// Where returns the number of tokens of the entry under key and its tier, or 0 and plan.Missing when memory has none.
// It does not count as a use.
func (s *Store) Where(key plan.Key) (tokens int, at plan.Tier) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.books.Get(key); p != nil {
		return p.Tokens, p.Value.entry.Tier()
	}
	return 0, plan.Missing
}

// PeekPrefix returns how many tokens GetPrefix would find, and their tier. It does not count as a use.
func (s *Store) PeekPrefix(key plan.Key, tokens []int32) (int, plan.Tier) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.books.Get(key); p != nil {
		return common(p.Value.tokens, tokens), p.Value.entry.Tier()
	}
	return 0, plan.Missing
}

// deleteAtOnce is the most entries that a deletion removes under one lock, for which readers wait.
const deleteAtOnce = 64

// Delete removes the entries under keys from every tier. Their memory is zeroed and freed when the last reader releases
// it. When Delete returns without an error, their bytes on disk are erased. Deleting many keys costs little more than
// deleting one. If the disk hangs, Delete returns an error after a while.
func (s *Store) Delete(keys ...plan.Key) error {
	if len(keys) == 0 {
		return nil
	}
	var deletion *op
	if s.below != nil {
		deletion = s.below.condemn(keys) // first: a read that is under way must not publish the entry after it is removed
	}
	gone := s.takeAll(keys)
	var err error
	if s.below != nil {
		if err = s.below.erase(keys, deletion); err != nil {
			err = fmt.Errorf("kv: delete below memory: %w", err)
		}
	}
	s.left(gone)
	return err
}

// Drop removes the entries under keys from every tier because they are useless. Unlike Delete it does not wait for the
// disk: a later write overwrites their bytes there, and a crash before that brings the entries back. Use Delete for
// data that MUST be gone.
func (s *Store) Drop(keys ...plan.Key) {
	if len(keys) == 0 {
		return
	}
	if s.below == nil {
		s.left(s.takeAll(keys))
		return
	}
	deletion := s.below.condemn(keys)
	gone := s.takeAll(keys)
	s.below.disk.Drop(keys...)
	s.below.finish(deletion, keys...)
	s.left(gone)
}

// taken is an entry that was removed from memory or from the disk.
type taken struct {
	key   plan.Key
	kind  plan.Kind
	entry *Entry // nil: it was on disk only
}

// takeAll removes entries from the books, a few per lock so that readers do not wait. The caller releases them.
func (s *Store) takeAll(keys []plan.Key) (gone []taken) {
	for some := range slices.Chunk(keys, deleteAtOnce) {
		s.mu.Lock()
		for _, key := range some {
			if a := s.arrivals[key]; a != nil {
				a.deleted = true
			}
			known, ok := s.books.Lookup(key)
			if !ok {
				continue
			}
			t := taken{key: key, kind: known.Kind}
			if p := s.take(key); p != nil {
				t.entry = p.Value.entry
			}
			s.lost(key)
			gone = append(gone, t)
		}
		s.unlock()
	}
	return gone
}

// left reports removed entries to OnDrop's function and releases them.
func (s *Store) left(gone []taken) {
	for i := range gone {
		s.dropped(gone[i].key, gone[i].kind)
		if e := gone[i].entry; e != nil {
			e.Release()
		}
	}
}

// unlock ends a change of the books. Builds with self-checks verify them here.
func (s *Store) unlock() {
	s.checks.run(s)
	s.mu.Unlock()
}

// take removes an entry from the books and returns it, or nil. The caller releases it.
func (s *Store) take(key plan.Key) *published {
	if s.books.Get(key) == nil {
		return nil
	}
	if s.rec.On() {
		s.rec.In("delete", [32]byte(key))
	}
	return s.books.Delete(key)
}

// Stop ends the store's background work. If there is a disk, it writes the entries that are not on it, until ctx ends.
// After Stop only Close may be called.
func (s *Store) Stop(ctx context.Context) {
	s.ahead.stop()
	s.ahead = nil
	s.trainer.stop()
	s.trainer = nil
	if s.below != nil {
		s.flush(ctx)
		close(s.below.queue)
		s.below.wg.Wait()
		s.below = nil
	}
}

// Close stops the store and drops all published entries. Entries that are still referenced keep their
// memory until they are released.
func (s *Store) Close() {
	s.Stop(context.Background())
	s.mu.Lock()
	var all []*Entry
	s.books.All(func(p *published) {
		all = append(all, p.Value.entry)
		s.take(p.Key)
	})
	all = append(all, s.forgetAll()...)
	s.mu.Unlock()
	for _, e := range all {
		e.Release()
	}
	for i := range s.staging {
		s.staging[i].free()
	}
	for range len(s.lending) {
		(<-s.lending).free()
	}
	for _, c := range s.soiled {
		s.freeRun(c)
	}
	s.soiled = nil
}

// free frees the chunks that no other entry shares.
func (s *Store) free(e *Entry) {
	for _, c := range e.chunks {
		if c.refs.Add(-1) > 0 {
			continue
		}
		// Memory that is used again must not contain a deleted user's KV.
		if err := c.level.pool.Memory().Zero(c.run.Block); err != nil {
			s.mu.Lock()
			s.soiled = append(s.soiled, c)
			s.mu.Unlock()
			continue
		}
		s.freeRun(c)
	}
	if e.view && reuseViews {
		s.recycle(e)
		return
	}
	e.chunks = nil
}

// Package kv keeps the keys and values of users and items, so that they are computed once.
//
// An Entry holds the KV of a run of tokens in chunks of pool pages: an item in one chunk of its exact
// length, a user in a chain of chunks of ChainTokens tokens, so that a longer history shares the full
// chunks of a shorter one. An item's key is a digest of all that its KV depends on. A user's key is a
// digest of the same but for the tokens, and of the user's id: the tokens are kept beside the entry,
// and only those that a request has in common with them are reused. So neither can be stale.
//
// Writes have two phases: Reserve gives an entry that only its maker can see; Publish makes it
// findable, complete. A published entry never changes. Readers hold references: Get and Reserve
// return one that the caller MUST Release; eviction only drops the store's own reference, so memory
// in use is never freed.
//
// Lock order: Store.mu, then the pool's lock.
package kv

import (
	"container/list"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"unsafe"

	"grebe/compute"
	"grebe/plan"
	"grebe/pool"
)

// ChainTokens is the length of the chunks of a chain.
const ChainTokens = 64

// ErrFull says that the cache is full of entries in use.
var ErrFull = errors.New("kv: no room: everything cached is in use")

// Key names an entry.
type Key [32]byte

// KeyOf digests what an entry depends on. Parts are kept apart, so that different lists of parts
// never give the same key but by a collision of SHA-256.
func KeyOf(context Key, tokens []int32, id string) Key {
	h := sha256.New()
	h.Write(context[:])
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(len(tokens)))
	h.Write(b[:])
	if len(tokens) > 0 {
		h.Write(unsafe.Slice((*byte)(unsafe.Pointer(&tokens[0])), 4*len(tokens)))
	}
	io.WriteString(h, id)
	var k Key
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
	tokens int
	refs   atomic.Int32
}

// Entry is the KV of a run of tokens.
type Entry struct {
	store  *Store
	len    int
	chunks []*chunk
	refs   atomic.Int32
}

// Len returns the number of tokens.
func (e *Entry) Len() int { return e.len }

// AppendChunks appends the entry's chunks as a device takes them. They are valid while the caller
// holds a reference.
func (e *Entry) AppendChunks(dst []compute.Chunk) []compute.Chunk {
	for _, c := range e.chunks {
		dst = append(dst, c.run.Chunk(c.tokens, false))
	}
	return dst
}

// Retain adds a reference, which MUST be released.
func (e *Entry) Retain() { e.refs.Add(1) }

// Release gives a reference back; the last one frees the memory.
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
	shape compute.Shape
	pool  *pool.Pool

	dropped func(Key)
	stored  func(Key, plan.Kind, int)
	below   *below // nil: nothing is kept below memory

	mu      sync.Mutex
	index   map[Key]*list.Element // of *published
	recency list.List             // front: used last
	evicted [kinds]int64
	entries [kinds]int
	bytes   [kinds]int64
}

const kinds = int(plan.Beam) + 1

type published struct {
	key    Key
	kind   plan.Kind
	entry  *Entry
	tokens []int32 // of a user
	clean  bool    // written below, or not worth trying again
}

// New returns a store for models of the given shape. It does not own the pool.
func New(shape compute.Shape, p *pool.Pool) *Store {
	return &Store{shape: shape, pool: p, dropped: func(Key) {}, stored: func(Key, plan.Kind, int) {}, index: map[Key]*list.Element{}}
}

// OnDrop has f called with the key of every entry that is evicted or deleted, without locks held. It
// MUST be called before the store is used.
func (s *Store) OnDrop(f func(Key)) { s.dropped = f }

// OnStore has f called with every entry that was written below memory. It MUST be called before the
// store is used.
func (s *Store) OnStore(f func(key Key, kind plan.Kind, tokens int)) { s.stored = f }

// Reserve returns an unpublished entry for tokens tokens, whose leading ones are those of prefix
// (nil for none): full chunks are shared, the rest is copied. It evicts what it must. The caller owns
// the reference, fills the new tokens, and publishes or releases the entry.
func (s *Store) Reserve(layout Layout, tokens int, prefix *Entry) (*Entry, error) {
	e := &Entry{store: s, len: tokens}
	e.refs.Store(1)
	have := 0
	if prefix != nil {
		if prefix.len > tokens {
			return nil, fmt.Errorf("kv: reserve %d tokens behind a prefix of %d", tokens, prefix.len)
		}
		for _, c := range prefix.chunks {
			if layout != Chain || c.tokens != ChainTokens || have+c.tokens > prefix.len {
				break
			}
			c.refs.Add(1)
			e.chunks = append(e.chunks, c)
			have += c.tokens
		}
	}
	for at := have; at < tokens; {
		n := tokens - at
		if layout == Chain {
			n = ChainTokens
		}
		c, err := s.newChunk(n)
		if err != nil {
			e.Release()
			return nil, err
		}
		e.chunks = append(e.chunks, c)
		at += n
	}
	if prefix != nil && have < prefix.len {
		s.copyTokens(e, prefix, have, prefix.len)
	}
	return e, nil
}

// newChunk allocates a chunk, evicting the least recently used entries until it fits.
func (s *Store) newChunk(tokens int) (*chunk, error) {
	for {
		run, err := s.pool.Alloc(s.shape.ChunkBytes(tokens, false))
		if err == nil {
			c := &chunk{run: run, tokens: tokens}
			c.refs.Store(1)
			return c, nil
		}
		if !errors.Is(err, pool.ErrFull) {
			return nil, err
		}
		if !s.evictOne() {
			return nil, fmt.Errorf("%w (%d tokens wanted)", ErrFull, tokens)
		}
	}
}

// evictOne drops the least recently used entry that nobody reads; false when there is none.
func (s *Store) evictOne() bool {
	s.mu.Lock()
	var victim *published
	var lost bool
	for el := s.recency.Back(); el != nil; el = el.Prev() {
		if p := el.Value.(*published); p.entry.refs.Load() == 1 {
			victim, lost = p, !p.clean
			s.remove(el)
			s.evicted[p.kind]++
			break
		}
	}
	s.mu.Unlock()
	if victim == nil {
		return false
	}
	if s.below != nil && lost {
		s.below.lost.Add(1)
	}
	s.dropped(victim.key)
	victim.entry.Release()
	return true
}

// remove takes an element out of the index; the caller releases its entry.
func (s *Store) remove(el *list.Element) {
	p := el.Value.(*published)
	s.count(p, -1)
	delete(s.index, p.key)
	s.recency.Remove(el)
}

// copyTokens copies tokens [from, to) of src to dst in all layers.
func (s *Store) copyTokens(dst, src *Entry, from, to int) {
	row := s.shape.HeadDim * s.shape.KV.Size()
	for t := from; t < to; t++ {
		sc, st := src.locate(t)
		dc, dt := dst.locate(t)
		for p := range s.shape.Layers * 2 * s.shape.KVHeads {
			copy(dc.run.Bytes[(p*dc.tokens+dt)*row:][:row], sc.run.Bytes[(p*sc.tokens+st)*row:][:row])
		}
	}
}

// locate returns the chunk of a token and its place there.
func (e *Entry) locate(t int) (*chunk, int) {
	for _, c := range e.chunks {
		if t < c.tokens {
			return c, t
		}
		t -= c.tokens
	}
	panic("kv: token beyond the entry")
}

// Publish makes a filled entry findable under key, with a reference of the store's own; the caller
// keeps its reference. Tokens are those of a user, which the store keeps, and nil for an entry whose
// key names them. An older entry under the key is replaced if it has tokens, and stays if it has
// none: then it has the same content.
func (s *Store) Publish(kind plan.Kind, key Key, tokens []int32, e *Entry) {
	s.publish(&published{key: key, kind: kind, entry: e, tokens: tokens})
}

func (s *Store) publish(p *published) {
	s.mu.Lock()
	var old *Entry
	if el, ok := s.index[p.key]; ok {
		was := el.Value.(*published)
		if was.tokens == nil || was.entry == p.entry {
			s.recency.MoveToFront(el)
			s.mu.Unlock()
			return
		}
		s.remove(el)
		old = was.entry
	}
	p.entry.Retain()
	s.index[p.key] = s.recency.PushFront(p)
	s.count(p, 1)
	s.mu.Unlock()
	if !p.clean {
		s.offer(p)
	}
	if old != nil {
		old.Release()
	}
}

// count adds an entry to the statistics, or takes it off.
func (s *Store) count(p *published, n int) {
	s.entries[p.kind] += n
	bytes := 0
	for _, c := range p.entry.chunks {
		bytes += len(c.run.Bytes)
	}
	s.bytes[p.kind] += int64(n * bytes)
}

// Get returns the entry under key with a reference for the caller, who MUST release it; nil when
// there is none.
func (s *Store) Get(key Key) *Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	el, ok := s.index[key]
	if !ok {
		return nil
	}
	s.recency.MoveToFront(el)
	e := el.Value.(*published).entry
	e.Retain()
	return e
}

// GetPrefix returns the leading tokens of the user's entry under key that are also the first of
// tokens, with a reference for the caller, who MUST release it; nil when there are none.
func (s *Store) GetPrefix(key Key, tokens []int32) *Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	el, ok := s.index[key]
	if !ok {
		return nil
	}
	p := el.Value.(*published)
	n := common(p.tokens, tokens)
	if n == 0 {
		return nil
	}
	s.recency.MoveToFront(el)
	if n == p.entry.len {
		p.entry.Retain()
		return p.entry
	}
	return p.entry.leading(n)
}

// common returns how many leading tokens a and b share.
func common(a, b []int32) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// leading returns an entry of the first n tokens, which shares the chunks.
func (e *Entry) leading(n int) *Entry {
	v := &Entry{store: e.store, len: n}
	v.refs.Store(1)
	for _, c := range e.chunks {
		if n <= 0 {
			break
		}
		c.refs.Add(1)
		v.chunks = append(v.chunks, c)
		n -= c.tokens
	}
	return v
}

// Peek returns how many tokens each key's entry has, 0 where there is none, without counting it as
// a use.
func (s *Store) Peek(keys []Key, tokens []int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range keys {
		tokens[i] = 0
		if el, ok := s.index[keys[i]]; ok {
			tokens[i] = int32(el.Value.(*published).entry.len)
		}
	}
}

// PeekPrefix returns how many tokens GetPrefix would find, without counting it as a use.
func (s *Store) PeekPrefix(key Key, tokens []int32) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if el, ok := s.index[key]; ok {
		return common(el.Value.(*published).tokens, tokens)
	}
	return 0
}

// Delete drops the entry under key, if there is one, from every tier. Its memory is freed, and
// zeroed, with its last reader; below memory its bytes are gone when Delete returns without an error.
func (s *Store) Delete(key Key) error {
	s.mu.Lock()
	el, ok := s.index[key]
	if ok {
		s.remove(el)
	}
	s.mu.Unlock()
	err := s.forget(key)
	s.dropped(key)
	if ok {
		el.Value.(*published).entry.Release()
	}
	return err
}

// Stats count what the store holds, and dropped to make room, of one kind. Bytes shared by two
// entries count for both.
type Stats struct {
	Entries int
	Bytes   int64
	Evicted int64
}

// Stats returns the counts of a kind.
func (s *Store) Stats(kind plan.Kind) Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Stats{Entries: s.entries[kind], Bytes: s.bytes[kind], Evicted: s.evicted[kind]}
}

// Close writes below what is not there yet, if there is a tier, and drops all published entries.
// Memory of entries still referenced stays theirs.
func (s *Store) Close() {
	if s.below != nil {
		s.Flush()
		close(s.below.queue)
		s.below.wg.Wait()
		s.below = nil
	}
	s.mu.Lock()
	var all []*Entry
	for el := s.recency.Front(); el != nil; el = s.recency.Front() {
		all = append(all, el.Value.(*published).entry)
		s.remove(el)
	}
	s.mu.Unlock()
	for _, e := range all {
		e.Release()
	}
}

// free gives back the chunks that no other entry shares.
func (s *Store) free(e *Entry) {
	for _, c := range e.chunks {
		if c.refs.Add(-1) == 0 {
			clear(c.run.Bytes) // nobody finds a deleted user's KV in memory that is used again
			s.pool.Free(c.run)
		}
	}
	e.chunks = nil
}

// Package kv keeps the keys and values of users and items, so that they are computed once.
//
// An Entry holds the KV of a run of tokens in chunks of pool pages: an item in one chunk of its exact
// length, a user in a chain of chunks of ChainTokens tokens, so that a longer history shares the full
// chunks of a shorter one. Entries are keyed by content (Key); whoever names an entry by an id keeps
// that alias elsewhere.
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
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"grebe/compute"
	"grebe/pool"
)

// ChainTokens is the length of the chunks of a chain.
const ChainTokens = 64

// ErrFull says that the cache is full of entries in use.
var ErrFull = errors.New("kv: no room: everything cached is in use")

// Key names an entry by its content.
type Key [32]byte

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
		dst = append(dst, compute.Chunk{Bytes: c.run.Bytes, Tokens: c.tokens})
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

	mu      sync.Mutex
	index   map[Key]*list.Element // of *published
	recency list.List             // front: used last
	evicted int64
}

type published struct {
	key   Key
	entry *Entry
}

// New returns a store for models of the given shape. It does not own the pool.
func New(shape compute.Shape, p *pool.Pool) *Store {
	return &Store{shape: shape, pool: p, index: map[Key]*list.Element{}}
}

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
	var victim *Entry
	for el := s.recency.Back(); el != nil; el = el.Prev() {
		if p := el.Value.(*published); p.entry.refs.Load() == 1 {
			victim = p.entry
			s.remove(el)
			s.evicted++
			break
		}
	}
	s.mu.Unlock()
	if victim == nil {
		return false
	}
	victim.Release()
	return true
}

// remove takes an element out of the index; the caller releases its entry.
func (s *Store) remove(el *list.Element) {
	delete(s.index, el.Value.(*published).key)
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
// keeps its reference. When the key is there already the older entry stays: it has the same content.
func (s *Store) Publish(key Key, e *Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if el, ok := s.index[key]; ok {
		s.recency.MoveToFront(el)
		return
	}
	e.Retain()
	s.index[key] = s.recency.PushFront(&published{key, e})
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

// Delete drops the entry under key, if there is one. Its memory is freed with its last reader.
func (s *Store) Delete(key Key) {
	s.mu.Lock()
	el, ok := s.index[key]
	if ok {
		s.remove(el)
	}
	s.mu.Unlock()
	if ok {
		el.Value.(*published).entry.Release()
	}
}

// Stats count what the store holds.
type Stats struct {
	Entries int
	Evicted int64
}

// Stats returns the counts.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Stats{Entries: len(s.index), Evicted: s.evicted}
}

// Close drops all published entries. Memory of entries still referenced stays theirs.
func (s *Store) Close() {
	s.mu.Lock()
	var all []*Entry
	for el := s.recency.Front(); el != nil; el = el.Next() {
		all = append(all, el.Value.(*published).entry)
	}
	s.recency.Init()
	clear(s.index)
	s.mu.Unlock()
	for _, e := range all {
		e.Release()
	}
}

// free gives back the chunks that no other entry shares.
func (s *Store) free(e *Entry) {
	for _, c := range e.chunks {
		if c.refs.Add(-1) == 0 {
			s.pool.Free(c.run)
		}
	}
	e.chunks = nil
}

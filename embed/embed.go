// Package embed serves rows of embedding tables: rows of one size by key, from a [Store] (memory, a mapped file,
// Pebble, Redis or Valkey) through a [Cache] on pages of a pool (LRU-3 and HLM-2 in docs/explain/papers.md).
//
// # The cache
//
// A key's hash names a set of 64 slots; 64 tags are compared at once, then the key. The evicted row is chosen within
// the set.
//
//   - A read takes no lock and allocates nothing: it copies the row out and counts only if the set's version was even
//     before and is the same after. So a caller never sees half of one row and half of another.
//   - A writer holds the set's lock, which is a leaf, and makes the version odd while it changes tags, keys or rows.
//   - A hit is recorded in one word of the slot. Two at once may lose one.
//   - A row that was fetched before an update of its set and offered after it is not cached, so an update is
//     never undone by a slow fetch.
//   - Its memory is slabs of whole sets, each a run of the pool's pages, that come and go while readers run.
//
// Policies: "lru" is LRU in the set. The "default" is package evict's Slab: decayed counts of uses, also of rows that
// are not cached, in a mode that caches in miniature choose off the path; LRU is one of the modes. Other names run that
// policy of package evict in each set, with predictions of trees that are trained off the path. Both may be stale.
//
// # The table
//
// [Table] gathers batches: hits from the cache, all misses of a batch in one round trip to the store within a
// deadline. A table in memory has no round trip: its rows are copied straight from there, and where they are looked up
// so evenly that placing them makes no hits, most are not placed. A row that the store does not have, or cannot give
// in time, is the table's default row, and counted: a batch never fails. So is a row of another size or of numbers
// that are not finite; the others of its batch are not touched by it. Rows that others change in Redis are dropped as
// soon as the server reports the change, rows that are Put through the table at once.
package embed

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// TableConfig says how a table is read.
type TableConfig struct {
	BF16    bool          // numbers of rows are bf16; float32
	Default []byte        // row for keys that are not in the store, and in an outage; zeros when nil
	Timeout time.Duration // deadline of a round trip to the store; 100 ms
}

// Table reads rows of a store, through a cache where it has one. Safe for concurrent use.
type Table struct {
	store   Store
	memory  *Memory // the store, where it is in memory
	cache   *Cache  // nil: none
	def     []byte
	bf16    bool
	timeout time.Duration
	scratch sync.Pool
	narrow  sync.Pool // of *[]byte: rows in bf16
	stripes atomic.Int32

	watchers  watchers
	listeners listeners
	shards    atomic.Pointer[Shards] // nil: look-ups are not counted by shard

	lookups, missing, outage, broken, failures atomic.Int64
}

// TableStats counts what a table served since it was made.
type TableStats struct {
	Cache    Stats
	Lookups  int64 // of all rows
	Missing  int64 // lookups answered with the default row: not in the store
	Outage   int64 // lookups answered with the default row: the store failed or was too slow
	Broken   int64 // lookups answered with the default row: the store has one of another size, or not of finite numbers
	Failures int64 // round trips that failed
}

// NewTable puts a cache, or none, before a store. Both stay the caller's.
func NewTable(s Store, c *Cache, cfg TableConfig) (*Table, error) {
	if c != nil && c.RowBytes() != s.RowBytes() {
		return nil, fmt.Errorf("embed: a cache of rows of %d bytes before a store of rows of %d", c.RowBytes(), s.RowBytes())
	}
	if cfg.Default == nil {
		cfg.Default = make([]byte, s.RowBytes())
	}
	if len(cfg.Default) != s.RowBytes() {
		return nil, fmt.Errorf("embed: a default row of %d bytes for rows of %d: %w", len(cfg.Default), s.RowBytes(), ErrRow)
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = 100 * time.Millisecond
	}
	t := &Table{store: s, cache: c, def: cfg.Default, bf16: cfg.BF16, timeout: cfg.Timeout}
	t.memory, _ = s.(*Memory)
	if w, ok := s.(watched); ok && c != nil {
		w.Watch(c.changed)
	}
	t.scratch.New = func() any { return &scratch{stripe: int(t.stripes.Add(1))} }
	return t, nil
}

// Stats returns the counters.
func (t *Table) Stats() TableStats {
	s := TableStats{Lookups: t.lookups.Load(), Missing: t.missing.Load(), Outage: t.outage.Load(), Broken: t.broken.Load(),
		Failures: t.failures.Load()}
	if t.cache != nil {
		s.Cache = t.cache.Stats()
	}
	return s
}

// RowBytes returns the size of a row.
func (t *Table) RowBytes() int { return t.store.RowBytes() }

// Dim returns how many numbers a row has.
func (t *Table) Dim() int {
	if t.bf16 {
		return t.store.RowBytes() / 2
	}
	return t.store.RowBytes() / 4
}

// Cache returns the table's cache, nil when it has none.
func (t *Table) Cache() *Cache { return t.cache }

// Gathered says where the rows of a batch came from; keys that repeat count each time.
type Gathered struct {
	Hits    int
	Fetched int
	Asked   int   // distinct keys that the store was asked for; a [Memory] behind a cache is asked for each lookup
	Default int   // rows that are the default
	Broken  int   // of these, rows that the store has but no table can: of another size, or not of finite numbers
	Outage  int   // of these, rows that the store, or a part of it, did not give
	Err     error // of the store; the rows are complete all the same
}

// scratch is what one Gather needs beside its results.
type scratch struct {
	misses  []int32 // lookups that missed
	unique  []int32 // of each, which distinct key
	places  []int32 // hash table of distinct keys, −1: free
	keys    []uint64
	epochs  []uint32 // of the keys' sets
	times   []uint64
	rows    []byte
	found   []bool
	why     []cause // of the keys that were not found
	watched []access
	lookups lookups
	hashes  []uint64  // of all keys, then of those that missed, for who watches
	began   time.Time // of the batch; zero if nobody watches
	at      uint64    // time of the first lookup
	sets    int       // in use then
	stripe  int
	parts   []*scratch // of other threads
	near    near
}

// Gather writes the row of keys[i] to out[i·RowBytes:]. It always fills all rows.
func (t *Table) Gather(ctx context.Context, keys []uint64, out []byte) Gathered {
	return t.gather(ctx, keys, out, nil)
}

// gather is Gather. It sets known[i], unless that is nil, to false where out has the default row.
func (t *Table) gather(ctx context.Context, keys []uint64, out []byte, known []bool) Gathered {
	s := t.scratch.Get().(*scratch)
	defer t.scratch.Put(s)
	s.reset()
	s.began = t.watchers.begin()
	t.lookups.Add(int64(len(keys)))
	if t.near(ctx) {
		return t.gatherNear(keys, out, known, s)
	}
	if t.cache == nil {
		for i := range keys {
			s.misses = append(s.misses, int32(i))
		}
	} else {
		t.cache.gather(keys, out, s)
	}
	shards := t.shards.Load()
	if shards != nil {
		shards.Count(keys, s.misses)
	}
	g := Gathered{Hits: len(keys) - len(s.misses)}
	if len(s.misses) == 0 {
		t.told(keys, &g, s, 0)
		return g
	}
	s.distinct(keys, t.cache)
	g.Asked = len(s.keys)
	begin := time.Now()
	t.fetch(ctx, s, &g)
	took := time.Since(begin)
	if shards != nil && g.Err == nil {
		shards.Fetched(g.Asked, took)
	}
	rb := t.store.RowBytes()
	for j, i := range s.misses {
		u := int(s.unique[j])
		row := t.def
		if s.found[u] {
			row = s.rows[u*rb : (u+1)*rb]
			g.Fetched++
		} else {
			g.Default++
			if known != nil {
				known[i] = false
			}
			switch s.why[u] {
			case isBroken:
				g.Broken++
			case isOut:
				g.Outage++
			}
		}
		copy(out[int(i)*rb:][:rb], row)
	}
	t.count(&g)
	if t.cache != nil {
		t.cache.fill(s)
	}
	t.told(keys, &g, s, took)
	return g
}

func (t *Table) count(g *Gathered) {
	if g.Default == 0 {
		return
	}
	t.outage.Add(int64(g.Outage))
	t.broken.Add(int64(g.Broken))
	t.missing.Add(int64(g.Default - g.Broken - g.Outage))
}

// fetch asks the store for the distinct keys; after an error none was found, except that broken rows, and those of a
// part of the store that does not answer, are left out by themselves.
func (t *Table) fetch(ctx context.Context, s *scratch, g *Gathered) {
	n := len(s.keys)
	s.rows = grown(s.rows, n*t.store.RowBytes())
	s.found, s.why = grown(s.found, n), grown(s.why, n)
	clear(s.why)
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	err := t.store.Gather(ctx, s.keys, s.rows, s.found)
	if err == nil {
		return
	}
	var bad *BrokenError
	var out *OutageError
	if errors.As(err, &bad) {
		s.leaveOut(bad.Rows, isBroken)
	}
	if errors.As(err, &out) {
		s.leaveOut(out.Rows, isOut)
	}
	if bad != nil && out == nil {
		return
	}
	t.failures.Add(1)
	if g.Err = err; out == nil {
		for u := range s.why {
			s.found[u], s.why[u] = false, isOut
		}
	}
}

// leaveOut says why some of the keys have no row.
func (s *scratch) leaveOut(rows []int, why cause) {
	for _, u := range rows {
		s.found[u], s.why[u] = false, why
	}
}

// cause says why a key that was asked for has no row.
type cause uint8

const (
	isMissing cause = iota
	isBroken
	isOut
)

// Put writes rows to the store and forgets those that are cached. It does not write them to the cache: of two Puts of a
// row at once, the one that the store had first may come here last.
func (t *Table) Put(ctx context.Context, keys []uint64, rows []byte) error {
	err := t.store.Put(ctx, keys, rows)
	t.wrote(keys) // after an error too: some may be written
	return err
}

// Delete removes rows from the store and the cache.
func (t *Table) Delete(ctx context.Context, keys []uint64) error {
	err := t.store.Delete(ctx, keys)
	t.wrote(keys)
	return err
}

func (t *Table) wrote(keys []uint64) {
	if len(keys) > 0 { // nil would be all
		t.changed(keys)
	}
}

func (s *scratch) reset() {
	s.misses, s.unique, s.keys = s.misses[:0], s.unique[:0], s.keys[:0]
	s.epochs, s.times, s.watched = s.epochs[:0], s.times[:0], s.watched[:0]
	s.near.reset(nil)
}

// distinct lists the missed keys once each.
func (s *scratch) distinct(keys []uint64, c *Cache) {
	size := 4
	for size < 2*len(s.misses) {
		size *= 2
	}
	s.places = grown(s.places, size)
	for i := range s.places {
		s.places[i] = -1
	}
	for _, i := range s.misses {
		k := keys[i]
		h := mix(k)
		at := int(h) & (size - 1)
		for s.places[at] >= 0 && s.keys[s.places[at]] != k {
			at = (at + 1) & (size - 1)
		}
		if s.places[at] < 0 {
			s.places[at] = int32(len(s.keys))
			s.keys = append(s.keys, k)
			if c != nil {
				s.epochs = append(s.epochs, c.sets[c.home(h, s.sets)].updates.Load())
				s.times = append(s.times, s.at+uint64(i))
			}
		}
		s.unique = append(s.unique, s.places[at])
	}
}

// grown returns a slice of n elements of any content.
func grown[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

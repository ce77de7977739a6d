package embed

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Batch is what Watch reports of a batch. Its slices are valid until the call returns.
type Batch struct {
	Hashes []uint64 // of all keys
	Missed []uint64 // hashes of the keys that the store was asked for, each once; none for a table in memory
	Hits   int
	Took   time.Duration // that the store took
}

// watchers are the functions of Watch. A batch loads them once.
type watchers struct {
	mu  sync.Mutex
	now atomic.Pointer[[]*func(Batch)] // nil: nobody watches
}

// Watch has f called after every batch until stop is called. A batch that is under way then may still be reported.
func (t *Table) Watch(f func(Batch)) (stop func()) {
	w := &t.watchers
	w.change(func(all []*func(Batch)) []*func(Batch) { return append(all, &f) })
	return func() {
		w.change(func(all []*func(Batch)) []*func(Batch) {
			return slices.DeleteFunc(all, func(o *func(Batch)) bool { return o == &f })
		})
	}
}

func (w *watchers) change(f func([]*func(Batch)) []*func(Batch)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []*func(Batch)
	if old := w.now.Load(); old != nil {
		all = slices.Clone(*old)
	}
	if all = f(all); len(all) == 0 {
		w.now.Store(nil)
		return
	}
	w.now.Store(&all)
}

// begin returns the time if somebody watches.
func (w *watchers) begin() (at time.Time) {
	if w.now.Load() != nil {
		at = time.Now()
	}
	return at
}

// told reports a batch to the functions of Watch.
func (t *Table) told(keys []uint64, g *Gathered, s *scratch, took time.Duration) {
	watching := t.watchers.now.Load()
	if watching == nil || len(keys) == 0 || s.began.IsZero() {
		return
	}
	s.hashes = s.hashes[:0]
	for _, k := range keys {
		s.hashes = append(s.hashes, mix(k))
	}
	for _, k := range s.keys {
		s.hashes = append(s.hashes, mix(k))
	}
	n := len(keys)
	b := Batch{Hashes: s.hashes[:n:n], Missed: s.hashes[n:], Hits: g.Hits, Took: took}
	for _, f := range *watching {
		(*f)(b)
	}
}

// Refilled is what a Refill did.
type Refilled struct {
	Asked int      // rows
	Found int      // rows that were offered to the cache
	Gone  []uint64 // hashes of rows that the store does not have
	Took  time.Duration
	Err   error // of the store
}

// Refill fetches rows into the cache ahead of lookups: those of these hashes that are not cached. shares[i] is the
// share of all lookups that hashes[i] is expected to have; its row competes for a place as one that has it already. A
// row that changes meanwhile is not cached.
// The lookups and misses of the table and of the cache do not count them. The table MUST have a cache.
func (t *Table) Refill(ctx context.Context, hashes []uint64, shares []float32) Refilled {
	s := t.scratch.Get().(*scratch)
	defer t.scratch.Put(s)
	s.reset()
	c := t.cache
	s.sets = int(c.n.Load())
	now := c.clock.Load() - 1
	words := make([]uint64, 0, len(hashes))
	for i, h := range hashes {
		set := &c.sets[c.home(h, s.sets)]
		updates := set.updates.Load()
		if set.find(h) >= 0 {
			continue
		}
		s.keys, s.epochs, s.times = append(s.keys, unmix(h)), append(s.epochs, updates), append(s.times, now)
		words = append(words, c.chosen.steady(now, shares[i]))
	}
	out := Refilled{Asked: len(s.keys)}
	if len(s.keys) == 0 {
		return out
	}
	begin := time.Now()
	var g Gathered
	t.fetch(ctx, s, &g)
	out.Took, out.Err = time.Since(begin), g.Err
	for u, k := range s.keys {
		h := mix(k)
		switch {
		case s.found[u]:
			out.Found++
			c.expect(c.home(h, s.sets), h, words[u])
		case s.why[u] == isMissing:
			out.Gone = append(out.Gone, h)
		}
	}
	c.fill(s)
	return out
}

// Cached reports whether the row of a hash is cached. It counts no use.
func (t *Table) Cached(hash uint64) bool {
	c := t.cache
	return c.sets[c.home(hash, int(c.n.Load()))].find(hash) >= 0
}

// Has reports whether the row of a key is cached. It counts no use.
func (t *Table) Has(key uint64) bool { return t.cache != nil && t.Cached(mix(key)) }

// Far reports whether rows come from a store that is not in memory.
func (t *Table) Far() bool { return t.memory == nil }

// unmix returns the key of a hash: the inverse of mix.
func unmix(h uint64) uint64 {
	h = (h ^ h>>31 ^ h>>62) * 0x319642B2D24D8EC3
	h = (h ^ h>>27 ^ h>>54) * 0x96DE1B173F119089
	return h ^ h>>30 ^ h>>60
}

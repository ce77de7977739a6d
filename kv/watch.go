package kv

import (
	"grebe/plan"
	"grebe/residency"
)

// Watcher learns what the store's host memory is worth. It is called with the store's lock held, so it MUST NOT call
// the store. Keys are hashes.
type Watcher interface {
	// Hit reports that an entry in host memory was used: tokens that were not computed again.
	Hit(tokens int)
	// Kept reports a new entry: it was computed, or read from disk.
	Kept(key uint64, bytes int64, tokens int)
	// Evicted reports an entry that was dropped from memory to make room.
	Evicted(key uint64, bytes int64)
	// Refused reports an entry that had no room in host memory. It may be called without the store's lock.
	Refused(bytes int64)
}

// Watch reports uses and evictions to w. It MUST be called before the store is used.
func (s *Store) Watch(w Watcher) { s.watcher = w }

func (s *Store) watchHit(p *published, where residency.Where) {
	if s.watcher != nil && (where == residency.Here || where == residency.Up) && p.Value.entry.Tier() == plan.Host {
		s.watcher.Hit(p.Tokens)
	}
}

func (s *Store) watchKept(p *published) {
	if s.watcher != nil {
		s.watcher.Kept(residency.Hash(p.Key), p.Bytes, p.Tokens)
	}
}

func (s *Store) watchEvicted(p *published) {
	if s.watcher != nil {
		s.watcher.Evicted(residency.Hash(p.Key), p.Bytes)
	}
}

func (s *Store) watchRefused(l *level, tokens int) {
	if s.watcher != nil && l.place == plan.Host {
		s.watcher.Refused(int64(s.shape.ChunkBytes(tokens, false)))
	}
}

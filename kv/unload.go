package kv

import "grebe/plan"

// Unload removes the entries under keys from memory that are on disk too and that nobody reads. They stay on disk. It
// is for entries that were computed ahead and for which there is no room in memory.
func (s *Store) Unload(keys ...plan.Key) {
	for _, key := range keys {
		s.mu.Lock()
		p := s.books.Get(key)
		if p == nil || p.Level() < 0 || !p.Clean() || !evictable(p) {
			s.mu.Unlock()
			continue
		}
		s.take(key)
		s.unlock()
		p.Value.entry.Release()
	}
}

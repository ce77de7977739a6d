package kv

import (
	"grebe/internal/record"
	"grebe/plan"
	"grebe/residency"
)

// Lookup returns what is known of an entry: the best tier that has it, below memory included. It is no use of it.
func (s *Store) Lookup(key plan.Key) (residency.Entry, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.books.Lookup(key)
}

// Status sets tiers[i] to the best tier that has the entry of keys[i], Missing where none has it.
func (s *Store) Status(keys []plan.Key, tiers []plan.Tier) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.books.Status(keys, tiers)
	if s.rec.On() {
		s.rec.In("status", record.Keys(keys))
		s.rec.Did("tiers", record.Names(tiers))
	}
}

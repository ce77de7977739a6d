//go:build !invariants

package kv

// check does nothing; the invariants build tag turns it on.
func (s *Store) check() {}

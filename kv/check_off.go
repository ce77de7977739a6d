//go:build !invariants

package kv

// check does nothing; the invariants build tag turns it on.
func (s *Store) check() {}

// reuseViews says whether released views are used again.
const reuseViews = true

//go:build !invariants

package kv

// checks is what the self-checks remember.
type checks struct{}

// check does nothing; the invariants build tag turns it on.
func (s *Store) check() {}

// reuseViews says whether released views are used again.
const reuseViews = true

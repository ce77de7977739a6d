//go:build !invariants

package kv

// checks are the self-checks; the invariants build tag turns them on.
type checks struct{}

func (checks) run(*Store) {}

// reuseViews says whether released views are recycled.
const reuseViews = true

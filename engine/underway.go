package engine

import (
	"sync/atomic"

	"grebe/kv"
)

// Underway is KV that several requests need and none has yet. The first job that computes it leaves an entry for those that run
// after it: they take it when their batch begins, not when they are queued. Nobody waits for it: a job that finds nothing
// computes the KV itself.
type Underway struct {
	entry atomic.Pointer[kv.Entry]
}

// put leaves an entry, if there is none.
func (u *Underway) put(e *kv.Entry) {
	e.Retain()
	if !u.entry.CompareAndSwap(nil, e) {
		e.Release()
	}
}

// Clear releases what was left. No job may have the Underway any more.
func (u *Underway) Clear() {
	if e := u.entry.Swap(nil); e != nil {
		e.Release()
	}
}

// arrive gives a job the KV that was computed since it was queued, and counts it as shared.
func (j *Job) arrive(e *Engine, s *Shared) {
	for i := range j.Segments {
		g := &j.Segments[i]
		if g.Underway == nil {
			continue
		}
		had, tokens := j.done(i), len(j.Plan.Segments[i].Tokens)
		if left := g.Underway.entry.Load(); left != nil && had < tokens && left.Len() == tokens {
			g.Entry, g.Tier = left, e.home
			s.Concurrent += tokens - had
			s.Cost.Rows += tokens - had
			s.Cost.Keys += j.keys(i, had)
		}
	}
}

package engine

import (
	"sync/atomic"

	"grebe/kv"
)

// Underway is KV that several requests need and none has yet. The first job that computes it leaves an entry for those that run
// after it: they take it when their batch begins, not when they are queued. An engine does not wait for it: a job that finds
// nothing computes the KV itself.
type Underway struct {
	entry atomic.Pointer[kv.Entry]
	most  atomic.Pointer[kv.Entry] // all but the last token of entry, from the first job on that needs that
}

// put leaves an entry, if there is none.
func (u *Underway) put(e *kv.Entry) {
	e.Retain()
	if !u.entry.CompareAndSwap(nil, e) {
		e.Release()
	}
}

// take returns what was left of a segment: all of its tokens, or all but the last one. nil: nothing, or that of other tokens.
func (u *Underway) take(tokens int, last bool) *kv.Entry {
	e := u.entry.Load()
	switch {
	case e == nil || e.Len() != tokens || last && tokens == 1:
		return nil
	case !last:
		return e
	}
	if u.most.Load() == nil {
		if most := e.Leading(tokens - 1); !u.most.CompareAndSwap(nil, most) {
			most.Release()
		}
	}
	return u.most.Load()
}

// Clear releases what was left. No job may have the Underway any more.
func (u *Underway) Clear() {
	for _, at := range []*atomic.Pointer[kv.Entry]{&u.entry, &u.most} {
		if e := at.Swap(nil); e != nil {
			e.Release()
		}
	}
}

// arrive gives a job the KV that was computed since it was queued, and counts it as shared.
func (j *Job) arrive(e *Engine, s *Shared) {
	for i := range j.Segments {
		g := &j.Segments[i]
		if g.Underway == nil {
			continue
		}
		had := j.done(i)
		if left := g.Underway.take(len(j.Plan.Segments[i].Tokens), g.Last); left != nil && had < left.Len() {
			g.Entry, g.Tier = left, e.home
			s.Concurrent += left.Len() - had
			s.Cost.Rows += left.Len() - had
			s.Cost.Keys += j.keys(i, had) - j.keys(i, left.Len())
		}
	}
}

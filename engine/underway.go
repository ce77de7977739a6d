package engine

import (
	"sync/atomic"

	"grebe/kv"
)

// Underway is KV that several requests need and none has yet. The first job that computes it leaves an entry for those
// that run after it: they take it when their batch begins, not when they are queued. An engine does not wait for it: a
// job that finds nothing computes the KV itself.
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

// take returns what was left of a segment: all of its tokens, or all but the last one. nil: nothing, or that of other
// tokens.
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

// Awaits returns the Underway of segment i and what the job would not compute if it had the KV. It is nil if the
// segment has none, or needs none.
func (j *Job) Awaits(i int) (*Underway, Cost) {
	g := &j.Segments[i]
	if g.Underway == nil || g.Underway.entry.Load() != nil {
		return nil, Cost{}
	}
	had, needs := j.done(i), len(j.Plan.Segments[i].Tokens)
	if g.Last {
		needs--
	}
	if needs <= had {
		return nil, Cost{}
	}
	return g.Underway, Cost{Rows: needs - had, Keys: j.keys(i, had) - j.keys(i, needs)}
}

// Arrived counts the tokens whose KV other jobs have left for this one since it was queued.
func (j *Job) Arrived() (tokens int) {
	for i := range j.Segments {
		if g := &j.Segments[i]; g.Underway != nil {
			if left := g.Underway.take(len(j.Plan.Segments[i].Tokens), g.Last); left != nil {
				tokens += max(0, left.Len()-j.done(i))
			}
		}
	}
	return tokens
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

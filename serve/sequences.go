package serve

import (
	"container/list"
	"slices"
	"sync"
	"weak"

	grebev1 "grebe/api/grebe/v1"
	"grebe/generate"
	"grebe/model/hstu"
)

// sequences has what the events of stored users are for a model, so that a request looks up the items of its new
// events only. The least recently used ones leave when there are too many events.
//
// The catalog's users and events never change: a changed user is another message, of which the first events are those
// of the one before if events were appended. So a sequence serves as far as a user has the events that it was made of.
// Deleted users are forgotten by their id.
//
// Features of events come from the catalog's items, too. A sequence with features says by asOf when these were read. It
// serves while none of its items has changed since, and no other version of the catalog was activated.
type sequences struct {
	most int // events

	mu     sync.Mutex
	events int
	byUser map[string]*list.Element
	used   list.List // of *remembered, the most recently used first
}

// remembered is a user's sequence.
type remembered struct {
	user *grebev1.User
	sequence
}

// sequence is what a model reads of events.
type sequence struct {
	tokens   []int32        // of events whose items the model knows
	content  []int32        // of these, where the model has content features
	identity *hstu.Identity // of content; nil: it is not known
	asOf     asOf           // of content
	times    []int64        // of these; nil if the model does not use them
	unknown  int            // other events
}

// asOf is a moment of the catalog's items.
type asOf struct {
	change uint64                      // of itemChanges
	view   weak.Pointer[generate.View] // the view that was in use: it is not kept in memory
}

// mostSequenced is the most that sequences has, in units of 4 bytes: an event without features is one. A user counts as
// perUser of them besides: what is kept of a user with few events is far more than these.
const (
	mostSequenced = 32 << 20
	perUser       = 48
)

func (s *sequence) size() int { return perUser + len(s.tokens) + len(s.content) + s.identity.Len() }

// get returns a sequence of a stored user, which MUST NOT be changed, and the user's events behind those that it is of.
func (q *sequences) get(u *grebev1.User) (s *sequence, rest []*grebev1.Event, ok bool) {
	q.mu.Lock()
	e := q.byUser[u.Id]
	if e == nil {
		q.mu.Unlock()
		return nil, nil, false
	}
	q.used.MoveToFront(e)
	r := e.Value.(*remembered)
	q.mu.Unlock()
	if r.user == u {
		return &r.sequence, nil, true
	}
	n := len(r.user.Events)
	if n == 0 || n > len(u.Events) || !slices.Equal(r.user.Events, u.Events[:n]) { // messages, not what they say
		return nil, nil, false
	}
	return &r.sequence, u.Events[n:], true
}

// put remembers the sequence of a stored user.
func (q *sequences) put(u *grebev1.User, s *sequence) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.remove(q.byUser[u.Id])
	if s.size() > q.most {
		return
	}
	if q.byUser == nil {
		q.byUser = map[string]*list.Element{}
	}
	own := *s
	own.tokens = slices.Clone(s.tokens) // which may have room for all events whose items are not known
	own.content = slices.Clone(s.content)
	q.byUser[u.Id] = q.used.PushFront(&remembered{u, own})
	for q.events += s.size(); q.events > q.most; {
		q.remove(q.used.Back())
	}
}

// renew says of a remembered sequence of a stored user that it is right at a later moment.
func (q *sequences) renew(u *grebev1.User, s *sequence, at asOf) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if e := q.byUser[u.Id]; e != nil && &e.Value.(*remembered).sequence == s {
		later := *e.Value.(*remembered)
		later.asOf = at
		e.Value = &later
	}
}

// forget removes users.
func (q *sequences) forget(ids ...string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, id := range ids {
		q.remove(q.byUser[id])
	}
}

// remove removes an element, which may be nil. The caller holds the lock.
func (q *sequences) remove(e *list.Element) {
	if e == nil {
		return
	}
	r := q.used.Remove(e).(*remembered)
	delete(q.byUser, r.user.Id)
	q.events -= r.size()
}

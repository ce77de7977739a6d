package server

import (
	"sync"

	"grebe/catalog"
)

// present knows the users whose requests are under way: what such a request computes of a user who is deleted meanwhile would
// be cached after the deletion. It is dropped when the request ends.
type present struct {
	mu    sync.Mutex
	users map[string]*visits
}

type visits struct {
	requests int
	deleted  bool // since the first of them began
}

// enter notes that a request for a user begins, before it looks the user up. At its end, when nothing of it is cached any more after
// that, leave reports whether the user was deleted.
func (p *present) enter(id string) (leave func() (deleted bool)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users == nil {
		p.users = map[string]*visits{}
	}
	v := p.users[id]
	if v == nil {
		v = &visits{}
		p.users[id] = v
	}
	v.requests++
	return func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		if v.requests--; v.requests == 0 {
			delete(p.users, id)
		}
		return v.deleted
	}
}

// deleted notes that a user is deleted, before what is cached is dropped.
func (p *present) deleted(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if v := p.users[id]; v != nil {
		v.deleted = true
	}
}

// serving notes a request for a user; the caller MUST call the returned function at its end.
func (s *Server) serving(id string) (end func()) {
	if id == "" {
		return func() {}
	}
	leave := s.present.enter(id)
	return func() {
		if leave() {
			s.ForgetUser(id)
		}
	}
}

// ForgetUser drops what is cached under a user's id, whom the catalog may never have known: requests may give users whole.
func (s *Server) ForgetUser(id string) { s.changed(catalog.Change{ID: id}) }

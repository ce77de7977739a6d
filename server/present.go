package server

import (
	"errors"
	"sync"

	"grebe/catalog"
)

// present knows the users whose requests are under way: what such a request computes of a user who is deleted meanwhile would
// be cached after the deletion. It is dropped when the request ends.
type present struct {
	mu    sync.Mutex
	users map[string]*visits
	left  map[string]error // users of whom something could not be removed, until whoever deletes them is told
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

// failed notes why something of a deleted user is left; nil: nothing is.
func (p *present) failed(id string, err error) {
	if err == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left == nil {
		p.left = map[string]error{}
	}
	p.left[id] = err
}

// failure returns what failed noted, once.
func (p *present) failure(id string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.left[id]
	delete(p.left, id)
	return err
}

// serving notes a request for a user; the caller MUST call the returned function at its end.
func (s *Server) serving(id string) (end func()) {
	if id == "" {
		return func() {}
	}
	leave := s.present.enter(id)
	return func() {
		if leave() {
			_ = s.FinishDeletion(id) // what fails is logged
		}
	}
}

// busy reports whether requests for a user who was deleted meanwhile are under way.
func (p *present) busy(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	v := p.users[id]
	return v != nil && v.deleted
}

// FinishDeletion drops what is cached of a user and then has the catalog forget that the deletion is pending, unless a
// request that may cache more is under way: that one finishes the deletion at its end. After an error the deletion
// stays pending, and the next start tries again.
func (s *Server) FinishDeletion(id string) error {
	version := s.catalog.PendingDeletion(id)
	if err := s.ForgetUser(id); err != nil {
		return err
	}
	if !s.present.busy(id) {
		s.catalog.DeletionDone(id, version)
	}
	return nil
}

// ForgetUser drops what is cached under a user's id, whom the catalog may never have known: requests may give users whole. After an
// error some of it may be left on disk.
func (s *Server) ForgetUser(id string) error {
	s.present.deleted(id)
	s.hotUsers.forget(id)
	var err error
	if s.cfg.UserDeleted != nil {
		if err = s.cfg.UserDeleted(); err != nil {
			s.log.Error("KV of models that are not served could not be removed", "error", err)
		}
	}
	return errors.Join(err, s.drop(catalog.Change{ID: id}))
}

package serve

import (
	"errors"
	"sync"
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
func (s *Service) serving(id string) (end func()) {
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

// FinishDeletion drops what is cached of users and then has the catalog forget that their deletions are pending, unless a
// request that may cache more of one is under way: that one finishes the deletion at its end. After an error the deletions
// stay pending, and the next start tries again.
func (s *Service) FinishDeletion(ids ...string) error {
	versions := make([]uint64, len(ids))
	for i, id := range ids {
		versions[i] = s.catalog.PendingDeletion(id)
	}
	if err := s.ForgetUser(ids...); err != nil {
		return err
	}
	for i, id := range ids {
		if !s.present.busy(id) {
			s.catalog.DeletionDone(id, versions[i])
		}
	}
	return nil
}

// ForgetUser drops what is cached under users' ids, whom the catalog may never have known: requests may give users whole. After an
// error some of it may be left on disk.
func (s *Service) ForgetUser(ids ...string) error {
	for _, id := range ids {
		s.present.deleted(id)
		s.hotUsers.forget(id)
	}
	var errs []error
	if s.cfg.UserDeleted != nil {
		err := s.cfg.UserDeleted()
		if err != nil {
			s.log.Error("KV of models that are not served could not be removed", "error", err)
		}
		errs = append(errs, err)
	}
	for _, sl := range s.served {
		sl.forgets(ids)
		for _, m := range sl.hold() {
			errs = append(errs, s.dropUsers(m, ids))
			sl.release(m)
		}
	}
	return errors.Join(errs...)
}

// dropUsers removes what a checkpoint has cached of users.
func (s *Service) dropUsers(m *checkpoint, ids []string) error {
	if m.Cache == nil || len(ids) == 0 {
		return nil
	}
	err := m.Cache.DropUser(ids...)
	if m.Blend != nil {
		for _, id := range ids {
			err = errors.Join(err, m.Blend.DropUser(id))
		}
	}
	if err != nil {
		s.log.Error("cached KV could not be removed", "model", m.Name, "error", err)
	}
	return err
}

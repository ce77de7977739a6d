package serve

import (
	"errors"
	"sync"
)

// present knows the users with requests in flight. If such a user is deleted, the request may cache KV after the
// deletion. It is removed when the request ends.
type present struct {
	mu    sync.Mutex
	users map[string]*visits
	left  map[string]error // users whose KV could not be removed, until the error is returned to whoever deletes them
}

type visits struct {
	requests int
	deleted  bool // since the first of the requests began
}

// enter records that a request for a user begins. Call it before the user is looked up. Call leave after the request
// has cached its last KV; it reports whether the user was deleted meanwhile.
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

// deleted records that a user is deleted. Call it before cached KV is removed.
func (p *present) deleted(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if v := p.users[id]; v != nil {
		v.deleted = true
	}
}

// failed records the error of removing a deleted user's KV; nil is ignored.
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

// failure returns the error that failed recorded, once.
func (p *present) failure(id string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.left[id]
	delete(p.left, id)
	return err
}

// serving records a request for a user. The caller MUST call end.
func (s *Service) serving(id string) (end func()) {
	if id == "" {
		return func() {}
	}
	leave := s.present.enter(id)
	return func() {
		if leave() {
			_ = s.FinishDeletion(id) // logs its errors
		}
	}
}

// busy reports whether requests are in flight for a user who was deleted meanwhile.
func (p *present) busy(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	v := p.users[id]
	return v != nil && v.deleted
}

// FinishDeletion removes the KV of users and then marks their deletions as done in the catalog. If a request is in
// flight that may cache more of a user, that request finishes the deletion. After an error the deletions stay
// pending, and the next start tries again.
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

// ForgetUser removes KV cached under users' ids. The catalog need not have them, since requests may give users
// inline. After an error some KV may be left on disk.
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
			if e, ok := m.reads().(*events); ok {
				e.known.forget(ids...)
			}
			errs = append(errs, s.dropUsers(m, ids))
			sl.release(m)
		}
	}
	return errors.Join(errs...)
}

// dropUsers removes the KV of users from a checkpoint's caches.
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

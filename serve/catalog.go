package serve

import (
	"cmp"
	"context"
	"errors"
	"strconv"

	grebev1 "grebe/api/grebe/v1"
	"grebe/catalog"
	"grebe/prompt"
)

// Item returns an item as all models see it.
func (s *Service) Item(id string) (*prompt.Item, error) {
	it, ok := s.item(nil, id)
	if !ok {
		return nil, Errorf(NotFound, "", "no item %s", Quoted(id))
	}
	return it, nil
}

// PutItem adds an item, or replaces the one with its id. The warnings name models that do not have its codes.
func (s *Service) PutItem(ctx context.Context, m *grebev1.Item) (created bool, warnings []string, err error) {
	res, err := s.apply(ctx, catalog.Op{PutItem: m})
	if err != nil {
		return false, nil, err
	}
	return res.Created, s.warnings(m.Codes), nil
}

// DeleteItem removes an item.
func (s *Service) DeleteItem(ctx context.Context, id string) error {
	res, err := s.apply(ctx, catalog.Op{DeleteItem: id})
	if err == nil && !res.Changed {
		err = Errorf(NotFound, "", "no item %s", Quoted(id))
	}
	return err
}

// User returns a user of the catalog.
func (s *Service) User(ctx context.Context, id string) (*grebev1.User, error) {
	u, ok, err := s.people.UserWithin(ctx, id)
	if err != nil {
		return nil, s.catalogError(err)
	}
	if !ok {
		return nil, Errorf(NotFound, "", "no user %s", Quoted(id))
	}
	return u, nil
}

// PutUser adds a user, or replaces the one with that id.
func (s *Service) PutUser(ctx context.Context, m *grebev1.User) (created bool, err error) {
	res, err := s.apply(ctx, catalog.Op{PutUser: m})
	return res.Created, err
}

// DeleteUser removes a user and all KV cached for them. If it returns nil or NotFound, nothing of the user is cached.
func (s *Service) DeleteUser(ctx context.Context, id string) error {
	res, err := s.apply(ctx, catalog.Op{DeleteUser: id})
	if err != nil {
		return err
	}
	if !res.Changed {
		err = s.FinishDeletion(id)
	}
	if err := s.forgotten(ctx, id, err); err != nil {
		return err
	}
	if !res.Changed {
		return Errorf(NotFound, "", "no user %s: what was cached under that id is removed", Quoted(id))
	}
	return nil
}

// apply makes one change of the catalog.
func (s *Service) apply(ctx context.Context, op catalog.Op) (catalog.Result, error) {
	if op.PutUser == nil && op.DeleteUser == "" {
		done, err := s.drops.reserve(ctx, 1)
		if err != nil {
			return catalog.Result{}, s.catalogError(err)
		}
		defer done()
	}
	res := s.people.ApplyWithin(ctx, "", []catalog.Op{op})[0]
	if res.Err != nil {
		return res, s.catalogError(res.Err)
	}
	return res, nil
}

// forgotten waits until the KV of a deleted user is removed, and returns an error if it was not. left is the error of
// removing a user whom the catalog did not have.
func (s *Service) forgotten(ctx context.Context, id string, left error) error {
	if err := s.drops.await(ctx, id); err != nil {
		return AsError(err)
	}
	if left = cmp.Or(left, s.present.failure(id)); left != nil {
		return Errorf(Unavailable, "", "what is cached of the user could not be removed from disk: ask again")
	}
	return nil
}

// AppendEvents appends events to a user. It creates an unknown user, because a new user's events may arrive first.
func (s *Service) AppendEvents(ctx context.Context, id string,
	events []*grebev1.Event) (*grebev1.AppendEventsResponse, error) {
	u, created, dropped, err := s.people.AppendEventsWithin(ctx, id, events)
	if err != nil {
		return nil, s.catalogError(err)
	}
	resp := &grebev1.AppendEventsResponse{
		Id: id, Created: created, Appended: int32(len(events) - u.Duplicates), Dropped: int32(dropped),
		Duplicates: int32(u.Duplicates),
		Events:     int32(len(u.Events)), History: int32(len(u.History)), Version: strconv.FormatUint(u.Version, 10),
	}
	for _, e := range events {
		if !s.knows(e.Item) {
			if resp.UnknownItems++; len(resp.Unknown) < maxUnknown {
				resp.Unknown = append(resp.Unknown, e.Item)
			}
		}
	}
	return resp, nil
}

// maxUnknown bounds the unknown items that a response names.
const maxUnknown = 10

// knows reports whether the catalog or a model of events has an item.
func (s *Service) knows(id string) bool {
	if _, ok := s.catalog.Item(id); ok {
		return true
	}
	for _, sl := range s.served {
		if sl.serving().reads().knows(id) {
			return true
		}
	}
	return false
}

// catalogError turns an error of the catalog into one for the client.
func (s *Service) catalogError(err error) error {
	switch {
	case errors.Is(err, catalog.ErrFull):
		return Errorf(Exhausted, "", "%v", err)
	case errors.Is(err, catalog.ErrFailed):
		if s.refused.Add(1) == 1 { // logged once; readiness and a metric count the rest
			s.log.Error("the catalog takes no writes", "error", err)
		}
		return Errorf(Unavailable, "", "%v: it takes no changes until the server is started again", catalog.ErrFailed)
	case errors.Is(err, catalog.ErrClosed):
		return Errorf(Unavailable, "", "shutting down")
	case errors.Is(err, catalog.ErrUnavailable), errors.Is(err, catalog.ErrUncertain), errors.Is(err, catalog.ErrMember),
		errors.Is(err, catalog.ErrUsers):
		return Errorf(Unavailable, "", "%v", err)
	}
	return err
}

package server

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strconv"

	grebev1 "grebe/api/grebe/v1"
	"grebe/catalog"
	"grebe/internal/wire"
)

func (s *Server) getItem(_ *http.Request, id string) (reply, error) {
	it, ok := s.item(nil, id)
	if !ok {
		return reply{}, errorf(notFound, "", "no item %s", quoted(id))
	}
	return reply{body: wire.EncodeItem(catalog.Message(it))}, nil
}

func (s *Server) putItem(r *http.Request, id string) (reply, error) {
	body, err := readBody(r)
	if err != nil {
		return reply{}, err
	}
	m, err := wire.DecodeItem(body)
	if err != nil {
		return reply{}, err
	}
	if err := sameID(&m.Id, id); err != nil {
		return reply{}, err
	}
	res, err := s.apply(r.Context(), catalog.Op{PutItem: m})
	if err != nil {
		return reply{}, err
	}
	return reply{status: putStatus(res.Created), body: wire.EncodePutItem(m, s.warnings(m.Id, m.Codes))}, nil
}

// apply makes one change of the catalog.
func (s *Server) apply(ctx context.Context, op catalog.Op) (catalog.Result, error) {
	if op.PutUser == nil && op.DeleteUser == "" {
		done, err := s.drops.reserve(ctx, 1)
		if err != nil {
			return catalog.Result{}, s.catalogError(err)
		}
		defer done()
	}
	res := s.catalog.ApplyWithin(ctx, "", []catalog.Op{op})[0]
	if res.Err != nil {
		return res, s.catalogError(res.Err)
	}
	return res, nil
}

func (s *Server) deleteItem(r *http.Request, id string) (reply, error) {
	res, err := s.apply(r.Context(), catalog.Op{DeleteItem: id})
	switch {
	case err != nil:
		return reply{}, err
	case !res.Changed:
		return reply{}, errorf(notFound, "", "no item %s", quoted(id))
	}
	return reply{status: http.StatusNoContent}, nil
}

func (s *Server) getUser(_ *http.Request, id string) (reply, error) {
	u, ok := s.catalog.User(id)
	if !ok {
		return reply{}, errorf(notFound, "", "no user %s", quoted(id))
	}
	return reply{body: wire.EncodeUser(u)}, nil
}

func (s *Server) putUser(r *http.Request, id string) (reply, error) {
	body, err := readBody(r)
	if err != nil {
		return reply{}, err
	}
	m, err := wire.DecodeUser(body)
	if err != nil {
		return reply{}, err
	}
	if err := sameID(&m.Id, id); err != nil {
		return reply{}, err
	}
	res, err := s.apply(r.Context(), catalog.Op{PutUser: m})
	if err != nil {
		return reply{}, err
	}
	return reply{status: putStatus(res.Created), body: wire.EncodeUser(m)}, nil
}

func (s *Server) deleteUser(r *http.Request, id string) (reply, error) {
	res, err := s.apply(r.Context(), catalog.Op{DeleteUser: id})
	if err != nil {
		return reply{}, err
	}
	if !res.Changed {
		err = s.FinishDeletion(id)
	}
	if err := s.forgotten(r.Context(), id, err); err != nil {
		return reply{}, err
	}
	if !res.Changed {
		return reply{}, errorf(notFound, "", "no user %s: what was cached under that id is removed", quoted(id))
	}
	return reply{status: http.StatusNoContent}, nil
}

// forgotten makes sure that nothing is cached of a user who was deleted from the catalog. Of one who was not there, left says
// what could not be removed.
func (s *Server) forgotten(ctx context.Context, id string, left error) error {
	if err := s.drops.await(ctx, id); err != nil {
		return asError(err)
	}
	if left = cmp.Or(left, s.present.failure(id)); left != nil {
		return errorf(unavailable, "", "what is cached of the user could not be removed from disk: ask again")
	}
	return nil
}

// postEvents appends events to a user, who is created when unknown: events of a new user come first.
func (s *Server) postEvents(r *http.Request, id string) (reply, error) {
	body, err := readBody(r)
	if err != nil {
		return reply{}, err
	}
	m, err := wire.DecodeAppendEvents(body)
	if err != nil {
		return reply{}, err
	}
	u, created, dropped, err := s.catalog.AppendEventsWithin(r.Context(), id, m.Events)
	if err != nil {
		return reply{}, s.catalogError(err)
	}
	resp := &grebev1.AppendEventsResponse{
		Id: id, Created: created, Appended: int32(len(m.Events) - u.Duplicates), Dropped: int32(dropped), Duplicates: int32(u.Duplicates),
		Events: int32(len(u.Events)), History: int32(len(u.History)), Version: strconv.FormatUint(u.Version, 10),
	}
	for _, e := range m.Events {
		if !s.knows(e.Item) {
			if resp.UnknownItems++; len(resp.Unknown) < maxUnknown {
				resp.Unknown = append(resp.Unknown, e.Item)
			}
		}
	}
	return reply{status: putStatus(created), body: wire.EncodeAppendEvents(resp)}, nil
}

// maxUnknown bounds how many unknown items a response names.
const maxUnknown = 10

// knows reports whether the catalog, or a model of events, has an item.
func (s *Server) knows(id string) bool {
	if _, ok := s.catalog.Item(id); ok {
		return true
	}
	for _, sl := range s.served {
		if m := sl.serving().Events; m != nil && m.Named() {
			if _, ok := m.Row(id); ok {
				return true
			}
		}
	}
	return false
}

// sameID makes the id in a body the one of the path; a different one is a mistake.
func sameID(id *string, path string) error {
	if *id != "" && *id != path {
		return errorf(invalidArgument, "id", "%s differs from the path's %s", quoted(*id), quoted(path))
	}
	*id = path
	return nil
}

func putStatus(created bool) int {
	if created {
		return http.StatusCreated
	}
	return http.StatusOK
}

// catalogError turns an error of the catalog into one for the client.
func (s *Server) catalogError(err error) error {
	switch {
	case errors.Is(err, catalog.ErrFull):
		return errorf(exhausted, "", "%v", err)
	case errors.Is(err, catalog.ErrFailed):
		if s.refused.Add(1) == 1 { // the rest is counted: readiness and a metric tell
			s.log.Error("the catalog takes no writes", "error", err)
		}
		return errorf(unavailable, "", "%v: it takes no changes until the server is started again", catalog.ErrFailed)
	case errors.Is(err, catalog.ErrClosed):
		return errorf(unavailable, "", "shutting down")
	}
	return err
}

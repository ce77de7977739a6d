package server

import (
	"net/http"

	"grebe/catalog"
	"grebe/internal/wire"
	"grebe/serve"
)

func (s *Server) getItem(_ *http.Request, id string) (reply, error) {
	it, err := s.service.Item(id)
	if err != nil {
		return reply{}, err
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
	created, warnings, err := s.service.PutItem(r.Context(), m)
	if err != nil {
		return reply{}, err
	}
	return reply{status: putStatus(created), body: wire.EncodePutItem(m, warnings)}, nil
}

func (s *Server) deleteItem(r *http.Request, id string) (reply, error) {
	return reply{status: http.StatusNoContent}, s.service.DeleteItem(r.Context(), id)
}

func (s *Server) getUser(r *http.Request, id string) (reply, error) {
	u, err := s.service.User(r.Context(), id)
	if err != nil {
		return reply{}, err
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
	created, err := s.service.PutUser(r.Context(), m)
	if err != nil {
		return reply{}, err
	}
	return reply{status: putStatus(created), body: wire.EncodeUser(m)}, nil
}

func (s *Server) deleteUser(r *http.Request, id string) (reply, error) {
	return reply{status: http.StatusNoContent}, s.service.DeleteUser(r.Context(), id)
}

func (s *Server) postEvents(r *http.Request, id string) (reply, error) {
	body, err := readBody(r)
	if err != nil {
		return reply{}, err
	}
	m, err := wire.DecodeAppendEvents(body)
	if err != nil {
		return reply{}, err
	}
	resp, err := s.service.AppendEvents(r.Context(), id, m.Events)
	if err != nil {
		return reply{}, err
	}
	return reply{status: putStatus(resp.Created), body: wire.EncodeAppendEvents(resp)}, nil
}

// sameID sets the id in a body to the id in the path. It is an error if the body has a different one.
func sameID(id *string, path string) error {
	if *id != "" && *id != path {
		return serve.Errorf(serve.InvalidArgument, "id", "%s differs from the path's %s", serve.Quoted(*id),
			serve.Quoted(path))
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

func (s *Server) getCatalog(r *http.Request, _ string) (reply, error) {
	return answered(s.service.GetCatalog(r.Context(), nil))(wire.EncodeCatalog)
}

func (s *Server) postActivate(r *http.Request, _ string) (reply, error) {
	return post(r, wire.DecodeActivateCatalog, s.service.ActivateCatalog, wire.EncodeCatalog)
}

func (s *Server) postRollback(r *http.Request, _ string) (reply, error) {
	return post(r, wire.DecodeRollbackCatalog, s.service.RollbackCatalog, wire.EncodeCatalog)
}

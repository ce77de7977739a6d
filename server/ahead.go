package server

import (
	"net/http"

	"grebe/ahead"
)

// indexMethods are those of /v1/items:index.
var indexMethods = map[string]handler{"GET": (*Server).getIndex, "POST": (*Server).postIndex}

// indexing is how far the models are that keep items.
type indexing struct {
	Models []ahead.Progress `json:"models"`
}

func (s *Server) getIndex(*http.Request, string) (reply, error) {
	return asJSON(indexing{s.service.Index()})
}

// postIndex has models compute items now. The body says how far they are.
func (s *Server) postIndex(r *http.Request, _ string) (reply, error) {
	now, err := s.service.IndexNow(r.URL.Query().Get("model"))
	if err != nil {
		return reply{}, err
	}
	rep, err := asJSON(indexing{now})
	rep.status = http.StatusAccepted
	return rep, err
}

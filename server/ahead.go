package server

import (
	"net/http"

	"grebe/ahead"
)

// indexMethods are the methods of /v1/items:index.
var indexMethods = map[string]handler{"GET": (*Server).getIndex, "POST": (*Server).postIndex}

// indexing is the progress of each model that caches items.
type indexing struct {
	Models []ahead.Progress `json:"models"`
}

func (s *Server) getIndex(*http.Request, string) (reply, error) {
	return asJSON(indexing{s.service.Index()})
}

// postIndex starts a full pass over the catalog. The answer is the progress at that moment.
func (s *Server) postIndex(r *http.Request, _ string) (reply, error) {
	now, err := s.service.IndexNow(r.URL.Query().Get("model"))
	if err != nil {
		return reply{}, err
	}
	rep, err := asJSON(indexing{now})
	rep.status = http.StatusAccepted
	return rep, err
}

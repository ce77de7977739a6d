package server

import (
	"bytes"
	"net/http"
	"net/url"

	"grebe/ahead"
	"grebe/serve"
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

// postIndex starts a full pass over the catalog. The answer is the progress at that moment. A misspelt or misplaced
// model is refused, because without a model the pass is for all of them.
func (s *Server) postIndex(r *http.Request, _ string) (reply, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return reply{}, serve.Errorf(serve.InvalidArgument, "", "the query cannot be read: %v", err)
	}
	for name, values := range q {
		if name != "model" || len(values) > 1 {
			return reply{}, serve.Errorf(serve.InvalidArgument, "",
				"%s in the query: want ?model=NAME, or nothing for all models",
				serve.Quoted(name))
		}
	}
	body, err := readBody(r)
	if err != nil {
		return reply{}, err
	}
	if body = bytes.TrimSpace(body); len(body) > 0 && string(body) != "{}" {
		return reply{}, serve.Errorf(serve.InvalidArgument, "",
			"the body must be empty: name a model in the query, ?model=NAME")
	}
	now, err := s.service.IndexNow(q.Get("model"))
	if err != nil {
		return reply{}, err
	}
	rep, err := asJSON(indexing{now})
	rep.status = http.StatusAccepted
	return rep, err
}

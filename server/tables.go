package server

import (
	"fmt"
	"io"
	"net/http"
)

// getRows answers ?key=1&key=2 with a row per line.
func (s *Server) getRows(r *http.Request, name string) (reply, error) {
	t, err := s.service.Table(name)
	if err != nil {
		return reply{}, err
	}
	rows, err := t.Rows(r.Context(), r.URL.Query()["key"])
	return reply{kind: "application/x-ndjson", body: rows}, err
}

// postRows writes and deletes rows, one per line.
func (s *Server) postRows(r *http.Request, name string) (reply, error) {
	t, err := s.service.Table(name)
	if err != nil {
		return reply{}, err
	}
	if err := checkMediaType(r, "application/x-ndjson", linesLike); err != nil {
		return reply{}, err
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return reply{}, readError(r, err)
	}
	put, deleted, err := t.Change(r.Context(), body)
	return reply{body: fmt.Appendf(nil, "{\"put\":%d,\"deleted\":%d}\n", put, deleted)}, err
}

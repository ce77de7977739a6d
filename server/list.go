package server

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
)

// line has requests for lists wait for each other: a list takes a core for milliseconds and nobody is in a hurry for it, so many of
// them at once shall not take the cores from rankings.
type line struct {
	turn    sync.Mutex
	waiting atomic.Int64
}

// maxWaiting bounds the requests for lists that wait.
const maxWaiting = 64

// wait returns when it is this request's turn; the caller MUST call leave.
func (l *line) wait(ctx context.Context) (leave func(), err error) {
	if l.waiting.Add(1) > maxWaiting {
		l.waiting.Add(-1)
		return nil, errorf(exhausted, "", "%d requests for lists wait", maxWaiting)
	}
	l.turn.Lock() // those before it take milliseconds each
	leave = func() {
		l.turn.Unlock()
		l.waiting.Add(-1)
	}
	if err := ctx.Err(); err != nil {
		leave()
		return nil, err
	}
	return leave, nil
}

// maxListed bounds how many ids one listing returns.
const maxListed = 1000

// listing is a part of what the catalog has, for people who look around.
type listing struct {
	IDs  []string `json:"ids"`
	More bool     `json:"more"` // there are others that begin so
}

func (s *Server) listItems(r *http.Request, _ string) (reply, error) {
	return listIDs(r, s.catalog.ItemIDs)
}

func (s *Server) listUsers(r *http.Request, _ string) (reply, error) {
	return listIDs(r, s.catalog.UserIDs)
}

// listIDs answers with some ids that begin with ?prefix=, the first in order, or any with ?random; ?limit= of them.
func listIDs(r *http.Request, find func(prefix string, limit int, random bool) ([]string, bool)) (reply, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return reply{}, errorf(invalidArgument, "", "the query cannot be read: %v", err)
	}
	limit := 20
	if text := q.Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > maxListed {
			return reply{}, errorf(invalidArgument, "limit", "%s: want 1 to %d", quoted(text), maxListed)
		}
	}
	out := listing{IDs: []string{}}
	ids, more := find(q.Get("prefix"), limit, q.Has("random"))
	out.IDs, out.More = append(out.IDs, ids...), more
	return asJSON(out)
}

func asJSON(v any) (reply, error) {
	body, err := json.Marshal(v)
	return reply{body: append(body, '\n')}, err
}

// hotList is what is asked for most.
type hotList struct {
	UserIDs string    `json:"user_ids"` // shown or hidden
	Users   []hotName `json:"users"`
	Items   []hotName `json:"items"`
}

type hotName struct {
	ID    string `json:"id"`
	Count int64  `json:"count"`
	Text  string `json:"text,omitempty"`
}

// getHot answers with the users and items that rankings and recommendations name most.
func (s *Server) getHot(*http.Request, string) (reply, error) {
	out := hotList{UserIDs: "hidden", Users: []hotName{}, Items: []hotName{}}
	if s.cfg.ShowUsers {
		out.UserIDs = "shown"
	}
	for _, e := range s.hotUsers.top(20) {
		id := e.id
		if !s.cfg.ShowUsers {
			id = s.hidden(id)
		}
		out.Users = append(out.Users, hotName{ID: id, Count: e.count})
	}
	for _, e := range s.hotItems.top(20) {
		n := hotName{ID: e.id, Count: e.count}
		if it, ok := s.catalog.Item(e.id); ok {
			n.Text = it.Text
		}
		out.Items = append(out.Items, n)
	}
	return asJSON(out)
}

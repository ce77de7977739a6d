package server

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"hash/maphash"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"

	"grebe/serve"
)

// line lets one request for a list run at a time. A list takes a core for milliseconds and is not urgent. Many of
// them at once would take the cores from rankings.
type line struct {
	turn    sync.Mutex
	waiting atomic.Int64
}

// maxWaiting bounds the requests for lists that run or wait.
const maxWaiting = 64

// wait returns when it is this request's turn. The caller MUST call leave.
func (l *line) wait(ctx context.Context) (leave func(), err error) {
	if l.waiting.Add(1) > maxWaiting {
		l.waiting.Add(-1)
		return nil, serve.Errorf(serve.Exhausted, "", "%d requests for lists are waiting", maxWaiting)
	}
	l.turn.Lock() // the requests before it take milliseconds each
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

// maxListed bounds the ids of one listing.
const maxListed = 1000

// listing is a part of the catalog's ids, for the dashboard.
type listing struct {
	IDs  []string `json:"ids"`
	More bool     `json:"more"` // there may be more ids
	// Items has the items of IDs, if the request was a search.
	Items []listed `json:"items,omitempty"`
}

type listed struct {
	ID   string `json:"id"`
	Text string `json:"text"`
}

// maxQuery bounds the bytes of a search text.
const maxQuery = 256

func (s *Server) listItems(r *http.Request, _ string) (reply, error) {
	q, limit, err := listQuery(r)
	if err != nil {
		return reply{}, err
	}
	if !q.Has("q") {
		return listIDs(q, limit, s.service.Catalog().ItemIDs)
	}
	if len(q.Get("q")) > maxQuery {
		return reply{}, serve.Errorf(serve.InvalidArgument, "q", "%d bytes, at most %d", len(q.Get("q")), maxQuery)
	}
	if q.Has("prefix") || q.Has("random") {
		return reply{}, serve.Errorf(serve.InvalidArgument, "q", "cannot be combined with prefix or random")
	}
	found, more := s.service.Catalog().Search(q.Get("q"), limit)
	out := listing{IDs: []string{}, More: more}
	for _, it := range found {
		out.IDs, out.Items = append(out.IDs, it.ID), append(out.Items, listed{it.ID, it.Text})
	}
	return asJSON(out)
}

func (s *Server) listUsers(r *http.Request, _ string) (reply, error) {
	q, limit, err := listQuery(r)
	if err != nil {
		return reply{}, err
	}
	if q.Has("q") {
		return reply{}, serve.Errorf(serve.InvalidArgument, "q", "users are listed by prefix")
	}
	return listIDs(q, limit, s.service.Catalog().UserIDs)
}

// listQuery returns the query of a listing and its limit.
func listQuery(r *http.Request) (q url.Values, limit int, err error) {
	if q, err = url.ParseQuery(r.URL.RawQuery); err != nil {
		return nil, 0, serve.Errorf(serve.InvalidArgument, "", "the query cannot be read: %v", err)
	}
	limit = 20
	if text := q.Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > maxListed {
			return nil, 0, serve.Errorf(serve.InvalidArgument, "limit", "%s: want 1 to %d", serve.Quoted(text), maxListed)
		}
	}
	return q, limit, nil
}

// listIDs answers with ids that begin with ?prefix=: the first ones in order, or random ones with ?random.
func listIDs(q url.Values, limit int, find func(prefix string, limit int, random bool) ([]string,
	bool)) (reply, error) {
	out := listing{IDs: []string{}}
	ids, more := find(q.Get("prefix"), limit, q.Has("random"))
	out.IDs, out.More = append(out.IDs, ids...), more
	return asJSON(out)
}

func asJSON(v any) (reply, error) {
	body, err := json.Marshal(v)
	return reply{body: append(body, '\n')}, err
}

// hotList has the users and items that requests name most.
type hotList struct {
	UserIDs string    `json:"user_ids"` // "shown" or "hidden"
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
	users, items := s.service.Hottest(20)
	for _, e := range users {
		id := e.ID
		if !s.cfg.ShowUsers {
			id = s.hidden(id)
		}
		out.Users = append(out.Users, hotName{ID: id, Count: e.Count})
	}
	for _, e := range items {
		n := hotName{ID: e.ID, Count: e.Count}
		if it, ok := s.service.Catalog().Item(e.ID); ok {
			n.Text = it.Text
		}
		out.Items = append(out.Items, n)
	}
	return asJSON(out)
}

// hidden replaces a user's id by a random one that stays the same while the process runs.
func (s *Server) hidden(id string) string {
	var b [8]byte
	sum := maphash.String(s.hideSeed, id)
	for i := range b {
		b[i] = byte(sum >> (8 * i))
	}
	return hex.EncodeToString(b[:])
}

package kubetest

import (
	"encoding/json"
	"net/http"
	"sort"
	"strconv"
	"time"
)

// bookmarkEvery is how often the API server tells a watch's version although nothing has changed.
const bookmarkEvery = time.Minute

// stream is one watch.
type stream struct {
	s        *Server
	q        *query
	selected selector
	at       int64 // all changes up to here were sent
	drops    int64 // orders to end that it began after
}

// watch sends changes until the client goes, the time is over, or a fault ends it.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, q *query) {
	st, first, f := s.begin(q)
	if f != nil {
		answer(w, f.code, f.object())
		return
	}
	seconds, _ := strconv.Atoi(q.params.Get("timeoutSeconds"))
	if seconds <= 0 {
		seconds = 1800
	}
	end := time.NewTimer(time.Duration(seconds) * time.Second)
	defer end.Stop()
	marks := time.NewTicker(bookmarkEvery)
	defer marks.Stop()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	send := func(events []any) {
		for _, e := range events {
			_ = json.NewEncoder(w).Encode(e)
		}
		_ = http.NewResponseController(w).Flush()
	}
	send(first)
	for {
		events, changed, over := st.next()
		if over == abruptly {
			panic(http.ErrAbortHandler)
		}
		if len(events) > 0 {
			send(events)
		}
		if over == inOrder {
			return
		}
		select {
		case <-changed:
		case <-marks.C:
			if q.params.Get("allowWatchBookmarks") == "true" {
				send(st.bookmark())
			}
		case <-end.C:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// begin returns a stream from the version that the query has. Without one, the objects that there are come first.
func (s *Server) begin(q *query) (*stream, []any, *status) {
	selected, f := parseSelector(q.params.Get("labelSelector"))
	if f != nil {
		return nil, nil, f
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st := &stream{s: s, q: q, selected: selected, at: s.version, drops: s.faults.drop}
	text := q.params.Get("resourceVersion")
	if text != "" && text != "0" {
		v, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, nil, fail(http.StatusBadRequest, "BadRequest", "resourceVersion: Invalid value: %q", text)
		}
		st.at = v
		return st, nil, nil
	}
	var first []any
	for _, r := range s.objects {
		if r.kind == q.kind && r.namespace == q.namespace && selected.selects(r.now()) {
			first = append(first, map[string]any{"type": "ADDED", "object": r.now()})
		}
	}
	return st, first, nil
}

// ending says how a stream ends.
type ending int

const (
	goesOn ending = iota
	inOrder
	abruptly
)

// next returns the events that are due, what to wait for, and whether the stream ends.
func (st *stream) next() (events []any, changed <-chan struct{}, over ending) {
	s := st.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.faults.drop != st.drops {
		over = inOrder
		if s.faults.abrupt {
			over = abruptly
		}
		return nil, nil, over
	}
	if s.faults.mute {
		return nil, s.changed, goesOn
	}
	if st.at < s.compacted {
		gone := fail(http.StatusGone, "Expired", "too old resource version: %d (%d)", st.at, s.compacted)
		return []any{map[string]any{"type": "ERROR", "object": gone.object()}}, nil, inOrder
	}
	first := sort.Search(len(s.history), func(i int) bool { return s.history[i].version > st.at })
	for _, c := range s.history[first:] {
		st.at = c.version
		if e := st.event(c); e != nil && !s.faults.forgotten[c.version] {
			events = append(events, e)
		}
	}
	return events, s.changed, goesOn
}

// event returns a change as this stream sees it. An object whose labels are no longer selected looks deleted.
func (st *stream) event(c change) any {
	if c.record.kind != st.q.kind || c.record.namespace != st.q.namespace {
		return nil
	}
	was, is := st.selected.selects(c.before), st.selected.selects(c.after)
	switch {
	case is && was:
		return map[string]any{"type": "MODIFIED", "object": c.after}
	case is:
		return map[string]any{"type": "ADDED", "object": c.after}
	case was:
		gone := clone(c.before)
		meta(gone)["resourceVersion"] = strconv.FormatInt(c.version, 10)
		return map[string]any{"type": "DELETED", "object": gone}
	}
	return nil
}

func (st *stream) bookmark() []any {
	header := map[string]any{"resourceVersion": strconv.FormatInt(st.at, 10), "creationTimestamp": nil}
	return []any{map[string]any{"type": "BOOKMARK",
		"object": map[string]any{"kind": st.q.kind.name, "apiVersion": st.q.kind.apiVersion(), "metadata": header}}}
}

package server

import (
	"net"
	"net/http"
	"sync"
)

// silent holds the connections on which no request has arrived, such as those that browsers open in advance. At
// shutdown net/http waits up to 5 s for requests on them, but answers none that it reads by then.
type silent struct {
	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
}

// follow is called with every change of a connection.
func (s *silent) follow(c net.Conn, state http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case state != http.StateNew:
		delete(s.conns, c)
	case s.closed:
		c.Close()
	default:
		s.conns[c] = struct{}{}
	}
}

// close closes these connections, and those that are still to come.
func (s *silent) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for c := range s.conns {
		c.Close()
	}
}

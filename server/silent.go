package server

import (
	"net"
	"net/http"
	"sync"
)

// silent holds the connections on which no request has arrived, such as those that browsers open in advance. At
// shutdown net/http waits up to 5 s for requests on them, but answers none that it reads by then. gRPC waits until
// their handshake times out.
type silent struct {
	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
}

func newSilent() *silent { return &silent{conns: map[net.Conn]struct{}{}} }

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

// silentListener has a silent follow the connections of a gRPC server.
type silentListener struct {
	net.Listener
	*silent
}

func (l silentListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.follow(c, http.StateNew)
	return &silentConn{Conn: c, silent: l.silent}, nil
}

// Close closes the listener and the silent connections.
func (l silentListener) Close() error {
	err := l.Listener.Close()
	l.silent.close()
	return err
}

// silentConn is silent until something was read from it.
type silentConn struct {
	net.Conn
	*silent
	heard sync.Once
}

func (c *silentConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.heard.Do(func() { c.follow(c.Conn, http.StateActive) })
	}
	return n, err
}

func (c *silentConn) Close() error {
	c.follow(c.Conn, http.StateClosed)
	return c.Conn.Close()
}

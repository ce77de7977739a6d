package redisconn

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
)

// checkedConn is a connection to Redis whose replies are checked before the client sees them. The client allocates what
// a reply's header announces, recurses into nested replies and panics over a reply that nobody asked for, all in
// goroutines of its own: there a malformed reply would end the process. Here it ends the connection.
type checkedConn struct {
	net.Conn
	in  respScanner
	mu  sync.Mutex // guards out: writers are not one at a time
	out respScanner
	err error // of the replies; sticky

	asked, answered atomic.Int64
}

// mostReplyBlob bounds a string of a reply.
const mostReplyBlob = 64 << 20

func checkReplies(conn net.Conn) net.Conn {
	c := &checkedConn{Conn: conn}
	c.in = respScanner{mostBlob: mostReplyBlob, replies: true, whole: func() error {
		if c.answered.Add(1) > c.asked.Load() {
			return errors.New("a reply that nothing asked for")
		}
		return nil
	}}
	c.out = respScanner{mostBlob: 1 << 62, whole: func() error { c.asked.Add(1); return nil }}
	return c
}

// Read returns bytes up to the first that does not belong to a reply.
func (c *checkedConn) Read(p []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	n, err := c.Conn.Read(p)
	good, bad := c.in.scan(p[:n])
	if bad != nil {
		c.err = fmt.Errorf("a malformed reply of Redis: %w", bad)
		return good, c.err
	}
	return n, err
}

// Write counts the commands before they are sent.
func (c *checkedConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	_, err := c.out.scan(p)
	c.mu.Unlock()
	if err != nil {
		return 0, fmt.Errorf("a malformed command to Redis: %w", err)
	}
	return c.Conn.Write(p)
}

const (
	mostReplyDepth    = 16      // of nested replies
	mostReplyElements = 1 << 20 // of all replies that one is nested in; a batch has fewer rows
	mostReplyLine     = 64 << 10
)

// respScanner follows messages of RESP2 and RESP3 as their bytes come.
type respScanner struct {
	mostBlob int64
	replies  bool         // push messages may come, of which only those of changes are known
	whole    func() error // is told of every whole message but those

	line    []byte  // of a header so far
	skip    int64   // bytes of a string, with its end, that are left
	open    []int64 // elements that are left of nested messages
	push    bool    // the outermost is a push message
	kind    bool    // the next element names the kind of a push message
	content []byte  // of that element
	sum     int64   // elements that are left in all
}

// invalidate is the kind of push messages that tell of changes.
const invalidate = "invalidate"

// scan follows b and returns how many bytes are good.
func (s *respScanner) scan(b []byte) (good int, err error) {
	for at := 0; at < len(b); {
		if s.skip > 0 {
			n := int(min(s.skip, int64(len(b)-at)))
			if s.kind {
				s.content = append(s.content, b[at:at+n]...)
				if !bytes.HasPrefix([]byte(invalidate+"\r\n"), s.content) {
					return at, errors.New("a push message of an unknown kind")
				}
			}
			at += n
			if s.skip -= int64(n); s.skip == 0 {
				s.kind = false
				if err := s.done(); err != nil {
					return at - 1, err
				}
			}
			continue
		}
		n := bytes.IndexByte(b[at:], '\n') + 1
		if n == 0 {
			if s.line = append(s.line, b[at:]...); len(s.line) > mostReplyLine {
				return at, errors.New("a line without an end")
			}
			return len(b), nil
		}
		s.line = append(s.line, b[at:at+n]...)
		err := s.header(s.line)
		if s.line = s.line[:0]; err != nil {
			return at, err
		}
		at += n
	}
	return len(b), nil
}

// header takes the line that begins a message.
func (s *respScanner) header(line []byte) error {
	if len(line) < 3 || len(line) > mostReplyLine || line[len(line)-2] != '\r' {
		return fmt.Errorf("a line of %d bytes, or without its end", len(line))
	}
	kind, rest := line[0], line[1:len(line)-2]
	if s.kind && kind != '$' {
		return errors.New("a push message without a kind")
	}
	switch kind {
	case '+', '-', ',', '(':
		return s.done()
	case '#', '_':
		if len(rest) > 1 || kind == '_' && len(rest) > 0 || kind == '#' && len(rest) == 0 {
			return fmt.Errorf("%.20q is no boolean and no null", line)
		}
		return s.done()
	}
	n, err := strconv.ParseInt(string(rest), 10, 64)
	if err != nil {
		return fmt.Errorf("%.20q has no number", line)
	}
	switch kind {
	case ':':
		return s.done()
	case '$', '!', '=':
		return s.blob(kind, n)
	case '*', '~', '%', '>':
		return s.nested(kind, n)
	}
	return fmt.Errorf("a message of type %q", kind)
}

func (s *respScanner) blob(kind byte, n int64) error {
	switch {
	case n == -1 && kind == '$' && !s.kind:
		return s.done()
	case n < 0 || n > s.mostBlob || kind == '=' && n < 4 || s.kind && n != int64(len(invalidate)):
		return fmt.Errorf("a string of %d bytes", n)
	}
	s.skip, s.content = n+2, s.content[:0]
	return nil
}

func (s *respScanner) nested(kind byte, n int64) error {
	if n == -1 && kind == '*' {
		return s.done()
	}
	if kind == '%' && n >= 0 && n <= mostReplyElements {
		n *= 2
	}
	if n < 0 || n > mostReplyElements-s.sum || len(s.open) == mostReplyDepth {
		return fmt.Errorf("a list of %d elements, %d deep", n, len(s.open))
	}
	if kind == '>' {
		if !s.replies || n < 2 || len(s.open) > 0 {
			return fmt.Errorf("a push message of %d elements", n)
		}
		s.push, s.kind = true, true
	}
	if n == 0 {
		return s.done()
	}
	s.open, s.sum = append(s.open, n), s.sum+n
	return nil
}

// done ends a message, and those that it is the last of.
func (s *respScanner) done() error {
	for len(s.open) > 0 {
		last := &s.open[len(s.open)-1]
		*last--
		if s.sum--; *last > 0 {
			return nil
		}
		s.open = s.open[:len(s.open)-1]
	}
	if s.push {
		s.push = false
		return nil
	}
	return s.whole()
}

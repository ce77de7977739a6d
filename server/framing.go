package server

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"

	"grebe/serve"
)

// A request of HTTP/1 with both Content-Length and Transfer-Encoding may end at different bytes for a proxy and for
// the server behind it. An attacker can use that to smuggle a request past the proxy. net/http drops Content-Length
// before a handler sees it. So framing reads the bytes of each connection too, finds where requests begin and end,
// and records the first one that has both headers.

// framedListener accepts framedConns.
type framedListener struct{ net.Listener }

func (l framedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &framedConn{Conn: c}, nil
}

// framedConn checks the framing of the bytes that are read from it.
type framedConn struct {
	net.Conn
	framing framing
	unclear atomic.Int64 // the first request, counted from 1, that has both headers; 0: none
	served  atomic.Int64 // requests that reached a handler
}

func (c *framedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.framing.follow(p[:n]); c.framing.unclear > 0 {
		c.unclear.Store(c.framing.unclear)
	}
	return n, err
}

// framed refuses requests with both headers and closes their connections.
func (s *Server) framed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(connKey{}).(*framedConn); ok && r.ProtoMajor == 1 &&
			c.served.Add(1) == c.unclear.Load() {
			w.Header().Set("Connection", "close")
			err := serve.Errorf(serve.InvalidArgument, "", "the request has both Content-Length and Transfer-Encoding: send "+
				"one of them")
			s.metrics.answered(noRoute.op, s.write(w, r, reply{}, err), 0)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// withConn stores the connection in the context of its requests.
func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// framing follows the requests of a connection, byte by byte.
type framing struct {
	requests, unclear int64
	part              part
	line              []byte // the first maxFramed bytes of the current line
	begun             bool   // the request line was read
	length            int64  // value of Content-Length
	sized, chunked    bool
	left              int64 // bytes left of the body or chunk
}

// part is the part of a request that the next byte belongs to.
type part uint8

const (
	inHeader part = iota
	inBody        // left bytes of it
	inSize        // the line before a chunk
	inChunk       // left bytes of it, with the line end
	inTrailer
	unknown // HTTP/2, or a request that net/http refuses
)

// maxFramed is the number of bytes kept of a line. The values that matter are shorter.
const maxFramed = 128

// follow reads the next bytes of the connection.
func (f *framing) follow(b []byte) {
	for len(b) > 0 && f.part != unknown && f.unclear == 0 {
		if f.part == inBody || f.part == inChunk {
			n := min(int64(len(b)), f.left)
			b, f.left = b[n:], f.left-n
			if f.left == 0 && f.part == inBody {
				f.end()
			} else if f.left == 0 {
				f.part = inSize
			}
			continue
		}
		i := bytes.IndexByte(b, '\n')
		taken := b
		if i >= 0 {
			taken = b[:i]
		}
		f.line = append(f.line, taken[:min(len(taken), maxFramed-len(f.line))]...)
		if i < 0 {
			return
		}
		b = b[i+1:]
		f.ended(strings.TrimSuffix(string(f.line), "\r"))
		f.line = f.line[:0]
	}
}

// ended handles a complete line.
func (f *framing) ended(line string) {
	switch f.part {
	case inSize:
		text, _, _ := strings.Cut(line, ";")
		n, err := strconv.ParseInt(strings.TrimSpace(text), 16, 62)
		switch {
		case err != nil || n < 0:
			f.part = unknown
		case n == 0:
			f.part = inTrailer
		default:
			f.part, f.left = inChunk, n
			f.left += 2 // the line end of the chunk
		}
	case inTrailer:
		if line == "" {
			f.end()
		}
	default:
		f.header(line)
	}
}

// header handles a line of a header.
func (f *framing) header(line string) {
	if !f.begun {
		if f.begun = line != ""; strings.HasPrefix(line, "PRI * HTTP/2") {
			f.part = unknown
		}
		return
	}
	if line != "" {
		name, value, _ := strings.Cut(line, ":")
		switch {
		case strings.EqualFold(name, "Content-Length"):
			n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 63)
			if err != nil {
				f.part = unknown // net/http refuses the request
			}
			f.sized, f.length = true, n
		case strings.EqualFold(name, "Transfer-Encoding"):
			f.chunked = true
		}
		return
	}
	f.requests++
	switch {
	case f.sized && f.chunked:
		f.unclear = f.requests
	case f.chunked:
		f.part = inSize
	case f.length > 0:
		f.part, f.left = inBody, f.length
	default:
		f.end()
	}
}

// end prepares for the next request.
func (f *framing) end() {
	f.part, f.begun, f.length, f.sized, f.chunked = inHeader, false, 0, false, false
}

package peer

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"os"
	"sync"
	"time"
)

// conn is a client's connection to a peer. One user at a time owns it.
type conn struct {
	line    *line
	c       net.Conn // the line or TLS on it
	r       *bufio.Reader
	out     []byte // the frame that is sent
	id      uint32 // of the last request
	used    bool   // it has answered before
	idle    time.Time
	version uint16

	cut bool // a GET was not sent to its end: the connection is of no use

	// What is still to come for the last request.
	left int   // frames
	skip int64 // bytes of the payload under way and of its checksum
}

// step is the number of bytes between two updates of a checksum. They stay in the processor's cache meanwhile.
const step = 256 << 10

// dial connects to a peer and agrees on a version.
func (c *Client) dial(ctx context.Context, p *peer) (*conn, error) {
	raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", p.addr)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { raw.Close() })
	n, err := c.greet(ctx, p, raw)
	if !stop() {
		err = errors.Join(ctx.Err(), err)
	}
	if err != nil {
		raw.Close()
		return nil, err
	}
	return n, nil
}

func (c *Client) greet(ctx context.Context, p *peer, raw net.Conn) (*conn, error) {
	deadline, _ := ctx.Deadline()
	l := &line{Conn: raw, watch: p}
	if err := l.begin(deadline); err != nil {
		return nil, err
	}
	n := &conn{line: l, c: l, out: make([]byte, 0, 4<<10)}
	if c.opt.TLS != nil {
		t := tls.Client(widen(l), c.opt.TLS(p.node))
		if err := t.HandshakeContext(ctx); err != nil {
			return nil, err
		}
		n.c = t
	}
	n.r = bufio.NewReaderSize(n.c, frameHeader+maxBody)
	h := hello{versions: c.versions, from: c.opt.Node, to: p.node}
	if _, err := n.c.Write(h.append(n.out[:0])); err != nil {
		return nil, err
	}
	body, size, _, err := n.frame(kindWelcome)
	if err != nil {
		return nil, fmt.Errorf("no welcome: %w", err)
	}
	var w welcome
	if err := w.decode(body); err != nil {
		return nil, err
	}
	_, _ = n.r.Discard(size)
	switch {
	case w.version == 0 && c.versions.common(w.versions) == 0:
		return nil, fmt.Errorf("%w: node %s speaks protocol %v and this node %v: upgrade one version at a time",
			ErrVersion, p.node, w.versions, c.versions)
	case w.version == 0:
		return nil, fmt.Errorf("node %s refuses: %s", p.node, w.reason)
	case w.version < c.versions.min || w.version > c.versions.max:
		return nil, fmt.Errorf("%w: node %s chose version %d of %v", ErrVersion, p.node, w.version, c.versions)
	}
	n.version = w.version
	return n, nil
}

// frame reads a frame of a kind and leaves it in the buffer: the caller uses the body and then discards size bytes. If
// it returns a timeout, it may be called again.
func (n *conn) frame(kind byte) (body []byte, size int, sum uint32, err error) {
	h, err := n.r.Peek(frameHeader)
	if err != nil {
		return nil, 0, 0, err
	}
	length, err := frameLength(h)
	if err != nil {
		return nil, 0, 0, err
	}
	if h[0] != kind {
		return nil, 0, 0, fmt.Errorf("%w: kind %d, want %d", errGarbage, h[0], kind)
	}
	f, err := n.r.Peek(frameHeader + length)
	if err != nil {
		return nil, 0, 0, err
	}
	body, err = openFrame(f)
	return body, len(f), le.Uint32(f[8:]), err
}

// payload reads a block's payload into pieces, and reports whether its checksum is right.
func (n *conn) payload(pieces [][]byte, seal uint32) (right bool, err error) {
	var sum uint32
	for _, p := range pieces {
		for len(p) > 0 {
			k, err := n.r.Read(p[:min(len(p), step)])
			sum = crc32.Update(sum, castagnoli, p[:k])
			p, n.skip = p[k:], n.skip-int64(k)
			if err != nil {
				return false, err
			}
		}
	}
	b, err := n.r.Peek(sumSize)
	if err != nil {
		return false, err
	}
	right = le.Uint32(b) == sum^seal
	_, _ = n.r.Discard(sumSize)
	n.skip = 0
	return right, nil
}

// pass drops the rest of the payload under way.
func (n *conn) pass() error {
	for n.skip > 0 {
		k, err := n.r.Discard(int(min(n.skip, step)))
		n.skip -= int64(k)
		if err != nil {
			return err
		}
	}
	return nil
}

const (
	drainBytes = 1 << 20
	drainTime  = 50 * time.Millisecond
)

// drain reads the answers that nobody waits for, so that the connection can be used again. It gives up beyond a number
// of bytes or after a time.
func (n *conn) drain(now time.Time) error {
	if err := n.line.begin(now.Add(drainTime)); err != nil {
		return err
	}
	for total := n.skip; ; total += n.skip {
		if total > drainBytes {
			return fmt.Errorf("more than %d bytes left to drain", drainBytes)
		}
		if err := n.pass(); err != nil {
			return err
		}
		if n.left == 0 {
			return nil
		}
		a, size, _, err := n.answer()
		if err != nil {
			return err
		}
		_, _ = n.r.Discard(size)
		n.await(&a)
		total += int64(size)
	}
}

// answer reads the next frame of the last GET and leaves it in the buffer.
func (n *conn) answer() (a answer, size int, sum uint32, err error) {
	body, size, sum, err := n.frame(kindBlock)
	if err != nil {
		return a, 0, 0, err
	}
	if err = a.decode(body); err == nil && a.id != n.id {
		err = fmt.Errorf("%w: an answer to request %d, not %d", errGarbage, a.id, n.id)
	}
	return a, size, sum, err
}

// await notes that an answer's frame is read, and that its payload is to come.
func (n *conn) await(a *answer) {
	n.left--
	if a.status == Hit {
		n.skip = a.payload + sumSize
	}
}

// use is the work of one goroutine on one connection at a time, which ends with a context.
type use struct {
	ctx  context.Context
	mu   sync.Mutex
	conn *conn
}

// attach starts work on a connection.
func (u *use) attach(n *conn, deadline time.Time) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if err := u.ctx.Err(); err != nil {
		return err
	}
	u.conn = n
	return n.line.begin(deadline)
}

// detach ends it. The connection is not interrupted after detach.
func (u *use) detach() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.conn = nil
}

// interrupt ends the reads and writes of the work under way. It is called when ctx ends.
func (u *use) interrupt() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.conn != nil {
		u.conn.line.interrupt()
	}
}

// view calls f with the line of the work under way, if there is one.
func (u *use) view(f func(*line)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.conn != nil {
		f(u.conn.line)
	}
}

// over reports whether an error is the end of the work's time.
func over(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, context.Canceled)
}

// damage reports whether an error means that bytes were changed on their way: frames that make no sense, or records
// that TLS refuses.
func damage(err error) bool {
	var op *net.OpError
	return errors.Is(err, errGarbage) || errors.As(err, &op) && op.Op == "local error"
}

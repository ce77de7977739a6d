package peer

import (
	"bufio"
	"net"
	"os"
	"sync/atomic"
	"time"
)

// line is a client's connection below TLS. Its reads end with the deadline of the work under way or when it is
// interrupted, and it notices when no byte comes for SlowAfter.
type line struct {
	net.Conn
	watch       watcher
	deadline    time.Time // set by the goroutine that reads
	interrupted atomic.Bool
	last        atomic.Int64 // when the last byte of this work came, in Unix nanoseconds; 0: none
}

// watcher is told about bytes and their absence.
type watcher interface {
	moves()
	stalls(first bool)
}

// begin starts work that ends at a deadline.
func (l *line) begin(deadline time.Time) error {
	l.deadline = deadline
	l.last.Store(0)
	l.interrupted.Store(false)
	return l.SetWriteDeadline(deadline)
}

// interrupt ends a read or write under way, and all that follow until begin. It may be called at any time during the
// work.
func (l *line) interrupt() {
	l.interrupted.Store(true)
	_ = l.SetDeadline(time.Unix(1, 0)) // fails only if the connection is closed
}

// Read reads once. Its timeouts are os.ErrDeadlineExceeded, after which a TLS connection can still be read.
func (l *line) Read(p []byte) (int, error) {
	first := true
	for {
		until := time.Now().Add(SlowAfter)
		if until.After(l.deadline) {
			until = l.deadline
		}
		if err := l.SetReadDeadline(until); err != nil {
			return 0, err
		}
		// Interrupt sets the flag before the deadline. So either the flag is seen here, or its deadline replaces the one
		// above.
		if l.interrupted.Load() {
			return 0, os.ErrDeadlineExceeded
		}
		n, err := l.Conn.Read(p)
		now := time.Now()
		if n > 0 {
			l.last.Store(now.UnixNano())
			l.watch.moves()
			return n, nil
		}
		if !os.IsTimeout(err) {
			return 0, err
		}
		if l.interrupted.Load() || !now.Before(l.deadline) {
			return 0, os.ErrDeadlineExceeded
		}
		l.watch.stalls(first)
		first = false
	}
}

// stalled reports whether no byte has come for SlowAfter, after at least one came.
func (l *line) stalled(now time.Time) bool {
	last := l.last.Load()
	return last != 0 && now.UnixNano()-last >= int64(SlowAfter)
}

// lastByte returns when the last byte of the work came; zero: none came.
func (l *line) lastByte() time.Time {
	if last := l.last.Load(); last != 0 {
		return time.Unix(0, last)
	}
	return time.Time{}
}

// cork collects the records that TLS writes, so that they are sent with fewer system calls. TLS writes one record of at
// most 16 KiB at a time.
type cork struct {
	net.Conn
	on  bool // off during the handshake
	buf []byte
}

const corkSize = 256 << 10

func (c *cork) Write(p []byte) (int, error) {
	if !c.on {
		return c.Conn.Write(p)
	}
	if len(c.buf)+len(p) > corkSize {
		if err := c.flush(); err != nil {
			return 0, err
		}
	}
	if c.buf == nil {
		c.buf = make([]byte, 0, corkSize)
	}
	if len(p) > corkSize {
		return c.Conn.Write(p)
	}
	c.buf = append(c.buf, p...)
	return len(p), nil
}

func (c *cork) flush() error {
	if len(c.buf) == 0 {
		return nil
	}
	_, err := c.Conn.Write(c.buf)
	c.buf = c.buf[:0]
	return err
}

// wide is a connection whose reads go through a buffer, so that TLS reads several records with one system call.
type wide struct {
	net.Conn
	r *bufio.Reader
}

func widen(c net.Conn) *wide { return &wide{c, bufio.NewReaderSize(c, corkSize)} }

func (w *wide) Read(p []byte) (int, error) { return w.r.Read(p) }

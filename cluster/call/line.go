package call

import (
	"context"
	"net"
	"sync"
	"time"
)

// line is a connection of which one goroutine writes at a time.
type line struct {
	net.Conn
	turn chan struct{} // holds one value: who has taken it may write
}

func newLine(c net.Conn) line {
	l := line{Conn: c, turn: make(chan struct{}, 1)}
	l.turn <- struct{}{}
	return l
}

// send writes a frame, until a deadline or until ctx ends. A frame that was not written to its end closes the
// connection.
func (l *line) send(ctx context.Context, frame []byte, deadline time.Time) error {
	select {
	case <-l.turn:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { l.turn <- struct{}{} }()
	err := l.SetWriteDeadline(deadline)
	if err == nil {
		_, err = l.Write(frame)
	}
	if err != nil {
		l.Close()
	}
	return err
}

// buffers are frames that are being written.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// keepBuffer is the most bytes of a buffer that is used again.
const keepBuffer = 64 << 10

func release(buf *[]byte) {
	if cap(*buf) <= keepBuffer {
		buffers.Put(buf)
	}
}

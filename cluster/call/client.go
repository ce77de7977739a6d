package call

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
)

const (
	dialWithin = time.Second
	firstRetry = 50 * time.Millisecond // after the first attempt to connect that failed
	lastRetry  = time.Second
	sendWithin = time.Second // a cancel
)

// Client asks one member. It connects when it is used, and again after the connection broke.
type Client struct {
	dial   func(context.Context) (net.Conn, error)
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	run    sync.WaitGroup

	mu      sync.Mutex
	conn    *conn
	dialing chan struct{} // closed when the attempt under way has ended; nil: none
	retry   time.Time     // no attempt to connect before
	wait    time.Duration // after the next attempt that fails
	err     error         // of the last one
}

// NewClient returns a client that is not connected. Dial MUST end with its context. The caller MUST Close the client.
func NewClient(dial func(context.Context) (net.Conn, error)) *Client {
	c := &Client{dial: dial, wait: firstRetry}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// Close ends all requests with ErrGone.
func (c *Client) Close() {
	c.cancel()
	c.Drop()
	c.run.Wait()
}

// Drop ends all requests under way with ErrGone. The next one is sent on a new connection.
func (c *Client) Drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		c.conn.Close()
		c.conn = nil
	}
}

// Ask sends a request with a message and waits for the answer. The deadline of ctx is the request's.
func (c *Client) Ask(ctx context.Context, q *Request, m proto.Message) (Answer, error) {
	n, err := c.connected(ctx)
	if err != nil {
		return Answer{}, err
	}
	id, answered := n.await()
	defer n.forget(id)
	deadline, ok := ctx.Deadline()
	if ok {
		q.Left = time.Until(deadline)
	}
	buf := buffers.Get().(*[]byte)
	*buf, err = appendRequest(*buf, id, q, m)
	if err == nil {
		if err = n.send(ctx, *buf, deadline); err != nil {
			err = errors.Join(ErrGone, ctx.Err(), err)
		}
	}
	release(buf)
	if err != nil {
		return Answer{}, err
	}
	select {
	case a := <-answered:
		return a, nil
	case <-n.ended:
		return Answer{}, fmt.Errorf("%w: %w", ErrGone, n.err)
	case <-ctx.Done():
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) { // which the server knows
			_ = n.send(c.ctx, cancelFrame(id), time.Now().Add(sendWithin))
		}
		return Answer{}, ctx.Err()
	}
}

func cancelFrame(id uint64) []byte {
	f, _ := end(begin(nil, kindCancel, id), nil) // fails for long messages only
	return f
}

// connected returns the connection. If there is none, it waits for an attempt to make one.
func (c *Client) connected(ctx context.Context) (*conn, error) {
	for tried := false; ; tried = true {
		c.mu.Lock()
		n, dialing := c.conn, c.dialing
		switch {
		case n != nil:
			c.mu.Unlock()
			return n, nil
		case c.ctx.Err() != nil:
			c.mu.Unlock()
			return nil, fmt.Errorf("%w: the client is closed", ErrGone)
		case dialing == nil && (tried || time.Now().Before(c.retry)):
			defer c.mu.Unlock()
			return nil, fmt.Errorf("%w: %w", ErrGone, c.err)
		case dialing == nil:
			dialing = make(chan struct{})
			c.dialing = dialing
			c.run.Go(func() { c.connect(dialing) })
		}
		c.mu.Unlock()
		select {
		case <-dialing:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// connect makes a connection and reads its answers until it breaks.
func (c *Client) connect(done chan struct{}) {
	ctx, cancel := context.WithTimeout(c.ctx, dialWithin)
	raw, err := c.dial(ctx)
	cancel()
	if err == nil {
		_ = raw.SetWriteDeadline(time.Now().Add(dialWithin)) // fails only if the connection is closed
		if _, err = raw.Write([]byte(Preface)); err != nil {
			raw.Close()
		}
	}
	var n *conn
	c.mu.Lock()
	c.dialing = nil
	switch {
	case err != nil:
		c.err, c.retry = err, time.Now().Add(c.wait)
		c.wait = min(2*c.wait, lastRetry)
	case c.ctx.Err() != nil:
		raw.Close()
	default:
		n = &conn{line: newLine(raw), waiting: map[uint64]chan Answer{}, ended: make(chan struct{})}
		c.conn, c.err, c.wait = n, errClosed, firstRetry
	}
	c.mu.Unlock()
	close(done)
	if n == nil {
		return
	}
	n.read()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == n {
		c.conn = nil
	}
}

var errClosed = errors.New("the connection was closed")

// conn is a client's connection.
type conn struct {
	line

	mu      sync.Mutex
	last    uint64 // number
	waiting map[uint64]chan Answer

	ended chan struct{} // closed when nothing is read any more
	err   error         // why; set before
}

// await gives a request a number.
func (n *conn) await() (id uint64, answered <-chan Answer) {
	ch := make(chan Answer, 1)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last++
	n.waiting[n.last] = ch
	return n.last, ch
}

func (n *conn) forget(id uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.waiting, id)
}

// read passes on answers until the connection breaks.
func (n *conn) read() {
	defer close(n.ended)
	defer n.Close()
	r := bufio.NewReaderSize(n.Conn, 64<<10)
	for {
		f, err := read(r)
		if err == nil && f.kind != kindAnswer && f.kind != kindFailure {
			err = fmt.Errorf("%w: kind %d", errGarbage, f.kind)
		}
		var a Answer
		if err == nil {
			a, err = f.answer()
		}
		if err != nil {
			n.err = err
			return
		}
		n.mu.Lock()
		ch := n.waiting[f.id]
		delete(n.waiting, f.id)
		n.mu.Unlock()
		if ch != nil {
			ch <- a // has room for it
		}
	}
}

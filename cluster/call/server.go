package call

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"sync"
	"time"
)

// answerWithin bounds the time for a client to take an answer.
const answerWithin = 5 * time.Second

// Server answers requests.
type Server struct {
	answer func(context.Context, *Request) Answer
	ctx    context.Context // of all requests
	cancel context.CancelFunc
	run    sync.WaitGroup // connections

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
}

// NewServer returns a server. Answer is called in a goroutine for each request, with a context that ends with the
// request's deadline, when the client gives up and when the connection breaks. The caller MUST Close the server.
func NewServer(answer func(context.Context, *Request) Answer) *Server {
	s := &Server{answer: answer, conns: map[net.Conn]struct{}{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// Close takes no more requests, and waits for those under way. After a time it breaks their connections.
func (s *Server) Close(within time.Duration) {
	s.each(func(c net.Conn) { _ = c.SetReadDeadline(time.Unix(1, 0)) }) // fails only if the connection is closed
	late := time.AfterFunc(within, func() {
		s.each(func(c net.Conn) { c.Close() })
		s.cancel()
	})
	s.run.Wait()
	late.Stop()
	s.cancel()
}

// each lets no more connections begin and calls f with all that there are.
func (s *Server) each(f func(net.Conn)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for c := range s.conns {
		f(c)
	}
}

// Serve answers the requests of a connection until it ends, and closes it. The preface was read.
func (s *Server) Serve(c net.Conn) error {
	defer c.Close()
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return net.ErrClosed
	}
	s.conns[c] = struct{}{}
	s.run.Add(1)
	s.mu.Unlock()
	defer s.run.Done()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.conns, c)
	}()
	t := &served{server: s, line: newLine(c), open: make(chan struct{}, mostOpen), under: map[uint64]context.CancelFunc{}}
	return t.read()
}

// served is a server's connection.
type served struct {
	line
	server *Server
	open   chan struct{} // has a value for each request under way
	run    sync.WaitGroup

	mu    sync.Mutex
	under map[uint64]context.CancelFunc // requests under way
}

// read takes requests until the connection breaks or the server is closed. Then it waits for those under way.
func (t *served) read() error {
	ctx, cancel := context.WithCancel(t.server.ctx)
	defer cancel()
	r := bufio.NewReaderSize(t.Conn, 64<<10)
	for {
		f, err := read(r)
		if err == nil {
			err = t.take(ctx, &f)
		}
		if err == nil {
			continue
		}
		if t.server.closing() { // answers can still be sent
			t.run.Wait()
			return nil
		}
		cancel()
		t.run.Wait()
		return err
	}
}

func (s *Server) closing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// take starts or cancels a request.
func (t *served) take(ctx context.Context, f *frame) error {
	arrived := time.Now()
	switch f.kind {
	case kindCancel:
		t.mu.Lock()
		defer t.mu.Unlock()
		if cancel := t.under[f.id]; cancel != nil {
			cancel()
		}
		return nil
	case kindRequest:
		q, err := f.request()
		if err != nil {
			return err
		}
		select {
		case t.open <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		id := f.id
		ctx, cancel := context.WithDeadline(ctx, arrived.Add(q.Left))
		t.mu.Lock()
		t.under[id] = cancel
		t.mu.Unlock()
		t.run.Go(func() { t.reply(ctx, cancel, id, &q) })
		return nil
	}
	return fmt.Errorf("%w: kind %d", errGarbage, f.kind)
}

// reply answers a request.
func (t *served) reply(ctx context.Context, cancel context.CancelFunc, id uint64, q *Request) {
	defer func() { <-t.open }()
	a := t.server.answer(ctx, q)
	t.mu.Lock()
	delete(t.under, id)
	t.mu.Unlock()
	cancel()
	buf := buffers.Get().(*[]byte)
	defer release(buf)
	var err error
	if *buf, err = appendAnswer(*buf, id, &a); err != nil {
		// fails for long messages only
		*buf, _ = appendAnswer(*buf, id, &Answer{Failed: true, Took: a.Took, Backlog: a.Backlog})
	}
	_ = t.send(context.Background(), *buf, time.Now().Add(answerWithin)) // closes the connection if it fails
}

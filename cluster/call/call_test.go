package call

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// patience bounds what should happen at once.
const patience = 10 * time.Second

// world is a server, and what a client needs to reach it.
type world struct {
	*Server
	addr  string
	dials atomic.Int64
	ln    net.Listener

	mu    sync.Mutex
	conns []net.Conn // of the server's side
}

func serve(t *testing.T, answer func(context.Context, *Request) Answer) *world {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{Server: NewServer(answer), addr: ln.Addr().String(), ln: ln}
	var run sync.WaitGroup
	run.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			w.mu.Lock()
			w.conns = append(w.conns, c)
			w.mu.Unlock()
			run.Go(func() {
				if _, err := io.ReadFull(c, make([]byte, len(Preface))); err != nil {
					c.Close()
					return
				}
				_ = w.Serve(c)
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		w.Close(0)
		run.Wait()
	})
	return w
}

func (w *world) client(t *testing.T) *Client {
	t.Helper()
	c := NewClient(func(ctx context.Context) (net.Conn, error) {
		w.dials.Add(1)
		return new(net.Dialer).DialContext(ctx, "tcp", w.addr)
	})
	t.Cleanup(c.Close)
	return c
}

// kill breaks all connections, as a process does that is killed.
func (w *world) kill() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		c.Close()
	}
	w.conns = nil
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func text(s string) proto.Message { return wrapperspb.String(s) }

func textOf(t *testing.T, body []byte) string {
	t.Helper()
	var m wrapperspb.StringValue
	if err := proto.Unmarshal(body, &m); err != nil {
		t.Error(err)
	}
	return m.Value
}

// Requests share a connection. Each gets its own answer, in whatever order they come.
func TestAnswersFindTheirRequests(t *testing.T) {
	t.Parallel()
	w := serve(t, func(_ context.Context, q *Request) Answer {
		time.Sleep(rand.N(3 * time.Millisecond))
		a := Answer{Took: time.Duration(q.Op) * time.Millisecond, Backlog: time.Second,
			Message: text("to " + textOf(t, q.Body))}
		if q.Op%5 == 0 {
			a = Answer{Failed: true, Backlog: -1, Body: []byte("no " + textOf(t, q.Body))}
		}
		return a
	})
	c := w.client(t)
	var run sync.WaitGroup
	for i := range 40 {
		run.Go(func() {
			for k := range 25 {
				op, name := byte(i*25+k), fmt.Sprint(i, ".", k)
				a, err := c.Ask(within(t, patience), &Request{Op: op}, text(name))
				switch {
				case err != nil:
					t.Errorf("%s: %v", name, err)
				case op%5 == 0:
					if !a.Failed || a.Backlog >= 0 || string(a.Body) != "no "+name {
						t.Errorf("%s failed with %+v", name, a)
					}
				case a.Failed || a.Took != time.Duration(op)*time.Millisecond || a.Backlog != time.Second ||
					textOf(t, a.Body) != "to "+name:
					t.Errorf("%s was answered with %+v", name, a)
				}
			}
		})
	}
	run.Wait()
	if n := w.dials.Load(); n != 1 {
		t.Errorf("%d connections were made for all requests, want 1", n)
	}
}

// The time that is left and the trace travel with a request.
func TestDeadlineAndTraceTravel(t *testing.T) {
	t.Parallel()
	got, left := make(chan Request, 1), make(chan time.Duration, 1)
	w := serve(t, func(ctx context.Context, q *Request) Answer {
		end, _ := ctx.Deadline()
		got <- *q
		left <- time.Until(end)
		return Answer{Message: text("")}
	})
	if _, err := w.client(t).Ask(within(t, time.Minute), &Request{Op: 3, Parent: "p", State: "s"}, text("")); err != nil {
		t.Fatal(err)
	}
	if q := <-got; q.Op != 3 || q.Parent != "p" || q.State != "s" {
		t.Errorf("got %+v", q)
	}
	if d := <-left; d > time.Minute || d < time.Minute-patience {
		t.Errorf("%v of a minute are left", d)
	}
}

// A caller that gives up does not wait, and the server hears of it. The connection stays.
func TestCancelReachesTheServer(t *testing.T) {
	t.Parallel()
	begun, ended := make(chan struct{}), make(chan error, 1)
	w := serve(t, func(ctx context.Context, q *Request) Answer {
		if q.Op == 1 {
			close(begun)
			<-ctx.Done()
			ended <- ctx.Err()
		}
		return Answer{Message: text("")}
	})
	c := w.client(t)
	ctx, cancel := context.WithCancel(within(t, time.Minute))
	go func() {
		<-begun
		cancel()
	}()
	if _, err := c.Ask(ctx, &Request{Op: 1}, text("")); !errors.Is(err, context.Canceled) {
		t.Errorf("the caller gets %v", err)
	}
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("the server's context ended with %v", err)
		}
	case <-time.After(patience):
		t.Fatal("the server did not hear that the caller gave up")
	}
	if _, err := c.Ask(within(t, patience), &Request{Op: 2}, text("")); err != nil || w.dials.Load() != 1 {
		t.Errorf("the next request: %v, on connection %d", err, w.dials.Load())
	}
}

// A deadline ends the wait on both sides. The server answers after the caller has given up, so that the answer does not
// come first; and the caller asks until a request has reached the server in time.
func TestDeadlineEnds(t *testing.T) {
	t.Parallel()
	ended, told := make(chan error, 1), make(chan struct{})
	w := serve(t, func(ctx context.Context, _ *Request) Answer {
		<-ctx.Done()
		select {
		case ended <- ctx.Err():
		default:
		}
		<-told
		return Answer{Message: text("")}
	})
	defer close(told)
	c := w.client(t)
	for {
		if _, err := c.Ask(within(t, 20*time.Millisecond), &Request{}, text("")); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("the caller gets %v", err)
		}
		select {
		case err := <-ended:
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the server's context ended with %v", err)
			}
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Requests on a connection that breaks end at once, here and there. The next one gets a new connection.
func TestBrokenConnection(t *testing.T) {
	t.Parallel()
	begun, ended := make(chan struct{}, 1), make(chan struct{}, 1)
	w := serve(t, func(ctx context.Context, q *Request) Answer {
		if q.Op == 1 {
			begun <- struct{}{}
			<-ctx.Done()
			ended <- struct{}{}
		}
		return Answer{Message: text("")}
	})
	c := w.client(t)
	for name, cut := range map[string]func(){"killed": w.kill, "dropped": c.Drop} {
		go func() {
			<-begun
			cut()
		}()
		start := time.Now()
		if _, err := c.Ask(within(t, time.Minute), &Request{Op: 1}, text("")); !errors.Is(err, ErrGone) {
			t.Errorf("%s: the caller gets %v", name, err)
		}
		if took := time.Since(start); took > patience {
			t.Errorf("%s: noticed after %v", name, took)
		}
		<-ended
		if _, err := c.Ask(within(t, patience), &Request{Op: 2}, text("")); err != nil {
			t.Errorf("%s: the next request: %v", name, err)
		}
	}
}

// A member that is not there is not waited for, and not asked again at once.
func TestNobodyThere(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	var dials atomic.Int64
	c := NewClient(func(context.Context) (net.Conn, error) {
		dials.Add(1)
		return nil, refused
	})
	defer c.Close()
	start := time.Now()
	const n = 1000
	for range n {
		if _, err := c.Ask(within(t, time.Minute), &Request{}, text("")); !errors.Is(err, ErrGone) ||
			!errors.Is(err, refused) {
			t.Fatalf("the caller gets %v", err)
		}
	}
	if took, most := time.Since(start), 2+time.Since(start)/firstRetry; dials.Load() > int64(most) {
		t.Errorf("%d attempts in %v, want at most %d", dials.Load(), took, most)
	}
}

// A member that reads nothing does not hold up callers for longer than their deadline.
func TestJam(t *testing.T) {
	t.Parallel()
	here, there := net.Pipe() // has no buffer
	go func() { _, _ = io.ReadFull(there, make([]byte, len(Preface))) }()
	c := NewClient(func(context.Context) (net.Conn, error) { return here, nil })
	defer there.Close()
	defer c.Close()
	start := time.Now()
	var run sync.WaitGroup
	for range 4 {
		run.Go(func() {
			if _, err := c.Ask(within(t, 50*time.Millisecond), &Request{}, text("")); err == nil {
				t.Error("a request that nobody read was answered")
			}
		})
	}
	run.Wait()
	if took := time.Since(start); took > patience {
		t.Errorf("callers were held up for %v", took)
	}
}

// A server that closes answers what it has, for a while.
func TestCloseWaits(t *testing.T) {
	t.Parallel()
	begun, finish := make(chan struct{}, 2), make(chan struct{})
	w := serve(t, func(ctx context.Context, q *Request) Answer {
		begun <- struct{}{}
		if q.Op == 1 {
			<-finish
		} else {
			<-ctx.Done()
		}
		return Answer{Message: text("done")}
	})
	c := w.client(t)
	var run sync.WaitGroup
	run.Go(func() {
		if a, err := c.Ask(within(t, time.Minute), &Request{Op: 1}, text("")); err != nil || textOf(t, a.Body) != "done" {
			t.Errorf("the request that ends in time: %+v, %v", a, err)
		}
	})
	run.Go(func() {
		if _, err := c.Ask(within(t, time.Minute), &Request{Op: 2}, text("")); !errors.Is(err, ErrGone) {
			t.Errorf("the request that takes too long: %v", err)
		}
	})
	<-begun
	<-begun
	w.ln.Close()
	time.AfterFunc(50*time.Millisecond, func() { close(finish) })
	w.Close(time.Second)
	run.Wait()
}

// Messages that are too long are refused before they are sent.
func TestLongMessages(t *testing.T) {
	t.Parallel()
	w := serve(t, func(_ context.Context, q *Request) Answer {
		if q.Op == 1 {
			return Answer{Message: text(string(make([]byte, MaxMessage)))}
		}
		return Answer{Message: text(fmt.Sprint(len(q.Body)))}
	})
	c := w.client(t)
	if _, err := c.Ask(within(t, time.Minute), &Request{}, text(string(make([]byte, MaxMessage)))); err == nil {
		t.Error("a request that is too long was sent")
	}
	if a, err := c.Ask(within(t, time.Minute), &Request{Op: 1}, text("")); err != nil || !a.Failed {
		t.Errorf("an answer that is too long: failed %t, %v", a.Failed, err)
	}
	long := text(string(make([]byte, 3<<20)))
	if a, err := c.Ask(within(t, time.Minute), &Request{}, long); err != nil ||
		textOf(t, a.Body) != fmt.Sprint(proto.Size(long)) {
		t.Errorf("a long request: %v", err)
	}
	if n := w.dials.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

package main

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// link is a TCP proxy whose bytes come later, or not at all.
type link struct {
	listener net.Listener
	target   string
	later    atomic.Int64 // nanoseconds that bytes from the target take longer
	rate     atomic.Int64 // bytes from the target per second, of each connection; 0: as fast as it can
	passed   atomic.Int64 // bytes from the target
	run      sync.WaitGroup

	mu     sync.Mutex
	open   chan struct{} // closed: bytes pass
	conns  map[net.Conn]struct{}
	closed bool
}

// startLink starts a proxy in front of a target. It ends with the test.
func startLink(t *testing.T, target string) *link {
	t.Helper()
	return startLinkAt(t, freeAddress(t), target)
}

// startLinkAt is startLink with the address of the proxy.
func startLinkAt(t *testing.T, addr, target string) *link {
	t.Helper()
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	l := &link{listener: ln, target: target, open: make(chan struct{}), conns: map[net.Conn]struct{}{}}
	close(l.open)
	l.run.Go(l.accept)
	t.Cleanup(func() {
		l.listener.Close()
		l.mend()
		l.mu.Lock()
		l.closed = true
		for c := range l.conns {
			c.Close()
		}
		l.mu.Unlock()
		l.run.Wait()
	})
	return l
}

func (l *link) addr() string { return l.listener.Addr().String() }

// cut lets nothing pass. Nobody is told: connections stay open.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = make(chan struct{})
}

// mend ends cut.
func (l *link) mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.open:
	default:
		close(l.open)
	}
}

func (l *link) gate() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}

func (l *link) keep(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		c.Close()
		return false
	}
	l.conns[c] = struct{}{}
	return true
}

func (l *link) accept() {
	for {
		in, err := l.listener.Accept()
		if err != nil {
			return
		}
		if !l.keep(in) {
			return
		}
		l.run.Go(func() {
			defer in.Close()
			<-l.gate()
			out, err := net.Dial("tcp", l.target)
			if err != nil || !l.keep(out) {
				return
			}
			l.run.Go(func() { l.pass(out, in, false) })
			l.pass(in, out, true)
		})
	}
}

// piece is what was read at a time.
type piece struct {
	data []byte
	due  time.Time
}

// pass copies bytes from one side to the other, and ends both with either.
func (l *link) pass(to, from net.Conn, slow bool) {
	pieces := make(chan piece, 1024)
	l.run.Go(func() {
		defer to.Close()
		defer from.Close()
		for p := range pieces {
			time.Sleep(time.Until(p.due))
			<-l.gate()
			if _, err := to.Write(p.data); err != nil {
				break
			}
		}
		for range pieces { // until the reader has noticed
		}
	})
	defer close(pieces)
	var free time.Time // when the bytes before have passed
	for {
		buf := make([]byte, 64<<10)
		n, err := from.Read(buf)
		due := time.Now()
		if rate := l.rate.Load(); slow && rate > 0 {
			if free.Before(due) {
				free = due
			}
			free = free.Add(time.Duration(float64(n) / float64(rate) * float64(time.Second)))
			due = free
		}
		if slow {
			due = due.Add(time.Duration(l.later.Load()))
			l.passed.Add(int64(n))
		}
		if n > 0 {
			pieces <- piece{buf[:n], due}
		}
		if err != nil {
			return
		}
	}
}

// A link passes what it gets, late if it is slow, and nothing while it is cut.
func TestLink(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		for b := make([]byte, 1); ; { // answers a byte with two
			if _, err := io.ReadFull(c, b); err != nil {
				return
			}
			if _, err := c.Write(append(b, b...)[:2]); err != nil {
				return
			}
		}
	}()
	l := startLink(t, ln.Addr().String())
	c, err := net.Dial("tcp", l.addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	echo := func() time.Duration {
		began := time.Now()
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 2)); err != nil {
			t.Fatal(err)
		}
		return time.Since(began)
	}
	echo()
	l.later.Store(int64(50 * time.Millisecond))
	if took := echo(); took < 50*time.Millisecond {
		t.Errorf("slow: %v", took)
	}
	l.later.Store(0)
	l.cut()
	time.AfterFunc(100*time.Millisecond, l.mend)
	if took := echo(); took < 90*time.Millisecond {
		t.Errorf("cut for 100 ms: %v", took)
	}
	if n := l.passed.Load(); n != 6 {
		t.Errorf("%d bytes passed from the target in three answers of two", n)
	}
	l.rate.Store(20)
	if took := echo(); took < 90*time.Millisecond {
		t.Errorf("two bytes at 20 a second: %v", took)
	}
}

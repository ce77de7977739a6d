package coordtest

import (
	"net"
	"sync"
	"testing"
)

// Proxy is a TCP proxy in front of a server. While it is stalled, connections stay open and nothing passes.
type Proxy struct {
	listener net.Listener
	target   string
	wait     sync.WaitGroup

	mu     sync.Mutex
	open   chan struct{} // closed: bytes pass
	conns  map[net.Conn]struct{}
	closed bool
}

// NewProxy starts a proxy, which ends with the test.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{listener: l, target: target, open: make(chan struct{}), conns: map[net.Conn]struct{}{}}
	close(p.open)
	p.wait.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// Addr returns the address for clients.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Stall lets nothing pass.
func (p *Proxy) Stall() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.open:
		p.open = make(chan struct{})
	default:
	}
}

// Resume ends Stall.
func (p *Proxy) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.open:
	default:
		close(p.open)
	}
}

func (p *Proxy) close() {
	p.listener.Close()
	p.Resume()
	p.mu.Lock()
	p.closed = true
	for c := range p.conns {
		c.Close()
	}
	p.mu.Unlock()
	p.wait.Wait()
}

func (p *Proxy) gate() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open
}

// hold remembers a connection for close.
func (p *Proxy) hold(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		c.Close()
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *Proxy) accept() {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return
		}
		if !p.hold(in) {
			return
		}
		p.wait.Go(func() {
			defer in.Close()
			<-p.gate()
			out, err := net.Dial("tcp", p.target)
			if err != nil || !p.hold(out) {
				return
			}
			p.wait.Go(func() { p.copy(in, out) })
			p.copy(out, in)
		})
	}
}

// copy passes bytes from one side to the other, and ends both with either.
func (p *Proxy) copy(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		<-p.gate()
		if _, werr := to.Write(buf[:n]); err != nil || werr != nil {
			return
		}
	}
}

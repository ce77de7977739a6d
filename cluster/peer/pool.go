package peer

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// peer is a client's view of another node: its connections, and what was measured.
type peer struct {
	client     *Client
	node, addr string

	mu      sync.Mutex
	closed  bool
	open    int     // connections, with those that are being made
	dialing int     // of them, those that are being made
	idle    []*conn // the last one was used last
	all     map[*conn]struct{}
	waiters []chan grant // in the order in which they came
	fails   int          // to connect, in a row
	retry   time.Time    // no attempt to connect before
	err     error        // of the last attempt
	meter   meter
	window  window

	stalledAt atomic.Int64 // Unix nanoseconds; 0: bytes have come since
	counts    counts
}

// grant is a connection or the reason why there is none.
type grant struct {
	conn *conn
	err  error
}

const (
	maxWaiters = 4096
	dialTime   = 2 * time.Second
	firstRetry = 20 * time.Millisecond
	lastRetry  = time.Second
	maxIdle    = time.Minute // a connection that was not used for longer is closed; servers wait longer
	slowFor    = time.Second // a peer that stalled is tried again after this
)

// retryAfter returns how long to wait after as many failed attempts to connect.
func retryAfter(fails int) time.Duration {
	return min(firstRetry<<min(max(fails-1, 0), 10), lastRetry)
}

// acquire returns a connection, which the caller owns. It MUST be passed to release, drainLater or drop.
func (p *peer) acquire(ctx context.Context) (*conn, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, fmt.Errorf("peer: node %s: %w", p.node, ErrClosed)
	}
	now := time.Now()
	for len(p.idle) > 0 {
		n := p.idle[len(p.idle)-1]
		p.idle = p.idle[:len(p.idle)-1]
		if now.Sub(n.idle) < maxIdle {
			p.mu.Unlock()
			return n, nil
		}
		p.shut(n)
	}
	if p.open == 0 && now.Before(p.retry) {
		defer p.mu.Unlock()
		return nil, p.err
	}
	if len(p.waiters) >= maxWaiters {
		p.mu.Unlock()
		return nil, fmt.Errorf("peer: node %s: %d fetches wait already", p.node, maxWaiters)
	}
	w := make(chan grant, 1)
	p.waiters = append(p.waiters, w)
	p.connect(now)
	p.mu.Unlock()
	select {
	case g := <-w:
		return g.conn, g.err
	case <-ctx.Done():
	}
	p.mu.Lock()
	i := slices.Index(p.waiters, w)
	if i >= 0 {
		p.waiters = slices.Delete(p.waiters, i, i+1)
	}
	p.mu.Unlock()
	if i < 0 { // it was granted in this moment
		if g := <-w; g.conn != nil {
			p.release(g.conn)
		}
	}
	return nil, ctx.Err()
}

// connect makes connections for those who wait, within the bound. It is called with mu held.
func (p *peer) connect(now time.Time) {
	for p.dialing < len(p.waiters) && p.open < p.client.opt.Conns && !now.Before(p.retry) && !p.closed {
		p.open++
		p.dialing++
		p.client.wg.Go(p.dial)
	}
	if p.open == 0 { // nobody would ever grant them one
		p.refuse(p.err)
	}
}

func (p *peer) dial() {
	ctx, cancel := context.WithTimeout(p.client.ctx, dialTime)
	defer cancel()
	p.counts.dials.Add(1)
	n, err := p.client.dial(ctx, p)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dialing--
	if err != nil {
		p.open--
		p.fails++
		p.retry = time.Now().Add(retryAfter(p.fails))
		p.err = fmt.Errorf("peer: connect to node %s at %s: %w", p.node, p.addr, err)
		p.counts.failed.Add(1)
		p.connect(time.Now())
		return
	}
	p.fails, p.err, p.retry = 0, nil, time.Time{}
	p.all[n] = struct{}{}
	p.give(n)
}

// give passes a connection to the first who waits. It is called with mu held.
func (p *peer) give(n *conn) {
	switch {
	case p.closed:
		p.shut(n)
	case len(p.waiters) > 0:
		w := p.waiters[0]
		p.waiters = slices.Delete(p.waiters, 0, 1)
		w <- grant{conn: n}
	default:
		n.idle = time.Now()
		p.idle = append(p.idle, n)
	}
}

// refuse tells all who wait that there is no connection. It is called with mu held.
func (p *peer) refuse(err error) {
	for _, w := range p.waiters {
		w <- grant{err: err}
	}
	p.waiters = nil
}

// shut closes a connection. It is called with mu held.
func (p *peer) shut(n *conn) {
	_ = n.line.Conn.Close() // below TLS: a close_notify could block
	delete(p.all, n)
	p.open--
}

// release takes back a connection whose answers are all read.
func (p *peer) release(n *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.give(n)
}

// drop closes a connection.
func (p *peer) drop(n *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shut(n)
	p.connect(time.Now())
}

// dropIdle closes all idle connections: the peer was restarted.
func (p *peer) dropIdle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range p.idle {
		p.shut(n)
	}
	p.idle = nil
}

// drainLater takes back a connection with answers that nobody waits for.
func (p *peer) drainLater(n *conn) {
	if n.skip > drainBytes {
		p.drop(n)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		p.shut(n)
		return
	}
	p.client.wg.Go(func() {
		if err := n.drain(time.Now()); err != nil {
			p.drop(n)
			return
		}
		p.release(n)
	})
}

// close closes all connections, also those that are used: their users see an error.
func (p *peer) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for n := range p.all {
		_ = n.line.Conn.Close()
	}
	for _, n := range p.idle {
		p.shut(n)
	}
	p.idle = nil
	p.refuse(fmt.Errorf("peer: node %s: %w", p.node, ErrClosed))
}

// moves notes that a byte came.
func (p *peer) moves() {
	if p.stalledAt.Load() != 0 {
		p.stalledAt.Store(0)
	}
}

// stalls notes that no byte has come for a while.
func (p *peer) stalls(first bool) {
	p.stalledAt.Store(time.Now().UnixNano())
	if first {
		p.counts.stalls.Add(1)
	}
}

// slow reports whether the peer stalled a short while ago and no byte has come since.
func (p *peer) slow(now time.Time) bool {
	at := p.stalledAt.Load()
	return at != 0 && now.UnixNano()-at < int64(slowFor)
}

package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Options of a client.
type Options struct {
	Node  string                        // this node's id
	Conns int                           // connections per peer, 2 to 4; default 3
	TLS   func(node string) *tls.Config // the configuration to connect to a node; nil: no TLS
}

// Client fetches blocks from peers. Its methods may be called concurrently.
type Client struct {
	opt      Options
	versions versions
	ctx      context.Context
	cancel   context.CancelFunc
	wg       sync.WaitGroup // dials and drains

	mu        sync.Mutex
	peers     map[string]*peer
	allowance allowance
}

// NewClient returns a client without peers. The caller MUST Close it.
func NewClient(o Options) (*Client, error) {
	if o.Conns == 0 {
		o.Conns = 3
	}
	if o.Conns < 2 || o.Conns > 4 {
		return nil, fmt.Errorf("peer: %d connections per peer, want 2 to 4", o.Conns)
	}
	if o.Node == "" || len(o.Node) > maxName {
		return nil, fmt.Errorf("peer: node %q needs a name of 1 to %d bytes", o.Node, maxName)
	}
	c := &Client{opt: o, versions: spoken, peers: map[string]*peer{}}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c, nil
}

// SetPeers sets the peers and their addresses. Connections to those that left or moved are closed.
func (c *Client) SetPeers(addrs map[string]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.peers == nil {
		return // closed
	}
	for node, p := range c.peers {
		if addrs[node] != p.addr {
			p.close()
			delete(c.peers, node)
		}
	}
	for node, addr := range addrs {
		if c.peers[node] == nil && addr != "" {
			c.peers[node] = &peer{client: c, node: node, addr: addr, all: map[*conn]struct{}{}}
		}
	}
}

// Close closes all connections and waits for the client's goroutines. Fetches under way end at once.
func (c *Client) Close() {
	c.cancel()
	c.mu.Lock()
	peers := c.peers
	c.peers = nil
	c.mu.Unlock()
	for _, p := range peers {
		p.close()
	}
	c.wg.Wait()
}

func (c *Client) peer(node string) (*peer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.peers == nil {
		return nil, fmt.Errorf("peer: client: %w", ErrClosed)
	}
	p := c.peers[node]
	if p == nil {
		return nil, fmt.Errorf("peer: node %q: %w", node, ErrUnknown)
	}
	return p, nil
}

// Fetch asks a node for blocks and sets the status of each want. It calls place for each block that arrives. It returns
// when all wants are answered, and at the latest when ctx or MaxBudget is over; wants without an answer are Late then.
// After Fetch has returned, it does not write to the memory that place returned. Only the memory of hits has defined
// content.
//
// The error says why peers could not be asked or stopped answering. The end of the budget is no error. Statuses are
// valid with an error too.
func (c *Client) Fetch(ctx context.Context, node string, g *Get, place Place) error {
	if len(g.Wants) > MaxWants {
		return fmt.Errorf("peer: a GET of %d keys, at most %d", len(g.Wants), MaxWants)
	}
	if err := g.Space.validate(); err != nil {
		return err
	}
	for i := range g.Wants {
		g.Wants[i].Status = Late
	}
	first, err := c.peer(node)
	if err != nil {
		return err
	}
	second, _ := c.peer(g.Second) // one that left is as good as none
	if len(g.Wants) == 0 || ctx.Err() != nil {
		return nil
	}
	j := &job{get: g, place: place, began: time.Now(), readers: make([]*leg, len(g.Wants))}
	j.deadline = j.began.Add(MaxBudget)
	if d, ok := ctx.Deadline(); ok && d.Before(j.deadline) {
		j.deadline = d
	}
	all := make([]uint16, len(g.Wants))
	for i := range all {
		all[i] = uint16(i)
	}
	if second == nil || second == first {
		j.start(ctx, first, all).run()
	} else {
		if first.slow(j.began) && !second.slow(j.began) {
			first, second = second, first
		}
		c.race(ctx, j, first, second, all)
	}
	var errs []error
	for _, l := range j.legs {
		errs = append(errs, l.err)
	}
	for i := range g.Wants {
		if g.Wants[i].Status == Late {
			first.counts.of[Late].Add(1)
		}
	}
	return errors.Join(errs...)
}

// race runs a job with a second peer.
func (c *Client) race(ctx context.Context, j *job, first, second *peer, all []uint16) {
	c.mu.Lock()
	c.allowance.fetched()
	c.mu.Unlock()
	p := progress{asked: j.began, deadline: j.deadline, patience: first.quantile(.95), second: second.quantile(.5)}
	a := j.start(ctx, first, all)
	go a.run()
	timer := time.NewTimer(min(p.patience, time.Until(j.deadline)))
	defer timer.Stop()
	for waiting := true; waiting; {
		select {
		case <-a.ended:
			waiting = false
		case now := <-timer.C:
			a.view(func(l *line) { p.last = l.lastByte() })
			ask, again := p.hedge(now)
			if ask && c.spend() {
				second.counts.hedges.Add(1)
				b := j.start(ctx, second, a.missing())
				b.run()
				<-a.ended
				return
			}
			if again > 0 {
				timer.Reset(again)
			}
		}
	}
	if rest := j.unanswered(); len(rest) > 0 && ctx.Err() == nil && time.Now().Before(j.deadline) {
		j.start(ctx, second, rest).run()
	}
}

func (c *Client) spend() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.allowance.take()
}

// unanswered returns the wants that another peer may still have, after the first leg has ended.
func (j *job) unanswered() (out []uint16) {
	for i := range j.get.Wants {
		switch j.get.Wants[i].Status {
		case Late, Busy, Damaged:
			out = append(out, uint16(i))
		}
	}
	return out
}

// Ping makes a round trip to a node. A peer that counts as slow is found to be well again by it.
func (c *Client) Ping(ctx context.Context, node string) (time.Duration, error) {
	p, err := c.peer(node)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, MaxBudget)
	defer cancel()
	u := use{ctx: ctx}
	defer context.AfterFunc(ctx, u.interrupt)()
	n, err := p.acquire(ctx)
	if err != nil {
		return 0, err
	}
	deadline, _ := ctx.Deadline()
	began := time.Now()
	if err = u.attach(n, deadline); err == nil {
		err = n.ping()
	}
	u.detach()
	if err != nil {
		p.drop(n)
		return 0, fmt.Errorf("peer: ping node %s: %w", node, err)
	}
	n.used = true
	p.release(n)
	d := time.Since(began)
	p.mu.Lock()
	p.meter.answered(d)
	p.mu.Unlock()
	return d, nil
}

func (n *conn) ping() error {
	n.out = beginFrame(n.out[:0], kindPing)
	endFrame(n.out, 0)
	if _, err := n.c.Write(n.out); err != nil {
		return err
	}
	_, size, _, err := n.frame(kindPong)
	_, _ = n.r.Discard(size)
	return err
}

// counts are those of a peer.
type counts struct {
	of                    [numStatuses]atomic.Int64
	bytes, hedges, stalls atomic.Int64
	dials, failed         atomic.Int64
}

// Stats describe what a client knows of a peer. Counts are since the peer was set.
type Stats struct {
	Slow      bool          // it stalled within the last second, and no byte has come since
	RoundTrip time.Duration // smoothed; 0: not measured
	Bandwidth float64       // bytes per second, smoothed; 0: not measured
	P95       time.Duration // of the time to the first answer

	Answers [numStatuses]int64 // by status
	Bytes   int64              // payload of hits
	Hedges  int64              // fetches in which it was asked as the second
	Stalls  int64              // times without a byte for SlowAfter
	Dials   int64
	Failed  int64 // of the dials
}

// Stats returns what is known of a node, and false if it is not a peer.
func (c *Client) Stats(node string) (s Stats, ok bool) {
	p, err := c.peer(node)
	if err != nil {
		return s, false
	}
	now := time.Now()
	s = Stats{
		Slow: p.slow(now), Bytes: p.counts.bytes.Load(), Hedges: p.counts.hedges.Load(), Stalls: p.counts.stalls.Load(),
		Dials: p.counts.dials.Load(), Failed: p.counts.failed.Load(),
	}
	for i := range s.Answers {
		s.Answers[i] = p.counts.of[i].Load()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s.RoundTrip, s.Bandwidth, s.P95 = p.meter.roundTrip(), p.meter.rate(now), p.window.quantile(.95)
	return s, true
}

// Slow reports whether a node is a peer that stalled within the last second, without a byte since.
func (c *Client) Slow(node string) bool {
	p, err := c.peer(node)
	return err == nil && p.slow(time.Now())
}

func (p *peer) quantile(q float64) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.window.quantile(q)
}

// measured notes a GET whose first answer came at first, or never.
func (p *peer) measured(asked, first time.Time, bytes int64) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if first.IsZero() {
		p.window.add(now.Sub(asked))
		return
	}
	p.window.add(first.Sub(asked))
	p.meter.answered(first.Sub(asked))
	p.meter.moved(now, bytes, now.Sub(first))
}

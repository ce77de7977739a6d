package coordtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"grebe/cluster/coord"
	"grebe/cluster/coord/internal/client"
)

const (
	callTimeout = 2 * time.Second // of a call that the server does not answer
	stallAfter  = 3 * time.Second // without an answer, a watch reports Lost
)

// Server is a coordinator in memory, for tests in virtual time. Its clients behave as those of etcd do, also while the
// server or a client's link is stopped. It takes time from package time, so it works inside testing/synctest.
//
// Lock order: Server.mu is the only lock.
type Server struct {
	mu      sync.Mutex
	closed  bool
	stopped bool // as by SIGSTOP: requests wait
	killed  bool // requests fail
	changed chan struct{}
	version int64
	entries map[string]record
	leases  map[int64]*grant
	watches map[*watch]struct{}
}

type record struct {
	coord.Entry
	lease int64 // 0: none
}

type grant struct {
	ttl     time.Duration
	expires time.Time
	timer   *time.Timer
}

// NewServer starts an empty server. The caller MUST Close it.
func NewServer() *Server {
	return &Server{
		changed: make(chan struct{}), entries: map[string]record{}, leases: map[int64]*grant{},
		watches: map[*watch]struct{}{},
	}
}

// Open returns a new client.
func (s *Server) Open() *Client {
	ctx, stop := context.WithCancel(context.Background())
	return &Client{s: s, ctx: ctx, stop: stop}
}

// Close stops the server's timers. Its clients' calls fail.
func (s *Server) Close() {
	s.change(func() {
		s.closed, s.killed = true, true
		for _, g := range s.leases {
			g.timer.Stop()
		}
	})
}

// Stop lets all requests wait, as a process does that got SIGSTOP.
func (s *Server) Stop() { s.change(func() { s.stopped = true }) }

// Resume ends Stop. Leases that ran out meanwhile expire.
func (s *Server) Resume() { s.change(func() { s.stopped = false; s.expire() }) }

// Kill lets all requests fail, until Restart.
func (s *Server) Kill() { s.change(func() { s.killed = true }) }

// Restart ends Kill. Every lease begins a whole ttl again, as etcd does.
func (s *Server) Restart() {
	s.change(func() {
		s.killed = false
		for id, g := range s.leases {
			s.renew(id, g)
		}
	})
}

// Compact forgets all history: watches that lag must list again.
func (s *Server) Compact() {
	s.change(func() {
		for w := range s.watches {
			w.synced = false
		}
	})
}

// change applies f and wakes all that wait for the server.
func (s *Server) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	s.wake()
}

// wake tells calls and watches that something is different. The caller has the lock.
func (s *Server) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Server) renew(id int64, g *grant) {
	g.expires = time.Now().Add(g.ttl)
	if g.timer != nil {
		g.timer.Stop()
	}
	g.timer = time.AfterFunc(g.ttl, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.stopped && !s.killed {
			s.expire()
		}
	})
}

// expire ends the leases that ran out.
func (s *Server) expire() {
	for id, g := range s.leases {
		if !time.Now().Before(g.expires) {
			s.revoke(id)
		}
	}
}

func (s *Server) revoke(id int64) {
	s.leases[id].timer.Stop()
	delete(s.leases, id)
	for key, r := range s.entries {
		if r.lease == id {
			s.remove(key)
		}
	}
}

func (s *Server) put(e coord.Entry, lease int64) {
	s.entries[e.Key] = record{e, lease}
	for w := range s.watches {
		if w.synced && strings.HasPrefix(e.Key, w.prefix) {
			w.q.Put(e)
		}
	}
	s.wake()
}

func (s *Server) remove(key string) {
	delete(s.entries, key)
	s.version++
	for w := range s.watches {
		if w.synced && strings.HasPrefix(key, w.prefix) {
			w.q.Delete(key)
		}
	}
	s.wake()
}

func (s *Server) list(prefix string) (out []coord.Entry) {
	for _, r := range s.entries {
		if strings.HasPrefix(r.Key, prefix) {
			out = append(out, r.Entry)
		}
	}
	slices.SortFunc(out, func(a, b coord.Entry) int { return cmp.Compare(a.Key, b.Key) })
	return out
}

// Client is one process's connection to a Server.
type Client struct {
	s    *Server
	ctx  context.Context
	stop context.CancelFunc
	wait sync.WaitGroup

	stalled bool // guarded by s.mu: nothing passes the link, in either direction
}

// Stall lets nothing pass between this client and the server.
func (c *Client) Stall() { c.s.change(func() { c.stalled = true }) }

// Resume ends Stall.
func (c *Client) Resume() { c.s.change(func() { c.stalled = false }) }

// Close ends the client's watches and renewals.
func (c *Client) Close() error {
	c.s.mu.Lock()
	c.stop()
	c.s.mu.Unlock()
	c.wait.Wait()
	return nil
}

// do carries out a request under the server's lock, as soon as the server answers.
func (c *Client) do(ctx context.Context, what, key string, f func() error) error {
	timeout, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	for {
		c.s.mu.Lock()
		if c.ctx.Err() != nil || ctx.Err() != nil {
			c.s.mu.Unlock()
			return fmt.Errorf("%w: %s %s: %w", coord.ErrUnavailable, what, key, cmp.Or(ctx.Err(), c.ctx.Err()))
		}
		if !c.s.killed && !c.s.stopped && !c.stalled {
			c.s.expire()
			err := f()
			c.s.mu.Unlock()
			if err != nil {
				err = fmt.Errorf("%s %s: %w", what, key, err)
			}
			return err
		}
		changed := c.s.changed
		c.s.mu.Unlock()
		select {
		case <-changed:
		case <-c.ctx.Done():
		case <-timeout.Done():
			return fmt.Errorf("%w: %s %s: %w", coord.ErrUnavailable, what, key, timeout.Err())
		}
	}
}

// Get implements coord.Coordinator.
func (c *Client) Get(ctx context.Context, key string) (e coord.Entry, err error) {
	err = c.do(ctx, "get", key, func() error {
		e = c.s.entries[key].Entry
		return nil
	})
	e.Key = key
	return e, err
}

// List implements coord.Coordinator.
func (c *Client) List(ctx context.Context, prefix string) (out []coord.Entry, err error) {
	err = c.do(ctx, "list", prefix, func() error {
		out = c.s.list(prefix)
		return nil
	})
	return out, err
}

// Swap implements coord.Coordinator.
func (c *Client) Swap(ctx context.Context, key string, data []byte, expected int64,
	lease coord.Lease) (version int64, err error) {
	if err := coord.Check(key, data); err != nil {
		return 0, err
	}
	var id int64
	if lease != nil {
		l, ok := lease.(*held)
		if !ok {
			return 0, fmt.Errorf("coordtest: %T is no lease of this coordinator", lease)
		}
		id = l.id
	}
	err = c.do(ctx, "swap", key, func() error {
		if id != 0 && c.s.leases[id] == nil {
			return coord.ErrLeaseLost
		}
		if c.s.entries[key].Version != expected {
			return coord.ErrConflict
		}
		c.s.version++
		version = c.s.version
		c.s.put(coord.Entry{Key: key, Data: slices.Clone(data), Version: version}, id)
		return nil
	})
	return version, err
}

// Delete implements coord.Coordinator.
func (c *Client) Delete(ctx context.Context, key string, expected int64) error {
	return c.do(ctx, "delete", key, func() error {
		if r, ok := c.s.entries[key]; !ok || r.Version != expected {
			return coord.ErrConflict
		}
		c.s.remove(key)
		return nil
	})
}

// watch is guarded by the server's lock.
type watch struct {
	c      *Client
	prefix string
	q      client.Queue
	synced bool      // the queue gets every change
	silent time.Time // since when the server does not answer; zero: it does
	lost   bool      // and the reader was told
}

// Watch implements coord.Coordinator.
func (c *Client) Watch(ctx context.Context, prefix string) <-chan coord.Event {
	out := make(chan coord.Event)
	w := &watch{c: c, prefix: prefix}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.ctx.Err() != nil { // Close may wait already
		close(out)
		return out
	}
	c.s.watches[w] = struct{}{}
	c.wait.Go(func() {
		defer close(out)
		defer c.s.change(func() { delete(c.s.watches, w) })
		w.run(ctx, out)
	})
	return out
}

func (w *watch) run(ctx context.Context, out chan<- coord.Event) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		w.c.s.mu.Lock()
		w.look()
		head, due := w.q.Head()
		if w.held() && head.Kind != coord.Lost {
			due = false // it is still in the network
		}
		if due {
			w.q.Pop()
		}
		changed := w.c.s.changed
		w.c.s.mu.Unlock()
		if due {
			select {
			case out <- head:
				continue
			case <-ctx.Done():
			case <-w.c.ctx.Done():
			}
			return
		}
		select {
		case <-changed:
		case <-tick.C:
		case <-ctx.Done():
			return
		case <-w.c.ctx.Done():
			return
		}
	}
}

func (w *watch) held() bool { return w.c.s.stopped || w.c.stalled || w.c.s.killed }

// look brings the queue in line with what the server lets through.
func (w *watch) look() {
	s := w.c.s
	if s.killed {
		w.synced = false
	}
	switch {
	case !w.held():
		w.silent, w.lost = time.Time{}, false
		if !w.synced {
			w.q.Reset(s.list(w.prefix))
			w.synced = true
		}
	case w.silent.IsZero():
		w.silent = time.Now()
		fallthrough
	default:
		if !w.lost && (s.killed || time.Since(w.silent) >= stallAfter) {
			w.lost, w.synced = true, false
			w.q = client.Queue{}
			w.q.Lost()
		}
	}
}

// held is a lease of a Client.
type held struct {
	c    *Client
	id   int64
	ttl  time.Duration
	stop context.CancelFunc
	lost chan struct{}
}

// Grant implements coord.Coordinator.
func (c *Client) Grant(ctx context.Context, ttl time.Duration) (coord.Lease, error) {
	sent, l := time.Now(), &held{c: c, ttl: ttl, lost: make(chan struct{})}
	if err := c.do(ctx, "grant", ttl.String(), func() error {
		c.s.version++
		l.id = c.s.version
		g := &grant{ttl: ttl}
		c.s.leases[l.id] = g
		c.s.renew(l.id, g)
		return nil
	}); err != nil {
		return nil, err
	}
	var keep context.Context
	keep, l.stop = context.WithCancel(c.ctx)
	c.wait.Go(func() {
		defer close(l.lost)
		defer l.stop()
		client.Keep(keep, ttl, sent, l.renew)
	})
	return l, nil
}

func (l *held) renew(ctx context.Context) error {
	return l.c.do(ctx, "renew", l.ttl.String(), func() error {
		g := l.c.s.leases[l.id]
		if g == nil {
			return coord.ErrLeaseLost
		}
		l.c.s.renew(l.id, g)
		return nil
	})
}

func (l *held) TTL() time.Duration    { return l.ttl }
func (l *held) Lost() <-chan struct{} { return l.lost }

func (l *held) Close(ctx context.Context) error {
	l.stop()
	<-l.lost
	err := l.c.do(ctx, "revoke", l.ttl.String(), func() error {
		if l.c.s.leases[l.id] == nil {
			return coord.ErrLeaseLost
		}
		l.c.s.revoke(l.id)
		return nil
	})
	if errors.Is(err, coord.ErrLeaseLost) {
		return nil
	}
	return err
}

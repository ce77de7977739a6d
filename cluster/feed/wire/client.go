package wire

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	clusterv1 "grebe/api/grebe/cluster/v1"
	"grebe/cluster/feed"
)

const (
	openWithin   = time.Second           // a connection and a stream
	leastBackoff = 50 * time.Millisecond // after a connection broke
	mostBackoff  = time.Second
)

// windows keeps streams' windows at 64 KB. Otherwise gRPC measures the link with a ping for nearly every heartbeat.
var windows = []grpc.DialOption{grpc.WithInitialWindowSize(1 << 16), grpc.WithInitialConnWindowSize(1 << 16)}

// ClientConfig describes a client of one node.
type ClientConfig struct {
	Follower feed.FollowerConfig
	Address  string
	// Options of the connection. They MUST have credentials.
	Options []grpc.DialOption
	Lock    sync.Locker          // guards Follower.Sink
	Clock   func() time.Duration // of Follower.Sink
	// Broken is called when a connection ended, or could not be opened. nil: nobody wants to know.
	Broken func(err error)
}

// Client follows one node.
type Client struct {
	config   ClientConfig
	follower *feed.Follower // guarded by config.Lock
	poke     chan struct{}  // the follower may have something to do
}

// NewClient returns a client that is not connected.
func NewClient(c ClientConfig) *Client {
	if c.Broken == nil {
		c.Broken = func(error) {}
	}
	return &Client{config: c, follower: feed.NewFollower(c.Follower), poke: make(chan struct{}, 1)}
}

// Stats returns what happened, and whether the node's part is known.
func (c *Client) Stats() (s feed.Stats, known bool) {
	c.config.Lock.Lock()
	defer c.config.Lock.Unlock()
	return c.follower.Stats, c.follower.Known()
}

// Compare has the node's part of the index compared with the node's books now.
func (c *Client) Compare() {
	c.config.Lock.Lock()
	c.follower.Compare()
	c.config.Lock.Unlock()
	c.wake()
}

// wake has the goroutine that keeps the time look again.
func (c *Client) wake() {
	select {
	case c.poke <- struct{}{}:
	default:
	}
}

// Run follows the node until the context is done. Then the node's part is unknown.
func (c *Client) Run(ctx context.Context) {
	defer c.with(func(f *feed.Follower, _ time.Duration) error {
		f.Close()
		return nil
	})
	backoff := leastBackoff
	for ctx.Err() == nil {
		answered, err := c.connection(ctx)
		if ctx.Err() != nil {
			return
		}
		c.config.Broken(err)
		if answered {
			backoff = leastBackoff
		}
		c.wait(ctx, backoff/2+rand.N(backoff/2))
		backoff = min(2*backoff, mostBackoff)
	}
}

// with calls f with the follower, and with the time.
func (c *Client) with(f func(f *feed.Follower, now time.Duration) error) error {
	c.config.Lock.Lock()
	defer c.config.Lock.Unlock()
	return f(c.follower, c.config.Clock())
}

func tick(f *feed.Follower, now time.Duration) error { return f.Tick(now) }

// next returns the time until the follower's next Tick, at most most.
func (c *Client) next(most time.Duration) (d time.Duration) {
	c.with(func(f *feed.Follower, now time.Duration) error {
		d = max(0, min(most, f.Next()-now))
		return nil
	})
	return d
}

// wait lets time pass without a connection.
func (c *Client) wait(ctx context.Context, d time.Duration) {
	end := time.Now().Add(d)
	for left := d; left > 0; left = time.Until(end) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(c.next(left)):
			c.with(tick)
		}
	}
}

// link is a connection to the node. One goroutine takes its messages, and another one keeps the time. Messages make the
// second one wake up only if it would sleep too long: most of them are heartbeats, which allow it to sleep longer.
type link struct {
	*Client
	answered atomic.Bool

	mu     sync.Mutex                     // held while an Ask is sent; taken before config.Lock
	stream clusterv1.Feed_SubscribeClient // nil: not open
	due    time.Duration                  // when the second goroutine wakes up
}

// connection opens a connection and uses it until it breaks. It reports whether the node answered.
func (c *Client) connection(ctx context.Context) (answered bool, err error) {
	conn, err := grpc.NewClient(c.config.Address, slices.Concat(windows, c.config.Options)...)
	if err != nil {
		return false, fmt.Errorf("feed: connect to %s: %w", c.config.Address, err)
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	l := &link{Client: c}
	ended := make(chan error, 1)
	go func() { ended <- l.receive(ctx, conn) }()
	left, err := l.keep(ctx, ended)
	cancel()
	if left {
		<-ended
	}
	c.with(func(f *feed.Follower, _ time.Duration) error {
		f.Disconnected()
		return nil
	})
	return l.answered.Load(), fmt.Errorf("feed: follow %s: %w", c.config.Address, err)
}

// keep calls Tick in time until the connection is useless. It reports whether the other goroutine is left.
func (l *link) keep(ctx context.Context, ended <-chan error) (left bool, err error) {
	opening := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case err := <-ended:
			return false, err
		case <-ctx.Done():
			return true, ctx.Err()
		case <-l.poke:
		case <-timer.C:
		}
		l.awake()
		if err := l.with(tick); err != nil {
			return true, err
		}
		open, err := l.asks()
		if err != nil {
			return true, err
		}
		if !open && time.Since(opening) > openWithin {
			return true, feed.ErrSilent
		}
		timer.Reset(l.sleep())
	}
}

// awake says that keep runs: nobody has to wake it up, itself included.
func (l *link) awake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.due = 0
}

// sleep returns how long keep may sleep.
func (l *link) sleep() (d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.with(func(f *feed.Follower, now time.Duration) error {
		l.due = min(f.Next(), now+openWithin)
		d = max(0, l.due-now)
		return nil
	})
	return d
}

// asks sends what the follower asks for. These are a few small messages a second at most, far less than what a stream's
// window takes until silence ends the connection. It reports whether the stream is open.
func (l *link) asks() (open bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.stream != nil {
		var a *clusterv1.Ask
		early := false
		l.with(func(f *feed.Follower, now time.Duration) error {
			if a = f.Ask(now); a == nil {
				early = f.Next() < l.due
			}
			return nil
		})
		if early {
			l.wake()
		}
		if a == nil {
			return true, nil
		}
		if err := l.stream.Send(a); err != nil {
			return true, err
		}
	}
	return false, nil
}

// receive opens a stream and takes its messages.
func (l *link) receive(ctx context.Context, conn *grpc.ClientConn) error {
	stream, err := clusterv1.NewFeedClient(conn).Subscribe(ctx)
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.stream = stream
	l.mu.Unlock()
	err = l.with(func(f *feed.Follower, now time.Duration) error {
		f.Connected(now)
		return nil
	})
	for err == nil {
		if _, err = l.asks(); err != nil {
			break
		}
		var m *clusterv1.Message
		if m, err = stream.Recv(); err != nil {
			break
		}
		l.answered.Store(true)
		err = l.with(func(f *feed.Follower, now time.Duration) error { return f.Take(m, now) })
	}
	return err
}

package wire

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"

	clusterv1 "grebe/api/grebe/cluster/v1"
	"grebe/cluster/feed"
)

const (
	openWithin   = time.Second           // a connection and a stream
	leastBackoff = 50 * time.Millisecond // after a connection broke
	mostBackoff  = time.Second
	maxMessages  = 16 // received and not yet taken
)

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
	poke     chan struct{}  // there may be something to ask
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

// incoming is a stream that was opened, a message, or the end of the stream.
type incoming struct {
	stream  clusterv1.Feed_SubscribeClient
	message *clusterv1.Message
	err     error
}

// connection opens a connection and uses it until it breaks. It reports whether the node answered.
func (c *Client) connection(ctx context.Context) (answered bool, err error) {
	conn, err := grpc.NewClient(c.config.Address, c.config.Options...)
	if err != nil {
		return false, fmt.Errorf("feed: connect to %s: %w", c.config.Address, err)
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	in, ended := make(chan incoming, maxMessages), make(chan struct{})
	go func() {
		defer close(ended)
		receive(ctx, conn, in)
	}()
	defer func() {
		cancel()
		<-ended
		c.with(func(f *feed.Follower, _ time.Duration) error {
			f.Disconnected()
			return nil
		})
	}()
	var stream clusterv1.Feed_SubscribeClient
	opening := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case i := <-in:
			switch {
			case i.err != nil:
				return answered, fmt.Errorf("feed: follow %s: %w", c.config.Address, i.err)
			case i.stream != nil:
				stream = i.stream
				err = c.with(func(f *feed.Follower, now time.Duration) error {
					f.Connected(now)
					return nil
				})
			default:
				answered = true
				err = c.with(func(f *feed.Follower, now time.Duration) error { return f.Take(i.message, now) })
			}
		case <-c.poke:
		case <-timer.C:
			err = c.with(tick)
			if stream == nil && time.Since(opening) > openWithin {
				err = feed.ErrSilent
			}
		case <-ctx.Done():
			return answered, ctx.Err()
		}
		if err == nil && stream != nil {
			err = c.asks(stream)
		}
		if err != nil {
			return answered, fmt.Errorf("feed: follow %s: %w", c.config.Address, err)
		}
		timer.Reset(c.next(openWithin))
	}
}

// asks sends what the follower asks for. These are a few small messages a second at most, far less than what a stream's
// window takes until silence ends the connection.
func (c *Client) asks(stream clusterv1.Feed_SubscribeClient) error {
	for {
		var a *clusterv1.Ask
		c.with(func(f *feed.Follower, now time.Duration) error {
			a = f.Ask(now)
			return nil
		})
		if a == nil {
			return nil
		}
		if err := stream.Send(a); err != nil {
			return err
		}
	}
}

// receive opens a stream and passes on its messages.
func receive(ctx context.Context, conn *grpc.ClientConn, in chan<- incoming) {
	pass := func(i incoming) bool {
		select {
		case in <- i:
			return i.err == nil
		case <-ctx.Done():
			return false
		}
	}
	stream, err := clusterv1.NewFeedClient(conn).Subscribe(ctx)
	if !pass(incoming{stream: stream, err: err}) {
		return
	}
	for {
		m, err := stream.Recv()
		if !pass(incoming{message: m, err: err}) {
			return
		}
	}
}

// Package redisconn keeps a connection to Redis or Valkey, one server or a cluster. It connects on the first use, and
// again after an outage. After a failure the server is not asked for a moment, so that an outage costs requests no
// deadline each. A malformed reply costs a connection, never the process.
package redisconn

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// ErrUnavailable says that the server did not answer lately and is not asked again for a moment.
var ErrUnavailable = errors.New("the store is unavailable")

// Config says where the server is.
type Config struct {
	Addresses []string // host:port of a server, or of some nodes of a cluster
	Username  string
	Password  string
	Pause     time.Duration // for which the server is not asked after a failure; 50 ms
	Dial      time.Duration // how long making a connection may take; 1 s
	// Option changes the options of a client before it connects; nil: nothing is changed.
	Option func(*rueidis.ClientOption)
}

// Conn is a connection. It is safe for concurrent use.
type Conn struct {
	cfg Config

	mu         sync.Mutex
	client     rueidis.Client
	connecting chan struct{} // closed when the attempt under way ended; nil when there is none
	failed     error
	broken     bool      // the last operation failed
	until      time.Time // not asked before
	closed     bool
	attempts   sync.WaitGroup
	asking     chan struct{} // a place for every question under way
}

const (
	// mostAsking bounds questions under way, with those that nobody waits for any more.
	mostAsking = 256
	// lateness is how long after its deadline an answer may still come: then a cluster says what it has from the nodes
	// that answer.
	lateness = 5 * time.Millisecond
)

// New returns a connection that is made on the first use. The caller MUST Close it.
func New(cfg Config) *Conn {
	if cfg.Pause <= 0 {
		cfg.Pause = 50 * time.Millisecond
	}
	if cfg.Dial <= 0 {
		cfg.Dial = time.Second
	}
	return &Conn{cfg: cfg, asking: make(chan struct{}, mostAsking)}
}

// Pause returns for how long the server is not asked after a failure.
func (c *Conn) Pause() time.Duration { return c.cfg.Pause }

// Dial returns how long making a connection may take.
func (c *Conn) Dial() time.Duration { return c.cfg.Dial }

// Renew calls change while no attempt to connect runs. If it returns true, the client that there is goes, and the next
// one has other options.
func (c *Conn) Renew(change func() bool) {
	c.mu.Lock()
	for c.connecting != nil {
		wait := c.connecting
		c.mu.Unlock()
		<-wait
		c.mu.Lock()
	}
	var old rueidis.Client
	if change() {
		old, c.client = c.client, nil
	}
	c.mu.Unlock()
	if old != nil {
		old.Close()
	}
}

// Answers reports whether the server answers.
func (c *Conn) Answers() bool {
	ctx, cancel := context.WithTimeout(context.Background(), c.cfg.Dial)
	defer cancel()
	client, err := c.Client(ctx)
	return err == nil && client.Do(ctx, client.B().Ping().Build()).Error() == nil
}

// Failing returns why the last operation failed; nil: it did not, or the server answers again within 0.2 s.
func (c *Conn) Failing() error {
	c.mu.Lock()
	broken, failed := c.broken, c.failed
	c.mu.Unlock()
	if !broken {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if client, err := c.Client(ctx); err == nil && client.Do(ctx, client.B().Ping().Build()).Error() == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.broken = false
		return nil
	}
	return failed
}

// Client returns the client, waiting for a connection until ctx is done.
func (c *Conn) Client(ctx context.Context) (rueidis.Client, error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, fmt.Errorf("it was closed: %w", ErrUnavailable)
	}
	if time.Now().Before(c.until) {
		defer c.mu.Unlock()
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, c.failed)
	}
	if c.client != nil {
		defer c.mu.Unlock()
		return c.client, nil
	}
	if c.connecting == nil {
		c.connecting = make(chan struct{})
		c.attempts.Go(c.connect)
	}
	wait := c.connecting
	c.mu.Unlock()
	select {
	case <-ctx.Done():
		return nil, fmt.Errorf("connect to Redis: %w", ctx.Err())
	case <-wait:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.client == nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, c.failed)
	}
	return c.client, nil
}

func (c *Conn) connect() {
	option := rueidis.ClientOption{
		InitAddress: c.cfg.Addresses, Username: c.cfg.Username, Password: c.cfg.Password,
		DisableCache: true, DisableRetry: true, ReadBufferEachConn: 1 << 20, WriteBufferEachConn: 1 << 18,
		Dialer: net.Dialer{Timeout: c.cfg.Dial}, ConnWriteTimeout: 5 * time.Second, DialCtxFn: dial,
	}
	if c.cfg.Option != nil {
		c.cfg.Option(&option)
	}
	client, err := newClient(option)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil && c.closed {
		client.Close()
		err = ErrUnavailable
	}
	if err != nil {
		c.fail(fmt.Errorf("connect to Redis at %s: %w", strings.Join(c.cfg.Addresses, ", "), err))
	} else {
		c.client = client
	}
	close(c.connecting)
	c.connecting = nil
}

// dial makes a connection whose replies are checked.
func dial(ctx context.Context, address string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return checkReplies(conn), nil
}

// newClient is rueidis.NewClient. A panic over what a server said is an error.
func newClient(option rueidis.ClientOption) (client rueidis.Client, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("a malformed reply: %v", p)
		}
	}()
	return rueidis.NewClient(option)
}

// fail begins a pause. The caller holds mu.
func (c *Conn) fail(err error) { c.failed, c.until, c.broken = err, time.Now().Add(c.cfg.Pause), true }

// Check looks at an operation's error: one that Redis answered is passed on, any other begins a pause, except that the
// caller gave up.
func (c *Conn) Check(ctx context.Context, what string, err error) error {
	return c.check(ctx, what, err, c.fail)
}

// CheckAlone is Check for an operation that says nothing of others, such as one with a short deadline or on one node of
// a cluster: no pause begins. Failing asks the server.
func (c *Conn) CheckAlone(ctx context.Context, what string, err error) error {
	return c.check(ctx, what, err, func(err error) { c.failed, c.broken = err, true })
}

// check calls fail, with mu held, if the server did not answer.
func (c *Conn) check(ctx context.Context, what string, err error, fail func(error)) error {
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.broken = false
		return nil
	}
	if _, answered := rueidis.IsRedisErr(err); !answered && !errors.Is(ctx.Err(), context.Canceled) {
		c.mu.Lock()
		fail(err)
		c.mu.Unlock()
	}
	return fmt.Errorf("%s in Redis: %w", what, err)
}

// Ask calls read in a goroutine and returns when it is done or, soon, when ctx is: the client may wait for a connection
// that another call is making, whatever ctx says. What read returns after that nobody sees, so it MUST NOT write to the
// caller's memory.
func (c *Conn) Ask(ctx context.Context, read func() []rueidis.RedisResult) ([]rueidis.RedisResult, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case c.asking <- struct{}{}:
	}
	answer := make(chan []rueidis.RedisResult, 1)
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		<-c.asking
		return nil, ErrUnavailable
	}
	c.attempts.Go(func() {
		answer <- read()
		<-c.asking
	})
	c.mu.Unlock()
	select {
	case a := <-answer:
		return a, nil
	case <-ctx.Done():
	}
	select {
	case a := <-answer:
		return a, nil
	case <-time.After(lateness):
		return nil, ctx.Err()
	}
}

// Close ends the connection, and waits for what is under way.
func (c *Conn) Close() {
	c.mu.Lock()
	c.closed = true
	client := c.client
	c.client = nil
	c.mu.Unlock()
	if client != nil {
		client.Close()
	}
	c.attempts.Wait()
}

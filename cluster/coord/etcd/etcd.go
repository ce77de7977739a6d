// Package etcd is a coordinator over etcd.
//
// Every call has a timeout of its own, because a stopped etcd keeps its connections open and never answers. A watch
// asks its stream for progress every second; without an answer for three seconds it counts as lost, and begins again
// with a listing. Watches use etcd's stream directly, not the client's watcher: that resumes by itself from a revision,
// and would wait forever on an etcd that lost its data.
//
// A client has one connection per endpoint, and one goroutine per lease and three per watch, which end with Close.
package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"grebe/cluster/coord"
	"grebe/cluster/coord/internal/client"
)

// Options say where etcd is.
type Options struct {
	Endpoints []string      // host:port each, at least one
	Root      string        // begins all keys, such as "/grebe/v1/shop/"
	TLS       *tls.Config   // nil: plain TCP
	Timeout   time.Duration // of a call that etcd does not answer; default 2 s
}

// Validate checks the options.
func (o Options) Validate() error {
	if len(o.Endpoints) == 0 {
		return errors.New("etcd: no endpoint")
	}
	for _, e := range o.Endpoints {
		if host, port, err := net.SplitHostPort(e); err != nil || host == "" || port == "" {
			return fmt.Errorf("etcd: endpoint %q is not host:port", e)
		}
	}
	if o.Timeout < 0 {
		return fmt.Errorf("etcd: timeout %v", o.Timeout)
	}
	return nil
}

// ParseURL returns the endpoints of an address such as etcd://10.0.0.1:2379,10.0.0.2. The default port is 2379.
func ParseURL(s string) ([]string, error) {
	list, ok := strings.CutPrefix(s, "etcd://")
	if !ok {
		return nil, fmt.Errorf("etcd: %q does not begin with etcd://", s)
	}
	var out []string
	for e := range strings.SplitSeq(strings.TrimSuffix(list, "/"), ",") {
		if _, _, err := net.SplitHostPort(e); err != nil {
			e = net.JoinHostPort(strings.Trim(e, "[]"), "2379")
		}
		out = append(out, e)
	}
	return out, Options{Endpoints: out}.Validate()
}

const (
	maxDelay  = time.Second     // between attempts to connect
	askEvery  = time.Second     // a watch asks for progress
	lostAfter = 3 * time.Second // without an answer, a watch is lost
	// gRPC's minimum: a connection that does not answer is closed, so that calls go to another endpoint
	pingEvery  = 10 * time.Second
	pingWithin = 2 * time.Second
)

// Client is a coordinator.
type Client struct {
	o    Options
	c    *clientv3.Client
	ctx  context.Context
	stop context.CancelFunc

	mu     sync.Mutex // guards closed, and goroutines against Close
	closed bool
	wait   sync.WaitGroup
}

var _ coord.Coordinator = (*Client)(nil)

// Open returns a client. It does not wait for etcd: calls do. The caller MUST Close it.
func Open(o Options) (*Client, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.Timeout == 0 {
		o.Timeout = 2 * time.Second
	}
	reconnect := grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 2, Jitter: 0.2, MaxDelay: maxDelay},
		MinConnectTimeout: o.Timeout,
	}
	c, err := clientv3.New(clientv3.Config{
		Endpoints: o.Endpoints, TLS: o.TLS, DialTimeout: o.Timeout, DialKeepAliveTime: pingEvery,
		DialKeepAliveTimeout: pingWithin,
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(reconnect),
			grpc.WithDefaultCallOptions(grpc.WaitForReady(true), grpc.MaxCallRecvMsgSize(math.MaxInt32))},
		Logger: zap.NewNop(),
	})
	if err != nil {
		return nil, fmt.Errorf("etcd: connect to %s: %w", strings.Join(o.Endpoints, ","), err)
	}
	ctx, stop := context.WithCancel(context.Background())
	return &Client{o: o, c: c, ctx: ctx, stop: stop}, nil
}

// Close implements coord.Coordinator.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.stop()
	c.wait.Wait()
	err := c.c.Close()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// start runs f on a goroutine that Close waits for. It returns false if the client is closed.
func (c *Client) start(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.wait.Go(f)
	}
	return !c.closed
}

// call bounds a call by the client's timeout.
func (c *Client) call(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, c.o.Timeout)
	detach := context.AfterFunc(c.ctx, cancel)
	return ctx, func() { detach(); cancel() }
}

// failed wraps an error of etcd. Callers can do nothing about any of them but try again.
func failed(ctx context.Context, what, key string, err error) error {
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return fmt.Errorf("etcd: %s %s: %w", what, key, coord.ErrLeaseLost)
	}
	if own := ctx.Err(); own != nil {
		err = own // the status of gRPC is no context error
	}
	return fmt.Errorf("%w: etcd: %s %s: %w", coord.ErrUnavailable, what, key, err)
}

func (c *Client) entry(kv *mvccpb.KeyValue) coord.Entry {
	return coord.Entry{Key: strings.TrimPrefix(string(kv.Key), c.o.Root), Data: kv.Value, Version: kv.ModRevision}
}

// Get implements coord.Coordinator.
func (c *Client) Get(ctx context.Context, key string) (coord.Entry, error) {
	attempt, cancel := c.call(ctx)
	defer cancel()
	r, err := c.c.Get(attempt, c.o.Root+key)
	if err != nil {
		return coord.Entry{Key: key}, failed(ctx, "get", key, err)
	}
	if len(r.Kvs) == 0 {
		return coord.Entry{Key: key}, nil
	}
	return c.entry(r.Kvs[0]), nil
}

// List implements coord.Coordinator.
func (c *Client) List(ctx context.Context, prefix string) ([]coord.Entry, error) {
	out, _, err := c.list(ctx, prefix)
	return out, err
}

// list also returns the revision of the listing.
func (c *Client) list(ctx context.Context, prefix string) ([]coord.Entry, int64, error) {
	attempt, cancel := c.call(ctx)
	defer cancel()
	r, err := c.c.Get(attempt, c.o.Root+prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, 0, failed(ctx, "list", prefix, err)
	}
	out := make([]coord.Entry, len(r.Kvs))
	for i, kv := range r.Kvs {
		out[i] = c.entry(kv)
	}
	return out, r.Header.Revision, nil
}

// Swap implements coord.Coordinator.
func (c *Client) Swap(ctx context.Context, key string, data []byte, expected int64, l coord.Lease) (int64, error) {
	if err := coord.Check(key, data); err != nil {
		return 0, err
	}
	var with []clientv3.OpOption
	if l != nil {
		own, ok := l.(*lease)
		if !ok {
			return 0, fmt.Errorf("etcd: %T is no lease of etcd", l)
		}
		with = append(with, clientv3.WithLease(own.id))
	}
	attempt, cancel := c.call(ctx)
	defer cancel()
	full := c.o.Root + key
	r, err := c.c.Txn(attempt).If(clientv3.Compare(clientv3.ModRevision(full), "=", expected)).
		Then(clientv3.OpPut(full, string(data), with...)).Commit()
	if err != nil {
		return 0, failed(ctx, "swap", key, err)
	}
	if !r.Succeeded {
		return 0, fmt.Errorf("etcd: swap %s at version %d: %w", key, expected, coord.ErrConflict)
	}
	return r.Header.Revision, nil
}

// Delete implements coord.Coordinator.
func (c *Client) Delete(ctx context.Context, key string, expected int64) error {
	attempt, cancel := c.call(ctx)
	defer cancel()
	full := c.o.Root + key
	r, err := c.c.Txn(attempt).
		If(clientv3.Compare(clientv3.ModRevision(full), "=", expected),
			clientv3.Compare(clientv3.CreateRevision(full), ">", 0)).
		Then(clientv3.OpDelete(full)).Commit()
	if err != nil {
		return failed(ctx, "delete", key, err)
	}
	if !r.Succeeded {
		return fmt.Errorf("etcd: delete %s at version %d: %w", key, expected, coord.ErrConflict)
	}
	return nil
}

// lease is a lease of etcd.
type lease struct {
	c    *Client
	id   clientv3.LeaseID
	ttl  time.Duration
	stop context.CancelFunc
	lost chan struct{}
}

// Grant implements coord.Coordinator. Etcd rounds the ttl up to whole seconds, and to one and a half of its election
// timeouts.
func (c *Client) Grant(ctx context.Context, ttl time.Duration) (coord.Lease, error) {
	attempt, cancel := c.call(ctx)
	defer cancel()
	sent := time.Now()
	r, err := c.c.Grant(attempt, int64(math.Ceil(ttl.Seconds())))
	if err != nil {
		return nil, failed(ctx, "grant", ttl.String(), err)
	}
	l := &lease{c: c, id: r.ID, ttl: time.Duration(r.TTL) * time.Second, lost: make(chan struct{})}
	var keep context.Context
	keep, l.stop = context.WithCancel(c.ctx)
	if !c.start(func() {
		defer close(l.lost)
		defer l.stop()
		client.Keep(keep, l.ttl, sent, l.renew)
	}) {
		l.stop()
		return nil, failed(c.ctx, "grant", ttl.String(), nil)
	}
	return l, nil
}

func (l *lease) renew(ctx context.Context) error {
	attempt, cancel := l.c.call(ctx)
	defer cancel()
	r, err := l.c.c.KeepAliveOnce(attempt, l.id)
	if err != nil {
		return failed(ctx, "renew", "lease", err)
	}
	if r.TTL <= 0 {
		return coord.ErrLeaseLost
	}
	return nil
}

func (l *lease) TTL() time.Duration    { return l.ttl }
func (l *lease) Lost() <-chan struct{} { return l.lost }

func (l *lease) Close(ctx context.Context) error {
	l.stop()
	<-l.lost
	attempt, cancel := l.c.call(ctx)
	defer cancel()
	if _, err := l.c.c.Revoke(attempt, l.id); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return failed(ctx, "revoke", "lease", err)
	}
	return nil
}

// Watch implements coord.Coordinator.
func (c *Client) Watch(ctx context.Context, prefix string) <-chan coord.Event {
	out := make(chan coord.Event)
	ctx, cancel := context.WithCancel(ctx)
	detach := context.AfterFunc(c.ctx, cancel)
	w := &watch{c: c, prefix: prefix, out: out}
	if !c.start(func() {
		defer close(out)
		defer cancel()
		defer detach()
		w.run(ctx)
	}) {
		cancel()
		close(out)
	}
	return out
}

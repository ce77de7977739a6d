// Package kube is a coordinator over the API server of Kubernetes, with a small HTTP client of its own.
//
// A key is a ConfigMap. Its resourceVersion is the key's version: compare-and-swap is an update or a deletion that
// names the expected one. A lease is a Lease. Its owner renews it by a patch, which fails once the Lease is deleted.
//
// Kubernetes expires nothing by itself. Clients that watch also list the Leases every two seconds. One that was not
// renewed for its duration, by the observer's own clock, is deleted on the condition that it is still the one that was
// observed. Then the ConfigMaps of absent Leases are deleted, on the same condition. No clocks of two machines are
// compared. After a time without answers every duration begins again, as after a restart of etcd.
//
// All watches of a client share one listing and one watch of the API server. Both begin again every minute, so that a
// change that the API server never sent is found. The watch also begins again when the API server does not answer for
// two seconds. Every other call ends after two seconds, or earlier with its context.
//
// A client has one connection, which is checked by pings, and with at least one watch these goroutines: one that
// follows the ConfigMaps, one that lists Leases, and one per watch and lease. They end with Close.
//
// Lock order: Client.mu, feed.mu, token.mu are never held together.
package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"grebe/cluster/coord"
)

// Options say where the API server is, and which of its objects are this cluster's.
type Options struct {
	Server    string        // host:port of the API server, which speaks HTTPS
	Namespace string        // of all objects
	Cluster   string        // the label grebe/cluster of all objects
	Token     string        // file of the bearer token; read again when it has changed
	CA        string        // file of the authority of the API server's certificate; read again for every connection
	Timeout   time.Duration // of a call that is not answered; default 2 s
	Log       *slog.Logger  // nil: none

	Dial func(context.Context) (net.Conn, error) // for tests: a connection without TLS and token; nil: TCP with TLS
}

// Validate checks the options.
func (o Options) Validate() error {
	if host, port, err := net.SplitHostPort(o.Server); err != nil || host == "" || port == "" {
		return fmt.Errorf("kubernetes: API server %q is not host:port", o.Server)
	}
	if len(o.Namespace) > 63 || !validName(o.Namespace) || strings.Contains(o.Namespace, ".") {
		return fmt.Errorf("kubernetes: %q is no namespace", o.Namespace)
	}
	if o.Cluster == "" {
		return errors.New("kubernetes: the cluster has no name")
	}
	if o.Dial == nil && (o.Token == "" || o.CA == "") {
		return errors.New("kubernetes: give the files of a token and of the API server's authority")
	}
	if o.Timeout < 0 {
		return fmt.Errorf("kubernetes: timeout %v", o.Timeout)
	}
	return nil
}

// accountDir is where the kubelet mounts a pod's service account.
const accountDir = "/var/run/secrets/kubernetes.io/serviceaccount"

// form is how an API server is named outside of a pod.
const form = "kubernetes://HOST:PORT/NAMESPACE?token=FILE&ca=FILE"

// Parse returns the options of an address: "kubernetes" inside a pod, or
// kubernetes://HOST:PORT/NAMESPACE?token=FILE&ca=FILE. The default port is 443.
func Parse(address, cluster string) (Options, error) {
	if address == "kubernetes" {
		return inPod(cluster, os.Getenv, accountDir)
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "kubernetes" || u.Opaque != "" || u.User != nil || u.Fragment != "" {
		return Options{}, fmt.Errorf("kubernetes: %q: want kubernetes, or %s", address, form)
	}
	o := Options{Server: u.Host, Cluster: cluster, Namespace: strings.Trim(u.Path, "/")}
	if u.Port() == "" && u.Hostname() != "" {
		o.Server = net.JoinHostPort(u.Hostname(), "443")
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return Options{}, fmt.Errorf("kubernetes: %q: %w", address, err)
	}
	for name, values := range query {
		switch {
		case len(values) != 1:
			return Options{}, fmt.Errorf("kubernetes: %q has %s %d times", address, name, len(values))
		case name == "token":
			o.Token = values[0]
		case name == "ca":
			o.CA = values[0]
		default:
			return Options{}, fmt.Errorf("kubernetes: %q: unknown option %q: want token and ca", address, name)
		}
	}
	return o, o.Validate()
}

// inPod returns the options of a pod with a service account.
func inPod(cluster string, env func(string) string, dir string) (Options, error) {
	host, port := env("KUBERNETES_SERVICE_HOST"), env("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return Options{}, errors.New("kubernetes: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: " +
			"this is no pod. Elsewhere write " + form)
	}
	namespace, err := os.ReadFile(filepath.Join(dir, "namespace"))
	if err != nil {
		return Options{}, fmt.Errorf("kubernetes: the pod has no service account (automountServiceAccountToken): %w", err)
	}
	o := Options{Server: net.JoinHostPort(host, port), Namespace: strings.TrimSpace(string(namespace)), Cluster: cluster,
		Token: filepath.Join(dir, "token"), CA: filepath.Join(dir, "ca.crt")}
	return o, o.Validate()
}

// Client is a coordinator.
type Client struct {
	o    Options
	http *http.Transport
	base string // of all URLs
	auth token
	ctx  context.Context
	stop context.CancelFunc
	feed feed

	mu     sync.Mutex // guards closed, and goroutines against Close
	closed bool
	wait   sync.WaitGroup
}

var _ coord.Coordinator = (*Client)(nil)

// Open returns a client. It does not wait for the API server: calls do. The caller MUST Close it.
func Open(o Options) (*Client, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.Timeout == 0 {
		o.Timeout = 2 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	c := &Client{o: o, auth: token{file: o.Token}}
	c.http, c.base = transport(o)
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.feed.init(c)
	return c, nil
}

// Close implements coord.Coordinator.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.stop()
	c.wait.Wait()
	c.http.CloseIdleConnections()
	return nil
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

// failed wraps an error of a call. Callers can do nothing about any of them but try again.
func failed(ctx context.Context, what, key string, err error) error {
	if own := ctx.Err(); own != nil {
		err = own
	}
	return fmt.Errorf("%w: kubernetes: %s %s: %w", coord.ErrUnavailable, what, key, err)
}

// Get implements coord.Coordinator.
func (c *Client) Get(ctx context.Context, key string) (coord.Entry, error) {
	var o object
	err := c.call(ctx, request{verb: "get", resource: configMaps, name: c.name(key)}, &o)
	if isStatus(err, http.StatusNotFound) {
		return coord.Entry{Key: key}, nil
	}
	if err != nil {
		return coord.Entry{Key: key}, failed(ctx, "get", key, err)
	}
	e, _, err := o.entry()
	if err == nil && e.Key != key {
		err = fmt.Errorf("the ConfigMap %s has the key %q", o.Metadata.Name, e.Key)
	}
	if err != nil {
		return coord.Entry{Key: key}, failed(ctx, "get", key, err)
	}
	return e, nil
}

// List implements coord.Coordinator.
func (c *Client) List(ctx context.Context, prefix string) ([]coord.Entry, error) {
	objects, _, err := c.list(ctx, configMaps, c.selector(prefix))
	if err != nil {
		return nil, failed(ctx, "list", prefix, err)
	}
	return c.entries(objects, prefix), nil
}

// Swap implements coord.Coordinator.
func (c *Client) Swap(ctx context.Context, key string, data []byte, expected int64, l coord.Lease) (int64, error) {
	if err := coord.Check(key, data); err != nil {
		return 0, err
	}
	held := ""
	if l != nil {
		own, ok := l.(*lease)
		if !ok {
			return 0, fmt.Errorf("kubernetes: %T is no lease of Kubernetes", l)
		}
		if own.over() {
			return 0, fmt.Errorf("kubernetes: swap %s: %w", key, coord.ErrLeaseLost)
		}
		held = own.id
	}
	version, err := c.write(ctx, c.configMap(key, data, held), expected)
	switch {
	case isStatus(err, http.StatusConflict),
		isStatus(err, http.StatusNotFound) && expected != 0: // if a creation finds nothing, there is no namespace
		return 0, fmt.Errorf("kubernetes: swap %s at version %d: %w", key, expected, coord.ErrConflict)
	case err != nil:
		return 0, failed(ctx, "swap", key, err)
	case l != nil && l.(*lease).over():
		// The Lease may be gone since before the write. Those who watch would delete the key later.
		_ = c.remove(context.WithoutCancel(ctx), configMaps, c.name(key), version)
		return 0, fmt.Errorf("kubernetes: swap %s: %w", key, coord.ErrLeaseLost)
	}
	return version, nil
}

// write creates a ConfigMap, or updates the one with the expected version.
func (c *Client) write(ctx context.Context, o object, expected int64) (int64, error) {
	r := request{verb: "create", resource: configMaps, body: &o}
	if expected != 0 {
		o.Metadata.ResourceVersion = fmt.Sprint(expected)
		r.verb, r.name = "update", o.Metadata.Name
	}
	var written object
	if err := c.call(ctx, r, &written); err != nil {
		return 0, err
	}
	return written.version()
}

// Delete implements coord.Coordinator.
func (c *Client) Delete(ctx context.Context, key string, expected int64) error {
	err := c.remove(ctx, configMaps, c.name(key), expected)
	switch {
	case isStatus(err, http.StatusConflict), isStatus(err, http.StatusNotFound):
		return fmt.Errorf("kubernetes: delete %s at version %d: %w", key, expected, coord.ErrConflict)
	case err != nil:
		return failed(ctx, "delete", key, err)
	}
	return nil
}

// remove deletes an object if it still has a version; 0: any.
func (c *Client) remove(ctx context.Context, resource resource, name string, version int64) error {
	body := deletion{APIVersion: "v1", Kind: "DeleteOptions"}
	if version != 0 {
		body.Preconditions = &preconditions{fmt.Sprint(version)}
	}
	return c.call(ctx, request{verb: "delete", resource: resource, name: name, body: body}, nil)
}

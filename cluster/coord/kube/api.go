package kube

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"grebe/cluster/coord"
)

const (
	pingAfter  = time.Second     // without a byte, a connection is checked
	pingWithin = 2 * time.Second // without an answer, it is closed
	tokenFor   = 10 * time.Second
	pageItems  = 100
	maxPage    = 64 << 20 // bytes of a response; 100 values of coord.MaxData in base64 take 35 MB
	maxItems   = 10_000   // of a listing
	maxBytes   = 64 << 20 // of a listing's values
)

// transport returns the connection's settings, and the beginning of all URLs.
func transport(o Options) (*http.Transport, string) {
	t := &http.Transport{HTTP2: &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingWithin}}
	if o.Dial != nil {
		t.Protocols = new(http.Protocols)
		t.Protocols.SetUnencryptedHTTP2(true)
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := o.Dial(ctx)
			if err != nil {
				return nil, &dialError{err}
			}
			return conn, nil
		}
		return t, "http://" + o.Server
	}
	t.ForceAttemptHTTP2 = true
	t.DialTLSContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		conn, err := o.connect(ctx, network)
		if err != nil {
			return nil, &dialError{err}
		}
		return conn, nil
	}
	return t, "https://" + o.Server
}

// connect connects to the API server and checks its certificate.
func (o Options) connect(ctx context.Context, network string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, o.Timeout) // it may serve calls that come later
	defer cancel()
	pem, err := os.ReadFile(o.CA)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s has no certificate", o.CA)
	}
	host, _, _ := net.SplitHostPort(o.Server) // it was validated
	d := tls.Dialer{Config: &tls.Config{RootCAs: roots, ServerName: host, MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2", "http/1.1"}}}
	return d.DialContext(ctx, network, o.Server)
}

// dialError reports that no request was sent.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// token is a bearer token in a file, which the kubelet replaces now and then.
type token struct {
	file string
	mu   sync.Mutex
	text string
	read time.Time
}

func (t *token) get() (string, error) {
	if t.file == "" {
		return "", nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.text != "" && time.Since(t.read) < tokenFor {
		return t.text, nil
	}
	b, err := os.ReadFile(t.file)
	if err != nil {
		return "", err
	}
	if t.text = strings.TrimSpace(string(b)); t.text == "" {
		return "", fmt.Errorf("the token in %s is empty", t.file)
	}
	t.read = time.Now()
	return t.text, nil
}

// forget has the file read again.
func (t *token) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = ""
}

// request is one call of the API.
type request struct {
	verb     string // as in a Role
	resource resource
	name     string // none: of the whole collection
	query    url.Values
	body     any
}

var methods = map[string]string{
	"get": http.MethodGet, "list": http.MethodGet, "watch": http.MethodGet, "create": http.MethodPost,
	"update": http.MethodPut, "patch": http.MethodPatch, "delete": http.MethodDelete,
}

// reads reports whether the request can be sent twice.
func (r *request) reads() bool { return methods[r.verb] == http.MethodGet }

// Denied reports that the service account lacks a right.
type Denied struct {
	Verb, Resource, Group, Namespace string
	message                          string // of the API server
}

func (e *Denied) Error() string {
	full := e.Resource
	if e.Group != "" {
		full += "." + e.Group
	}
	text := fmt.Sprintf("no right to %s %s in namespace %s: add the verb %s for %s to the service account's Role",
		e.Verb, full, e.Namespace, e.Verb, full)
	if e.message != "" {
		text += " (the API server says: " + e.message + ")"
	}
	return text
}

// statusError is an answer that is no success.
type statusError struct {
	code    int
	reason  string
	message string
	after   time.Duration // when to ask again; 0: the answer does not say
}

func (e *statusError) Error() string {
	return fmt.Sprintf("the API server answers %d %s: %s", e.code, e.reason, e.message)
}

func isStatus(err error, code int) bool {
	var s *statusError
	return errors.As(err, &s) && s.code == code
}

// statusOf reads an answer that is no success.
func (c *Client) statusOf(r *request, resp *http.Response) error {
	var s struct{ Reason, Message string }
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if json.Unmarshal(body, &s) != nil || s.Message == "" {
		s.Message = strings.TrimSpace(string(body[:min(len(body), 200)]))
	}
	if resp.StatusCode == http.StatusForbidden {
		return &Denied{Verb: r.verb, Resource: r.resource.name, Group: r.resource.group, Namespace: c.o.Namespace,
			message: s.Message}
	}
	e := &statusError{code: resp.StatusCode, reason: s.Reason, message: s.Message}
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && seconds > 0 {
		e.after = time.Duration(seconds) * time.Second
	}
	return e
}

// send sends a request once. The caller MUST close the body of the response, whose status is a success.
func (c *Client) send(ctx context.Context, r *request) (*http.Response, error) {
	var body io.Reader
	if r.body != nil {
		b, err := json.Marshal(r.body)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(b)
	}
	at := c.base + r.resource.path + "/"
	if r.resource != reviews {
		at += "namespaces/" + c.o.Namespace + "/"
	}
	at += r.resource.name
	if r.name != "" {
		at += "/" + r.name
	}
	if len(r.query) > 0 {
		at += "?" + r.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, methods[r.verb], at, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "grebe")
	switch {
	case r.verb == "patch":
		req.Header.Set("Content-Type", "application/merge-patch+json")
	case r.body != nil:
		req.Header.Set("Content-Type", "application/json")
	}
	bearer, err := c.auth.get()
	if err != nil {
		return nil, &dialError{err}
	}
	if bearer != "" {
		req.Header.Set("Authorization", "Bearer "+bearer)
	}
	resp, err := c.http.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		defer resp.Body.Close()
		return nil, c.statusOf(r, resp)
	}
	return resp, nil
}

// call sends a request and reads the answer into out. It sends it again, within the client's timeout, if the API server
// is too busy to look at it, or does not know the token; reads also after other failures, and writes if they were not
// sent.
func (c *Client) call(ctx context.Context, r request, out any) error {
	ctx, cancel := context.WithTimeout(ctx, c.o.Timeout)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	var wait coord.Backoff
	known := true // the token, by the API server
	for {
		err := c.once(ctx, &r, out)
		var pause time.Duration
		var status *statusError
		var unsent *dialError
		switch {
		case err == nil:
			return nil
		case isStatus(err, http.StatusUnauthorized) && known:
			c.auth.forget()
			known = false
			continue
		case errors.As(err, &status) && status.code == http.StatusTooManyRequests:
			pause = status.after
		case errors.As(err, &status) && (status.code < 500 || !r.reads()):
			return err
		case errors.As(err, new(*Denied)):
			return err
		case !r.reads() && !errors.As(err, &unsent):
			return err
		}
		if !sleep(ctx, pause, &wait) {
			return err
		}
	}
}

// sleep waits for a given time, or for that of wait. It returns false if ctx ends before that.
func sleep(ctx context.Context, pause time.Duration, wait *coord.Backoff) bool {
	if pause == 0 {
		return wait.Wait(ctx)
	}
	if end, ok := ctx.Deadline(); ok && time.Until(end) <= pause {
		return false
	}
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (c *Client) once(ctx context.Context, r *request, out any) error {
	resp, err := c.send(ctx, r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxPage+1))
	if err != nil {
		return err
	}
	if len(body) > maxPage {
		return errTooMuch
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(body, out); err != nil {
		return fmt.Errorf("the API server's answer: %w", err)
	}
	return nil
}

// list returns all objects that a selector selects, and the version of the listing. It reads page by page: the later
// ones show the state of the first.
func (c *Client) list(ctx context.Context, of resource, selector string) ([]object, string, error) {
	ctx, cancel := context.WithTimeout(ctx, 4*c.o.Timeout)
	defer cancel()
	var all []object
	for size, next := 0, ""; ; {
		query := url.Values{"labelSelector": {selector}, "limit": {strconv.Itoa(pageItems)}}
		if next != "" {
			query.Set("continue", next)
		}
		var page objects
		if err := c.call(ctx, request{verb: "list", resource: of, query: query}, &page); err != nil {
			return nil, "", err
		}
		for i := range page.Items {
			size += len(page.Items[i].BinaryData[dataField])
		}
		all = slices.Concat(all, page.Items)
		if len(all) > maxItems || size > maxBytes {
			return nil, "", errTooMuch
		}
		if next = page.Metadata.Continue; next == "" {
			return all, page.Metadata.ResourceVersion, nil
		}
	}
}

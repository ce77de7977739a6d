// Package client asks a Grebe server from Go.
//
//	c, err := client.New("http://127.0.0.1:8080", client.Options{Key: key})
//	answer, err := c.Rank(ctx, &client.RankRequest{User: client.User{ID: "u42"}, Candidates: client.IDs("i1", "i2")})
//
// A client repeats a request that the server did not take, because it is full, stopping, starting or gone for a
// moment. It waits for the time that the server asks for, until the context or Options.Patience ends. Repeating is
// safe: rankings and recommendations change nothing, and writing a whole item or user twice gives the same result.
// AppendEvents is the exception. It is repeated only if it surely did not arrive.
//
// A Client is safe for concurrent use.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// maxAnswer bounds what is read of an answer, in bytes.
const maxAnswer = 256 << 20

// Options of a client. The zero value asks without a key and is patient for ten seconds.
type Options struct {
	Key      string        // API key; none: the server wants none
	Patience time.Duration // how long a request is sent again that the server does not take; 10 s, negative: never
	HTTP     *http.Client  // for TLS and time limits; one of its own
}

// Client asks one server.
type Client struct {
	base string
	opt  Options
}

// New returns a client of the server at an address such as http://127.0.0.1:8080.
func New(server string, opt Options) (*Client, error) {
	u, err := url.Parse(server)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("client: %q is not an address such as http://127.0.0.1:8080", server)
	}
	if opt.Patience == 0 {
		opt.Patience = 10 * time.Second
	}
	if opt.HTTP == nil {
		opt.HTTP = &http.Client{Transport: http.DefaultTransport.(*http.Transport).Clone()}
	}
	return &Client{base: strings.TrimRight(server, "/"), opt: opt}, nil
}

// Close gives connections back.
func (c *Client) Close() { c.opt.HTTP.CloseIdleConnections() }

// Error is what a server says is wrong.
type Error struct {
	Status  int    // of HTTP
	Code    string // such as invalid_argument
	Message string
	Field   string        // path of the field in question, if any
	After   time.Duration // when to ask again, if the server said so
	refused bool          // Grebe itself did not take it, for want of room: it had no effect
}

func (e *Error) Error() string { return fmt.Sprintf("grebe: %s: %s", e.Code, e.Message) }

// again reports whether a request that failed so was not taken, and may be sent again.
func (e *Error) again() bool {
	switch e.Status {
	case http.StatusServiceUnavailable, http.StatusTooManyRequests, http.StatusGatewayTimeout:
		// the last: expired in the queue
		return true
	}
	return false
}

// Rank orders candidates for a user.
func (c *Client) Rank(ctx context.Context, r *RankRequest) (*RankResponse, error) {
	out := &RankResponse{}
	return out, c.call(ctx, http.MethodPost, "/v1/rank", r, out, true)
}

// Recommend generates items of the catalog for a user.
func (c *Client) Recommend(ctx context.Context, r *RecommendRequest) (*RecommendResponse, error) {
	out := &RecommendResponse{}
	return out, c.call(ctx, http.MethodPost, "/v1/recommend", r, out, true)
}

// PutItem adds or replaces an item.
func (c *Client) PutItem(ctx context.Context, it *Item) error {
	return c.call(ctx, http.MethodPut, "/v1/items/"+url.PathEscape(it.ID), it, nil, true)
}

// DeleteItem removes an item, and what is cached of it.
func (c *Client) DeleteItem(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, "/v1/items/"+url.PathEscape(id), nil, nil, true)
}

// PutUser adds or replaces a user.
func (c *Client) PutUser(ctx context.Context, u *User) error {
	return c.call(ctx, http.MethodPut, "/v1/users/"+url.PathEscape(u.ID), u, nil, true)
}

// DeleteUser removes a user, and what is cached for them everywhere.
func (c *Client) DeleteUser(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, "/v1/users/"+url.PathEscape(id), nil, nil, true)
}

// AppendEvents adds what a user did, oldest first.
func (c *Client) AppendEvents(ctx context.Context, user string, events ...Event) error {
	body := struct {
		Events []Event `json:"events"`
	}{events}
	return c.call(ctx, http.MethodPost, "/v1/users/"+url.PathEscape(user)+"/events", body, nil, false)
}

// Ready reports whether the server answers requests; an error says why not.
func (c *Client) Ready(ctx context.Context) error {
	_, err := c.send(ctx, http.MethodGet, "/v2/health/ready", nil)
	return err
}

// call sends a request, again if need be, and reads the answer into out, which may be nil.
func (c *Client) call(ctx context.Context, method, path string, in, out any, repeatable bool) error {
	body, raw := in.([]byte) // NDJSON is sent as it is
	if in != nil && !raw {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return fmt.Errorf("grebe: %w", err)
		}
	}
	end := time.Now().Add(c.opt.Patience)
	pause := 20 * time.Millisecond
	for first := true; ; first = false {
		answer, err := c.send(ctx, method, path, body)
		var told *Error
		if !first && method == http.MethodDelete && errors.As(err, &told) && told.Status == http.StatusNotFound {
			return nil // what was sent before removed it
		}
		if err == nil {
			if out == nil {
				return nil
			}
			if err := json.Unmarshal(answer, out); err != nil {
				return fmt.Errorf("grebe: read the answer of %s: %w", c.base, err)
			}
			return nil
		}
		wait, ok := after(err, repeatable)
		if wait = max(wait, pause); !ok || time.Now().Add(wait).After(end) {
			return err
		}
		pause = min(2*pause, time.Second)
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return errors.Join(ctx.Err(), err)
		case <-timer.C:
		}
	}
}

// after says whether to send a request again that failed, and when.
func after(err error, repeatable bool) (time.Duration, bool) {
	var told *Error
	if errors.As(err, &told) {
		return told.After, told.again() && (repeatable || told.refused)
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return 0, false
	}
	// No connection: it did not arrive. A connection that broke: it may have.
	var dial *net.OpError
	refused := errors.Is(err, syscall.ECONNREFUSED) || errors.As(err, &dial) && dial.Op == "dial"
	return 0, refused || repeatable
}

func (c *Client) send(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("grebe: %w", err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.opt.Key != "" {
		req.Header.Set("Authorization", "Bearer "+c.opt.Key)
	}
	resp, err := c.opt.HTTP.Do(req)
	if err != nil {
		return nil, fmt.Errorf("grebe: %w", err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("grebe: read the answer of %s: %w", c.base, err)
	}
	if resp.StatusCode/100 == 2 {
		return answer, nil
	}
	return nil, problem(resp, answer)
}

// problem reads what a server says is wrong.
func problem(resp *http.Response, answer []byte) error {
	var told struct {
		Error struct{ Code, Message, Field string } `json:"error"`
	}
	e := &Error{Status: resp.StatusCode, Code: strconv.Itoa(resp.StatusCode), Message: resp.Status}
	if json.Unmarshal(answer, &told) == nil && told.Error.Code != "" {
		e.Code, e.Message, e.Field = told.Error.Code, told.Error.Message, told.Error.Field
		e.refused = e.Code == "resource_exhausted"
	}
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 {
		e.After = time.Duration(s) * time.Second
	}
	return e
}

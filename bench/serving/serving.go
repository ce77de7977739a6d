// Package serving measures a running server under load over HTTP: recommendations or rankings for users who come back,
// in an open loop of Poisson arrivals or in a closed loop of clients. Make writes a server's files for such a load:
// models of random weights, items with semantic IDs, and users, who have tokens or, for a model of events, events.
//
// A rate is sustained if at least 99 % of all requests that were due are answered within the SLO of their intended
// arrival. Refused requests count as misses.
package serving

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"grebe/bench/load"
	"grebe/workload"
)

// Options describe a load. Zero means the default.
type Options struct {
	URL   string  // of the server
	Model string  // that is asked; the server's only one
	Users int     // with the ids u0, u1, …; 2,000
	Zipf  float64 // exponent of the law that users are drawn by; 1.05
	Width int     // beams; 128
	N     int     // items of an answer; 10
	// Filter is the filter of each recommendation, as JSON; none.
	Filter string
	// Candidates asks for rankings of so many of the first Items items, instead of recommendations. They are drawn by
	// the same law as users.
	Candidates, Items int
	// New is how many new events of its user each ranking brings; none. Send says how; SendNew. SendWhole needs Items and
	// Events as Make had them.
	New    int
	Send   Send
	Events int // 15,000
	// Uncached has each ranking computed whole, as for a user who comes for the first time.
	Uncached bool

	Rates   []float64     // of open loops, per second
	Clients []int         // of closed loops
	Length  time.Duration // of a loop; 20 s
	Warmup  time.Duration // ahead of each loop, with the same load; 2 s
	SLO     time.Duration // 200 ms
	// Deadline is sent with each request; the SLO in open loops, and a minute in closed ones, whose requests wait for
	// each other.
	Deadline time.Duration
	Seed     uint64
	Loops    func(*Loop) // is told of each loop that has ended; may be nil
}

// Loop is the result of one loop.
type Loop struct {
	load.Result
	Clients   int     `json:"clients,omitempty"` // 0: an open loop
	Width     int     `json:"width"`
	Sustained bool    `json:"sustained"`       // in an open loop; see the package comment
	Within    float64 `json:"within"`          // share of all requests that were answered within the SLO
	Computed  float64 `json:"computed_tokens"` // of the prompt, per answer
	Cached    float64 `json:"cached_tokens"`   // of the prompt, per answer
}

func (o *Options) prepare() error {
	if o.URL == "" {
		return errors.New("serving: no server is named")
	}
	if len(o.Rates) == 0 && len(o.Clients) == 0 {
		return errors.New("serving: neither rates nor clients are given")
	}
	if o.Filter != "" && !json.Valid([]byte(o.Filter)) {
		return fmt.Errorf("serving: the filter %s is not JSON", o.Filter)
	}
	set(&o.Items, ranked)
	if o.Send == "" {
		o.Send = SendNew
	}
	if o.New > 0 && (o.Candidates == 0 || !slices.Contains([]Send{SendNew, SendAppend, SendWhole}, o.Send)) {
		return fmt.Errorf("serving: new events are sent %q with %d candidates: want candidates, and new, append or whole",
			o.Send, o.Candidates)
	}
	if o.Uncached && o.Candidates == 0 {
		return errors.New("serving: only rankings can be asked for without cached KV")
	}
	set(&o.Events, 15_000)
	if o.Candidates > o.Items/2 {
		return fmt.Errorf("serving: %d candidates of %d items, want at most half", o.Candidates, o.Items)
	}
	set(&o.Users, 2000)
	set(&o.Zipf, 1.05)
	set(&o.Width, 128)
	set(&o.N, 10)
	set(&o.Length, 20*time.Second)
	set(&o.Warmup, 2*time.Second)
	set(&o.SLO, 200*time.Millisecond)
	set(&o.Seed, 1)
	return nil
}

func set[T int | uint64 | float64 | time.Duration](to *T, v T) {
	if *to == 0 {
		*to = v
	}
}

// Run runs the open loops and then the closed ones.
func Run(ctx context.Context, o Options) ([]Loop, error) {
	if err := o.prepare(); err != nil {
		return nil, err
	}
	c := newClient(&o)
	defer c.http.CloseIdleConnections()
	var out []Loop
	first := 0
	add := func(r load.Result, clients int, err error) error {
		if err != nil {
			return err
		}
		first = r.Next
		l := c.loop(r, clients)
		out = append(out, l)
		if o.Loops != nil {
			o.Loops(&l)
		}
		return nil
	}
	for i, rate := range o.Rates {
		lo := o.run(fmt.Sprintf("%.4g/s", rate), o.SLO, first)
		lo.Arrivals = workload.Poisson(rate, o.Seed+uint64(i))
		r, err := load.Open(ctx, lo, c.asking(o.deadline(o.SLO)))
		if err := add(r, 0, err); err != nil {
			return out, err
		}
	}
	for _, n := range o.Clients {
		lo := o.run(fmt.Sprintf("%d clients", n), o.SLO, first)
		lo.Workers = n
		r, err := load.Closed(ctx, lo, c.asking(o.deadline(time.Minute)))
		if err := add(r, n, err); err != nil {
			return out, err
		}
	}
	return out, nil
}

// run is what open and closed loops have in common.
func (o *Options) run(name string, slo time.Duration, first int) load.Options {
	return load.Options{Name: name, Duration: o.Length, Warmup: o.Warmup, First: first, SLO: slo, InFlight: 4096,
		Classify: classOf}
}

func (o *Options) deadline(usual time.Duration) time.Duration {
	if o.Deadline > 0 {
		return o.Deadline
	}
	return usual
}

// client asks for recommendations.
type client struct {
	o     *Options
	http  http.Client
	users *workload.Zipf
	items *workload.Zipf
	path  string

	history *history // of requests with new events
	stored  stored

	mu               sync.Mutex
	answers          int
	computed, cached int
}

func newClient(o *Options) *client {
	c := &client{o: o, path: "/v1/recommend"}
	c.users, c.items = workload.NewZipf(o.Users, 1, o.Zipf), workload.NewZipf(o.Items, 1, o.Zipf)
	if o.Candidates > 0 {
		c.path = "/v1/rank"
	}
	if o.New > 0 {
		c.history = newHistory(o.Events, o.Items)
	}
	c.http.Transport = &http.Transport{MaxIdleConns: 8192, MaxIdleConnsPerHost: 8192, DisableCompression: true}
	return c
}

// asking returns a load.Do whose request i asks for the same whenever it is sent.
func (c *client) asking(deadline time.Duration) load.Do {
	return func(ctx context.Context, i int) error { return c.ask(ctx, i, deadline) }
}

// body is request i.
func (c *client) body(i int, deadline time.Duration) []byte {
	b, _, _ := c.request(i, deadline)
	return b
}

// request returns the body of request i, and the path and body of the one that comes ahead of it, if any.
func (c *client) request(i int, deadline time.Duration) (body []byte, path string, ahead []byte) {
	r := rand.New(rand.NewPCG(c.o.Seed, uint64(i)+1<<32))
	model := ""
	if c.o.Model != "" {
		model = fmt.Sprintf(`"model":%q,`, c.o.Model)
	}
	if c.o.New > 0 {
		b, path, ahead := c.eventsBody(model, r, deadline)
		return c.rank(b, r), path, ahead
	}
	user := userID(c.users.Draw(r))
	b := fmt.Appendf(nil, `{%s"user":{"id":%q},"deadline_ms":%d`, model, user, deadline.Milliseconds())
	if c.o.Candidates > 0 {
		return c.rank(b, r), "", nil
	}
	b = fmt.Appendf(b, `,"n":%d,"beam_width":%d`, c.o.N, c.o.Width)
	if c.o.Filter != "" {
		b = fmt.Appendf(b, `,"filter":%s`, c.o.Filter)
	}
	return append(b, '}'), "", nil
}

// rank ends the body of a ranking.
func (c *client) rank(b []byte, r *rand.Rand) []byte {
	if c.o.Uncached {
		b = append(b, `,"prefix":"none"`...)
	}
	b = append(b, `,"candidates":[`...)
	drawn := map[int]bool{}
	for len(drawn) < c.o.Candidates {
		if i := c.items.Draw(r); !drawn[i] {
			if len(drawn) > 0 {
				b = append(b, ',')
			}
			drawn[i] = true
			b = fmt.Appendf(b, `{"id":"i%d"}`, i)
		}
	}
	return append(b, "]}"...)
}

func (c *client) ask(ctx context.Context, i int, deadline time.Duration) error {
	body, path, ahead := c.request(i, deadline)
	if ahead != nil {
		if _, err := c.post(ctx, path, ahead, created...); err != nil {
			return err
		}
	}
	text, err := c.post(ctx, c.path, body, http.StatusOK)
	if err != nil {
		return err
	}
	return c.account(text)
}

// post sends a body and returns the answer.
func (c *client) post(ctx context.Context, path string, body []byte, want ...int) ([]byte, error) {
	status, text, err := c.do(ctx, http.MethodPost, path, body)
	if err != nil {
		return nil, err
	}
	return text, checkStatus(status, text, want...)
}

// account reads an answer.
func (c *client) account(text []byte) error {
	var answer struct {
		Results []struct{} `json:"results"`
		Usage   struct {
			Prompt int `json:"prompt_tokens"`
			Cached int `json:"cached_tokens"`
		} `json:"usage"`
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return fmt.Errorf("serving: read an answer: %w", err)
	}
	if len(answer.Results) == 0 {
		return errors.New("serving: an answer without items")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answers++
	c.cached += answer.Usage.Cached
	c.computed += answer.Usage.Prompt - answer.Usage.Cached
	return nil
}

// loop returns what a loop did, and begins anew. Tokens are those of its warm-up, too.
func (c *client) loop(r load.Result, clients int) Loop {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := float64(max(c.answers, 1))
	l := Loop{Result: r, Clients: clients, Width: c.o.Width, Computed: float64(c.computed) / n,
		Cached: float64(c.cached) / n,
		Within: float64(r.Good) / float64(max(r.Requests, 1)), Sustained: clients == 0 && r.KeepsSLO()}
	c.answers, c.computed, c.cached = 0, 0, 0
	return l
}

// refused is an answer that is not 200.
type refused struct {
	status int
	text   []byte
}

func (e *refused) Error() string { return fmt.Sprintf("serving: status %d: %s", e.status, e.text) }

// classOf names errors by their status.
func classOf(err error) string {
	var r *refused
	switch {
	case errors.As(err, &r):
		return fmt.Sprint(r.status)
	case errors.Is(err, context.DeadlineExceeded):
		return load.Timeout
	}
	return load.Failed
}

func userID(n int) string { return fmt.Sprint("u", n) }

package simcheck

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"syscall"
	"time"

	"grebe/bench/load"
	"grebe/plan"
	"grebe/sim"
	"grebe/workload"
)

// compare sends the same requests to a server and to the simulator.
func (s *site) compare(ctx context.Context, r *Rate, seed uint64) error {
	span := s.o.Warmup + s.o.Length
	reqs, err := draw(s.shop.Model, int(r.Rate*span.Seconds()*1.2)+100, s.o.Candidates, s.o.Deadline, seed)
	if err != nil {
		return err
	}
	got, err := s.serve(ctx, r, reqs, span, seed)
	if err != nil {
		return err
	}
	r.Server = figures(got, s.o.Warmup)
	predicted, err := s.simulate(ctx, reqs, 0, r.Link)
	if err != nil {
		return err
	}
	r.Sim = figures(predicted, s.o.Warmup)
	if s.o.Where {
		r.Where, err = s.where()
	}
	return err
}

// serve starts a server and sends the requests in an open loop. It leaves those that were sent, with their times, in
// reqs.
func (s *site) serve(ctx context.Context, r *Rate, reqs *requests, span time.Duration,
	seed uint64) (_ []sim.Ended, err error) {
	servers, err := s.start(ctx, r.Nodes)
	defer func() {
		for _, server := range slices.Backward(servers) { // the first one may have the others' etcd
			err = errors.Join(err, server.Stop())
		}
	}()
	if err != nil {
		return nil, err
	}
	c := &client{reqs: reqs.all, got: make([]sim.Ended, len(reqs.all))}
	for _, server := range servers {
		c.urls = append(c.urls, server.URL+"/v1/rank")
	}
	c.http.Transport = &http.Transport{MaxIdleConnsPerHost: 1024, DisableCompression: true}
	defer c.http.CloseIdleConnections()
	before, err := cpuSeconds(ctx, servers)
	if err != nil {
		return nil, err
	}
	own := cpuTime()
	c.start = time.Now()
	res, err := load.Open(ctx, load.Options{
		Name: "rankings", Arrivals: workload.Poisson(r.Rate, seed), Duration: span, Requests: len(reqs.all),
		Timeout: time.Minute,
	}, c.rank)
	seconds, own := time.Since(c.start).Seconds(), cpuTime()-own
	if err != nil {
		return nil, err
	}
	if len(res.Errors) > 0 {
		return nil, fmt.Errorf("errors %v", res.Errors)
	}
	after, err := cpuSeconds(ctx, servers)
	if err != nil {
		return nil, err
	}
	r.GeneratorCPU, r.ServerCPU, r.LagP99 = own.Seconds()/seconds, (after-before)/seconds, res.Lag.P99
	if r.Nodes > 1 {
		if r.Link, err = measureLink(ctx, servers); err != nil {
			return nil, err
		}
	}
	c.got, reqs.all = c.got[:res.Next], reqs.all[:res.Next]
	for i := range reqs.all {
		reqs.all[i].At = c.got[i].At
	}
	slices.SortStableFunc(reqs.all, func(a, b request) int { return int(a.At - b.At) })
	return c.got, nil
}

// cpuTime returns the CPU time of this process.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// client sends requests and keeps how they ended.
type client struct {
	urls  []string // requests enter at one after the other
	http  http.Client
	reqs  []request
	start time.Time
	got   []sim.Ended
}

// rank sends request i.
func (c *client) rank(ctx context.Context, i int) error {
	e := &c.got[i]
	sent := time.Now()
	e.At = sent.Sub(c.start)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.urls[i%len(c.urls)], bytes.NewReader(c.reqs[i].body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	e.Took = time.Since(sent)
	switch {
	case err != nil:
		return err
	case resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusGatewayTimeout:
		return nil
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("%s: %.200s", resp.Status, text)
	}
	var answer struct {
		Node   string `json:"node"`
		Prefix string `json:"prefix"`
		Usage  struct {
			Prompt   int `json:"prompt_tokens"`
			Computed int `json:"computed_tokens"`
			User     int `json:"user_tokens"`
		} `json:"usage"`
		Timing struct {
			Queue   float64 `json:"queue"`
			Compute float64 `json:"compute"`
		} `json:"timing_ms"`
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return err
	}
	if want := int(c.reqs[i].UserTokens); answer.Usage.User != want {
		return fmt.Errorf("the server counts %d tokens of a user, not %d", answer.Usage.User, want)
	}
	if answer.Prefix == "item" {
		e.Order = plan.ItemFirst
	}
	_, _ = fmt.Sscanf(answer.Node, "n%d", &e.Node) // a server without a cluster has no name
	e.Answered, e.Tokens, e.Computed = true, answer.Usage.Prompt, answer.Usage.Computed
	e.Queue = time.Duration(answer.Timing.Queue * float64(time.Millisecond))
	e.Compute = time.Duration(answer.Timing.Compute * float64(time.Millisecond))
	return nil
}

// simulate runs one node on the requests, or those of a cluster that a link connects: at the requests' times, or by
// clients that wait for their answers if there are any.
func (s *site) simulate(ctx context.Context, reqs *requests, clients int, link *Link) ([]sim.Ended, error) {
	c := sim.Default()
	c.SLO, c.Deadline = sim.Duration{Duration: s.o.Deadline}, sim.Duration{Duration: s.o.Deadline}
	c.Prompt.Preamble, c.Prompt.LeadIn, c.Prompt.Question = reqs.fixed[0], reqs.fixed[1], reqs.fixed[2]
	c.Requests, c.Load.Rate, c.Load.Clients = len(reqs.all), 1, clients
	// The laws of users and items are not used: the requests are given.
	c.Users.Count, c.Users.Tokens.Mean = users, 1
	c.Items.Count, c.Items.Candidates, c.Items.Tokens.Mean = len(reqs.lengths), s.o.Candidates, 1
	c.Fleet.Profile, c.Fleet.Host = s.file, sim.Bytes(s.host)
	c.Cache.Predict, c.Cache.Page = true, sim.Bytes(s.page)
	c.Network.Latency = sim.Duration{}
	if link != nil {
		link.connect(c)
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	var out []sim.Ended
	reqs.next = 0
	_, err := sim.Run(ctx, c, sim.Options{Stream: reqs, Ended: func(e *sim.Ended) { out = append(out, *e) }})
	return out, err
}

// capacity returns the rankings per second of a closed loop, as the simulator predicts it.
func (s *site) capacity(ctx context.Context) (float64, error) {
	const requests, clients = 600, 4
	reqs, err := draw(s.shop.Model, requests, s.o.Candidates, s.o.Deadline, s.o.Seed+1000)
	if err != nil {
		return 0, err
	}
	all, err := s.simulate(ctx, reqs, clients, nil)
	if err != nil {
		return 0, err
	}
	// The first half fills the cache.
	half := all[len(all)/2].At
	return figures(all, half).Throughput, nil
}

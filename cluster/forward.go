package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	grebev1 "grebe/api/grebe/v1"
	"grebe/cluster/feed"
	"grebe/cluster/member"
	"grebe/serve"
)

// reconnect has a node that comes back used within about a second.
var reconnect = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: .2, MaxDelay: time.Second},
	MinConnectTimeout: time.Second,
}

// Headers of the answers to forwarded requests.
const (
	backlogHeader = "grebe-backlog-us" // of an answer: predicted time until the queue is empty
	tookHeader    = "grebe-took-us"    // of an answer: time that the node took
	errorHeader   = "grebe-error-bin"  // of an error: as JSON
)

// failure is an error as it travels.
type failure struct {
	Code    string `json:"code"`
	Field   string `json:"field,omitempty"`
	Problem string `json:"problem"`
	AfterUs int64  `json:"after_us,omitempty"`
}

// Answer implements serve.Fleet.
func (c *Cluster) Answer(ctx context.Context, a *serve.Asked, here func(context.Context) (proto.Message, error)) (proto.Message, error) {
	f := c.fleets[a.Model]
	secret := c.sharedSecretNow()
	if f == nil || secret == nil {
		return c.alone(ctx, here)
	}
	p, ok := f.pick(a, secret, "")
	if !ok {
		resp, err := c.alone(ctx, here)
		return explained(a, resp, &p, "alone"), err
	}
	c.metrics.routed(&p, c.cfg.Node, false)
	resp, err := c.ask(ctx, f, &p, a, here)
	if !again(ctx, a, err) {
		return explained(a, resp, &p, reason(&p)), clean(err)
	}
	first, tried := p.node, p.node == c.cfg.Node
	if p, ok = f.pick(a, secret, first); ok && p.node != first {
		c.metrics.routed(&p, c.cfg.Node, true)
		resp, err = c.ask(ctx, f, &p, a, here)
		tried = tried || p.node == c.cfg.Node
	}
	if tried || !again(ctx, a, err) || !c.computes() {
		return explained(a, resp, &p, "again"), clean(err)
	}
	resp, err = c.alone(ctx, here) // two nodes failed, and this one was not asked
	return explained(a, resp, &p, "again"), err
}

// reason says in a word why a node was picked.
func reason(p *pick) string {
	switch {
	case p.choice.User > 0:
		return "user"
	case p.choice.Reuse > 0:
		return "items"
	}
	return "load"
}

// explained adds to an answer why its node gave it, if the request asks for that.
func explained(a *serve.Asked, resp proto.Message, p *pick, why string) proto.Message {
	req, ok := a.Message.(*grebev1.RankRequest)
	if r, ranked := resp.(*grebev1.RankResponse); ok && ranked && req.Explain && r != nil {
		r.Route = &grebev1.Route{PredictedMs: p.choice.Ms, Reason: why, PredictedCached: int32(p.choice.Reuse)}
	}
	return resp
}

// again reports whether a request that failed is asked elsewhere.
func again(ctx context.Context, a *serve.Asked, err error) bool {
	return err != nil && ctx.Err() == nil && elsewhere(err) && time.Until(a.Deadline) > 0
}

func (c *Cluster) sharedSecretNow() *feed.Secret {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.secret
}

// alone answers a request here because no node is known, if this process computes.
func (c *Cluster) alone(ctx context.Context, here func(context.Context) (proto.Message, error)) (proto.Message, error) {
	if !c.computes() {
		return nil, serve.Errorf(serve.NoNode, "", "no node of the cluster can answer: see `grebe cluster status`")
	}
	c.metrics.total.WithLabelValues("alone").Inc()
	return here(ctx)
}

func (c *Cluster) computes() bool { return member.Record{Roles: c.cfg.Roles}.Has(member.Node) }

// errGone says that a node did not answer, whatever the reason. The request may have been computed there.
var errGone = errors.New("cluster: the node does not answer")

// elsewhere reports whether another node may answer a request that failed.
func elsewhere(err error) bool {
	if errors.Is(err, errGone) {
		return true
	}
	switch serve.Code(serve.AsError(err).Code()) {
	case serve.Unavailable, serve.Exhausted, serve.NotFound, serve.Internal:
		return true
	}
	return false
}

// clean turns errors of this package into one that a client may see.
func clean(err error) error {
	if errors.Is(err, errGone) {
		return serve.Errorf(serve.Unavailable, "", "the nodes that were asked do not answer: ask again")
	}
	return err
}

// ask asks the node that was picked.
func (c *Cluster) ask(ctx context.Context, f *fleet, p *pick, a *serve.Asked,
	here func(context.Context) (proto.Message, error)) (proto.Message, error) {
	start := time.Now()
	n := c.node(p.node, p.boot)
	if n != nil {
		n.routed.Add(1)
	}
	if p.node == c.cfg.Node {
		resp, err := here(ctx)
		if err == nil {
			f.answered(p, time.Since(start), 0, 0, false)
		}
		c.metrics.answered(p, time.Since(start), err)
		return resp, err
	}
	if n == nil {
		f.lost(p)
		return nil, errGone
	}
	ctx, cancel := context.WithDeadline(ctx, a.Deadline)
	defer cancel()
	defer context.AfterFunc(p.silent, cancel)() // a node that says nothing any more is not waited for
	var header, trailer metadata.MD
	resp, err := send(ctx, n.client, a.Message, grpc.Header(&header), grpc.Trailer(&trailer))
	took := time.Since(start)
	if err == nil {
		backlog, told := duration(header, backlogHeader)
		own, _ := duration(header, tookHeader)
		f.answered(p, took, took-own, backlog, told)
		c.metrics.answered(p, took, nil)
		return resp, nil
	}
	n.failed.Add(1)
	err = c.failed(ctx, err, trailer, p.silent.Err() != nil)
	if errors.Is(err, errGone) {
		f.lost(p)
	}
	c.metrics.answered(p, took, err)
	return nil, err
}

// failed returns the error of a forwarded request.
func (c *Cluster) failed(ctx context.Context, err error, trailer metadata.MD, silent bool) error {
	if v := trailer.Get(errorHeader); len(v) == 1 {
		var f failure
		if json.Unmarshal([]byte(v[0]), &f) == nil {
			return serve.Restored(serve.Code(f.Code), f.Field, f.Problem, time.Duration(f.AfterUs)*time.Microsecond)
		}
	}
	if silent {
		return errGone
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case status.Code(err) == codes.DeadlineExceeded:
		return context.DeadlineExceeded
	}
	return errGone
}

func duration(md metadata.MD, name string) (time.Duration, bool) {
	v := md.Get(name)
	if len(v) != 1 {
		return 0, false
	}
	n, err := strconv.ParseInt(v[0], 10, 64)
	return time.Duration(n) * time.Microsecond, err == nil && n >= 0
}

// send forwards a request.
func send(ctx context.Context, client grebev1.GrebeClient, m proto.Message, opts ...grpc.CallOption) (proto.Message, error) {
	switch m := m.(type) {
	case *grebev1.RankRequest:
		return client.Rank(ctx, m, opts...)
	case *grebev1.RecommendRequest:
		return client.Recommend(ctx, m, opts...)
	case *grebev1.ScoreRequest:
		return client.Score(ctx, m, opts...)
	case *grebev1.RerankRequest:
		return client.Rerank(ctx, m, opts...)
	}
	return nil, errors.New("cluster: requests of this kind are not forwarded")
}

// incoming answers requests that other members forward.
type incoming struct {
	grebev1.UnimplementedGrebeServer
	c *Cluster
}

func (i *incoming) Rank(ctx context.Context, r *grebev1.RankRequest) (*grebev1.RankResponse, error) {
	return answer(ctx, i.c, r.Model, r, Local.Rank)
}

func (i *incoming) Recommend(ctx context.Context, r *grebev1.RecommendRequest) (*grebev1.RecommendResponse, error) {
	return answer(ctx, i.c, r.Model, r, Local.Recommend)
}

func (i *incoming) Score(ctx context.Context, r *grebev1.ScoreRequest) (*grebev1.ScoreResponse, error) {
	return answer(ctx, i.c, r.Model, r, Local.Score)
}

func (i *incoming) Rerank(ctx context.Context, r *grebev1.RerankRequest) (*grebev1.RerankResponse, error) {
	return answer(ctx, i.c, r.Model, r, Local.Rerank)
}

// answer answers a forwarded request in this process.
func answer[Q, R proto.Message](ctx context.Context, c *Cluster, model string, req Q,
	local func(Local, context.Context, Q) (R, error)) (R, error) {
	start := time.Now()
	var none R
	l := c.local.Load()
	if l == nil || !c.computes() {
		return none, status.Error(codes.Unavailable, "cluster: this process does not compute")
	}
	resp, err := local(*l, serve.Forwarded(serve.Arrived(ctx, start)), req)
	if err != nil {
		e := serve.AsError(err)
		data, _ := json.Marshal(failure{e.Code(), e.Field(), e.Problem(), e.After().Microseconds()}) // always valid
		_ = grpc.SetTrailer(ctx, metadata.Pairs(errorHeader, string(data)))                          // fails only if ctx is not gRPC's
		return none, status.Error(codes.Unknown, e.Error())
	}
	md := metadata.Pairs(tookHeader, strconv.FormatInt(time.Since(start).Microseconds(), 10))
	if o, ok := (*l).Offer(c.modelName(model)); ok && o.Cache != nil {
		md.Set(backlogHeader, strconv.FormatInt(o.Cache.Backlog().Microseconds(), 10))
	}
	_ = grpc.SetHeader(ctx, md) // likewise
	return resp, nil
}

// modelName returns the model that a request means.
func (c *Cluster) modelName(name string) string {
	if name == "" && len(c.cfg.Models) == 1 {
		return c.cfg.Models[0].Name
	}
	return name
}

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	grebev1 "grebe/api/grebe/v1"
	"grebe/cluster/call"
	"grebe/serve"
	"grebe/serve/tracing"
)

// Operations of forwarded requests, as they travel.
const (
	opRank = 1 + iota
	opRecommend
	opScore
	opRerank
)

// failure is an error as it travels.
type failure struct {
	Code    string `json:"code"`
	Field   string `json:"field,omitempty"`
	Problem string `json:"problem"`
	AfterUs int64  `json:"after_us,omitempty"`
}

// ask forwards a request. An error that the node answered with is a *serve.Error.
func (n *node) ask(ctx context.Context, m proto.Message) (resp proto.Message, a call.Answer, err error) {
	var q call.Request
	switch m.(type) {
	case *grebev1.RankRequest:
		q.Op, resp = opRank, new(grebev1.RankResponse)
	case *grebev1.RecommendRequest:
		q.Op, resp = opRecommend, new(grebev1.RecommendResponse)
	case *grebev1.ScoreRequest:
		q.Op, resp = opScore, new(grebev1.ScoreResponse)
	case *grebev1.RerankRequest:
		q.Op, resp = opRerank, new(grebev1.RerankResponse)
	default:
		return nil, a, fmt.Errorf("cluster: a %T is not forwarded", m)
	}
	q.Parent, q.State = tracing.Parent(ctx)
	if a, err = n.calls.Ask(ctx, &q, m); err != nil {
		return nil, a, err
	}
	if !a.Failed {
		return resp, a, proto.Unmarshal(a.Body, resp)
	}
	var f failure
	if err := json.Unmarshal(a.Body, &f); err != nil {
		return nil, a, fmt.Errorf("cluster: an error that cannot be read: %w", err)
	}
	return nil, a, serve.Restored(serve.Code(f.Code), f.Field, f.Problem, time.Duration(f.AfterUs)*time.Microsecond)
}

// incoming answers a request that another member forwarded. It is answered here: a request is forwarded once.
func (c *Cluster) incoming(ctx context.Context, q *call.Request) call.Answer {
	start := time.Now()
	l := c.local.Load()
	if l == nil || !c.computes() {
		return failed(serve.Errorf(serve.Unavailable, "", "this process does not compute"), start)
	}
	ctx = serve.Forwarded(serve.Arrived(ctx, start))
	switch q.Op {
	case opRank:
		return answer(ctx, c, *l, q, "rank", new(grebev1.RankRequest), Local.Rank)
	case opRecommend:
		return answer(ctx, c, *l, q, "recommend", new(grebev1.RecommendRequest), Local.Recommend)
	case opScore:
		return answer(ctx, c, *l, q, "score", new(grebev1.ScoreRequest), Local.Score)
	case opRerank:
		return answer(ctx, c, *l, q, "rerank", new(grebev1.RerankRequest), Local.Rerank)
	}
	return failed(serve.Errorf(serve.Unavailable, "", "no operation %d in this version", q.Op), start)
}

// request is a message that names a model.
type request interface {
	proto.Message
	GetModel() string
}

// answer answers a forwarded request in this process.
func answer[Q request, R proto.Message](ctx context.Context, c *Cluster, l Local, q *call.Request, op string, req Q,
	local func(Local, context.Context, Q) (R, error)) call.Answer {
	start := time.Now()
	if err := proto.Unmarshal(q.Body, req); err != nil {
		return failed(serve.Errorf(serve.Unavailable, "", "a request that cannot be read"), start)
	}
	ctx, end := l.Tracer().Continue(ctx, q.Parent, q.State, op)
	resp, err := rescued(l, op, func() (R, error) { return local(l, ctx, req) })
	end(err)
	if err != nil {
		return failed(err, start)
	}
	a := call.Answer{Took: time.Since(start), Backlog: -1, Message: resp}
	if o, ok := l.Offer(c.modelName(req.GetModel())); ok && o.Cache != nil {
		a.Backlog = o.Cache.Backlog()
	}
	return a
}

// rescued turns a panic into an error.
func rescued[R any](l Local, op string, do func() (R, error)) (resp R, err error) {
	defer l.Rescue(op, &err)
	return do()
}

// failed describes an error.
func failed(err error, start time.Time) call.Answer {
	e := serve.AsError(err)
	data, _ := json.Marshal(failure{e.Code(), e.Field(), e.Problem(), e.After().Microseconds()}) // always valid
	return call.Answer{Failed: true, Took: time.Since(start), Backlog: -1, Body: data}
}

package cluster

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/proto"

	grebev1 "grebe/api/grebe/v1"
	"grebe/cluster/feed"
	"grebe/cluster/member"
	"grebe/serve"
)

// Answer implements serve.Fleet.
func (c *Cluster) Answer(ctx context.Context, a *serve.Asked,
	here func(context.Context) (proto.Message, error)) (proto.Message, error) {
	f := c.fleets[a.Model]
	secret := c.sharedSecretNow()
	if f == nil || secret == nil {
		return c.alone(ctx, here)
	}
	var given time.Time // when it stops to look for a node; zero: there was one
	for {
		resp, err := c.route(ctx, f, secret, a, here)
		if c.computes() || !nobody(err) {
			return resp, clean(err)
		}
		if given.IsZero() {
			given = time.Now().Add(patience)
		}
		if !pause(ctx, lookAgain, a.Deadline, given) {
			return nil, clean(err)
		}
	}
}

// A process that does not compute looks for a node again when none was heard, or when those that were asked fell
// silent. All nodes are silent for a moment when this process is cut off from them, or has not run: that costs time
// alone.
const (
	patience  = 5 * time.Second
	lookAgain = 50 * time.Millisecond
)

// nobody reports whether no node was there to answer.
func nobody(err error) bool {
	return err != nil && (errors.Is(err, errGone) || serve.Code(serve.AsError(err).Code()) == serve.NoNode)
}

// pause waits, and reports whether none of the moments comes before it is over.
func pause(ctx context.Context, d time.Duration, before ...time.Time) bool {
	for _, t := range before {
		if time.Until(t) <= d {
			return false
		}
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// route has a request answered by the node that is picked, or by another one if that fails.
func (c *Cluster) route(ctx context.Context, f *fleet, secret *feed.Secret, a *serve.Asked,
	here func(context.Context) (proto.Message, error)) (proto.Message, error) {
	p, ok := f.pick(a, secret, "")
	if !ok {
		resp, err := c.alone(ctx, here)
		return explained(a, resp, &p, "alone"), err
	}
	c.metrics.routed(&p, c.cfg.Node, false)
	resp, err := c.ask(ctx, f, &p, a, here)
	if !again(ctx, a, err) {
		return explained(a, resp, &p, reason(&p)), err
	}
	first, tried := p.node, p.node == c.cfg.Node
	if p, ok = f.pick(a, secret, first); ok && p.node != first {
		c.metrics.routed(&p, c.cfg.Node, true)
		resp, err = c.ask(ctx, f, &p, a, here)
		tried = tried || p.node == c.cfg.Node
	}
	if tried || !again(ctx, a, err) || !c.computes() {
		return explained(a, resp, &p, "again"), err
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
	case 2*p.choice.Shards > p.shards:
		return "rows"
	}
	return "load"
}

// explained adds to an answer why its node gave it, if the request asks for that.
func explained(a *serve.Asked, resp proto.Message, p *pick, why string) proto.Message {
	if req, ok := a.Message.(interface{ GetExplain() bool }); !ok || !req.GetExplain() {
		return resp
	}
	route := &grebev1.Route{PredictedMs: p.choice.Ms, Reason: why, PredictedCached: int32(p.choice.Reuse)}
	switch r := resp.(type) {
	case *grebev1.RankResponse:
		if r != nil {
			r.Route = route
		}
	case *grebev1.RecommendResponse:
		if r != nil {
			r.Route = route
		}
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
	defer context.AfterFunc(p.silent, func() { // a node that says nothing any more is not waited for
		cancel()
		n.calls.Drop()
	})()
	resp, reply, err := n.ask(ctx, a.Message)
	took := time.Since(start)
	if err == nil {
		f.answered(p, took, took-reply.Took, reply.Backlog, reply.Backlog >= 0)
		c.metrics.answered(p, took, nil)
		return resp, nil
	}
	n.failed.Add(1)
	switch remote := (*serve.Error)(nil); {
	case errors.As(err, &remote):
	case p.silent.Err() == nil && ctx.Err() != nil:
		err = ctx.Err()
	default:
		err = errGone
		f.lost(p)
	}
	c.metrics.answered(p, took, err)
	return nil, err
}

// modelName returns the model that a request means.
func (c *Cluster) modelName(name string) string {
	if name == "" && len(c.cfg.Models) == 1 {
		return c.cfg.Models[0].Name
	}
	return name
}

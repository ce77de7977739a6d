package serve

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/proto"

	"grebe/ahead"
	grebev1 "grebe/api/grebe/v1"
	"grebe/embed"
	"grebe/reuse"
)

// Fleet is the cluster that this process belongs to. It answers requests on the node where they are cheapest.
type Fleet interface {
	// Answer answers a request: on another node, or by here, which answers it in this process.
	Answer(ctx context.Context, a *Asked, here func(context.Context) (proto.Message, error)) (proto.Message, error)
	// Index returns the part of the catalog that this process computes ahead of requests.
	Index(model string) ahead.Share
	// RollOut begins to change a model's checkpoint on all nodes. Wait returns how that ended, or nil when its context
	// ends.
	RollOut(ctx context.Context, model string, back bool) (wait func(context.Context) *grebev1.Rollout, err error)
	// Activate has all nodes generate a version of the catalog, and Rollback the one before. The errors are those of
	// generate.Keeper.
	Activate(ctx context.Context, model, version, digest string) error
	Rollback(ctx context.Context, model string) error
	// Rollout describes the last such change; nil: none is known.
	Rollout(model string) *grebev1.Rollout
}

// Asked is a request as a Fleet sees it.
type Asked struct {
	Op       string // rank, recommend, score or rerank
	Model    string // its name
	Message  proto.Message
	Start    time.Time
	Deadline time.Time
	Sizes    *reuse.Sizes // nil: only the load of nodes counts
	// Shards are the embedding shards of most of the rows that the request reads, the hottest first. UserRows and ItemRows
	// are how many rows its user and its candidates have. All are empty if the model's rows are in no table.
	Shards             []uint32
	UserRows, ItemRows int
}

// forwardedKey is the context key of requests that another process sent here.
type forwardedKey struct{}

// Forwarded marks a request that another process of the cluster sent here. It is answered here.
func Forwarded(ctx context.Context) context.Context {
	return context.WithValue(ctx, forwardedKey{}, true)
}

func forwarded(ctx context.Context) bool { return ctx.Value(forwardedKey{}) != nil }

// routed answers a request in the cluster, or by here if there is none. Describe is called with the request's model to
// set what Asked has of the prompt.
func routed[Q, R proto.Message](ctx context.Context, s *Service, op, model string, deadline int32, req Q,
	describe func(*call, *Asked) error, here func(context.Context, Q) (R, error)) (R, error) {
	if s.cfg.Cluster == nil || forwarded(ctx) {
		return here(ctx, req)
	}
	var none R
	a, err := s.asked(ctx, op, model, deadline, req, describe)
	if err != nil {
		return none, err
	}
	resp, err := s.cfg.Cluster.Answer(ctx, a, func(ctx context.Context) (proto.Message, error) { return here(ctx, req) })
	if err != nil {
		return none, err
	}
	return resp.(R), nil
}

// asked describes a request for the cluster. It refuses one that is wrong whoever answers it.
func (s *Service) asked(ctx context.Context, op, model string, deadline int32, req proto.Message,
	describe func(*call, *Asked) error) (*Asked, error) {
	c, err := s.begin(op, model, deadline)
	if err != nil {
		return nil, err
	}
	defer c.slot.release(c.model)
	if at, ok := ctx.Value(arrivedKey{}).(time.Time); ok {
		c.start = at
	}
	a := &Asked{Op: op, Model: c.model.Name, Message: req, Start: c.start, Deadline: c.start.Add(c.deadline)}
	e, _ := c.model.reads().(*events)
	if c.model.Cache != nil || e != nil && e.model.Shards() != nil { // a model that recomputes reads all rows each time
		err = describe(c, a)
	}
	return a, err
}

// describeRank describes a ranking.
func (s *Service) describeRank(c *call, a *Asked, req *grebev1.RankRequest) error {
	if err := checkCount("candidates", len(req.Candidates)); err != nil {
		return err
	}
	return s.describe(c, a, req.User, req.Candidates)
}

// describe describes a request for a user, with candidates or without.
func (s *Service) describe(c *call, a *Asked, m *grebev1.User, candidates []*grebev1.Item) error {
	user, err := s.whom(c, m)
	if err != nil {
		return err
	}
	w := &work{call: c, userID: user.Id}
	if err := c.model.reads().tokens(s, w, user, candidates); err != nil {
		return err
	}
	if c.model.Cache != nil {
		a.Sizes = c.model.Cache.Sizes(w.asked(candidates != nil && c.model.Scoring.Kind == Pointwise))
	}
	if e, ok := c.model.reads().(*events); ok {
		a.Shards = e.shards(s, w, candidates)
		if a.Shards != nil {
			a.UserRows, a.ItemRows = len(w.user), len(candidates)
		}
	}
	return nil
}

// noSizes leaves a request to the load of nodes.
func noSizes(*call, *Asked) error { return nil }

// Offer is a model as other nodes of the cluster see it.
type Offer struct {
	Version string        // of the checkpoint that serves
	Cache   *reuse.Cache  // nil: it keeps no KV
	Rows    *embed.Shards // look-ups of its item table; nil: they are not counted
}

// Offer describes a model. It returns false if there is no such model.
func (s *Service) Offer(model string) (o Offer, ok bool) {
	sl := s.models[model]
	if sl == nil {
		return o, false
	}
	m := sl.serving()
	o = Offer{Version: m.Version, Cache: m.Cache}
	if e, reads := m.reads().(*events); reads {
		o.Rows = e.model.Shards()
	}
	return o, true
}

// ForgetUsers removes the KV of all users, in memory and on disk. It is computed again when they come.
func (s *Service) ForgetUsers() error {
	var errs []error
	for _, sl := range s.served {
		for _, m := range sl.hold() {
			if m.Cache != nil {
				errs = append(errs, m.Cache.DropUsers())
			}
			sl.release(m)
		}
	}
	return errors.Join(errs...)
}

package place

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"grebe/cluster/coord"
	"grebe/cluster/leader"
	"grebe/internal/tick"
	"grebe/placement"
)

// Job publishes maps while this process leads.
type Job struct {
	Self        string // this start of the process
	Coordinator coord.Coordinator
	Models      []string
	// Nodes returns the nodes that serve a model; nil: the members are not known yet.
	Nodes func(model string) []Node
	// Heat returns the reports of the nodes that own a model's items, of those that answer soon; nil: there are no hot
	// items.
	Heat  func(ctx context.Context, model string, nodes []Node) []Report
	TTL   time.Duration // of the leader's term; default 10 s
	Every time.Duration // between two looks at the nodes; default 1 s
	Log   *slog.Logger
}

// Run takes part in the election until ctx ends.
func (j *Job) Run(ctx context.Context) error {
	if j.Every == 0 {
		j.Every = time.Second
	}
	return leader.Run(ctx, j.Coordinator, leader.Options{Key: "leader/placement", Self: j.Self, TTL: j.TTL, Log: j.Log},
		j.lead)
}

// published is a model's map as this term has it.
type published struct {
	model   string
	object  *leader.Object
	planner Planner
	now     *placement.Map // nil: there is none

	hotObject  *leader.Object
	hotPlanner HotPlanner
	hot        *Hot      // nil: there is none
	looked     time.Time // at the nodes' reports
}

// lead publishes maps until the term ends.
func (j *Job) lead(ctx context.Context, t *leader.Term) error {
	var all []*published
	for _, model := range j.Models {
		o, err := t.Claim(ctx, Key(model))
		if err != nil {
			return fmt.Errorf("claim the placement of %s: %w", model, err)
		}
		p := &published{model: model, object: o}
		if len(o.Data()) > 0 {
			if p.now, err = placement.Decode(o.Data()); err != nil {
				j.Log.Error("computing a new placement of a model", "model", model, "error", err)
			}
		}
		if p.hotObject, err = t.Claim(ctx, hotKey(model)); err != nil {
			return fmt.Errorf("claim the hot items of %s: %w", model, err)
		}
		if data := p.hotObject.Data(); len(data) > 0 {
			if p.hot, err = decodeHot(data); err != nil {
				j.Log.Error("computing the hot items of a model again", "model", model, "error", err)
			}
		}
		all = append(all, p)
	}
	timer := time.NewTimer(tick.Wait(j.Every))
	defer timer.Stop()
	for {
		for _, p := range all {
			if err := j.publish(ctx, p); err != nil {
				return err
			}
			if err := j.publishHot(ctx, p); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			timer.Reset(tick.Wait(j.Every))
		}
	}
}

// publish writes a model's map if it changed.
func (j *Job) publish(ctx context.Context, p *published) error {
	next, err := p.planner.Next(time.Now(), p.now, j.Nodes(p.model))
	if err != nil {
		return fmt.Errorf("place the items of %s: %w", p.model, err)
	}
	if next == p.now {
		return nil
	}
	if err := p.object.Write(ctx, next.Encode()); err != nil {
		return fmt.Errorf("publish the placement of %s: %w", p.model, err)
	}
	p.now = next
	j.Log.Info("items are placed", "model", p.model, "epoch", next.Epoch, "nodes", len(next.Members()))
	return nil
}

// publishHot writes a model's hot items if they changed.
func (j *Job) publishHot(ctx context.Context, p *published) error {
	if now := time.Now(); j.Heat == nil || now.Sub(p.looked) < heatEvery {
		return nil
	} else {
		p.looked = now
	}
	nodes := j.Nodes(p.model)
	next := p.hotPlanner.Next(p.looked, p.hot, j.Heat(ctx, p.model, nodes), len(nodes))
	if next == p.hot {
		return nil
	}
	data, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("the hot items of %s: %w", p.model, err)
	}
	if err := p.hotObject.Write(ctx, data); err != nil {
		return fmt.Errorf("publish the hot items of %s: %w", p.model, err)
	}
	p.hot = next
	j.Log.Info("hot items are placed on all nodes", "model", p.model, "epoch", next.Epoch, "items", len(next.Items))
	return nil
}

// Follow calls apply with each map that is published, until ctx ends. It ignores maps of earlier terms, and damaged
// ones. It calls listed when all maps that there are have been applied, again after each loss of the coordinator.
func Follow(ctx context.Context, c coord.Coordinator, log *slog.Logger, apply func(model string, m *placement.Map),
	listed func()) {
	follow(ctx, c, Prefix, log, placement.Decode, apply, listed)
}

// FollowHot does the same with the sets of hot items.
func FollowHot(ctx context.Context, c coord.Coordinator, log *slog.Logger, apply func(model string, h *Hot)) {
	follow(ctx, c, hotPrefix, log, decodeHot, apply, func() {})
}

func follow[T any](ctx context.Context, c coord.Coordinator, prefix string, log *slog.Logger,
	decode func([]byte) (T, error),
	apply func(model string, v T), listed func()) {
	var r leader.Reader
	for e := range c.Watch(ctx, prefix) {
		for _, n := range e.Entries {
			f, ok, err := r.Accept(n)
			if err == nil && ok && len(f.Data) > 0 {
				var v T
				if v, err = decode(f.Data); err == nil {
					apply(strings.TrimPrefix(n.Key, prefix), v)
				}
			}
			if err != nil {
				log.Error("a placement cannot be read", "key", n.Key, "error", err)
			}
		}
		if e.Kind == coord.Listing {
			listed()
		}
	}
}

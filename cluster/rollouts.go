package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	clusterv1 "grebe/api/grebe/cluster/v1"
	grebev1 "grebe/api/grebe/v1"
	"grebe/cluster/coord"
	"grebe/cluster/member"
	"grebe/cluster/rollout"
	"grebe/cluster/status"
	"grebe/serve"
)

// rolloutKey begins the keys of changes of checkpoints: one record per model, the last one. The driver writes it before
// every step, by compare-and-swap. A driver whose record was taken over can begin no further step.
const rolloutKey = "rollouts/"

// rollouts are the changes of checkpoints that this process knows of. The zero value is ready.
type rollouts struct {
	mu   sync.Mutex
	seen map[string]rollout.Record // by model, from the coordinator
	mine map[string]*drive         // by model: those that this process drives
}

// drive is a change that this process drives.
type drive struct {
	model   string
	record  *rollout.Record // nil until it is known who takes part; guarded by rollouts.mu
	version int64           // of the key in the coordinator
	asked   context.Context // ends when a rollback was asked for
	ask     context.CancelFunc
	ended   chan struct{}
}

// askWithin bounds a question to a node.
const askWithin = 2 * time.Second

// pollEvery is the time between two looks at a node that changes. A node that was not reached for lostAfter counts as
// dead.
const (
	pollEvery = 100 * time.Millisecond
	lostAfter = 10 * time.Second
)

// RollOut implements serve.Fleet: it changes a model's checkpoint on all nodes, one after the other, this one first. A
// rollback during a reload that this process drives ends that reload.
func (c *Cluster) RollOut(ctx context.Context, model string,
	back bool) (wait func(context.Context) *grebev1.Rollout, err error) {
	d := &drive{model: model, ended: make(chan struct{})}
	c.rolls.mu.Lock()
	if now := c.rolls.mine[model]; now != nil {
		defer c.rolls.mu.Unlock()
		if back && now.record != nil && !now.record.Back {
			now.ask()
			return now.wait, nil
		}
		return nil, serve.Errorf(serve.Conflict, "", "model %q is being changed on all nodes: GET /v1/models/%s shows how "+
			"far that is", model, model)
	}
	if c.rolls.mine == nil {
		c.rolls.mine = map[string]*drive{}
	}
	d.asked, d.ask = context.WithCancel(c.ctx)
	c.rolls.mine[model] = d
	c.rolls.mu.Unlock()
	if err := c.beginRollout(ctx, d, back); err != nil {
		c.endRollout(d)
		return nil, err
	}
	c.run.Go(func() {
		defer c.endRollout(d)
		c.driveRollout(d)
	})
	return d.wait, nil
}

// wait returns how the change ended; nil: ctx ended first.
func (d *drive) wait(ctx context.Context) *grebev1.Rollout {
	select {
	case <-d.ended:
		return described(d.record)
	case <-ctx.Done():
		return nil
	}
}

func (c *Cluster) endRollout(d *drive) {
	d.ask()
	c.rolls.mu.Lock()
	defer c.rolls.mu.Unlock()
	delete(c.rolls.mine, d.model)
	if d.record != nil && c.rolls.seen != nil {
		c.rolls.seen[d.model] = *d.record // until the coordinator says so too
	}
	close(d.ended)
}

// beginRollout finds out who takes part, and claims the model's record.
func (c *Cluster) beginRollout(ctx context.Context, d *drive, back bool) error {
	away := func(err error) error {
		return serve.Errorf(serve.Unavailable, "", "the coordinator does not answer: %v. With \"scope\": \"node\" this "+
			"node alone is changed", err)
	}
	e, err := c.cfg.Coordinator.Get(ctx, rolloutKey+d.model)
	if err != nil {
		return away(err)
	}
	var last rollout.Record
	if e.Version != 0 {
		if last, err = rollout.Decode(e.Data); err != nil {
			c.cfg.Log.Warn("the last change of a checkpoint cannot be read", "model", d.model, "error", err)
		}
	}
	if api, alive := c.alive(last.Driver, last.Boot); alive && last.State == rollout.Running && last.Driver != c.cfg.Node {
		return serve.Errorf(serve.Conflict, "", "node %s changes model %q on all nodes: it can be rolled back there, at %s",
			last.Driver, d.model, api)
	}
	found := c.findCheckpoints(ctx, d.model)
	var r *rollout.Record
	if back {
		r, err = rollout.Rollback(d.model, c.cfg.Node, c.boot, found, last)
	} else {
		r, err = rollout.Reload(d.model, c.cfg.Node, c.boot, found)
	}
	if err != nil {
		return serve.Errorf(serve.Conflict, "", "%v", err)
	}
	d.version, err = c.cfg.Coordinator.Swap(ctx, rolloutKey+d.model, r.Encode(), e.Version, nil)
	if errors.Is(err, coord.ErrConflict) {
		return serve.Errorf(serve.Conflict, "", "another member has begun to change model %q", d.model)
	}
	if err != nil {
		return away(err)
	}
	c.rolls.mu.Lock()
	d.record = r
	c.rolls.mu.Unlock()
	c.cfg.Log.Info("a checkpoint is changed on all nodes", "model", d.model, "back", back, "nodes", len(r.Nodes))
	return nil
}

// alive reports whether a process is a member, and its public address.
func (c *Cluster) alive(id, boot string) (api string, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.members.Members() {
		if m.ID == id && m.Boot == boot {
			return m.API, true
		}
	}
	return "", false
}

// findCheckpoints asks all nodes that have a model for its checkpoint.
func (c *Cluster) findCheckpoints(ctx context.Context, model string) []rollout.Found {
	var found []rollout.Found
	c.mu.Lock()
	for _, m := range c.members.Members() {
		if slices.ContainsFunc(m.Models, func(o member.Model) bool { return o.Name == model }) {
			found = append(found, rollout.Found{ID: m.ID, Boot: m.Boot, Away: true, Rests: !m.Has(member.Node)})
		}
	}
	c.mu.Unlock()
	var wg sync.WaitGroup
	for i := range found {
		f := &found[i]
		wg.Go(func() {
			if p, err := c.checkpoint(ctx, f.ID, model); err == nil && p.Boot == f.Boot {
				f.Version, f.Before, f.Away = p.Version, p.Before, false
			}
		})
	}
	wg.Wait()
	return found
}

// checkpoint asks a node what it serves.
func (c *Cluster) checkpoint(ctx context.Context, id, model string) (*clusterv1.Checkpoint, error) {
	return c.atNode(ctx, id, func(ctx context.Context, p clusterv1.PeerClient) (*clusterv1.Checkpoint, error) {
		return p.GetCheckpoint(ctx, &clusterv1.GetCheckpointRequest{Model: model})
	}, func() (*clusterv1.Checkpoint, error) {
		return c.ownCheckpoint(model)
	})
}

// change begins a node's turn.
func (c *Cluster) change(ctx context.Context, id, model string, back bool) (*clusterv1.Checkpoint, error) {
	return c.atNode(ctx, id, func(ctx context.Context, p clusterv1.PeerClient) (*clusterv1.Checkpoint, error) {
		return p.ChangeCheckpoint(ctx, &clusterv1.ChangeCheckpointRequest{Model: model, Back: back})
	}, func() (*clusterv1.Checkpoint, error) {
		return c.changeOwn(model, back)
	})
}

// atNode asks another node, or this one.
func (c *Cluster) atNode(ctx context.Context, id string,
	there func(context.Context, clusterv1.PeerClient) (*clusterv1.Checkpoint, error),
	here func() (*clusterv1.Checkpoint, error)) (*clusterv1.Checkpoint, error) {
	if id == c.cfg.Node {
		return here()
	}
	c.mu.Lock()
	n := c.known[id]
	c.mu.Unlock()
	if n == nil {
		return nil, errGone
	}
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	return there(ctx, clusterv1.NewPeerClient(n.conn))
}

// driveRollout takes one node after the other through its turn.
func (c *Cluster) driveRollout(d *drive) {
	for {
		var id string
		var back, more bool
		c.update(d, func(r *rollout.Record) {
			if d.asked.Err() != nil {
				r.Interrupt("a rollback was asked for")
			}
			id, back, more = r.Next()
		})
		if !c.publish(d, true) {
			c.cfg.Log.Warn("a change of checkpoints continues without this member", "model", d.model)
			return
		}
		if !more {
			break
		}
		res := c.turn(d, id, back)
		if c.ctx.Err() != nil {
			return // a second call finishes it
		}
		if res.Error != "" && !res.Unchanged {
			c.cfg.Log.Error("a node did not change its checkpoint", "model", d.model, "node", id, "back", back,
				"reason", res.Error)
		}
		c.update(d, func(r *rollout.Record) { r.Ended(res) })
	}
	c.cfg.Log.Info("the change of a checkpoint on all nodes ended", "model", d.model, "state", d.record.State,
		"reason", d.record.Error)
}

func (c *Cluster) update(d *drive, f func(*rollout.Record)) {
	c.rolls.mu.Lock()
	defer c.rolls.mu.Unlock()
	f(d.record)
}

// publish writes the record. It returns false if this process no longer drives the change. With must it waits for the
// coordinator: without its word no step may begin.
func (c *Cluster) publish(d *drive, must bool) bool {
	var data []byte
	c.update(d, func(r *rollout.Record) { data = r.Encode() })
	var wait coord.Backoff
	for {
		v, err := c.cfg.Coordinator.Swap(c.ctx, rolloutKey+d.model, data, d.version, nil)
		if errors.Is(err, coord.ErrConflict) { // a write that was not answered may have been ours
			var e coord.Entry
			if e, err = c.cfg.Coordinator.Get(c.ctx, rolloutKey+d.model); err == nil {
				r, bad := rollout.Decode(e.Data)
				if bad != nil || r.Driver != c.cfg.Node || r.Boot != c.boot {
					return false
				}
				d.version = e.Version
				continue
			}
		}
		if err == nil {
			d.version = v
			return true
		}
		if !must {
			return true
		}
		if !wait.Wait(c.ctx) {
			return false
		}
	}
}

// turn has a node change its checkpoint, and waits for the end.
func (c *Cluster) turn(d *drive, id string, back bool) rollout.Result {
	if _, err := c.change(c.ctx, id, d.model, back); err != nil {
		why, version := problem(err), ""
		if p, err := c.checkpoint(c.ctx, id, d.model); err == nil {
			version = p.Version
		}
		return rollout.Result{Version: version, Error: why}
	}
	c.cfg.Log.Info("a node changes its checkpoint", "model", d.model, "node", id, "back", back)
	var boot, step string
	c.update(d, func(r *rollout.Record) {
		boot = r.Nodes[slices.IndexFunc(r.Nodes, func(n rollout.Node) bool { return n.ID == id })].Boot
	})
	every := time.NewTicker(pollEvery)
	defer every.Stop()
	heard, returned := time.Now(), false
	for {
		select {
		case <-c.ctx.Done():
			return rollout.Result{Error: "the driver stops"}
		case <-every.C:
		}
		p, err := c.checkpoint(c.ctx, id, d.model)
		switch {
		case err != nil && time.Since(heard) > lostAfter:
			return rollout.Result{Error: fmt.Sprintf("it did not answer for %v: %s", lostAfter, problem(err))}
		case err != nil:
			continue
		case p.Boot != boot:
			return rollout.Result{Version: p.Version, Error: "its process died meanwhile; its log may say why"}
		case p.Ended:
			return ended(p, back)
		}
		heard = time.Now()
		if !back && !returned && p.State == "trying" && d.asked.Err() != nil {
			returned = true
			_, _ = c.change(c.ctx, id, d.model, true) // if that fails, it returns after its turn
		}
		c.update(d, func(r *rollout.Record) {
			n := &r.Nodes[slices.IndexFunc(r.Nodes, func(n rollout.Node) bool { return n.ID == id })]
			n.Step, n.Progress = p.State, p.Progress
		})
		if p.State != step {
			step = p.State
			if !c.publish(d, false) {
				return rollout.Result{Version: p.Version, Error: "another member took over"}
			}
		}
	}
}

// ended returns how a node's own change ended.
func ended(p *clusterv1.Checkpoint, back bool) rollout.Result {
	res := rollout.Result{Version: p.Version, Unchanged: p.Unchanged}
	switch {
	case p.State == "failed":
		res.Error = p.Error
	case p.State == "rolled_back" && !back:
		res.Error = "it was rolled back during its trial: " + p.Error
	}
	return res
}

// problem says why a node did not do what it was asked for.
func problem(err error) string {
	s, ok := grpcstatus.FromError(err)
	switch {
	case errors.Is(err, errGone), ok && (s.Code() == codes.Unavailable || s.Code() == codes.DeadlineExceeded):
		return "it does not answer"
	case ok && s.Code() == codes.Unimplemented:
		return "its release cannot do that: upgrade it first"
	case ok:
		return s.Message()
	}
	return err.Error()
}

// ownCheckpoint describes a model here.
func (c *Cluster) ownCheckpoint(model string) (*clusterv1.Checkpoint, error) {
	l := c.local.Load()
	if l == nil {
		return nil, grpcstatus.Error(codes.Unavailable, "cluster: this process starts")
	}
	p, err := (*l).Checkpoint(model)
	if err != nil {
		return nil, grpcstatus.Error(codes.FailedPrecondition, err.Error())
	}
	c.announce() // others see at once what serves here
	return &clusterv1.Checkpoint{
		Boot: c.boot, Version: p.Version, Before: p.Before, State: p.State, Progress: p.Progress, Error: p.Error,
		Ended:     p.Ended,
		Unchanged: p.Unchanged,
	}, nil
}

func (c *Cluster) changeOwn(model string, back bool) (*clusterv1.Checkpoint, error) {
	if l := c.local.Load(); l != nil {
		if err := (*l).ChangeCheckpoint(model, back); err != nil {
			return nil, grpcstatus.Error(codes.FailedPrecondition, err.Error())
		}
	}
	return c.ownCheckpoint(model)
}

// GetCheckpoint answers the member that drives a change.
func (p probes) GetCheckpoint(_ context.Context, q *clusterv1.GetCheckpointRequest) (*clusterv1.Checkpoint, error) {
	return p.c.ownCheckpoint(q.Model)
}

// ChangeCheckpoint begins this node's turn.
func (p probes) ChangeCheckpoint(_ context.Context,
	q *clusterv1.ChangeCheckpointRequest) (*clusterv1.Checkpoint, error) {
	return p.c.changeOwn(q.Model, q.Back)
}

// followRollouts keeps what the coordinator says of changes.
func (c *Cluster) followRollouts() {
	view, first := map[string]coord.Entry{}, true
	for e := range c.cfg.Coordinator.Watch(c.ctx, rolloutKey) {
		if e.Kind == coord.Lost {
			continue
		}
		e.Apply(view)
		seen := map[string]rollout.Record{}
		for key, entry := range view {
			if r, err := rollout.Decode(entry.Data); err == nil && r.Model == strings.TrimPrefix(key, rolloutKey) {
				seen[r.Model] = r
			}
		}
		c.rolls.mu.Lock()
		c.rolls.seen = seen
		c.rolls.mu.Unlock()
		if first {
			c.compareRollouts(seen)
		}
		first = false
	}
}

// compareRollouts logs if this process starts with another checkpoint than the others have. It may have been away.
func (c *Cluster) compareRollouts(seen map[string]rollout.Record) {
	l := c.local.Load()
	for _, model := range slices.Sorted(maps.Keys(seen)) {
		o, ok := (*l).Offer(model)
		r := seen[model]
		want := ""
		for _, n := range r.Nodes {
			if n.ID != c.cfg.Node && n.Version != "" {
				want = n.Version
			}
		}
		if ok && want != "" && o.Version != want && r.State != rollout.Running {
			c.cfg.Log.Warn("other nodes have another checkpoint of a model since the last change: reload it, or give this "+
				"node the same files",
				"model", model, "version", o.Version, "others", want, "change", r.State)
		}
	}
}

// Rollout implements serve.Fleet.
func (c *Cluster) Rollout(model string) *grebev1.Rollout {
	if r, ok := c.rolls.find(model); ok {
		return described(&r)
	}
	return nil
}

func described(r *rollout.Record) *grebev1.Rollout {
	out := &grebev1.Rollout{State: r.State, Driver: r.Driver, Back: r.Back, To: r.To, Error: r.Error}
	for _, n := range r.Nodes {
		out.Nodes = append(out.Nodes, &grebev1.RolloutNode{
			Id: n.ID, State: n.State, Version: n.Version, Step: n.Step, Progress: n.Progress, Error: n.Error})
	}
	return out
}

// find returns a change as this process knows it best: its own is newer than what the coordinator last said of it.
func (r *rollouts) find(model string) (rollout.Record, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if d := r.mine[model]; d != nil && d.record != nil {
		out := *d.record
		out.Nodes = slices.Clone(out.Nodes)
		return out, true
	}
	out, ok := r.seen[model]
	return out, ok
}

// rollouts describes all changes.
func (c *Cluster) rollouts() (out []status.Rollout) {
	c.rolls.mu.Lock()
	models := slices.Collect(maps.Keys(c.rolls.seen))
	c.rolls.mu.Unlock()
	slices.Sort(models)
	for _, model := range models {
		r, _ := c.rolls.find(model)
		s := status.Rollout{Model: r.Model, State: r.State, Driver: r.Driver, Back: r.Back, To: r.To, Error: r.Error,
			Nodes: []status.RolloutNode{}}
		if _, alive := c.alive(r.Driver, r.Boot); r.State == rollout.Running && !alive {
			s.Error = cmp.Or(s.Error, r.Driver+" died while it made the change: reload or roll back again to finish it")
		}
		for _, n := range r.Nodes {
			s.Nodes = append(s.Nodes, status.RolloutNode{
				ID: n.ID, State: n.State, Version: n.Version, Step: n.Step, Progress: n.Progress, Error: n.Error})
		}
		out = append(out, s)
	}
	return out
}

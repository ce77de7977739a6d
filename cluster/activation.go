package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	clusterv1 "grebe/api/grebe/cluster/v1"
	"grebe/cluster/coord"
	"grebe/cluster/member"
	"grebe/generate"
	"grebe/serve"
)

// activeKey is the key of the versions of the catalog that models generate on all nodes. It is written by
// compare-and-swap.
const activeKey = "catalog/active"

// activation is the value of activeKey: what all nodes generate.
type activation struct {
	Number uint64                  `json:"number"` // counts activations from 1
	Pins   map[string]generate.Pin `json:"pins"`   // by model; one that is missing follows the catalog
}

// following is what this process makes of the activation.
type following struct {
	mu       sync.Mutex
	want     activation
	done     uint64        // number of the activation that models generate; 0: none is known
	problem  error         // why want is not done
	changed  chan struct{} // closed when done, want or problem change
	excluded bool          // models cannot generate what the others do
}

func (f *following) update(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	close(f.changed)
	f.changed = make(chan struct{})
}

// activateWithin bounds the time in which nodes follow an activation before its caller is answered, and lagging is the
// time after which a node that does not is excluded.
const (
	activateWithin = 10 * time.Second
	lagging        = 5 * time.Second
)

// Activate implements serve.Fleet: all nodes generate the items of a version.
func (c *Cluster) Activate(ctx context.Context, model, version, digest string) error {
	return c.activate(ctx, func(a *activation, kept []kept) error {
		var p generate.Pin
		if version != generate.Auto {
			var err error
			if p.Version, err = strconv.ParseUint(version, 10, 64); err != nil {
				return generate.ErrNoVersion
			}
			if err := keptByAll(kept, p.Version, digest); err != nil {
				return err
			}
			p.At = c.catalog.Stats().Version
		}
		for _, m := range c.generating(model) {
			if delete(a.Pins, m); p.Version > 0 {
				a.Pins[m] = p
			}
		}
		return nil
	})
}

// Rollback implements serve.Fleet: all nodes generate the last version before the one in use that all of them keep.
func (c *Cluster) Rollback(ctx context.Context, model string) error {
	return c.activate(ctx, func(a *activation, kept []kept) error {
		now := c.keeper().InUse()
		for _, m := range c.generating(model) {
			number := now[m]
			if p, ok := a.Pins[m]; ok {
				number = p.Version // this node may not have followed yet
			}
			v, ok := before(kept, number)
			if !ok {
				return generate.ErrOldest
			}
			a.Pins[m] = generate.Pin{Version: v, At: c.catalog.Stats().Version}
		}
		return nil
	})
}

// generating returns a model, or all models that generate items if the name is empty.
func (c *Cluster) generating(model string) []string {
	if model != "" {
		return []string{model}
	}
	return slices.Sorted(maps.Keys(c.keeper().InUse()))
}

func (c *Cluster) keeper() *generate.Keeper {
	if l := c.local.Load(); l != nil {
		return (*l).Keeper()
	}
	return nil
}

// activate changes what all nodes generate, and waits until they do.
func (c *Cluster) activate(ctx context.Context, change func(*activation, []kept) error) error {
	if c.keeper() == nil || c.catalog == nil {
		return serve.Errorf(serve.Unprocessable, "", "no model of this member generates items: ask another one")
	}
	for {
		e, err := c.cfg.Coordinator.Get(ctx, activeKey)
		if err != nil {
			return serve.Errorf(serve.Unavailable, "", "the coordinator does not answer: %v", err)
		}
		a, err := c.decodeActivation(e)
		if err != nil {
			return err
		}
		kept := c.findVersions(ctx)
		if err := change(&a, kept); err != nil {
			return err
		}
		for _, k := range kept { // if the coordinator lost the key: nodes follow only higher numbers
			a.Number = max(a.Number, k.followed)
		}
		a.Number++
		data, err := json.Marshal(a)
		if err != nil {
			return err
		}
		switch _, err = c.cfg.Coordinator.Swap(ctx, activeKey, data, e.Version, nil); {
		case err == nil:
			return c.awaitActivation(ctx, a)
		case !errors.Is(err, coord.ErrConflict): // another member's activation came between
			return serve.Errorf(serve.Unavailable, "", "it is not known whether the version was activated: %v", err)
		}
	}
}

// decodeActivation reads the key. Before the first activation, or if the key was lost, this node's own is the one to
// change.
func (c *Cluster) decodeActivation(e coord.Entry) (activation, error) {
	if e.Version == 0 {
		c.active.mu.Lock()
		defer c.active.mu.Unlock()
		return activation{Number: c.active.want.Number, Pins: c.keeper().Pins()}, nil
	}
	var a activation
	if err := json.Unmarshal(e.Data, &a); err != nil {
		return a, fmt.Errorf("cluster: the activated versions: %w", err)
	}
	if a.Pins == nil {
		a.Pins = map[string]generate.Pin{}
	}
	return a, nil
}

// kept are the versions of a node, with their digests.
type kept struct {
	node     string
	versions map[uint64]string
	followed uint64
}

// keptByAll returns an error unless all nodes keep a version, this one first, with the same items.
func keptByAll(all []kept, number uint64, digest string) error {
	if len(all) == 0 {
		return generate.ErrNoVersion
	}
	own, ok := all[0].versions[number]
	if !ok {
		return generate.ErrNoVersion
	}
	if digest != "" && digest != own {
		return fmt.Errorf("%w: %s", generate.ErrDigest, own)
	}
	var without []string
	for _, k := range all[1:] {
		if k.versions[number] != own {
			without = append(without, k.node)
		}
	}
	if len(without) > 0 {
		return serve.Errorf(serve.Conflict, "version", "nodes without version %d: %s. Drain or stop them to "+
			"activate it anyway",
			number, strings.Join(without, ", "))
	}
	return nil
}

// before returns the last version before a number that all nodes keep.
func before(all []kept, number uint64) (last uint64, ok bool) {
	for v, digest := range all[0].versions {
		if v < number && v >= last && keptByAll(all, v, digest) == nil {
			last, ok = v, true
		}
	}
	return last, ok
}

// findVersions asks all nodes that get requests which versions they keep. This one is the first. One that does not
// answer is left out: it follows when it is back.
func (c *Cluster) findVersions(ctx context.Context) []kept {
	var nodes []*node
	var ids []string
	c.mu.Lock()
	for _, m := range c.members.Members() {
		if n := c.known[m.ID]; n != nil && m.ID != c.cfg.Node && m.Has(member.Node) && !m.Drained {
			nodes, ids = append(nodes, n), append(ids, m.ID)
		}
	}
	c.mu.Unlock()
	found := make([]*clusterv1.Versions, len(nodes))
	var wg sync.WaitGroup
	for i, n := range nodes {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, askWithin)
			defer cancel()
			if v, err := clusterv1.NewPeerClient(n.conn).GetVersions(ctx, &clusterv1.GetVersionsRequest{}); err == nil {
				found[i] = v
			} else if grpcstatus.Code(err) == codes.Unimplemented {
				found[i] = &clusterv1.Versions{} // of an earlier release: it cannot follow
			}
		})
	}
	wg.Wait()
	all := []kept{keptOf(c.cfg.Node, c.versions())}
	for i, v := range found {
		if v != nil && !v.None {
			all = append(all, keptOf(ids[i], v))
		}
	}
	return all
}

func keptOf(node string, v *clusterv1.Versions) kept {
	k := kept{node: node, versions: map[uint64]string{}, followed: v.Followed}
	for i, n := range v.Numbers {
		if i < len(v.Digests) {
			k.versions[n] = v.Digests[i]
		}
	}
	return k
}

// versions describes the versions of this process.
func (c *Cluster) versions() *clusterv1.Versions {
	k := c.keeper()
	if k == nil {
		return &clusterv1.Versions{None: true}
	}
	out := &clusterv1.Versions{}
	for _, v := range k.Versions() {
		if n, err := strconv.ParseUint(v.Version, 10, 64); err == nil {
			out.Numbers, out.Digests = append(out.Numbers, n), append(out.Digests, v.Digest)
		}
	}
	c.active.mu.Lock()
	defer c.active.mu.Unlock()
	out.Followed = c.active.done
	return out
}

// GetVersions answers a member that activates a version.
func (p probes) GetVersions(context.Context, *clusterv1.GetVersionsRequest) (*clusterv1.Versions, error) {
	return p.c.versions(), nil
}

// awaitActivation waits until the nodes that answer have followed an activation. It returns this node's problem with
// it.
func (c *Cluster) awaitActivation(ctx context.Context, a activation) error {
	ctx, cancel := context.WithTimeout(ctx, activateWithin)
	defer cancel()
	for {
		c.active.mu.Lock()
		done, problem, changed := c.active.done >= a.Number, c.active.problem, c.active.changed
		c.active.mu.Unlock()
		if done {
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return serve.Errorf(serve.Unavailable, "", "the version is activated, but this node does not generate it yet: %v",
				problem)
		}
	}
	var wait coord.Backoff
	for {
		late := slices.DeleteFunc(c.findVersions(ctx), func(k kept) bool { return k.followed >= a.Number })
		if len(late) == 0 {
			return nil
		}
		if !wait.Wait(ctx) {
			c.cfg.Log.Warn("a version is activated, but a node does not generate it yet", "node", late[0].node)
			return nil
		}
	}
}

// followActivations makes this process's models generate what the coordinator says. One that cannot gets no requests,
// since its answers would differ from the others'.
func (c *Cluster) followActivations() {
	events := c.cfg.Coordinator.Watch(c.ctx, activeKey)
	again := time.NewTimer(time.Hour)
	defer again.Stop()
	var failing time.Time // since when
	for {
		select {
		case e, ok := <-events:
			if !ok {
				return
			}
			c.hearActivation(e)
		case <-again.C:
		}
		c.active.mu.Lock()
		want, done := c.active.want, c.active.done
		c.active.mu.Unlock()
		if want.Number <= done {
			failing = time.Time{}
			continue
		}
		err := c.keeper().Follow(want.Pins)
		now := time.Now()
		if failing.IsZero() {
			failing = now
		}
		out := err != nil && (now.Sub(failing) >= lagging || !c.ready.Load())
		c.active.update(func() {
			if out && !c.active.excluded {
				c.cfg.Log.Error("this node cannot generate the activated version: it gets no requests", "error", err)
			}
			if c.active.problem, c.active.excluded = err, out; err == nil {
				c.active.done = want.Number
			}
		})
		if err == nil {
			failing = time.Time{}
		}
		c.announce()
		if err != nil {
			again.Reset(200 * time.Millisecond)
		}
	}
}

// hearActivation takes a newer activation from the coordinator.
func (c *Cluster) hearActivation(e coord.Event) {
	for _, n := range e.Entries {
		var a activation
		if n.Key != activeKey {
			continue
		}
		if err := json.Unmarshal(n.Data, &a); err != nil {
			c.cfg.Log.Error("the activated versions cannot be read", "error", err)
			continue
		}
		c.active.update(func() {
			if a.Number > c.active.want.Number {
				c.active.want = a
			}
		})
	}
}

// excluded reports whether models of this process cannot generate what others do.
func (c *Cluster) excluded() bool {
	c.active.mu.Lock()
	defer c.active.mu.Unlock()
	return c.active.excluded
}

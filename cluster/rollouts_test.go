package cluster

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	grebev1 "grebe/api/grebe/v1"
	"grebe/cluster/coord/coordtest"
	"grebe/cluster/rollout"
	"grebe/serve"
)

// checkpoints are a node's checkpoints of a model. The zero value serves v1 and is configured to serve v1.
type checkpoints struct {
	mu      sync.Mutex
	c       serve.Checkpoint
	want    string        // that the configuration names
	fail    string        // why a reload fails; empty: it does not
	trial   chan struct{} // a trial waits until it is closed; nil: it ends at once
	changed int
}

func (c *checkpoints) serving() string { return c.describe().Version }

func (c *checkpoints) describe() serve.Checkpoint {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.c
	if out.Version == "" {
		out.Version = "v1"
	}
	out.Ended = out.State != "trying"
	return out
}

func (c *checkpoints) set(f func(c *checkpoints)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(c)
}

func (c *checkpoints) change(back bool) error {
	now := c.describe()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changed++
	switch {
	case back && now.Before == "":
		return errors.New("no other checkpoint served before this one")
	case back && now.State == "trying":
		c.c = serve.Checkpoint{Version: now.Before, State: "rolled_back", Error: "asked for"}
	case back:
		c.c = serve.Checkpoint{Version: now.Before, Before: now.Version, State: "done"}
	case c.fail != "":
		c.c.State, c.c.Error = "failed", c.fail
	case c.want == "" || c.want == now.Version:
		c.c = serve.Checkpoint{Version: now.Version, Before: now.Before, State: "failed", Error: "unchanged", Unchanged: true}
	default:
		c.c = serve.Checkpoint{Version: c.want, Before: now.Version, State: "done"}
		if trial := c.trial; trial != nil {
			c.c.State = "trying"
			go func() {
				<-trial
				c.set(func(c *checkpoints) {
					if c.c.State == "trying" {
						c.c.State = "done"
					}
				})
			}()
		}
	}
	return nil
}

// serving waits until a member's records say what the nodes serve.
func serving(t *testing.T, at *testNode, want ...string) {
	t.Helper()
	var got []string
	waitFor(t, func() bool {
		got = nil
		for _, n := range at.Status().Nodes {
			got = append(got, n.Models[0].Version)
		}
		return slices.Equal(got, want)
	})
}

// roll changes all nodes and returns how that ended.
func roll(t *testing.T, at *testNode, back bool) *grebev1.Rollout {
	t.Helper()
	wait, err := at.RollOut(t.Context(), "m", back)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	r := wait(ctx)
	if r == nil {
		t.Fatal("it does not end")
	}
	return r
}

func TestRollOut(t *testing.T) {
	t.Parallel()
	nodes := three(t, nil)
	for _, n := range nodes {
		n.local.files.set(func(c *checkpoints) { c.want = "v2" })
	}
	if r := roll(t, nodes[1], false); r.State != rollout.Done || r.To != "v2" || r.Nodes[0].Id != "n2" {
		t.Fatalf("ended as %v", r)
	}
	for _, n := range nodes { // records follow, and every member shows the change
		serving(t, n, "v2", "v2", "v2")
		waitFor(t, func() bool { r := n.Rollout("m"); return r != nil && r.State == rollout.Done })
	}
	if s := nodes[0].Status().Rollouts; len(s) != 1 || s[0].State != rollout.Done || len(s[0].Nodes) != 3 {
		t.Errorf("the status has %+v", s)
	}
	if r := roll(t, nodes[2], true); r.State != rollout.Done || r.To != "v1" {
		t.Fatalf("a rollback ended as %v", r)
	}
	serving(t, nodes[0], "v1", "v1", "v1")
}

func TestRollOutReturns(t *testing.T) {
	t.Parallel()
	nodes := three(t, nil)
	for _, n := range nodes {
		n.local.files.set(func(c *checkpoints) { c.want = "v2" })
	}
	nodes[2].local.files.set(func(c *checkpoints) { c.fail = "the new checkpoint does not answer" })
	if r := roll(t, nodes[0], false); r.State != rollout.RolledBack ||
		r.Error != "n3: the new checkpoint does not answer" {
		t.Fatalf("ended as %v", r)
	}
	serving(t, nodes[2], "v1", "v1", "v1")
}

// A rollback during the first node's trial ends the change, and no other node is touched.
func TestRollOutIsInterrupted(t *testing.T) {
	t.Parallel()
	nodes := three(t, nil)
	trial := make(chan struct{})
	t.Cleanup(func() { close(trial) })
	for _, n := range nodes {
		n.local.files.set(func(c *checkpoints) { c.want, c.trial = "v2", trial })
	}
	if _, err := nodes[0].RollOut(t.Context(), "m", false); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { r := nodes[1].Rollout("m"); return r != nil && r.Nodes[0].Step == "trying" })
	serving(t, nodes[1], "v2", "v1", "v1")
	for i, n := range nodes { // two changes exclude each other
		if _, err := n.RollOut(t.Context(), "m", false); err == nil || serve.AsError(err).Code() != string(serve.Conflict) {
			t.Errorf("a second change at node %d: %v", i, err)
		}
	}
	if r := roll(t, nodes[0], true); r.State != rollout.Failed ||
		!strings.Contains(r.Error, "rolled back during its trial") {
		t.Errorf("ended as %v", r)
	}
	serving(t, nodes[1], "v1", "v1", "v1")
	if n := nodes[1].local.files.changed + nodes[2].local.files.changed; n != 0 {
		t.Errorf("the other nodes were changed %d times", n)
	}
}

// The driver dies between two turns. A second call at another member finishes the change.
func TestRollOutSurvivesItsDriver(t *testing.T) {
	t.Parallel()
	s := coordtest.NewServer()
	t.Cleanup(s.Close)
	nodes := []*testNode{join(t, s, "n1", nil), join(t, s, "n2", nil), join(t, s, "n3", nil)}
	trial := make(chan struct{})
	for _, n := range nodes {
		n.waitKnown(t, 3)
		n.local.files.set(func(c *checkpoints) { c.want = "v2" })
	}
	nodes[1].local.files.set(func(c *checkpoints) { c.trial = trial })
	if _, err := nodes[0].RollOut(t.Context(), "m", false); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { r := nodes[2].Rollout("m"); return r != nil && r.Nodes[1].Step == "trying" })
	if err := nodes[0].Close(); err != nil { // as if killed: it does not end the change
		t.Fatal(err)
	}
	waitFor(t, func() bool { _, alive := nodes[2].alive("n1", nodes[0].boot); return !alive })
	if r := nodes[2].Status().Rollouts; len(r) != 1 || !strings.Contains(r[0].Error, "n1 died") {
		t.Errorf("the status says %+v", r)
	}
	close(trial)
	if r := roll(t, nodes[2], false); r.State != rollout.Done || len(r.Nodes) != 2 {
		t.Errorf("ended as %v", r)
	}
	serving(t, nodes[2], "v2", "v2")
}

// A node that dies in its turn stops the change: the new checkpoint may be the reason.
func TestRollOutStopsAtADeath(t *testing.T) {
	t.Parallel()
	s := coordtest.NewServer()
	t.Cleanup(s.Close)
	nodes := []*testNode{join(t, s, "n1", nil), join(t, s, "n2", nil), join(t, s, "n3", nil)}
	trial := make(chan struct{})
	t.Cleanup(func() { close(trial) })
	for _, n := range nodes {
		n.waitKnown(t, 3)
		n.local.files.set(func(c *checkpoints) { c.want = "v2" })
	}
	nodes[1].local.files.set(func(c *checkpoints) { c.trial = trial })
	wait, err := nodes[0].RollOut(t.Context(), "m", false)
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { r := nodes[2].Rollout("m"); return r != nil && r.Nodes[1].Step == "trying" })
	if err := nodes[1].Close(); err != nil {
		t.Fatal(err)
	}
	again := join(t, s, "n2", nil) // with another boot id
	if r := wait(t.Context()); r.State != rollout.RolledBack || !strings.Contains(r.Error, "n2: its process died") {
		t.Errorf("ended as %v", r)
	}
	serving(t, again, "v1", "v1", "v1")
	if nodes[2].local.files.changed != 0 {
		t.Error("the next node followed")
	}
}

package route

import (
	"fmt"
	"math"
	"time"

	"grebe/plan"
	"grebe/schedule"
)

// Node has the costs of a node, which do not change.
type Node struct {
	Costs   schedule.Costs
	Engines int     // engines that share its queue; default 1
	RTT     float64 // milliseconds of a round trip between router and node
	Staging float64 // milliseconds per loaded token to put its KV where the engine reads it, after it was fetched
	Name    uint64  // hash of its id, so that all routers give a user the same home; 0: its number
	Class   uint8   // nodes of different classes never exchange KV, because their numbers differ in the last bits
}

// Config describes a fleet and a policy.
type Config struct {
	Policy Policy
	Orders schedule.Policy // how nodes choose prefix orders
	// Nodes are all that there may be, by their number in the placement map. Those that are not there are never heard.
	Nodes   []Node
	Silence time.Duration // without heartbeats, after which a node does not count as up; default 300 ms

	Users int // most copies of users in the index, over all nodes: 32 bytes each, and 8 for the last node of a user
	Items int // most other entries in the index: see residency.Index
	// Owned is the tier in which a node has the items that the placement map gives it. Missing: only feeds say what a
	// node has. Items that the map has everywhere are known from feeds.
	Owned plan.Tier
	// Ordinal returns an item's ordinal in the catalog by the hash of its key. If it is set, feeds of items that a node
	// owns are not indexed. nil: all are.
	Ordinal func(hash uint64) (item int32, ok bool)
	Shards  int // embedding shards; their numbers are below it

	// PeerUsers and PeerItems say that nodes fetch the KV of users or items from each other.
	PeerUsers, PeerItems bool
	Blend                schedule.Blending // of requests with blended prompts; default 1 layer, which reuses no item

	FullLoad    float64 // milliseconds of work that count as a load of 1; default 100
	Alpha, Beta float64 // of RCL-4; both 0: both 1
	// MissKV, MissEMB and MissLoad are the profiled costs of HLM-5 in milliseconds: of a user's missing KV, of missing
	// embeddings, and of full load. All 0: they follow the requests, by the nodes' own costs.
	MissKV, MissEMB, MissLoad float64

	Probe float64 // share of requests that test an ejected node; default 0.01
	Seed  uint64  // of random candidates and probes
}

const maxNodes = 4096

// defaults fills in defaults and returns an error for the first invalid value.
func (c *Config) defaults() error {
	if c.Silence == 0 {
		c.Silence = 300 * time.Millisecond
	}
	if c.FullLoad == 0 {
		c.FullLoad = 100
	}
	if c.Alpha == 0 && c.Beta == 0 {
		c.Alpha, c.Beta = 1, 1
	}
	if c.Blend.Layers == 0 {
		c.Blend.Layers = 1
	}
	if c.Probe == 0 {
		c.Probe = .01
	}
	switch {
	case len(c.Nodes) == 0 || len(c.Nodes) > maxNodes:
		return fmt.Errorf("route: %d nodes, want 1 to %d", len(c.Nodes), maxNodes)
	case c.Policy >= numPolicies:
		return fmt.Errorf("route: policy %d", c.Policy)
	case c.Silence < 0:
		return fmt.Errorf("route: silence of %v", c.Silence)
	case c.Users < 0 || c.Items < 0 || c.Shards < 0:
		return fmt.Errorf("route: %d users, %d items and %d shards", c.Users, c.Items, c.Shards)
	case c.Owned == plan.Peer || c.Owned >= plan.NumTiers:
		return fmt.Errorf("route: items owned in tier %d", c.Owned)
	case c.Ordinal != nil && c.Owned == plan.Missing:
		return fmt.Errorf("route: items of owners are not indexed, and have no tier")
	case !(c.FullLoad > 0) || !(c.Probe >= 0 && c.Probe <= 1):
		return fmt.Errorf("route: full load of %v ms and a share of probes of %v", c.FullLoad, c.Probe)
	case c.Blend.Layers < 0 || c.Blend.First < 0 || !(c.Blend.Budget >= 0 && c.Blend.Budget <= 1):
		return fmt.Errorf("route: blended prompts with %d of %d layers and a budget of %v", c.Blend.First, c.Blend.Layers,
			c.Blend.Budget)
	case !cost(c.Alpha) || !cost(c.Beta) || !cost(c.MissKV) || !cost(c.MissEMB) || !cost(c.MissLoad):
		return fmt.Errorf("route: negative or infinite weights %v",
			[]float64{c.Alpha, c.Beta, c.MissKV, c.MissEMB, c.MissLoad})
	}
	if c.Policy >= Joint && c.Policy <= EMBOnly && !c.measures() &&
		c.weights(c.MissKV, c.MissEMB, c.MissLoad) == (weights{}) {
		return fmt.Errorf("route: policy %v needs the costs of misses", c.Policy)
	}
	for i := range c.Nodes {
		n := &c.Nodes[i]
		if err := n.check(); err != nil {
			return fmt.Errorf("route: node %d: %w", i, err)
		}
	}
	return nil
}

// check fills in defaults and returns an error for the first invalid value.
func (n *Node) check() error {
	if n.Engines == 0 {
		n.Engines = 1
	}
	if err := n.Costs.Validate(); err != nil {
		return err
	}
	if n.Engines < 0 || !cost(n.RTT) || !cost(n.Staging) {
		return fmt.Errorf("%d engines and costs %v", n.Engines, []float64{n.RTT, n.Staging})
	}
	return nil
}

func cost(x float64) bool { return x >= 0 && !math.IsInf(x, 1) }

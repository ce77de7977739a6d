package cluster

import (
	"slices"
	"time"

	"grebe/cluster/status"
)

// Status describes the cluster as this process sees it.
func (c *Cluster) Status() *status.Cluster {
	c.mu.Lock()
	members := c.members.Members()
	out := &status.Cluster{
		Name: c.cfg.Name, Self: c.cfg.Node, Coordinator: "away", Epoch: c.members.Epoch(), Routing: c.cfg.Routing.String(),
		Nodes: []status.Node{},
	}
	if c.members.Up() {
		out.Coordinator = "up"
	}
	for _, x := range slices.Backward(c.changes) {
		s := status.Change{At: x.at.UTC().Format("2006-01-02T15:04:05.000Z07:00"), Node: x.ID, To: x.To.String()}
		if x.From != 0 {
			s.From = x.From.String()
		}
		out.Changes = append(out.Changes, s)
	}
	for i := range members {
		m := &members[i]
		n := status.Node{
			ID: m.ID, State: m.State.String(), Drained: m.Drained, Roles: m.Roles, API: m.API, Peer: m.Peer, Boot: m.Boot,
			Zone:        m.Zone,
			ProtocolMin: m.Protocol.Min, ProtocolMax: m.Protocol.Max, Keys: m.Keys,
		}
		if err := c.understands(&m.Record); err != nil {
			n.Refused = err.Error()
		}
		if k := c.known[m.ID]; k != nil {
			n.Routed, n.Failed = k.routed.Load(), k.failed.Load()
		}
		for j := range m.Models {
			n.Numerics = m.Models[j].Numerics
			n.Models = append(n.Models, status.Model{Name: m.Models[j].Name, Version: m.Models[j].Version})
		}
		out.Nodes = append(out.Nodes, n)
	}
	listed := c.listed
	c.mu.Unlock()
	for i := range out.Nodes {
		n, first := &out.Nodes[i], map[*fleet]string{}
		for j := range n.Models {
			m := &n.Models[j]
			if f := c.fleets[m.Name]; f != nil {
				f.report(n, m)
				if m.SharesWith = first[f]; m.SharesWith == "" {
					first[f] = m.Name
				}
			}
		}
	}
	if out.Placement = c.placed(); out.Placement != nil && listed {
		for i := range out.Placement.Nodes {
			h := &out.Placement.Nodes[i]
			h.Gone = !slices.ContainsFunc(out.Nodes, func(n status.Node) bool { return n.ID == h.ID })
		}
	}
	out.Rollouts = c.rollouts()
	out.Transfers = c.blocks.transfers(out.Nodes)
	return out
}

// report adds what the router knows about a model on a node.
func (f *fleet) report(n *status.Node, m *status.Model) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.slots[n.ID]
	if s == nil {
		return
	}
	now := f.c.now()
	seen := f.router.Seen(s.number, now)
	m.BacklogMs, m.ErrorMs, m.Known, m.Entries = seen.Backlog, seen.Error, f.router.Index().Known(s.number),
		f.router.Index().Held(s.number)
	m.AgeMs, m.Shards, m.RowMs = ms(now-seen.Heard), seen.Shards, seen.RowMs
	n.Ejected = n.Ejected || seen.Ejected
	if m.AgeMs > ms(time.Hour) || seen.Heard == 0 {
		m.AgeMs = -1
	}
}

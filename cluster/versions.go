package cluster

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"grebe/cluster/member"
)

// understands returns an error if this process and a member have no common version of the protocol. They exchange
// nothing then.
func (c *Cluster) understands(r *member.Record) error {
	if _, ok := c.speaks.Common(r.Protocol); ok {
		return nil
	}
	return fmt.Errorf("%s speaks %v of the protocol between members and %s %v: upgrade one release at a time",
		r.ID, r.Protocol, c.cfg.Node, c.speaks)
}

// checkWithin bounds the look at the other members before this process joins them.
const checkWithin = 2 * time.Second

// checkVersions returns an error if a registered member has no common version with this process. A coordinator that
// does not answer is no error: members that join meanwhile are compared when their records are seen.
func (c *Cluster) checkVersions() error {
	ctx, cancel := context.WithTimeout(c.ctx, checkWithin)
	defer cancel()
	list, err := c.cfg.Coordinator.List(ctx, nodesKey)
	if err != nil {
		c.cfg.Log.Warn("the versions of the other members could not be read", "error", err)
		return nil
	}
	for _, e := range list {
		r, err := member.Decode(e.Data)
		if err != nil || r.ID == c.cfg.Node { // not a record, or of the process that this one replaces
			continue
		}
		if err := c.understands(&r); err != nil {
			return fmt.Errorf("cluster: this process cannot join: %w", err)
		}
	}
	return nil
}

// accepted returns the members that this process talks to. It logs each process that it refuses once. The caller holds
// the lock.
func (c *Cluster) accepted(members []member.Member) []member.Member {
	out, there := members[:0], map[string]bool{}
	for i := range members {
		m := members[i]
		err := c.understands(&m.Record)
		if err == nil {
			out = append(out, m)
			continue
		}
		there[m.ID] = true
		if c.refused[m.ID] != m.Boot {
			c.refused[m.ID] = m.Boot
			c.cfg.Log.Error("a member is refused", "node", m.ID, "reason", err)
		}
	}
	for id := range c.refused {
		if !there[id] {
			delete(c.refused, id)
		}
	}
	return out
}

// dial connects to a member, unless it is refused.
func (c *Cluster) dial(id, addr string) (*grpc.ClientConn, error) {
	c.mu.Lock()
	refused := c.refused[id] != ""
	c.mu.Unlock()
	if refused {
		return nil, fmt.Errorf("cluster: %s is refused: it has no common version of the protocol", id)
	}
	return c.wire.dial(id, addr)
}

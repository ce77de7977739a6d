package cluster

import (
	"sync/atomic"

	"google.golang.org/grpc"

	"grebe/cluster/call"
)

// node is a member as this process reaches it.
type node struct {
	boot, peer     string
	calls          *call.Client     // for requests of clients
	conn           *grpc.ClientConn // for all else
	routed, failed atomic.Int64
}

func (n *node) close() {
	n.calls.Close()
	n.conn.Close()
}

// node returns a member by its id and boot, or nil.
func (c *Cluster) node(id, boot string) *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.known[id]; n != nil && n.boot == boot {
		return n
	}
	return nil
}

// followNodes connects to members that joined, and leaves those that left.
func (c *Cluster) followNodes() {
	c.mu.Lock()
	secret, members := c.secret, c.accepted(c.members.Members())
	if secret == nil {
		c.mu.Unlock()
		return
	}
	there, peers := map[string]bool{}, map[string]string{}
	for i := range members {
		m := &members[i]
		there[m.ID] = true
		if m.ID != c.cfg.Node {
			peers[m.ID] = m.Peer
		}
		n := c.known[m.ID]
		if n != nil && n.boot == m.Boot && n.peer == m.Peer {
			continue
		}
		if n != nil {
			n.close()
		}
		conn, err := c.wire.dial(m.ID, m.Peer)
		if err != nil {
			c.cfg.Log.Error("cannot connect to a member", "node", m.ID, "error", err)
			delete(c.known, m.ID)
			continue
		}
		c.known[m.ID] = &node{boot: m.Boot, peer: m.Peer, conn: conn, calls: call.NewClient(c.wire.connects(m.ID, m.Peer))}
	}
	for id, n := range c.known {
		if !there[id] {
			n.close()
			delete(c.known, id)
		}
	}
	c.mu.Unlock()
	c.blocks.client.SetPeers(peers)
	for _, f := range c.groups {
		for _, s := range f.set(members, secret) {
			c.run.Go(func() { f.free(s) })
		}
	}
}

// closeNodes closes all connections.
func (c *Cluster) closeNodes() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, n := range c.known {
		n.close()
		delete(c.known, id)
	}
}

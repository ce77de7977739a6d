package sim

import (
	"slices"
	"time"

	"grebe/plan"
	"grebe/residency"
	"grebe/schedule"
)

// Without a placement map, a node asks those that hold an entry, as their feeds say: users and items, as a server's
// cluster/fetch does. What comes is published, and the call finds it as it finds what the node has.

// mostHolders is the number of nodes up to which their feeds say who holds what: a word of the index.
const mostHolders = 64

// view returns the index that a node looks into: that of a router which is part of it.
func (n *node) view() *residency.Index {
	return n.f.routers[int(n.id)%len(n.f.routers)].view.Index()
}

// lookAround marks items that other nodes hold, and returns how many these are.
func (n *node) lookAround(c *call) (found int) {
	n.hashes = n.hashes[:0]
	for _, k := range n.keys {
		n.hashes = append(n.hashes, residency.Hash(k))
	}
	n.sets = resize(n.sets, 2*len(n.keys))
	n.view().Others(n.hashes, n.sets)
	for i := range c.tiers {
		if c.tiers[i] != plan.Missing {
			continue
		}
		if n.owner[i] = n.oneOf(n.sets[i]|n.sets[len(n.keys)+i], n.hashes[i]); n.owner[i] >= 0 {
			c.tiers[i] = plan.Peer
			found++
		}
	}
	return found
}

// oneOf picks another node of a set, as cluster's directory does; -1: there is none.
func (n *node) oneOf(set, hash uint64) int32 {
	set &^= 1 << n.id
	for k := range uint64(mostHolders) {
		if at := (hash + k) % mostHolders; set>>at&1 == 1 {
			return int32(at)
		}
	}
	return -1
}

// farUser finds the node with the most tokens of the call's user, if they are more than twice those that this node has.
func (n *node) farUser(c *call, near int) bool {
	n.copies = n.view().Users(n.copies[:0], residency.Hash(n.f.keys.user(c.User)), nil, c.UserTokens)
	c.far = 0
	for _, copy := range n.copies {
		if copy.Node != int(n.id) && copy.Tokens > c.far {
			c.far, c.farAt = copy.Tokens, int32(copy.Node)
		}
	}
	if int(c.far) <= 2*near {
		c.far = 0
	}
	return c.far > 0
}

// patient decides how long a call waits for other nodes, as Visit.askPeers does. It returns 0 if it asks none.
func (n *node) patient(c *call, in *schedule.Request, d *schedule.Decision, each schedule.Transfer) time.Duration {
	o := d.Chosen()
	if !d.Reuse || !o.Load.Has(plan.Peer) {
		return 0
	}
	rows, keys := in.Cached(d.Order, plan.Peer)
	alone, with := n.model.Predict(o.Rows+rows, o.Keys+keys, 1), n.model.Predict(o.Rows, o.Keys, 1)
	wait := schedule.FetchWait(c.deadline-n.f.now, true, in.Queue, alone, with)
	entries, tokens := 1, int(c.far)
	if d.Order != plan.UserFirst {
		entries, tokens = 0, 0
		for i, t := range c.tiers {
			if t == plan.Peer {
				entries, tokens = entries+1, tokens+int(c.ItemTokens[i])
			}
		}
	}
	if !schedule.FetchPays(float64(entries)*each.Entry+float64(tokens)*each.Token, wait) {
		return 0
	}
	return wait
}

// ask asks other nodes for what the call's decision loads from them. It returns false if that is nothing.
func (n *node) ask(i int32) bool {
	f, c := n.f, n.f.calls.all[i]
	if c.patience <= 0 {
		return false
	}
	c.got = resize(c.got, len(c.Items))
	clear(c.got)
	if c.order == plan.UserFirst {
		n.askOne(i, c.farAt, -1)
	} else {
		for k := range c.Items {
			if c.tiers[k] == plan.Peer {
				n.askOne(i, n.owner[k], int32(k))
			}
		}
	}
	for k := range f.asked {
		f.asked[k] = -1
	}
	c.waiting, c.begins = true, f.now
	f.push(event{at: f.now + c.patience, kind: patience, node: n.id, arg: i, gen: c.gen})
	return true
}

// askOne adds an item of a call to what a node is asked for; -1 is the user.
func (n *node) askOne(i, holder, item int32) {
	f, c := n.f, n.f.calls.all[i]
	fl := f.asked[holder]
	if fl < 0 {
		fl = f.flows.get()
		f.asked[holder] = fl
		*f.flows.all[fl] = flow{from: holder, to: n.id, call: i, gen: c.gen, life: n.gen, live: true,
			items: f.flows.all[fl].items}
		c.waits++
		f.push(event{at: f.now + f.hop, kind: asks, node: holder, arg: fl, gen: c.gen})
	}
	f.flows.all[fl].items = append(f.flows.all[fl].items, item)
}

// lends counts the bytes of an entry that another node's call asks for; 0: it is not here. Item -1 is the call's user.
func (n *node) lends(c *call, item int32) int64 {
	if item >= 0 {
		if h := n.items.books.Read(n.f.keys.item(c.Items[item])); h != nil {
			return h.Bytes
		}
		return 0
	}
	if h := n.users.books.Read(n.f.keys.user(c.User)); h != nil && h.Tokens >= int(c.far) {
		return int64(c.far) * n.users.token
	}
	return 0
}

// obtain publishes an entry that another node sent.
func (n *node) obtain(c *call, item int32) {
	s, key, kind, tokens, number := n.users, n.f.keys.user(c.User), plan.User, int(c.far), int32(-1)
	if item >= 0 {
		s, key, kind, tokens, number = n.items, n.f.keys.item(c.Items[item]), plan.Item, int(c.ItemTokens[item]),
			c.Items[item]
	}
	h := s.reserve(key, kind, tokens, number, nil, 0)
	if h == nil {
		return
	}
	s.publish(h)
	s.unpin(h)
	if item >= 0 {
		c.got[item] = true
	} else {
		c.userCame = true
	}
}

// resume goes on with a call whose entries have come, or that waits no longer. What did not come is computed.
func (n *node) resume(i int32) {
	c := n.f.calls.all[i]
	c.waiting, c.patience = false, 0
	n.totals.Waited += n.f.now - c.begins
	for k, t := range c.tiers {
		if t == plan.Peer && !c.got[k] && c.order != plan.UserFirst {
			n.totals.Late++
		}
	}
	n.lookHere(c)
	n.attach(c, nil)
	n.enter(i)
}

// lookHere sets the tiers of the call's items to what this node has.
func (n *node) lookHere(c *call) {
	n.keys = n.keys[:0]
	for _, item := range c.Items {
		n.keys = append(n.keys, n.f.keys.item(item))
	}
	c.tiers = resize(c.tiers, len(c.Items))
	n.items.books.Status(n.keys, c.tiers)
}

// from returns where an item's KV came from that was found at a tier.
func (c *call) from(item int, at plan.Tier) plan.Tier {
	if item < len(c.got) && c.got[item] {
		return plan.Peer
	}
	return at
}

// priceOthers returns the cost of asking other nodes for a number of entries, which they answer in one round trip.
func (n *node) priceOthers(entries int) schedule.Transfer {
	t := n.costs.Transfer[plan.Peer]
	t.Entry = 2 * n.f.hop.Seconds() * 1e3 / float64(max(entries, 1))
	return t
}

// holdersWork reports whether nodes can find each other's KV by feeds.
func (s *Scenario) holdersWork() bool {
	return s.Network.Holders && s.Network.Exchange && s.Network.Bandwidth > 0 && len(s.profiles) > 1
}

// checkHolders adds complaints about network.holders.
func (s *Scenario) checkHolders(p *problems) {
	if !s.Network.Holders {
		return
	}
	p.add(s.Placement.Kind == "none", "network.holders", "feeds say who holds KV: want placement.kind none")
	p.add(s.Fleet.Nodes+s.Fleet.Spare <= mostHolders, "network.holders", "%d nodes: want at most %d",
		s.Fleet.Nodes+s.Fleet.Spare, mostHolders)
	p.add(!s.Prompt.Blend.on(), "network.holders", "blended prompts fetch no KV")
	p.add(s.Network.Overlap, "network.holders", "want network.overlap")
	p.add(!slices.ContainsFunc(s.profiles, func(p *Profile) bool { return p.RowBytes > 0 }), "network.holders",
		"want models of texts")
}

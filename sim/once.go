package sim

import (
	"slices"

	"grebe/plan"
	"grebe/residency"
)

// underway is the KV that calls are about to compute, by key, as in package reuse: what one call computed is there for
// the others before it is published, and as long as one of them is on the node.
type underway struct {
	all   map[uint64]*pending // by residency.Hash
	spare []*pending
}

// pending is KV that some calls need.
type pending struct {
	hash   uint64
	tokens int
	calls  int
	store  *store // of entry
	entry  *held  // nil: nobody has computed it yet
}

// expect adds a call to those that need KV. It returns nil if others need that of another number of tokens.
func (n *node) expect(c *call, key plan.Key, tokens int) *pending {
	if c.blended {
		return nil
	}
	u := &n.underway
	hash := residency.Hash(key)
	p := u.all[hash]
	if p == nil {
		if n := len(u.spare); n > 0 {
			p, u.spare = u.spare[n-1], u.spare[:n-1]
		} else {
			p = &pending{}
		}
		*p = pending{hash: hash, tokens: tokens}
		u.all[hash] = p
	} else if p.tokens != tokens {
		return nil
	}
	p.calls++
	c.expected = append(c.expected, p)
	return p
}

// leaves ends what expect began.
func (n *node) leaves(p *pending) {
	if p.calls--; p.calls > 0 {
		return
	}
	delete(n.underway.all, p.hash)
	if p.entry != nil {
		p.store.unpin(p.entry)
	}
	n.underway.spare = append(n.underway.spare, p)
}

// arrived reports whether KV that a call needs was computed since the call looked.
func (n *node) arrived(key plan.Key) bool {
	p := n.underway.all[residency.Hash(key)]
	return p != nil && p.entry != nil
}

// itemArrived is arrived of an item of a call.
func (n *node) itemArrived(c *call, i int) bool {
	if p := c.items[i]; p != nil {
		return p.entry != nil
	}
	return n.arrived(n.f.keys.item(c.Items[i]))
}

// deliver has the calls that run later use what a batch computed.
func (n *node) deliver(b *batch) {
	for _, i := range b.calls {
		for _, m := range n.f.calls.all[i].made {
			p := m.awaited
			if p == nil {
				p = n.underway.all[residency.Hash(m.h.Key)]
			}
			if p != nil && p.entry == nil && p.tokens == m.h.Tokens {
				p.store, p.entry = m.s, m.h
				m.s.pin(m.h)
			}
		}
	}
}

// batched are the segments of a batch. Of equal ones only the first is computed, as in package engine.
type batched struct {
	fixed [2]bool
	items itemSet           // that come first
	users map[user]struct{} // that come first
	twice itemSet           // items behind a user who is in the batch twice
	calls []*call
}

type user struct {
	id     uint64
	tokens int32
}

func newBatched() batched {
	return batched{items: newItemSet(), users: map[user]struct{}{}, twice: newItemSet()}
}

// prefixed reports whether a call reuses and keeps KV of a prefix order.
func (c *call) prefixed() bool { return c.reuse && !c.blended && !c.whole }

// restart has a call whose batch had no room for it computed whole, as package serve does.
func (n *node) restart(c *call) {
	c.place.Done(false)
	c.full, c.whole, c.cached, c.shared, c.spared = false, true, 0, [2]bool{}, Work{}
	for i := range c.tiers {
		c.tiers[i] = plan.Missing
	}
}

// gather takes memory for what the calls of a batch compute and keep, and counts what they need not compute.
func (n *node) gather(b *batch) {
	d := &n.batched
	d.fixed = [2]bool{}
	d.items.reset()
	clear(d.users)
	d.calls = d.calls[:0]
	for _, i := range b.calls {
		n.takeUnderway(n.f.calls.all[i])
	}
	for _, i := range b.calls {
		c, before := n.f.calls.all[i], d.fixed
		if !c.prefixed() {
			continue
		}
		if n.gatherCall(c); !c.full {
			d.calls = append(d.calls, c)
			continue
		}
		d.fixed, c.spared = before, Work{}
		delete(d.users, user{c.User, c.UserTokens})
		for _, m := range c.made {
			m.s.unpin(m.h)
		}
		c.made = c.made[:0]
	}
}

// takeUnderway gives a call the KV that was computed since it was queued.
func (n *node) takeUnderway(c *call) {
	if !c.prefixed() {
		return
	}
	p := &n.f.prompt
	for k, lead := 0, 0; k < 2; k++ {
		if tokens := p.fixed(k); !c.shared[k] && (k == 0 || c.order == plan.ItemFirst) && n.arrived(n.f.keys.shared(k)) {
			c.shared[k] = true
			n.spare(c, 0, tokens, lead)
		}
		lead += p.fixed(k)
	}
	if c.order == plan.UserFirst {
		if c.awaited != nil && c.awaited.entry != nil {
			n.spareUser(c)
			c.cached, c.older, c.keep = int(c.UserTokens), c.awaited.entry, false
		}
		return
	}
	for i := range c.Items {
		if c.tiers[i] == plan.Missing && n.itemArrived(c, i) {
			tokens := int(c.ItemTokens[i])
			n.spare(c, 0, tokens, p.preamble+p.leadIn)
			c.tiers[i] = came
		}
	}
}

func (n *node) spareUser(c *call) {
	n.spare(c, c.cached, int(c.UserTokens), n.f.prompt.preamble)
}

// spare counts tokens of a segment, which sees keys before it, that a call need not compute.
func (n *node) spare(c *call, from, to, seen int) {
	c.spared.Segment(from, to, seen, n.profile.Tile())
}

// gatherCall adds a call to the batch, in the order of its prompt.
func (n *node) gatherCall(c *call) {
	d, p := &n.batched, &n.f.prompt
	for k, lead := 0, 0; k < 2; k++ {
		tokens := p.fixed(k)
		if tokens == 0 || k == 1 && c.order == plan.UserFirst {
			continue
		}
		switch {
		case d.fixed[k]:
			if !c.shared[k] {
				n.spare(c, 0, tokens, lead)
			}
		case !c.shared[k]:
			n.make(c, n.users, n.users.reserve(n.f.keys.shared(k), plan.Preamble, tokens, -1, nil, 0), nil)
		}
		d.fixed[k] = true
		lead += tokens
	}
	if c.order == plan.UserFirst {
		n.gatherUser(c)
		return
	}
	lead := p.preamble + p.leadIn
	for i, item := range c.Items {
		there := !d.items.add(item)
		if c.tiers[i] != plan.Missing {
			continue
		}
		tokens := int(c.ItemTokens[i])
		if there {
			n.spare(c, 0, tokens, lead)
			continue
		}
		if n.make(c, n.items, n.items.reserve(n.f.keys.item(item), plan.Item, tokens, item, nil, 0), c.items[i]) {
			c.tiers[i] = computing
		}
	}
	if d.same(c) {
		items := 0
		for _, tokens := range c.ItemTokens {
			items += int(tokens)
		}
		n.spare(c, 0, int(c.UserTokens), lead+items)
		n.spareQuestions(c, lead+int(c.UserTokens), nil)
	}
}

// make adds an entry to those that a call computes and publishes. Awaited may be nil.
func (n *node) make(c *call, s *store, h *held, awaited *pending) bool {
	if h != nil {
		c.made = append(c.made, pin{h, s, awaited})
	}
	return h != nil
}

// gatherUser adds the user of a call and what is behind it.
func (n *node) gatherUser(c *call) {
	d, who := &n.batched, user{c.User, c.UserTokens}
	_, there := d.users[who]
	d.users[who] = struct{}{}
	if !there {
		if c.keep {
			c.keep = n.make(c, n.users, n.users.reserve(n.f.keys.user(c.User), plan.User, int(c.UserTokens), -1, c.older,
				c.cached), c.awaited)
			c.full = !c.keep && c.cached > 0
		}
		return
	}
	if c.cached < int(c.UserTokens) {
		n.spareUser(c)
	}
	c.keep = false
	d.twice.reset()
	for _, o := range d.calls {
		if o.order == plan.UserFirst && o.User == c.User && o.UserTokens == c.UserTokens {
			for _, item := range o.Items {
				d.twice.add(item)
			}
		}
	}
	lead := n.f.prompt.preamble + int(c.UserTokens)
	for i, item := range c.Items {
		if d.twice.has(item) {
			n.spare(c, 0, int(c.ItemTokens[i]), lead)
		}
	}
	if n.f.prompt.perItem || d.same(c) {
		n.spareQuestions(c, lead, &d.twice)
	}
}

// spareQuestions counts the questions that are computed for another call: about these items, or about all if there are
// none.
func (n *node) spareQuestions(c *call, lead int, about *itemSet) {
	q, items := n.f.prompt.question, 0
	for i, tokens := range c.ItemTokens {
		items += int(tokens)
		if n.f.prompt.perItem && (about == nil || about.has(c.Items[i])) {
			n.spare(c, 0, q, lead+int(tokens))
		}
	}
	if !n.f.prompt.perItem {
		n.spare(c, 0, q, lead+items)
	}
}

// same reports whether the batch has a call with the same prompt.
func (d *batched) same(c *call) bool {
	return slices.ContainsFunc(d.calls, func(o *call) bool {
		return o.order == c.order && o.User == c.User && o.UserTokens == c.UserTokens && slices.Equal(o.Items, c.Items)
	})
}

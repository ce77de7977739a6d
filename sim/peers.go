package sim

import (
	"slices"
	"time"

	"grebe/alloc"
	"grebe/plan"
	"grebe/schedule"
)

// came marks an item whose KV a peer sent. While it is awaited, its tier is plan.Peer.
const came = plan.NumTiers + 1

// ownerOf returns the node that has an item's KV, or -1 if it is this one or nobody.
func (f *fleet) ownerOf(item, self int32) int32 {
	owner, second, everywhere := f.places.Place(item)
	switch {
	case everywhere || owner == int(self):
		return -1
	case f.nodes[owner].up:
		return int32(owner)
	case second >= 0 && second != int(self) && f.nodes[second].up:
		return int32(second)
	}
	return -1
}

// fetch asks peers for the items that a call expects there. It returns false if there are none. The call waits for a
// budget: until its batch has to start, and at most for as long as it would queue and compute the items itself.
func (n *node) fetch(i int32) bool {
	c := n.f.calls.all[i]
	if !slices.Contains(c.tiers, plan.Peer) {
		return false
	}
	f := n.f
	with := f.prompt.cost(c, 0)
	all, allKeys := 0, 0
	for k := range c.Items {
		if c.tiers[k] != plan.Peer {
			continue
		}
		owner := n.owner[k]
		fl := f.asked[owner]
		if fl < 0 {
			fl = f.flows.get()
			f.asked[owner] = fl
			*f.flows.all[fl] = flow{from: owner, to: n.id, call: i, gen: c.gen, life: n.gen, live: true,
				items: f.flows.all[fl].items}
			c.waits++
			f.push(event{at: f.now + f.hop, kind: asks, node: owner, arg: fl, gen: c.gen})
		}
		f.flows.all[fl].items = append(f.flows.all[fl].items, int32(k))
		all += int(c.ItemTokens[k])
		allKeys += causal(0, int(c.ItemTokens[k]), f.prompt.preamble+f.prompt.leadIn)
	}
	for k := range c.Items {
		if c.tiers[k] == plan.Peer {
			f.asked[n.owner[k]] = -1
		}
	}
	alone := n.model.Predict(with.Rows+all, with.Keys+allKeys, 1)
	budget := schedule.FetchWait(c.deadline-f.now, true, n.backlogMs(), alone, n.model.Predict(with.Rows, with.Keys, 1))
	c.waiting, c.begins = true, f.now
	f.push(event{at: f.now + budget, kind: patience, node: n.id, arg: i, gen: c.gen})
	return true
}

// serve answers a peer's GET: it sends the KV that this node has.
func (n *node) serve(i int32) {
	f := n.f
	fl := f.flows.all[i]
	c := f.calls.all[fl.call]
	if c.gen != fl.gen || !c.waiting {
		f.flows.put(i)
		return
	}
	found := fl.items[:0]
	for _, k := range fl.items {
		if !n.up || f.scenario.Network.Bandwidth == 0 {
			break
		}
		if f.holders {
			if bytes := n.lends(c, k); bytes > 0 {
				found = append(found, k)
				fl.bytes += bytes
			} else {
				n.totals.PeerMisses++
			}
			continue
		}
		if h := n.items.books.Read(itemKey(c.Items[k])); h != nil {
			found = append(found, k)
			fl.bytes += h.Bytes
		} else {
			n.totals.PeerMisses++
		}
	}
	fl.items = found
	if fl.bytes == 0 {
		f.push(event{at: f.now + f.hop, kind: lands, node: fl.to, arg: i, gen: fl.life})
		return
	}
	n.back.governor.Demand(f.now.Seconds(), fl.bytes)
	f.push(event{at: f.net.send(fl, f.now), kind: flows, node: fl.to, arg: i, gen: fl.life})
}

// land takes a flow that is complete.
func (n *node) land(i int32) {
	f := n.f
	fl := f.flows.all[i]
	f.net.landed(fl)
	if fl.call < 0 {
		n.filled(fl)
		f.flows.put(i)
		return
	}
	n.back.governor.Demand(f.now.Seconds(), fl.bytes)
	c := f.calls.all[fl.call]
	if c.gen == fl.gen && c.waiting {
		for _, k := range fl.items {
			if f.holders {
				n.obtain(c, k)
			} else {
				n.receive(c, int(k))
			}
		}
		if c.waits--; c.waits == 0 {
			n.ready(fl.call)
		}
	} else {
		n.totals.Wasted += fl.bytes
	}
	f.flows.put(i)
}

// receive takes an item's KV that a peer sent.
func (n *node) receive(c *call, k int) {
	tokens := int(c.ItemTokens[k])
	h := n.items.reserve(itemKey(c.Items[k]), plan.Item, tokens, c.Items[k], nil, 0)
	if h == nil {
		c.tiers[k] = plan.Missing
		return
	}
	c.tiers[k] = came
	c.tokens[plan.Peer] += tokens
	c.pinned = append(c.pinned, pin{h: h, s: n.items})
	if n.f.scenario.Cache.KeepPeer {
		n.items.publish(h)
	}
}

// ready queues a call whose flows have landed, or that waits no longer. Items that did not come are computed.
func (n *node) ready(i int32) {
	if n.f.holders {
		n.resume(i)
		return
	}
	c := n.f.calls.all[i]
	c.waiting = false
	n.totals.Waited += n.f.now - c.begins
	for k := range c.tiers {
		if c.tiers[k] == plan.Peer {
			c.tiers[k] = plan.Missing
			n.totals.Late++
		}
	}
	n.enter(i)
}

// fetchNow brings the items of a batch that peers have, and returns how long the batch waits for them. Items that no
// peer has are computed.
func (n *node) fetchNow(b *batch) (wait time.Duration) {
	f := n.f
	var fl flow
	for _, i := range b.calls {
		c := f.calls.all[i]
		for k, item := range c.Items {
			if c.tiers[k] != plan.Peer {
				continue
			}
			owner := f.ownerOf(item, n.id)
			if owner >= 0 {
				if h := f.nodes[owner].items.books.Read(itemKey(item)); h != nil {
					f.bytesFrom[owner] += h.Bytes
					n.receive(c, k)
				}
			}
			if c.tiers[k] != came {
				c.tiers[k] = plan.Missing
				tokens := int(c.ItemTokens[k])
				b.work.Segment(0, tokens, f.prompt.preamble+f.prompt.leadIn, n.profile.Tile())
				b.work.Cached -= tokens
			}
		}
	}
	for owner, bytes := range f.bytesFrom {
		if bytes == 0 {
			continue
		}
		f.bytesFrom[owner] = 0
		fl.from, fl.to, fl.bytes = int32(owner), n.id, bytes
		end := f.net.receive(&fl, f.net.send(&fl, f.now+f.hop)) // the request goes there first
		f.net.landed(&fl)
		wait = max(wait, end-f.now)
	}
	n.totals.Waited += wait
	return wait
}

// backlog is the background work of a node: items to send to their owners and items to bring, below the traffic of
// requests.
type backlog struct {
	governor alloc.Governor
	tasks    []task
	active   bool
}

// task is an item to be copied from one node to another.
type task struct{ item, from, to int32 }

const (
	fillEvery = 10 * time.Millisecond
	mostTasks = 1 << 20
)

// offer has an item that this node computed sent to the node that owns it.
func (n *node) offer(item int32) {
	if !n.f.peers || !n.f.scenario.Placement.Push {
		return
	}
	if owner := n.f.ownerOf(item, n.id); owner >= 0 {
		n.later(task{item, n.id, owner})
	}
}

// later adds background work. Work beyond the limit is forgotten: a request will compute the item.
func (n *node) later(t task) {
	if len(n.back.tasks) >= mostTasks {
		return
	}
	n.back.tasks = append(n.back.tasks, t)
	if !n.back.active {
		n.back.active = true
		n.f.push(event{at: n.f.now + fillEvery, kind: fills, node: n.id, gen: n.gen})
	}
}

// fill copies as much as the governor grants.
func (n *node) fill() {
	f, b := n.f, &n.back
	granted := b.governor.Grant(f.now.Seconds(), 1<<50)
	done := 0
	for _, t := range b.tasks {
		from, to := f.nodes[t.from], f.nodes[t.to]
		h := from.items.books.Get(itemKey(t.item))
		if !from.up || !to.up || h == nil || to.items.books.Get(itemKey(t.item)) != nil {
			done++
			continue
		}
		if h.Bytes > granted {
			break
		}
		granted -= h.Bytes
		b.governor.Spend(h.Bytes)
		i := f.flows.get()
		fl := f.flows.all[i]
		*fl = flow{from: t.from, to: t.to, call: -1, life: to.gen, live: true, items: append(fl.items, t.item),
			bytes: h.Bytes}
		f.push(event{at: f.net.send(fl, f.now), kind: flows, node: t.to, arg: i, gen: to.gen})
		n.totals.Filled += h.Bytes
		done++
	}
	b.tasks = slices.Delete(b.tasks, 0, done)
	if b.active = len(b.tasks) > 0; b.active {
		f.push(event{at: f.now + fillEvery, kind: fills, node: n.id, gen: n.gen})
	}
}

// filled puts an item that was brought in the background on the books.
func (n *node) filled(fl *flow) {
	for _, item := range fl.items {
		key := itemKey(item)
		tokens := int(n.f.lengths.of(item))
		if n.items.books.Get(key) == nil {
			n.items.bring(key, tokens, item)
		}
	}
}

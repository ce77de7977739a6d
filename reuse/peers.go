package reuse

import (
	"context"
	"encoding/hex"
	"fmt"
	"time"

	"grebe/kv"
	"grebe/plan"
	"grebe/prompt"
	"grebe/schedule"
)

// Peers are other nodes with KV of the same bits: that of the same weights and formats, computed by devices of the same
// kind. Package cluster/fetch implements it. Its methods may be called concurrently.
type Peers interface {
	// Items sets tiers[i] to plan.Peer where it is plan.Missing and another node has keys[i]. It returns how many it set.
	Items(keys []plan.Key, tiers []plan.Tier) int
	// User returns how many leading tokens of a user another node has.
	User(key plan.Key, tokens []int32) int
	// Cost returns the milliseconds of a round trip, and those per MiB of KV. After fetches that came too late, late is
	// how many times as long as that the next ones count; else 1.
	Cost() (trip, mib, late float64)
	// Fetch asks nodes for entries, and sets Came of those that are in the memory of their arrivals. It returns at the
	// latest when ctx ends, and uses no arrival afterwards.
	Fetch(ctx context.Context, wants []Want)
	// Damaged returns how many entries had a wrong checksum.
	Damaged() int64
}

// Want is an entry that peers are asked for.
type Want struct {
	Key     plan.Key
	Tokens  []int32 // leading ones of a user; nil: the key says which
	Bytes   int64   // about its size
	Arrival *kv.Arrival
	Came    bool // set by Fetch

	item  int  // index among the request's items, -1: the user
	first bool // this request fetches it; otherwise another one does
}

// SetPeers sets the nodes that are asked for KV, nil for none. It may be called at any time.
func (c *Cache) SetPeers(p Peers) {
	if p == nil {
		c.peers.Store(nil)
		return
	}
	c.peers.Store(&p)
}

// peer returns the value of SetPeers, or nil.
func (c *Cache) peer() Peers {
	if p := c.peers.Load(); p != nil {
		return *p
	}
	return nil
}

// PeerDamaged returns how many entries from peers had a wrong checksum, and false if there are no peers.
func (c *Cache) PeerDamaged() (n int64, ok bool) {
	p := c.peer()
	if p == nil {
		return 0, false
	}
	return p.Damaged(), true
}

// Space returns what the cache's KV depends on beside the device that computes it: the model and the format of KV.
// Nodes exchange KV if both are equal and their devices compute the same bits.
func (c *Cache) Space() (model, format string) {
	return hex.EncodeToString(c.opt.Model[:]), fmt.Sprintf("%v/%d", c.opt.Shape.KV, kv.ComputeVersion)
}

// Store returns the store of the cache's entries, from which other nodes read.
func (c *Cache) Store() *kv.Store { return c.opt.Store }

// ExpectOffered announces an entry that another node offers: see kv.Store.ExpectOffered.
func (c *Cache) ExpectOffered(kind plan.Kind, key plan.Key, length int, digest uint64) (a *kv.Arrival, first bool) {
	return c.opt.Store.ExpectOffered(c.owner, kind, key, length, digest)
}

// peekPeers fills in what peers have and this node has not. It returns the number of such entries.
func (v *Visit) peekPeers(p Peers, in *schedule.Request) (entries int) {
	if p == nil {
		return 0
	}
	entries = p.Items(v.items, v.tiers)
	if v.peekFar(p, in, v.tokens) {
		entries++
	}
	return entries
}

// peekFar fills in how much of the user peers have, and reports whether that may be fetched. A peer sends the user from
// the first token on. If this node has more than half of that, most of what is sent would be useless.
func (v *Visit) peekFar(p Peers, in *schedule.Request, tokens []int32) bool {
	if !v.named {
		return false
	}
	near := 0
	for _, n := range in.UserCached {
		near += int(n)
	}
	v.far = p.User(v.user, tokens)
	if v.far <= 2*near {
		v.far = 0
		return false
	}
	in.UserCached[plan.Peer] = int32(v.far - near)
	return true
}

// pricePeers sets the costs of fetching entries from peers. The nodes answer in one round trip.
func (v *Visit) pricePeers(p Peers, costs *schedule.Costs, entries int) {
	if entries == 0 {
		return
	}
	trip, mib, late := p.Cost()
	v.farCost = schedule.Transfer{Entry: trip / float64(entries), Token: v.cache.perToken(mib * late)}
	costs.Transfer[plan.Peer] = v.farCost
}

// perToken returns the milliseconds per token, given those per MiB.
func (c *Cache) perToken(mib float64) float64 { return mib * float64(c.bytesPerToken) / (1 << 20) }

// withoutPeers returns the request as a blended prompt sees it. It does not fetch blocks from peers.
func (v *Visit) withoutPeers() schedule.Request {
	in := v.in
	if v.cache.peer() == nil {
		return in
	}
	v.other = append(v.other[:0], in.ItemTier...)
	for i := range v.other {
		if v.other[i] == plan.Peer {
			v.other[i] = plan.Missing
		}
	}
	in.ItemTier = v.other
	return in
}

// askForPrompt fetches the user of a generation from a peer, if that is predicted to be faster than to compute it.
func (v *Visit) askForPrompt(ctx context.Context, l *prompt.Layout) {
	c := v.cache
	p := c.peer()
	if p == nil || !v.named {
		return
	}
	rest := l.Plan.Tokens() - len(c.preamble.tokens) - len(v.tokens)
	v.in = schedule.Request{
		Preamble: int32(len(c.preamble.tokens)), SharedCached: c.has(&c.preamble), Question: int32(max(rest, 0)),
		Orders: schedule.Of(plan.UserFirst), User: int32(len(v.tokens)),
	}
	v.peekUser(&v.in)
	if !v.peekFar(p, &v.in, v.tokens) {
		return
	}
	v.in.Queue, _ = c.opt.Load.Backlog()
	costs := c.Costs()
	v.pricePeers(p, &costs, 1)
	v.Decision.User = schedule.Decide(&v.in, &costs, schedule.Predicted).User
	if v.Decision.User.Load.Has(plan.Peer) {
		v.askPeers(ctx)
	}
}

// askPeers fetches the entries that the decision loads from peers, and publishes them. It takes no longer than
// computing them would, see schedule.FetchWait.
func (v *Visit) askPeers(ctx context.Context) {
	p := v.cache.peer()
	// a blended prompt in which the user is no prefix
	if p == nil || v.Decision.Order == plan.UserFirst && len(v.tokens) < v.far {
		return
	}
	wait := v.fetchWait(ctx)
	if !schedule.FetchPays(v.fetchTakes(), wait) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	defer v.endFetch() // also if Fetch panics: others wait for these arrivals
	v.expectPeers()
	mine := 0
	for i := range v.wants {
		if v.wants[i].first { // those of others come last
			v.wants[i], v.wants[mine] = v.wants[mine], v.wants[i]
			mine++
		}
	}
	if mine > 0 {
		p.Fetch(ctx, v.wants[:mine])
	}
	v.publishFetched(v.wants[:mine])
	for i := range v.wants[mine:] {
		w := &v.wants[mine+i]
		select {
		case <-w.Arrival.Done():
			v.arrived(w)
		case <-ctx.Done():
		}
	}
}

// fetchWait returns how long the request waits for peers.
func (v *Visit) fetchWait(ctx context.Context) time.Duration {
	c, chosen := v.cache, v.Decision.Chosen()
	rows, keys := v.in.Cached(v.Decision.Order, plan.Peer)
	model := c.opt.Load.Model()
	queue, _ := c.opt.Load.Backlog()
	alone, with := model.Predict(chosen.Rows+rows, chosen.Keys+keys, 1), model.Predict(chosen.Rows, chosen.Keys, 1)
	deadline, ok := ctx.Deadline()
	left := time.Duration(0)
	if ok {
		left = time.Until(deadline)
	}
	wait := schedule.FetchWait(left, ok, queue, alone, with)
	if c.opt.Record.On() {
		c.recordFetch(left, ok, queue, alone, with, wait)
	}
	return wait
}

// fetchTakes predicts how many milliseconds a fetch takes. Of a user peers send what this node has, too.
func (v *Visit) fetchTakes() float64 {
	entries, tokens := 1, v.far
	if v.Decision.Order != plan.UserFirst {
		entries, tokens = 0, 0
		for i, t := range v.tiers {
			if t == plan.Peer {
				entries, tokens = entries+1, tokens+int(v.lengths[i])
			}
		}
	}
	return float64(entries)*v.farCost.Entry + float64(tokens)*v.farCost.Token
}

// expectPeers lists the entries that the chosen order loads from peers.
func (v *Visit) expectPeers() {
	c := v.cache
	expect := func(kind plan.Kind, key plan.Key, tokens []int32, length, item int) {
		a, first := c.opt.Store.Expect(c.owner, kind, key, tokens, length)
		v.wants = append(v.wants, Want{Key: key, Tokens: tokens, Bytes: int64(length) * c.bytesPerToken, Arrival: a,
			first: first, item: item})
	}
	v.wants = v.wants[:0]
	if v.Decision.Order == plan.UserFirst {
		expect(plan.User, v.user, v.tokens[:v.far], v.far, -1)
		return
	}
	v.came = resize(v.came, len(v.items))
	clear(v.came)
	for i, t := range v.tiers {
		if t == plan.Peer {
			expect(plan.Item, v.items[i], nil, int(v.lengths[i]), i)
		}
	}
}

// publishFetched publishes the entries that came.
func (v *Visit) publishFetched(wants []Want) {
	for i := range wants {
		w := &wants[i]
		w.first = false
		if w.Arrival.End(w.Came) {
			v.arrived(w)
		} else if w.Came {
			v.cache.noteFull()
		}
	}
}

// arrived notes that an entry came from a peer, for this request or for another one at the same time. If it has been
// dropped already, it is not found and is computed.
func (v *Visit) arrived(w *Want) {
	if w.item < 0 {
		v.userCame = true
	} else {
		v.came[w.item] = true
	}
}

// endFetch ends the arrivals that are left.
func (v *Visit) endFetch() {
	for i := range v.wants {
		if w := &v.wants[i]; w.first {
			w.Arrival.End(false)
		}
	}
	clear(v.wants)
	v.wants = v.wants[:0]
}

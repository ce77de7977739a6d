package route

import (
	"math/bits"
	"time"

	"grebe/plan"
	"grebe/residency"
)

// view is what a router knows about one request. Its memory is used again for the next one.
type view struct {
	up     []int     // nodes that may be picked
	work   []float64 // by node that may be picked: milliseconds of work that the request finds there
	peers  []uint64  // by class: set of nodes whose KV nodes of that class can use
	copies []residency.Copy
	sets   []uint64 // the tiers of the items by node, as Index.Others has them
	cover  []int32  // by node: items that it holds
	tiers  []plan.Tier
	far    []plan.Tier // by class and item: Peer if a node of the class has it, else Missing
	priced priced      // price of the chosen node
}

// look finds out who holds what of a request.
func (r *Router) look(q *Request, now time.Duration) {
	r.findUp(now)
	r.copies = r.index.Users(r.copies[:0], q.User, q.Tokens, q.Prompt.User)
	items := len(q.Prompt.Items)
	if n := items * 2 * r.words; cap(r.sets) < n {
		r.sets, r.tiers, r.far = make([]uint64, n), make([]plan.Tier, items), make([]plan.Tier, r.classes*items)
	}
	r.sets, r.tiers = r.sets[:items*2*r.words], r.tiers[:items]
	if q.Keys != nil {
		r.index.Others(q.Keys, r.sets)
	} else {
		clear(r.sets)
	}
	if q.Items != nil && r.places != nil && r.config.Owned != plan.Missing {
		r.addOwned(q.Items)
	}
	r.findPeers(items)
}

// planes returns 64 nodes' bits of the tiers of all items: the low and the high ones.
func (r *Router) planes(word int) (low, high []uint64) {
	n := len(r.tiers)
	return r.sets[word*n : (word+1)*n], r.sets[(r.words+word)*n : (r.words+word+1)*n]
}

// findPeers sets far: which items nodes of a class can get from others.
func (r *Router) findPeers(items int) {
	r.far = r.far[:r.classes*items]
	clear(r.far)
	if !r.config.PeerItems {
		return
	}
	for class := range r.classes {
		far := r.far[class*items : (class+1)*items]
		for w, peers := range r.peers[class*r.words : (class+1)*r.words] {
			low, high := r.planes(w)
			for i := range far {
				if (low[i]|high[i])&peers != 0 {
					far[i] = plan.Peer
				}
			}
		}
	}
}

// addOwned adds the items that nodes hold because the map says so.
func (r *Router) addOwned(items []int32) {
	low, high := uint64(r.config.Owned&1), uint64(r.config.Owned>>1)
	for i, item := range items {
		owner, _, everywhere := r.places.Place(item)
		if everywhere || owner >= len(r.members) || !r.index.Known(owner) {
			continue
		}
		lows, highs := r.planes(owner / 64)
		if bit := owner % 64; (lows[i]|highs[i])>>bit&1 == 0 {
			lows[i] |= low << bit
			highs[i] |= high << bit
		}
	}
}

// findUp lists the nodes that may be picked: those that are up and not ejected. If there is none, it lists those that
// are up, and if there is none of these either, those that were not lost.
func (r *Router) findUp(now time.Duration) {
	r.list(func(m *member) bool { return now-m.when <= r.config.Silence && !m.ejected })
	if len(r.up) == 0 {
		r.list(func(m *member) bool { return now-m.when <= r.config.Silence })
	}
	if len(r.up) == 0 {
		r.list(func(*member) bool { return true })
	}
	clear(r.peers)
	for _, n := range r.up {
		m, at := &r.members[n], now+duration(r.config.Nodes[n].RTT/2)
		r.work[n] = m.workAt(at) + m.unseen(at)
		r.addPeer(n)
	}
	for n, rests := range r.resting {
		if m := &r.members[n]; rests && m.heard && now-m.when <= r.config.Silence {
			r.addPeer(n)
		}
	}
}

func (r *Router) addPeer(n int) {
	r.peers[int(r.config.Nodes[n].Class)*r.words+n/64] |= 1 << (n % 64)
}

func (r *Router) list(may func(*member) bool) {
	r.up = r.up[:0]
	for i := range r.members {
		if m := &r.members[i]; m.heard && !r.resting[i] && may(m) {
			r.up = append(r.up, i)
		}
	}
}

// isUp reports whether a node may be picked.
func (r *Router) isUp(n int) bool {
	return !r.resting[n] && r.peers[int(r.config.Nodes[n].Class)*r.words+n/64]>>(n%64)&1 == 1
}

// copyOn returns a node's copy of the user, or nil.
func (r *Router) copyOn(n int) *residency.Copy {
	for i := range r.copies {
		if r.copies[i].Node == n {
			return &r.copies[i]
		}
	}
	return nil
}

// countCover counts the items that each node holds, for 64 nodes at once: bit n of sums[p] is bit p of node n's count.
func (r *Router) countCover(items int) {
	var room [32]uint64
	sums := room[:bits.Len(uint(items))]
	for w := range r.words {
		clear(sums)
		low, high := r.planes(w)
		for i := range low {
			carry := low[i] | high[i]
			for p, s := range sums {
				sums[p], carry = s^carry, s&carry
			}
		}
		for n := 64 * w; n < min(64*w+64, len(r.members)); n++ {
			count := int32(0)
			for p, s := range sums {
				count |= int32(s>>(n%64)&1) << p
			}
			r.cover[n] = count
		}
	}
}

// tiersOn sets tiers to where a node finds the items: its own tier, a peer, or nowhere.
func (r *Router) tiersOn(n int) []plan.Tier {
	low, high := r.planes(n / 64)
	class, items, bit := int(r.config.Nodes[n].Class), len(r.tiers), n%64
	far := r.far[class*items : (class+1)*items]
	for i := range r.tiers {
		tier := plan.Tier(low[i]>>bit&1 | high[i]>>bit&1<<1)
		absent := (tier - 1) >> 7 // 1 if the tier is Missing, else 0: a branch would often be predicted wrongly
		r.tiers[i] = tier | far[i]*absent
	}
	return r.tiers
}

// cached sets how much of the user a node finds: its own copy, and behind it the rest of the longest one of a peer.
func (r *Router) cached(n int, out *[plan.NumTiers]int32) {
	*out = [plan.NumTiers]int32{}
	class := int(r.config.Nodes[n].Class)
	own, far := int32(0), int32(0)
	for i := range r.copies {
		switch c := &r.copies[i]; {
		case c.Node == n:
			own = c.Tokens
			out[c.Tier] = own
		case r.config.PeerUsers && r.peers[class*r.words+c.Node/64]>>(c.Node%64)&1 == 1:
			far = max(far, c.Tokens)
		}
	}
	if far > own {
		out[plan.Peer] = far - own
	}
}

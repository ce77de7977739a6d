package route

import (
	"time"

	"grebe/plan"
	"grebe/residency"
)

// view is what a router knows about one request. Its memory is used again for the next one.
type view struct {
	up     []int     // nodes that may be picked
	work   []float64 // by node that may be picked: milliseconds of work that the request finds there
	peers  []uint64  // by class: set of nodes that may be picked and whose KV nodes of that class can use
	copies []residency.Copy
	sets   []uint64 // by item: the tier by node, as Index.Others has it
	cover  []int32  // by node: items that it holds
	tiers  []plan.Tier
}

// look finds out who holds what of a request.
func (r *Router) look(q *Request, now time.Duration) {
	r.findUp(now)
	r.copies = r.index.Users(r.copies[:0], q.User, q.Tokens, q.Prompt.User)
	items := len(q.Prompt.Items)
	if n := items * 2 * r.words; cap(r.sets) < n {
		r.sets, r.tiers = make([]uint64, n), make([]plan.Tier, items)
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
}

// addOwned adds the items that nodes hold because the map says so.
func (r *Router) addOwned(items []int32) {
	low, high := uint64(r.config.Owned&1), uint64(r.config.Owned>>1)
	for i, item := range items {
		owner, _, everywhere := r.places.Place(item)
		if everywhere || owner >= len(r.members) || !r.index.Known(owner) {
			continue
		}
		s := r.sets[i*2*r.words:]
		w, bit := owner/64, owner%64
		if (s[w]|s[r.words+w])>>bit&1 == 0 {
			s[w] |= low << bit
			s[r.words+w] |= high << bit
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
		node := &r.config.Nodes[n]
		r.work[n] = r.members[n].workAt(now + duration(node.RTT/2))
		r.peers[int(node.Class)*r.words+n/64] |= 1 << (n % 64)
	}
}

func (r *Router) list(may func(*member) bool) {
	r.up = r.up[:0]
	for i := range r.members {
		if m := &r.members[i]; m.heard && may(m) {
			r.up = append(r.up, i)
		}
	}
}

// isUp reports whether a node may be picked.
func (r *Router) isUp(n int) bool {
	return r.peers[int(r.config.Nodes[n].Class)*r.words+n/64]>>(n%64)&1 == 1
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

// countCover counts the items that each node holds, for 64 nodes at once: bit n of planes[p] is bit p of node n's count.
func (r *Router) countCover(items int) {
	for w := range r.words {
		var planes [32]uint64
		top := 0
		for i := range items {
			s := r.sets[i*2*r.words:]
			carry := s[w] | s[r.words+w]
			for p := 0; carry != 0; p++ {
				planes[p], carry = planes[p]^carry, planes[p]&carry
				top = max(top, p+1)
			}
		}
		for n := 64 * w; n < min(64*w+64, len(r.members)); n++ {
			r.cover[n] = 0
			for p, plane := range planes[:top] {
				r.cover[n] |= int32(plane>>(n%64)&1) << p
			}
		}
	}
}

// tiersOn sets tiers to where a node finds the items: its own tier, a peer, or nowhere.
func (r *Router) tiersOn(n int) []plan.Tier {
	w, bit, class := n/64, n%64, int(r.config.Nodes[n].Class)
	peers := r.peers[class*r.words : (class+1)*r.words]
	for i := range r.tiers {
		s := r.sets[i*2*r.words : (i+1)*2*r.words]
		tier := plan.Tier(s[w]>>bit&1 | s[r.words+w]>>bit&1<<1)
		if tier == plan.Missing {
			for j, p := range peers {
				if (s[j]|s[r.words+j])&p != 0 {
					tier = plan.Peer
					break
				}
			}
		}
		r.tiers[i] = tier
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
		case r.peers[class*r.words+c.Node/64]>>(c.Node%64)&1 == 1:
			far = max(far, c.Tokens)
		}
	}
	if far > own {
		out[plan.Peer] = far - own
	}
}

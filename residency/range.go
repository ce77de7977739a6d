package residency

import "grebe/plan"

// Range is a range of the keys of an Index, both ends included, in the order of Mix.
type Range struct{ From, To uint64 }

// Mix returns where a key stands in the order of ranges, by the key's Hash.
func Mix(hash uint64) uint64 { return mix(hash) }

// Visit calls f with each entry of a node in a range, whether the node's part is known or not: where the key stands,
// and its tier. For users it has tokens and digest, too. Where keys are spread evenly, it takes time in proportion to
// the range.
func (x *Index) Visit(node int, r Range, f func(at uint64, e Entry)) {
	x.users.visit(r, func(i int) bool {
		if s := x.users.slot(i); packedNode(s[2]) == node {
			f(s[0], Entry{Kind: plan.User, Tier: plan.Tier(s[2] & 0xff), Tokens: int32(s[2] >> 32), Digest: s[1]})
		}
		return false
	})
	x.others.visit(r, func(i int) bool {
		if tier := x.tier(i, node); tier != plan.Missing {
			f(x.others.hash(i), Entry{Kind: plan.Item, Tier: tier})
		}
		return false
	})
}

// Replace replaces all entries of a node in a range. Entries outside the range are skipped.
func (x *Index) Replace(node int, r Range, entries []Event) {
	x.removeRange(node, r)
	for i := range entries {
		if at := mix(Hash(entries[i].Key)); r.From <= at && at <= r.To {
			x.put(node, &entries[i])
		}
	}
}

// removeRange removes everything of a node in a range.
func (x *Index) removeRange(node int, r Range) {
	if x.nodes[node].held == 0 {
		return
	}
	x.users.visit(r, func(i int) bool {
		of := packedNode(x.users.slot(i)[2]) == node
		if of {
			x.nodes[node].held--
			x.users.remove(i)
		}
		return of
	})
	x.others.visit(r, func(i int) bool {
		x.set(i, node, plan.Missing)
		gone := empty(x.others.slot(i)[1:])
		if gone {
			x.others.remove(i)
		}
		return gone
	})
}

// tier returns the tier in which a node has the entry of a slot.
func (x *Index) tier(i, node int) plan.Tier {
	s, bit := x.others.slot(i)[1:], uint(node%64)
	return plan.Tier(s[node/64]>>bit&1 | s[x.stride+node/64]>>bit&1<<1)
}

// visit calls f with each used slot whose hash is in a range. F reports whether it removed the slot's entry.
func (t *table) visit(r Range, f func(i int) (removed bool)) {
	i := t.home(r.From)
	homes := t.home(r.To) - i + 1 // slots at which searches for the range begin
	for seen := 0; seen < homes || t.hash(i) != 0 && seen < t.size; {
		if h := t.hash(i); h != 0 && r.From <= h && h <= r.To && f(i) {
			continue // another entry may be in the slot
		}
		i = t.next(i)
		seen++
	}
}

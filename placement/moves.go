package placement

import (
	"cmp"
	"slices"
)

// Move is what one node must copy from another when a map replaces another.
type Move struct {
	From, To int
	Items    int
	Bytes    int64
}

// Moves returns what must be copied to get from one map to another, in the order of From and To, and the bytes in
// all. bytes returns the size of an item's KV. Items come from their old owner, even if it has left: the caller knows
// whether it can still be read. Items that no node needs anymore are dropped and cost nothing.
func Moves(old, new *Map, bytes func(item int32) int64) ([]Move, int64) {
	moves := map[[2]int]*Move{}
	var total int64
	EachMove(old, new, func(item int32, from, to int) bool {
		m := moves[[2]int{from, to}]
		if m == nil {
			m = &Move{From: from, To: to}
			moves[[2]int{from, to}] = m
		}
		b := bytes(item)
		m.Items++
		m.Bytes += b
		total += b
		return true
	})
	out := make([]Move, 0, len(moves))
	for _, m := range moves {
		out = append(out, *m)
	}
	slices.SortFunc(out, func(a, b Move) int { return cmp.Or(a.From-b.From, a.To-b.To) })
	return out, total
}

// EachMove calls visit for every item that a node must get, until it returns false. Items are in order. A node that
// has a weight in both maps and held the item gets nothing.
func EachMove(old, new *Map, visit func(item int32, from, to int) bool) {
	for i := range int32(max(old.items, new.items)) {
		from, _, was := old.Place(i)
		owner, _, is := new.Place(i)
		if !is {
			if owner != from && !(was && old.live(owner)) && !visit(i, from, owner) {
				return
			}
			continue
		}
		for to := range new.members {
			if !new.live(to) || to == from || was && old.live(to) {
				continue
			}
			if !visit(i, from, to) {
				return
			}
		}
	}
}

// live reports whether a member may hold items.
func (m *Map) live(node int) bool { return node < len(m.members) && m.members[node].Weight > 0 }

package residency

import "grebe/evict"

// recency is a list of slots in the order of their last use. It is a ring; the element behind the last slot
// is both ends of the list.
type recency []neighbours

type neighbours struct{ newer, older evict.Slot }

func newRecency(slots int) recency {
	r := make(recency, slots+1)
	r[slots] = neighbours{evict.Slot(slots), evict.Slot(slots)}
	return r
}

func (r recency) end() evict.Slot { return evict.Slot(len(r) - 1) }

// oldest returns the least recently used slot, or end.
func (r recency) oldest() evict.Slot {
	if len(r) == 0 {
		return r.end()
	}
	return r[r.end()].newer
}

func (r recency) add(s evict.Slot) {
	end := r.end()
	last := r[end].older
	r[s] = neighbours{newer: end, older: last}
	r[last].newer, r[end].older = s, s
}

func (r recency) remove(s evict.Slot) {
	was := r[s]
	r[was.older].newer, r[was.newer].older = was.newer, was.older
}

func (r recency) use(s evict.Slot) {
	r.remove(s)
	r.add(s)
}

package kv

import "grebe/evict"

// recency is the order in which the entries of a level were used, by slot: a ring whose last element
// stands for both ends.
type recency struct{ newer, older []evict.Slot }

func newRecency(slots int) recency {
	r := recency{newer: make([]evict.Slot, slots+1), older: make([]evict.Slot, slots+1)}
	r.newer[slots], r.older[slots] = evict.Slot(slots), evict.Slot(slots)
	return r
}

func (r *recency) end() evict.Slot { return evict.Slot(len(r.newer) - 1) }

// oldest returns the slot that was not used for longest; end when there is none.
func (r *recency) oldest() evict.Slot { return r.newer[r.end()] }

func (r *recency) add(s evict.Slot) {
	end := r.end()
	last := r.older[end]
	r.older[s], r.newer[s] = last, end
	r.newer[last], r.older[end] = s, s
}

func (r *recency) remove(s evict.Slot) {
	r.newer[r.older[s]], r.older[r.newer[s]] = r.newer[s], r.older[s]
}

func (r *recency) use(s evict.Slot) {
	r.remove(s)
	r.add(s)
}

package evict

import "math/bits"

// order keeps slots by recency, with their bytes and predicted returns. It finds in O(log k) the farthest predicted
// return among the least recent slots that fill a number of bytes. It is a tree of sums and maxima over positions. A
// use takes the next position. When positions run out, all slots are packed to the front. There are at least twice as
// many positions as slots, so that costs O(1) amortised.
type order struct {
	leaves int      // power of two ≥ 2·slots
	bytes  []int64  // per node: sum below; per leaf: 0 when free
	far    []int64  // per node: largest predicted return below, absent when none
	slot   []Slot   // per position
	pos    []int32  // per slot, unlinked when absent
	next   int      // next free position
	hidden []hidden // taken out of far during one search for a victim
}

type hidden struct {
	slot Slot
	ret  int64
}

const absent = -1 << 63

func newOrder(slots int) order {
	n := 1 << bits.Len(uint(2*slots-1))
	o := order{leaves: n, bytes: make([]int64, 2*n), far: make([]int64, 2*n), slot: make([]Slot, n),
		pos: make([]int32, slots)}
	for i := range o.far {
		o.far[i] = absent
	}
	for i := range o.pos {
		o.pos[i] = unlinked
	}
	return o
}

// use makes a slot the most recent, whether it was present or not.
func (o *order) use(s Slot, bytes, ret int64) {
	if o.pos[s] != unlinked {
		o.remove(s)
	}
	if o.next == o.leaves {
		o.pack()
	}
	o.slot[o.next], o.pos[s] = s, int32(o.next)
	o.next++
	o.set(s, bytes, ret)
}

func (o *order) remove(s Slot) {
	o.set(s, 0, absent)
	o.pos[s] = unlinked
}

func (o *order) set(s Slot, bytes, ret int64) {
	i := o.leaves + int(o.pos[s])
	o.bytes[i], o.far[i] = bytes, ret
	for i >>= 1; i > 0; i >>= 1 {
		o.join(i)
	}
}

func (o *order) join(i int) {
	o.bytes[i] = o.bytes[2*i] + o.bytes[2*i+1]
	o.far[i] = max(o.far[2*i], o.far[2*i+1])
}

func (o *order) ret(s Slot) int64        { return o.far[o.leaves+int(o.pos[s])] }
func (o *order) size(s Slot) int64       { return o.bytes[o.leaves+int(o.pos[s])] }
func (o *order) predict(s Slot, r int64) { o.set(s, o.size(s), r) }

// pack moves all slots to the first positions and keeps their order.
func (o *order) pack() {
	to := 0
	for from := range o.leaves {
		l := o.leaves + from
		if o.bytes[l] == 0 {
			continue
		}
		b, f, s := o.bytes[l], o.far[l], o.slot[from]
		o.bytes[l], o.far[l] = 0, absent
		o.bytes[o.leaves+to], o.far[o.leaves+to] = b, f
		o.slot[to], o.pos[s] = s, int32(to)
		to++
	}
	for i := o.leaves - 1; i > 0; i-- {
		o.join(i)
	}
	o.next = to
}

// within returns the number of positions, from the least recent, that hold the entries which begin below budget bytes.
func (o *order) within(budget int64) int {
	if budget >= o.bytes[1] {
		return o.next
	}
	i := 1
	for i < o.leaves {
		i *= 2
		if o.bytes[i] < budget {
			budget -= o.bytes[i]
			i++
		}
	}
	return i - o.leaves + 1
}

// farthest returns the slot with the largest predicted return before a position; among equals, the least recent.
func (o *order) farthest(end int) (Slot, bool) {
	best, at := int64(absent), 0
	lo, hi := o.leaves, o.leaves+end
	right := 0 // among equals the leftmost node wins; nodes of the right border come in reverse
	for ; lo < hi; lo, hi = lo/2, hi/2 {
		if lo&1 == 1 {
			if o.far[lo] > best {
				best, at = o.far[lo], lo
			}
			lo++
		}
		if hi&1 == 1 {
			hi--
			if right == 0 || o.far[hi] >= o.far[right] {
				right = hi
			}
		}
	}
	if right != 0 && o.far[right] > best {
		best, at = o.far[right], right
	}
	if best == absent {
		return 0, false
	}
	for at < o.leaves {
		at *= 2
		if o.far[at] != best {
			at++
		}
	}
	return o.slot[at-o.leaves], true
}

// oldest visits slots from the least recent on until visit returns false.
func (o *order) oldest(visit func(Slot) bool) {
	for p := o.after(0); p < o.next; p = o.after(p + 1) {
		if !visit(o.slot[p]) {
			return
		}
	}
}

// after returns the first taken position at or after p, or next if there is none.
func (o *order) after(p int) int {
	if p >= o.next {
		return o.next
	}
	i := o.leaves + p
	for o.bytes[i] == 0 {
		for i&1 == 1 { // climb to the next subtree on the right
			i >>= 1
		}
		if i == 0 {
			return o.next
		}
		i++
		if i&(i-1) == 0 { // fell off the right edge of its level
			return o.next
		}
	}
	for i < o.leaves {
		i *= 2
		if o.bytes[i] == 0 {
			i++
		}
	}
	return i - o.leaves
}

// takeFarthest removes and returns the farthest slot before a position that evictable allows.
func (o *order) takeFarthest(end int, evictable func(Slot) bool) (Slot, bool) {
	s, ok := o.farthest(end)
	for ok && evictable != nil && !evictable(s) {
		o.hidden = append(o.hidden, hidden{s, o.ret(s)})
		o.predict(s, absent)
		s, ok = o.farthest(end)
	}
	for _, h := range o.hidden {
		o.predict(h.slot, h.ret)
	}
	o.hidden = o.hidden[:0]
	if ok {
		o.remove(s)
	}
	return s, ok
}

// takeOldest removes and returns the least recent slot that evictable allows.
func (o *order) takeOldest(evictable func(Slot) bool) (victim Slot, found bool) {
	o.oldest(func(s Slot) bool {
		if evictable == nil || evictable(s) {
			victim, found = s, true
		}
		return !found
	})
	if found {
		o.remove(victim)
	}
	return victim, found
}

package evict

// heap is a binary heap of slots, the largest key first. Keys and positions are arrays by slot that
// several heaps share when a slot is in at most one of them.
type heap struct {
	slots []Slot
	key   []int64
	pos   []int32
}

func (h *heap) top() (Slot, bool) {
	if len(h.slots) == 0 {
		return 0, false
	}
	return h.slots[0], true
}

func (h *heap) push(s Slot, key int64) {
	h.key[s] = key
	h.slots = append(h.slots, s)
	h.up(len(h.slots) - 1)
}

func (h *heap) remove(s Slot) {
	i, last := int(h.pos[s]), len(h.slots)-1
	moved := h.slots[last]
	h.slots = h.slots[:last]
	h.pos[s] = unlinked
	if i == last {
		return
	}
	h.slots[i], h.pos[moved] = moved, int32(i)
	h.up(i)
	h.down(int(h.pos[moved]))
}

func (h *heap) up(i int) {
	s := h.slots[i]
	for i > 0 {
		parent := (i - 1) / 2
		if h.key[h.slots[parent]] >= h.key[s] {
			break
		}
		h.slots[i] = h.slots[parent]
		h.pos[h.slots[i]] = int32(i)
		i = parent
	}
	h.slots[i], h.pos[s] = s, int32(i)
}

func (h *heap) down(i int) {
	s := h.slots[i]
	for {
		c := 2*i + 1
		if c >= len(h.slots) {
			break
		}
		if c+1 < len(h.slots) && h.key[h.slots[c+1]] > h.key[h.slots[c]] {
			c++
		}
		if h.key[h.slots[c]] <= h.key[s] {
			break
		}
		h.slots[i] = h.slots[c]
		h.pos[h.slots[i]] = int32(i)
		i = c
	}
	h.slots[i], h.pos[s] = s, int32(i)
}

package evict

// heap is a binary heap of slots, with the largest key first. Keys are stored in heap order, so moving up or down reads
// them in sequence and not by slot. pos is indexed by slot. Several heaps may share it if each slot is in at most one
// of them.
type heap struct {
	keys  []int64
	slots []Slot
	pos   []int32
}

func newHeap(n int, pos []int32) heap {
	return heap{keys: make([]int64, 0, n), slots: make([]Slot, 0, n), pos: pos}
}

func (h *heap) top() (Slot, bool) {
	if len(h.slots) == 0 {
		return 0, false
	}
	return h.slots[0], true
}

func (h *heap) push(s Slot, key int64) {
	h.keys, h.slots = append(h.keys, key), append(h.slots, s)
	h.up(len(h.slots)-1, s, key)
}

func (h *heap) remove(s Slot) {
	i, last := int(h.pos[s]), len(h.slots)-1
	moved, key := h.slots[last], h.keys[last]
	h.slots, h.keys = h.slots[:last], h.keys[:last]
	h.pos[s] = unlinked
	if i == last {
		return
	}
	if i > 0 && h.keys[(i-1)/2] < key {
		h.up(i, moved, key)
		return
	}
	h.down(i, moved, key)
}

// move changes the key of a slot in the heap.
func (h *heap) move(s Slot, key int64) {
	i := int(h.pos[s])
	if i > 0 && h.keys[(i-1)/2] < key {
		h.up(i, s, key)
		return
	}
	h.down(i, s, key)
}

// up places a slot at i or above.
func (h *heap) up(i int, s Slot, key int64) {
	for i > 0 {
		parent := (i - 1) / 2
		if h.keys[parent] >= key {
			break
		}
		h.set(i, h.slots[parent], h.keys[parent])
		i = parent
	}
	h.set(i, s, key)
}

// down places a slot at i or below.
func (h *heap) down(i int, s Slot, key int64) {
	for {
		c := 2*i + 1
		if c >= len(h.keys) {
			break
		}
		if c+1 < len(h.keys) && h.keys[c+1] > h.keys[c] {
			c++
		}
		if h.keys[c] <= key {
			break
		}
		h.set(i, h.slots[c], h.keys[c])
		i = c
	}
	h.set(i, s, key)
}

func (h *heap) set(i int, s Slot, key int64) {
	h.slots[i], h.keys[i], h.pos[s] = s, key, int32(i)
}

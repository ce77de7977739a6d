package schedule

import "time"

// heap orders slots by time, and by arrival among equals. It records the place of each slot, so that any slot can be
// removed in O(log n). Its size is fixed.
type heap struct {
	order []int32 // slots, the earliest first
	place []int32 // by slot: index in order, -1 when absent
	at    []time.Duration
	seq   []uint64
}

func newHeap(capacity int) heap {
	h := heap{
		order: make([]int32, 0, capacity), place: make([]int32, capacity),
		at: make([]time.Duration, capacity), seq: make([]uint64, capacity),
	}
	for i := range h.place {
		h.place[i] = -1
	}
	return h
}

func (h *heap) len() int { return len(h.order) }

// first returns the earliest slot and its time.
func (h *heap) first() (int32, time.Duration) { return h.order[0], h.at[h.order[0]] }

func (h *heap) push(slot int32, at time.Duration, seq uint64) {
	h.at[slot], h.seq[slot] = at, seq
	h.order = append(h.order, slot)
	h.up(len(h.order) - 1)
}

// remove removes a slot, if it is present.
func (h *heap) remove(slot int32) {
	i := int(h.place[slot])
	if i < 0 {
		return
	}
	end := len(h.order) - 1
	moved := h.order[end]
	h.order = h.order[:end]
	h.place[slot] = -1
	if i == end {
		return
	}
	h.order[i] = moved
	h.place[moved] = int32(i)
	h.down(i)
	h.up(int(h.place[moved]))
}

func (h *heap) before(a, b int32) bool {
	if h.at[a] != h.at[b] {
		return h.at[a] < h.at[b]
	}
	return h.seq[a] < h.seq[b]
}

func (h *heap) up(i int) {
	slot := h.order[i]
	for i > 0 {
		parent := (i - 1) / 2
		if !h.before(slot, h.order[parent]) {
			break
		}
		h.set(i, h.order[parent])
		i = parent
	}
	h.set(i, slot)
}

func (h *heap) down(i int) {
	slot := h.order[i]
	for {
		child := 2*i + 1
		if child >= len(h.order) {
			break
		}
		if child+1 < len(h.order) && h.before(h.order[child+1], h.order[child]) {
			child++
		}
		if !h.before(h.order[child], slot) {
			break
		}
		h.set(i, h.order[child])
		i = child
	}
	h.set(i, slot)
}

func (h *heap) set(i int, slot int32) {
	h.order[i] = slot
	h.place[slot] = int32(i)
}

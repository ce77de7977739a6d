package residency

import (
	"container/heap"

	"grebe/plan"
)

// coldest is a heap of cached users, the one with the lowest frequency first. Every operation is O(log n).
type coldest struct {
	h  userHeap
	at int // where the next refresh starts
}

type user struct {
	key       plan.Key
	frequency float64
}

func newColdest() coldest { return coldest{h: userHeap{place: map[plan.Key]int{}}} }

func (c *coldest) set(key plan.Key, frequency float64) {
	if i, ok := c.h.place[key]; ok {
		c.h.users[i].frequency = frequency
		heap.Fix(&c.h, i)
		return
	}
	heap.Push(&c.h, user{key, frequency})
}

func (c *coldest) remove(key plan.Key) {
	if i, ok := c.h.place[key]; ok {
		heap.Remove(&c.h, i)
	}
}

func (c *coldest) first() (plan.Key, float64, bool) {
	if len(c.h.users) == 0 {
		return plan.Key{}, 0, false
	}
	return c.h.users[0].key, c.h.users[0].frequency, true
}

// refresh updates the frequencies of the next n users.
func (c *coldest) refresh(n int, estimate func(plan.Key) float64) {
	for range min(n, len(c.h.users)) {
		c.at = (c.at + 1) % len(c.h.users)
		c.set(c.h.users[c.at].key, estimate(c.h.users[c.at].key))
	}
}

// userHeap is the heap itself, with an index from users to their places.
type userHeap struct {
	users []user
	place map[plan.Key]int
}

func (h *userHeap) Len() int           { return len(h.users) }
func (h *userHeap) Less(i, j int) bool { return h.users[i].frequency < h.users[j].frequency }

func (h *userHeap) Swap(i, j int) {
	h.users[i], h.users[j] = h.users[j], h.users[i]
	h.place[h.users[i].key], h.place[h.users[j].key] = i, j
}

func (h *userHeap) Push(x any) {
	u := x.(user)
	h.place[u.key] = len(h.users)
	h.users = append(h.users, u)
}

func (h *userHeap) Pop() any {
	u := h.users[len(h.users)-1]
	h.users = h.users[:len(h.users)-1]
	delete(h.place, u.key)
	return u
}

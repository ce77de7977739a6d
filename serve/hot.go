package serve

import (
	"cmp"
	"slices"
	"sync"

	grebev1 "grebe/api/grebe/v1"
)

// hotKept is the number of ids that a table counts. An id that is named in more than one of hotKept requests is
// always among them.
const hotKept = 128

// hot counts the ids that requests name most, in bounded memory (Space-Saving, Metwally et al. 2005). A new id
// replaces the one with the lowest count and inherits its count.
type hot struct {
	mu    sync.Mutex
	index map[string]int
	list  []hotEntry
	heap  []int // indices of list, lowest count first
	place []int // index in heap of each entry of list
}

type hotEntry struct {
	id    string
	count int64
	over  int64 // the count may be too high by this
}

func newHot() *hot { return &hot{index: make(map[string]int, hotKept)} }

// note counts an id.
func (h *hot) note(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.count(id)
}

// count counts an id. The caller holds mu.
func (h *hot) count(id string) {
	if i, ok := h.index[id]; ok {
		h.list[i].count++
		h.sink(h.place[i])
		return
	}
	if len(h.list) < hotKept {
		i := len(h.list)
		h.index[id] = i
		h.list = append(h.list, hotEntry{id: id, count: 1})
		h.heap, h.place = append(h.heap, i), append(h.place, i)
		h.rise(i)
		return
	}
	i := h.heap[0]
	e := &h.list[i]
	delete(h.index, e.id)
	h.index[id] = i
	*e = hotEntry{id: id, count: e.count + 1, over: e.count}
	h.sink(0)
}

func (h *hot) less(a, b int) bool { return h.list[h.heap[a]].count < h.list[h.heap[b]].count }

func (h *hot) swap(a, b int) {
	h.heap[a], h.heap[b] = h.heap[b], h.heap[a]
	h.place[h.heap[a]], h.place[h.heap[b]] = a, b
}

func (h *hot) rise(i int) {
	for i > 0 && h.less(i, (i-1)/2) {
		h.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
}

func (h *hot) sink(i int) {
	for {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < len(h.heap); c++ {
			if h.less(c, least) {
				least = c
			}
		}
		if least == i {
			return
		}
		h.swap(i, least)
		i = least
	}
}

// top returns the n ids with the highest counts, highest first.
func (h *hot) top(n int) []hotEntry {
	h.mu.Lock()
	out := slices.Clone(h.list)
	h.mu.Unlock()
	out = slices.DeleteFunc(out, func(e hotEntry) bool { return e.id == "" })
	slices.SortFunc(out, func(a, b hotEntry) int {
		if a.count != b.count {
			return cmp.Compare(b.count, a.count)
		}
		return cmp.Compare(a.id, b.id)
	})
	return out[:min(n, len(out))]
}

// maxHotID bounds the bytes of a counted id. The catalog has no longer ones.
const maxHotID = 512

// forget removes an id. The next new id takes its entry.
func (h *hot) forget(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	i, ok := h.index[id]
	if !ok {
		return
	}
	delete(h.index, id)
	h.list[i] = hotEntry{} // count 0: the lowest
	h.rise(h.place[i])
}

// noteHot counts the user and the items of a ranking.
func (s *Service) noteHot(user string, candidates []*grebev1.Item) {
	if user != "" && len(user) <= maxHotID {
		s.hotUsers.note(user)
	}
	h := s.hotItems
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, it := range candidates {
		if id := it.GetId(); id != "" && len(id) <= maxHotID {
			h.count(it.Id)
		}
	}
}

// Hot is an id that requests name often.
type Hot struct {
	ID    string
	Count int64
}

// Hottest returns the n users and items that rankings and recommendations name most, most first.
func (s *Service) Hottest(n int) (users, items []Hot) { return s.hotUsers.most(n), s.hotItems.most(n) }

func (h *hot) most(n int) (out []Hot) {
	for _, e := range h.top(n) {
		out = append(out, Hot{ID: e.id, Count: e.count})
	}
	return out
}

// HotItems returns how often rankings named items, at least, for those that they name most. Total is for all items.
func (s *Service) HotItems() (items []Hot, total int64) {
	for _, e := range s.hotItems.top(hotKept) {
		total += e.count
		if e.count > e.over {
			items = append(items, Hot{ID: e.id, Count: e.count - e.over})
		}
	}
	return items, total
}

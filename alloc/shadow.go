package alloc

// Shadow simulates an LRU cache for a sample of the keys and remembers what it evicted. It estimates what more memory
// would save where the real cache cannot tell. It allocates nothing once it is warm.
type Shadow struct {
	every uint64
	bytes int64 // capacity
	pool  int64 // bytes of the whole pool
	used  int64
	at    map[uint64]int32
	items []shadowItem // 0 is the list's head: next is the newest, prev the oldest
	free  []int32
	ghost *Ghost
	curve Curve
}

type shadowItem struct {
	key        uint64
	bytes      int64
	next, prev int32
}

// NewShadow samples one key in every, with at most this many entries at a time.
func NewShadow(every, entries int) *Shadow {
	s := &Shadow{every: uint64(max(every, 1)), at: make(map[uint64]int32, entries), items: make([]shadowItem, entries+1),
		ghost: NewGhost(entries)}
	for i := entries; i > 0; i-- {
		s.free = append(s.free, int32(i))
	}
	return s
}

// shadowAtOnce is the most entries that a call evicts: it bounds how long the caller holds a lock.
const shadowAtOnce = 256

// Resize sets the size of the cache and that of the whole pool. It returns false if entries are left to evict: then the
// caller calls it again, with a pause for others.
func (s *Shadow) Resize(bytes, pool int64) bool {
	s.bytes, s.pool = bytes, pool
	s.shrink(0)
	return s.used <= bytes || s.used == 0
}

// Watches reports whether a key is in the sample. Keys must be hashes.
func (s *Shadow) Watches(key uint64) bool { return key>>7%s.every == 0 }

// Use notes a request for an entry, and what a hit saves.
func (s *Shadow) Use(key uint64, bytes int64, saved float64) {
	if key == 0 || !s.Watches(key) {
		return
	}
	bytes *= int64(s.every)
	if i, ok := s.at[key]; ok {
		s.unlink(i)
		s.link(i)
		return
	}
	if depth, ok := s.ghost.Missed(key); ok {
		s.curve.Add(depth, s.pool, saved*float64(s.every))
	}
	if bytes > s.bytes {
		return
	}
	s.shrink(bytes)
	if len(s.free) == 0 {
		s.evict()
	}
	i := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	s.items[i].key, s.items[i].bytes = key, bytes
	s.at[key] = i
	s.used += bytes
	s.link(i)
}

// Take returns the savings since the last call, and resets them.
func (s *Shadow) Take() Curve {
	c := s.curve
	s.curve = Curve{}
	return c
}

// shrink evicts entries until bytes more fit, or as many as it may.
func (s *Shadow) shrink(bytes int64) {
	for n := 0; n < shadowAtOnce && s.used > 0 && s.used+bytes > s.bytes; n++ {
		s.evict()
	}
}

func (s *Shadow) evict() {
	i := s.items[0].prev
	it := &s.items[i]
	s.ghost.Evicted(it.key, it.bytes)
	delete(s.at, it.key)
	s.used -= it.bytes
	s.unlink(i)
	s.free = append(s.free, i)
}

func (s *Shadow) link(i int32) {
	head := &s.items[0]
	s.items[i].prev, s.items[i].next = 0, head.next
	s.items[head.next].prev = i
	head.next = i
}

func (s *Shadow) unlink(i int32) {
	it := &s.items[i]
	s.items[it.prev].next, s.items[it.next].prev = it.next, it.prev
}

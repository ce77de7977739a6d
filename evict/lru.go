package evict

// lru evicts the least recently used.
type lru struct{ order list }

func newLRU(c Config) *lru { return &lru{order: newList(c.Slots)} }

func (p *lru) Hit(s Slot, _ Access) {
	if p.order.newestIs(s) {
		return
	}
	p.order.remove(s)
	p.order.pushNewest(s)
}

func (p *lru) Miss(Access)             {}
func (p *lru) Insert(s Slot, _ Access) { p.order.pushNewest(s) }
func (p *lru) Remove(s Slot)           { p.order.remove(s) }
func (p *lru) Predict(Slot, int64)     {}
func (p *lru) Resize(int64)            {}

func (p *lru) Victim(evictable func(Slot) bool) (Slot, bool) {
	for s := p.order.oldest(); s != p.order.n; s = p.order.newer(s) {
		if evictable == nil || evictable(s) {
			p.order.remove(s)
			return s, true
		}
	}
	return 0, false
}

// sieve is SIEVE (Zhang et al., NSDI '24): a queue in order of insertion. A hit only marks an entry. The hand walks
// from the oldest to the newest entry, unmarks those it passes and evicts the first unmarked one.
type sieve struct {
	order   list
	visited []bool
	hand    int32 // next to look at; order.n: start at the oldest
}

func newSieve(c Config) *sieve {
	return &sieve{order: newList(c.Slots), visited: make([]bool, c.Slots), hand: int32(c.Slots)}
}

func (p *sieve) Hit(s Slot, _ Access) { p.visited[s] = true }
func (p *sieve) Miss(Access)          {}
func (p *sieve) Predict(Slot, int64)  {}
func (p *sieve) Resize(int64)         {}

func (p *sieve) Insert(s Slot, _ Access) {
	p.visited[s] = false
	p.order.pushNewest(s)
}

func (p *sieve) Remove(s Slot) {
	if p.hand == s {
		p.hand = p.order.newer(s)
	}
	p.order.remove(s)
}

func (p *sieve) Victim(evictable func(Slot) bool) (Slot, bool) {
	// The first round may only unmark, and the hand may start in the middle. Reaching the end three times covers all.
	for ends := 0; ends < 3; {
		s := p.hand
		if s == p.order.n {
			ends++
			s = p.order.oldest()
		}
		if s == p.order.n {
			return 0, false
		}
		p.hand = p.order.newer(s)
		if p.visited[s] {
			p.visited[s] = false
			continue
		}
		if evictable == nil || evictable(s) {
			p.order.remove(s)
			return s, true
		}
	}
	return 0, false
}

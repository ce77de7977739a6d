package evict

// maxRefresh is the most predictions that one eviction renews.
const maxRefresh = 64

// Predicted keeps cached entries in order of use, with their predicted returns. A policy that follows predictions
// embeds it and adds Victim.
type Predicted struct {
	order
	now     int64
	refresh func([]Slot, []int64)
	slots   [maxRefresh]Slot
	returns [maxRefresh]int64
}

// NewPredicted makes one without entries. The config MUST be valid.
func NewPredicted(c Config) Predicted {
	return Predicted{order: newOrder(c.Slots), refresh: c.Refresh}
}

// These are as in [Policy].
func (p *Predicted) Hit(s Slot, a Access)      { p.now = a.Now; p.use(s, a.Bytes, a.Return) }
func (p *Predicted) Miss(a Access)             { p.now = a.Now }
func (p *Predicted) Insert(s Slot, a Access)   { p.use(s, a.Bytes, a.Return) }
func (p *Predicted) Remove(s Slot)             { p.remove(s) }
func (p *Predicted) Predict(s Slot, ret int64) { p.predict(s, ret) }
func (p *Predicted) Resize(int64)              {}

// Oldest visits entries from the least recently used on until visit returns false.
func (p *Predicted) Oldest(visit func(Slot) bool) { p.oldest(visit) }

// End returns the end of the range, from the least recently used entry on, whose last entry is s.
func (p *Predicted) End(s Slot) int { return int(p.pos[s]) + 1 }

// TakeFarthest removes and returns the entry with the farthest predicted return that evictable allows, within the range
// from the least recently used entry to end. First it renews overdue predictions of that range.
func (p *Predicted) TakeFarthest(end int, evictable func(Slot) bool) (Slot, bool) {
	end = min(end, p.next)
	p.renew(end)
	return p.takeFarthest(end, evictable)
}

// renew asks for new predictions for the least recent candidates that did not return when predicted.
func (p *Predicted) renew(end int) {
	if p.refresh == nil {
		return
	}
	n, seen := 0, 0
	p.oldest(func(s Slot) bool {
		if int(p.pos[s]) >= end {
			return false
		}
		if r := p.ret(s); r <= p.now {
			p.slots[n], p.returns[n] = s, r
			n++
		}
		seen++
		return seen < maxRefresh
	})
	if n == 0 {
		return
	}
	p.refresh(p.slots[:n], p.returns[:n])
	for i, s := range p.slots[:n] {
		p.predict(s, p.returns[i])
	}
}

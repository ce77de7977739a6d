package residency

import (
	"fmt"

	"grebe/evict"
	"grebe/plan"
)

// kinds is the number of kinds of entries.
const kinds = int(plan.Beam) + 2

// level is one level of memory with its books.
type level[V any] struct {
	index  int
	tier   plan.Tier
	policy evict.Policy
	warmer evict.Warmer // the policy, if it is one
	read   bool         // see warm
	room   int64        // size in bytes, as last told to the policy
	bySlot []*Held[V]
	free   []evict.Slot
	most   int     // slots from here on were never used
	dirty  recency // order of use of the entries that are not on disk yet; nil: there is no disk
	count  int     // number of dirty entries
	now    int64   // number of uses so far, which is the policy's clock
	may    func(*Held[V]) bool
	// evictable calls may. It is made once, so that a call of Victim allocates nothing.
	evictable func(evict.Slot) bool

	forecast *forecast // nil: there are no predictions, or they are an oracle's
	teach    *teacher[V]
	oracle   Oracle // nil: there is none

	expected *Held[V]     // the entry whose miss was recorded and that is not on the books yet; nil: there is none
	missed   evict.Access // the last miss that was recorded

	counts [kinds]Counts
	trace  Trace[V]
	hot    *Hotness // nil: not told which users the level holds
}

func (l *level[V]) did(op Op, h *Held[V]) {
	if l.trace != nil {
		l.trace(op, h, l.tier)
	}
}

// Counts describe the entries of one kind on a level. Bytes that two entries share count for both.
type Counts struct {
	Entries int
	Bytes   int64
	Evicted int64 // dropped from memory
	Lowered int64 // moved to host memory
}

func newLevel[V any](index int, lc LevelConfig, c *Config) (*level[V], error) {
	l := &level[V]{
		index: index, tier: lc.Tier, room: lc.Bytes, bySlot: make([]*Held[V], lc.Slots), free: make([]evict.Slot, lc.Slots),
		oracle: c.Oracle,
	}
	for i := range l.free {
		l.free[i] = evict.Slot(lc.Slots - 1 - i)
	}
	l.evictable = func(s evict.Slot) bool { return l.may(l.bySlot[s]) }
	if c.Below {
		l.dirty = newRecency(lc.Slots)
	}
	ec := evict.Config{Slots: lc.Slots, Bytes: lc.Bytes}
	if c.Predict {
		l.forecast = newForecast(lc.Slots)
		ec.Refresh = l.refresh
	}
	if r, ok := c.Oracle.(Reviser); ok {
		ec.Refresh = l.revised(r)
	}
	var err error
	if l.policy, err = evict.New(c.Policy, ec); err != nil {
		return nil, fmt.Errorf("residency: %w", err)
	}
	l.warmer, _ = l.policy.(evict.Warmer)
	return l, nil
}

// put puts an entry on the books, in a free slot.
func (l *level[V]) put(h *Held[V]) {
	h.level, h.tier, h.slot, h.used = l, l.tier, l.free[len(l.free)-1], false
	l.free = l.free[:len(l.free)-1]
	l.bySlot[h.slot] = h
	l.most = max(l.most, int(h.slot)+1)
	l.did(DidPut, h)
	l.soil(h)
	l.add(h, 1)
	if l.hot != nil && h.Kind == plan.User && !h.Run {
		l.hot.Hold(h.Key)
	}
	if l.forecast != nil {
		l.forecast.Hold(len(l.bySlot) - len(l.free))
	}
	if l.expected != h {
		l.miss(h)
	}
	l.policy.Insert(h.slot, l.missed)
	l.expected = nil
}

// miss records a miss with the policy.
func (l *level[V]) miss(h *Held[V]) {
	l.expected, l.missed = h, l.access(h)
	l.policy.Miss(l.missed)
}

// take removes an entry from the books. If chosen, the policy chose the entry and has removed it from its own lists.
func (l *level[V]) take(h *Held[V], chosen bool) {
	if chosen {
		l.did(DidLeave, h)
	} else {
		l.did(DidTake, h)
		l.policy.Remove(h.slot)
	}
	l.cleaned(h)
	l.bySlot[h.slot] = nil
	l.free = append(l.free, h.slot)
	l.add(h, -1)
	if l.hot != nil && h.Kind == plan.User && !h.Run {
		l.hot.Leave(h.Key)
	}
	h.level = nil
}

// warm reads what hit will read.
func (l *level[V]) warm(h *Held[V]) {
	l.read = h.used // so that the read is not left out
	if l.warmer != nil {
		l.warmer.Warm(h.slot)
	}
}

// hit notes a use.
func (l *level[V]) hit(h *Held[V]) {
	l.did(DidHit, h)
	if h.dirty {
		l.dirty.use(h.slot)
	}
	l.policy.Hit(h.slot, l.access(h))
}

// access describes a use of an entry to the policy.
func (l *level[V]) access(h *Held[V]) evict.Access {
	l.now++
	now, ret := l.now, int64(0)
	switch {
	case l.oracle != nil:
		now, ret = l.oracle.Now(), l.oracle.Next(h.Key)
	case l.forecast != nil:
		ret = l.predict(h)
	}
	return evict.Access{Key: Hash(h.Key), Bytes: max(h.Bytes, 1), Now: now, Return: ret, Cost: float64(h.Tokens)}
}

func (l *level[V]) add(h *Held[V], n int) {
	c := &l.counts[h.Kind]
	c.Entries += n
	c.Bytes += int64(n) * h.Bytes
}

func (l *level[V]) resize(bytes int64) {
	if bytes = max(bytes, 1); bytes != l.room {
		l.room = bytes
		l.policy.Resize(bytes)
	}
}

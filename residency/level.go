package residency

import (
	"fmt"

	"grebe/evict"
	"grebe/plan"
)

// kinds is how many kinds of entries there are.
const kinds = int(plan.Beam) + 2

// level is a pool of memory and the entries on its books.
type level[V any] struct {
	index  int
	tier   plan.Tier
	policy evict.Policy
	room   int64 // bytes, as the policy knows
	bySlot []*Held[V]
	free   []evict.Slot
	most   int     // slots from here on were never used
	dirty  recency // of the entries that are not below yet; nil: there is no disk
	count  int     // how many these are
	now    int64   // uses so far: the policy's clock
	may    func(*Held[V]) bool
	// evictable asks may. It is made once, so that asking allocates nothing.
	evictable func(evict.Slot) bool

	forecast *forecast // nil: nothing is predicted
	teach    *teacher[V]

	counts [kinds]Counts
	trace  Trace[V]
	hot    *Hotness // nil: it does not know which users the level has
}

func (l *level[V]) did(op Op, h *Held[V]) {
	if l.trace != nil {
		l.trace(op, h, l.tier)
	}
}

// Counts are of the entries of one kind on a level. Bytes that two entries share count for both.
type Counts struct {
	Entries int
	Bytes   int64
	Evicted int64 // out of memory
	Lowered int64 // to the host's
}

func newLevel[V any](index int, lc LevelConfig, c *Config) (*level[V], error) {
	l := &level[V]{
		index: index, tier: lc.Tier, room: lc.Bytes, bySlot: make([]*Held[V], lc.Slots), free: make([]evict.Slot, lc.Slots),
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
	var err error
	if l.policy, err = evict.New(c.Policy, ec); err != nil {
		return nil, fmt.Errorf("residency: %w", err)
	}
	return l, nil
}

// put takes an entry onto the books, in a free slot.
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
	a := l.access(h)
	l.policy.Miss(a)
	l.policy.Insert(h.slot, a)
}

// take takes an entry off the books. The policy has let it go already if it chose it.
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
	return evict.Access{Key: Hash(h.Key), Bytes: max(h.Bytes, 1), Now: l.now, Return: l.predict(h), Cost: float64(h.Tokens)}
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

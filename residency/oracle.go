package residency

import (
	"grebe/evict"
	"grebe/plan"
)

// Oracle predicts when entries are used next, in place of models that learn online. Simulators have one: it may know
// the future, guess, or be wrong on purpose. The policy uses the oracle's clock.
type Oracle interface {
	// Now returns the time in a unit of the oracle's choice. It never decreases.
	Now() int64
	// Next returns the time of the next use of the entry under key, which is used now. A time up to Now means unknown,
	// evict.Never that there is no next use.
	Next(key plan.Key) int64
}

// Reviser is an Oracle that predicts again for entries that were not used when predicted.
type Reviser interface {
	Oracle
	// Revise sets next[i] to the time of the next use of keys[i]. There are at most 64 keys.
	Revise(keys []plan.Key, next []int64)
}

// revised returns an evict.Config.Refresh that asks r.
func (l *level[V]) revised(r Reviser) func([]evict.Slot, []int64) {
	keys := make([]plan.Key, 64)
	return func(slots []evict.Slot, next []int64) {
		for i, s := range slots {
			keys[i] = l.bySlot[s].Key
		}
		r.Revise(keys[:len(slots)], next)
	}
}

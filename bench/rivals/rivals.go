// Package rivals has eviction policies that benchmarks compare with those of package evict and that no server offers
// (LRU-1 and LRU-4 in docs/explain/papers.md). A program that imports it can make them by name, with evict.New.
package rivals

import (
	"math"

	"grebe/evict"
)

// Names of the policies.
const (
	Blind    = "blind"     // evicts the farthest predicted return, however good the predictions are
	Filtered = "filtered"  // evicts the farthest predicted return among the four least recently used
	LARUCost = "laru-cost" // LARU weighted by what a hit saves per byte
)

func init() {
	evict.Register(Blind, func(c evict.Config) (evict.Policy, error) { return &blind{evict.NewPredicted(c)}, nil })
	evict.Register(Filtered, func(c evict.Config) (evict.Policy, error) { return &filtered{evict.NewPredicted(c)}, nil })
	evict.Register(LARUCost, func(c evict.Config) (evict.Policy, error) { return newLARUCost(c) })
}

// blind evicts the entry with the farthest predicted return.
type blind struct{ evict.Predicted }

func (p *blind) Victim(evictable func(evict.Slot) bool) (evict.Slot, bool) {
	return p.TakeFarthest(math.MaxInt, evictable)
}

// filtered evicts the entry with the farthest predicted return among the four least recently used that may be evicted.
type filtered struct{ evict.Predicted }

const filterCandidates = 4

func (p *filtered) Victim(evictable func(evict.Slot) bool) (evict.Slot, bool) {
	end, n := 0, 0
	p.Oldest(func(s evict.Slot) bool {
		if evictable == nil || evictable(s) {
			n++
			end = p.End(s)
		}
		return n < filterCandidates
	})
	return p.TakeFarthest(end, evictable)
}

package generate

import (
	"maps"
	"slices"

	"grebe/beam"
)

// Rules change which items of the eligible ones come back. They take effect in the rounds, so they apply to all items
// and not only to those that a search without rules finds. A search with rules runs its rounds on the host.
type Rules struct {
	// Quota limits the results that have the same value of an attribute. An item with several values counts for each of
	// them. Items without the attribute are not limited.
	Quota map[string]int
	// Boost has numbers, by attribute and value, that are added to scores.
	Boost map[string]map[string]float64
	// Temperature above 0 samples paths without replacement, see beam.Rules.
	Temperature float64
	Seed        uint64
}

func (r *Rules) none() bool { return len(r.Quota) == 0 && len(r.Boost) == 0 && r.Temperature == 0 }

// rules returns the rules of one search; nil: there are none. Boosts are in a fixed order, since sums depend on it.
func (s *Snapshot) rules(r *Rules) *beam.Rules {
	if r.none() {
		return nil
	}
	out := &beam.Rules{Temperature: r.Temperature, Seed: r.Seed}
	for _, name := range slices.Sorted(maps.Keys(r.Boost)) {
		values := r.Boost[name]
		for _, v := range slices.Sorted(maps.Keys(values)) {
			out.Boosts = append(out.Boosts, beam.Boost{Set: s.having(name, []string{v}), Value: values[v]})
		}
	}
	if len(r.Quota) > 0 {
		out.Accept = s.quota(r.Quota)
	}
	return out
}

// quota returns a function that takes an item unless one of its values has its share of the results.
func (s *Snapshot) quota(limits map[string]int) func(item uint32) bool {
	taken := map[attribute]int{}
	return func(item uint32) bool {
		var all []attribute
		for name, limit := range limits {
			for _, v := range s.table.Values(item, name) {
				a := attribute{name, v}
				if taken[a] >= limit {
					return false
				}
				if !slices.Contains(all, a) {
					all = append(all, a)
				}
			}
		}
		for _, a := range all {
			taken[a]++
		}
		return true
	}
}

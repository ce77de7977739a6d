package generate

import (
	"maps"
	"slices"

	"grebe/beam"
	"grebe/catalog/filter"
)

// Bounds of what a snapshot keeps for ranges.
const (
	maxOrdered = 16 // attributes
	maxRanges  = 16 // sets of the ranges that were asked for last
)

type column struct {
	name string
	kind filter.Kind
}

// ordered has the items of a snapshot by their value of an attribute. It never changes.
type ordered struct {
	keys  []int64
	items *beam.Line
}

// spread is a range of an attribute.
type spread struct {
	of        column
	low, high int64
}

// ranges has the sets of the ranges that were asked for last. The oldest goes first.
type ranges struct {
	of   [maxRanges]spread
	sets [maxRanges]*beam.Set
	next int
}

func (r *ranges) find(of spread) *beam.Set {
	for i, s := range r.of {
		if s == of {
			return r.sets[i] // nil: none was kept here
		}
	}
	return nil
}

func (r *ranges) keep(of spread, set *beam.Set) {
	r.of[r.next], r.sets[r.next] = of, set
	r.next = (r.next + 1) % maxRanges
}

// between returns the items that have a value in a range. The caller MUST NOT change the set.
func (s *Snapshot) between(name string, r *filter.Range) *beam.Set {
	of := spread{column{name, r.Kind}, r.Low, r.High}
	s.mu.Lock()
	set := s.ranges.find(of)
	s.mu.Unlock()
	if set != nil {
		return set
	}
	o := s.column(of.of)
	from, _ := slices.BinarySearch(o.keys, r.Low)
	to := len(o.keys)
	if r.High < r.High+1 {
		to, _ = slices.BinarySearch(o.keys, r.High+1)
	}
	set = o.items.Between(from, max(from, to))
	if len(name) <= maxNamed {
		s.mu.Lock()
		s.ranges.keep(of, set)
		s.mu.Unlock()
	}
	return set
}

// column returns the items by their value of an attribute. Making it reads all items.
func (s *Snapshot) column(of column) *ordered {
	s.mu.Lock()
	o := s.ordered[of]
	s.mu.Unlock()
	if o != nil {
		return o
	}
	o = s.order(of)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ordered == nil {
		s.ordered = map[column]*ordered{}
	}
	if len(s.ordered) < maxOrdered && len(of.name) <= maxNamed {
		s.ordered[of] = o
	}
	return o
}

func (s *Snapshot) order(of column) *ordered {
	c := s.table.Column(of.name, of.kind)
	keys, items := c.Keys, c.Slots
	if !s.holdsAll(items) {
		keys, items = make([]int64, 0, len(c.Keys)), make([]uint32, 0, len(c.Keys))
		for i, slot := range c.Slots {
			if s.index.Holds(slot) {
				keys, items = append(keys, c.Keys[i]), append(items, slot)
			}
		}
	}
	return &ordered{keys, beam.NewLine(s.index, items)}
}

func (s *Snapshot) holdsAll(slots []uint32) bool {
	for _, slot := range slots {
		if !s.index.Holds(slot) {
			return false
		}
	}
	return true
}

// columns returns the attributes that requests had ranges of.
func (s *Snapshot) columns() []column {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.ordered))
}

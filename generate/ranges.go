package generate

import (
	"maps"
	"slices"

	"grebe/beam"
	"grebe/catalog/filter"
)

// Bounds of the ordered attributes of a snapshot.
const (
	maxOrdered    = 16       // attributes
	maxStepBytes  = 16 << 20 // of the sets of one attribute
	minStepLength = 16       // values between two sets
	maxSteps      = 256
)

type column struct {
	name string
	kind filter.Kind
}

// ordered has the items of a snapshot by their value of an attribute. It never changes.
type ordered struct {
	keys  []int64
	items []uint32
	// steps has the items of the first values, a multiple of length of them each. It is nil if an item has several values:
	// then the items of a range are not those of its end without those of its begin.
	steps  []*beam.Set
	length int
}

// between returns the items that have a value in a range.
func (s *Snapshot) between(name string, r *filter.Range) *beam.Set {
	o := s.column(column{name, r.Kind})
	from, _ := slices.BinarySearch(o.keys, r.Low)
	to := len(o.keys)
	if r.High < r.High+1 {
		to, _ = slices.BinarySearch(o.keys, r.High+1)
	}
	if o.steps == nil || to-from <= o.length {
		set := beam.NewSet(s.index)
		for _, item := range o.items[from:max(from, to)] {
			set.Add(item)
		}
		return set
	}
	set := o.first(to)
	set.Subtract(o.first(from))
	return set
}

// first returns the items of the first n values.
func (o *ordered) first(n int) *beam.Set {
	set := o.steps[n/o.length].Clone()
	for _, item := range o.items[n/o.length*o.length : n] {
		set.Add(item)
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
	o := &ordered{keys: c.Keys, items: c.Slots}
	if !s.holdsAll(c.Slots) {
		o.keys, o.items = make([]int64, 0, len(c.Keys)), make([]uint32, 0, len(c.Keys))
		for i, slot := range c.Slots {
			if s.index.Holds(slot) {
				o.keys, o.items = append(o.keys, c.Keys[i]), append(o.items, slot)
			}
		}
	}
	steps := min(maxSteps, maxStepBytes/max(1, s.index.Len()/8), len(o.items)/minStepLength)
	o.length = len(o.items)/max(1, steps) + 1
	set := beam.NewSet(s.index)
	for i, item := range o.items {
		if i%o.length == 0 {
			o.steps = append(o.steps, set.Clone())
		}
		if set.Has(item) {
			o.steps = nil
			return o
		}
		set.Add(item)
	}
	if len(o.items)%o.length == 0 {
		o.steps = append(o.steps, set)
	}
	return o
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

package serve

import (
	"slices"
	"sync/atomic"

	grebev1 "grebe/api/grebe/v1"
	"grebe/catalog/filter"
	"grebe/model/hstu"
	"grebe/prompt"
)

// excluded returns the rows of the items that a request excludes, ascending. exclude_seen covers the whole history,
// including events that the model left out.
func excluded(m *hstu.Model, req *grebev1.RecommendRequest, user *grebev1.User) []int32 {
	var rows []int32
	exclude := func(id string) {
		if row, ok := m.Row(id); ok {
			rows = append(rows, row)
		}
	}
	for _, id := range req.Exclude {
		exclude(id)
	}
	if req.ExcludeSeen {
		for _, e := range user.Events {
			exclude(e.GetItem())
		}
		for _, e := range user.NewEvents {
			exclude(e.GetItem())
		}
		for _, id := range user.History {
			exclude(id)
		}
	}
	slices.Sort(rows)
	return slices.Compact(rows)
}

// eligible returns which items may be recommended. They must be in the catalog, unless it is empty, and match the
// filter. It returns nil if all may. The items that it is asked for tell had what values they have.
func (s *Service) eligible(m *hstu.Model, only filter.Filter, had hadValues) func(row int32) bool {
	known, _, _ := s.catalog.Counts()
	if known == 0 && len(only) == 0 {
		return nil
	}
	view := s.view(nil)
	matches := func(it *prompt.Item) bool {
		had.look(it.Attributes)
		return only.Matches(it.Attributes)
	}
	return func(row int32) bool {
		if known == 0 {
			return false
		}
		if view == nil {
			return s.catalog.Match(m.Name(row), matches)
		}
		it, ok := view.Item(s.catalog, m.Name(row))
		return ok && matches(it)
	}
}

// hadValues notes which values of a filter's short lists some item has. A search that finds too few items asks for
// all that may be found, so it knows then what no item has. Several goroutines may use it.
type hadValues []*hadValue

type hadValue struct {
	name string
	any  []string
	had  atomic.Uint32 // bits of any
}

func hadOf(only filter.Filter) (h hadValues) {
	for name, c := range only {
		if n := len(c.Any); n > 0 && n <= maxChecked {
			h = append(h, &hadValue{name: name, any: c.Any})
		}
	}
	return h
}

// look notes the values of an item.
func (h hadValues) look(attributes map[string][]string) {
	for _, x := range h {
		had := x.had.Load()
		if had == 1<<len(x.any)-1 {
			continue
		}
		values := attributes[x.name]
		for i, v := range x.any {
			if had>>i&1 == 0 && slices.Contains(values, v) {
				x.had.Or(1 << i)
			}
		}
	}
}

// lacking returns those of an attribute's values that no item had.
func (h hadValues) lacking(name string, values []string) (out []string) {
	for _, x := range h {
		if x.name != name {
			continue
		}
		for i, v := range values {
			if x.had.Load()>>i&1 == 0 {
				out = append(out, v)
			}
		}
	}
	return out
}

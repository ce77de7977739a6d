package generate

import (
	"fmt"
	"sync"
	"time"

	"grebe/beam"
	"grebe/compute"
	"grebe/prompt"
)

// Snapshot is the items that can be generated, at one version of the catalog. It never changes; a
// request keeps the one it began with.
type Snapshot struct {
	Version string
	Created time.Time
	Skipped int // items without codes that the model has

	index  *beam.Index // nil: no item can be generated
	items  []*prompt.Item
	byID   map[string]uint32
	heads  []compute.Linear // output projections of the levels
	tokens [][]int32        // tokens of the levels' codes

	mu   sync.Mutex
	sets map[attribute]*beam.Set // items by attribute, made when first asked for
}

type attribute struct{ name, value string }

// Packer packs the output projection of some tokens. A model is one.
type Packer interface {
	Head(tokens []int32) (compute.Linear, error)
}

// NewSnapshot indexes the items that have codes; others are left out and counted. Was is the snapshot
// before, whose packed projections are taken over where they fit; nil when there is none.
func NewSnapshot(version string, items []*prompt.Item, b *prompt.Builder, m Packer, was *Snapshot) (*Snapshot, error) {
	s := &Snapshot{Version: version, Created: time.Now(), byID: map[string]uint32{}, sets: map[attribute]*beam.Set{}}
	var codes []int32
	for _, it := range items {
		if _, err := b.CodeTokens(it.Codes); err != nil {
			s.Skipped++
			continue
		}
		s.byID[it.ID] = uint32(len(s.items))
		s.items = append(s.items, it)
		codes = append(codes, it.Codes...)
	}
	if len(s.items) == 0 {
		return s, nil
	}
	sizes := b.CodeSizes(codes)
	var err error
	if s.index, err = beam.Build(sizes, codes); err != nil {
		return nil, fmt.Errorf("generate: index %d items: %w", len(s.items), err)
	}
	for l, size := range sizes {
		if was != nil && was.index != nil && was.index.Size(l) == size {
			s.tokens, s.heads = append(s.tokens, was.tokens[l]), append(s.heads, was.heads[l])
			continue
		}
		tokens := b.LevelTokens(l, size)
		head, err := m.Head(tokens)
		if err != nil {
			return nil, fmt.Errorf("generate: level %d: %w", l, err)
		}
		s.tokens, s.heads = append(s.tokens, tokens), append(s.heads, head)
	}
	return s, nil
}

// Len returns the number of items that can be generated.
func (s *Snapshot) Len() int { return len(s.items) }

// Digest identifies the codes of all items.
func (s *Snapshot) Digest() string {
	if s.index == nil {
		return ""
	}
	return s.index.Digest().String()
}

// filter returns the items that have one of the values of each attribute.
func (s *Snapshot) filter(want map[string][]string) *beam.Set {
	var all *beam.Set
	for name, values := range want {
		any := s.having(name, values)
		if all == nil {
			all = any
		} else {
			all.Intersect(any)
		}
	}
	return all
}

// Sets are kept for a bounded number of attributes, as what clients filter by is not bounded; and not
// for those of a request that asks for many at once.
const (
	maxSets       = 1024
	maxSetsAtOnce = 8
)

// having returns the items that have one of the values of an attribute. It goes over the items once, or
// not at all when the values were asked for before.
func (s *Snapshot) having(name string, values []string) *beam.Set {
	any := beam.NewSet(s.index)
	missing := map[string]*beam.Set{} // where to add the items of a value
	s.mu.Lock()
	for _, v := range values {
		if set, ok := s.sets[attribute{name, v}]; ok {
			any.Union(set)
		} else {
			missing[v] = any
		}
	}
	s.mu.Unlock()
	if len(missing) == 0 {
		return any
	}
	keep := len(missing) <= maxSetsAtOnce
	if keep {
		for v := range missing {
			missing[v] = beam.NewSet(s.index)
		}
	}
	for i, it := range s.items {
		for _, v := range it.Attributes[name] {
			if set := missing[v]; set != nil {
				set.Add(uint32(i))
			}
		}
	}
	if keep {
		s.keep(name, missing, any)
	}
	return any
}

// keep remembers the items of some values and adds them to any.
func (s *Snapshot) keep(name string, found map[string]*beam.Set, any *beam.Set) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for v, set := range found {
		any.Union(set)
		if len(s.sets) < maxSets {
			s.sets[attribute{name, v}] = set
		}
	}
}

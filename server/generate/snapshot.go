package generate

import (
	"fmt"
	"sync"

	"grebe/beam"
	"grebe/compute"
	"grebe/prompt"
)

// Snapshot is the items that can be generated, at one version of the catalog. It never changes; a
// request keeps the one it began with.
type Snapshot struct {
	Version string
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
	s := &Snapshot{Version: version, byID: map[string]uint32{}, sets: map[attribute]*beam.Set{}}
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
		any := beam.NewSet(s.index)
		for _, v := range values {
			any.Union(s.with(attribute{name, v}))
		}
		if all == nil {
			all = any
		} else {
			all.Intersect(any)
		}
	}
	return all
}

// maxSets bounds the sets that a snapshot keeps: what clients filter by is not bounded.
const maxSets = 1024

// with returns the items that have an attribute.
func (s *Snapshot) with(a attribute) *beam.Set {
	s.mu.Lock()
	defer s.mu.Unlock()
	if set, ok := s.sets[a]; ok {
		return set
	}
	set := beam.NewSet(s.index)
	for i, it := range s.items {
		for _, v := range it.Attributes[a.name] {
			if v == a.value {
				set.Add(uint32(i))
			}
		}
	}
	if len(s.sets) < maxSets {
		s.sets[a] = set
	}
	return set
}

package generate

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"grebe/beam"
	"grebe/catalog/filter"
	"grebe/catalog/history"
	"grebe/compute"
	"grebe/prompt"
)

// Snapshot has the items that can be generated at one version of the catalog. It never changes; a request uses one
// snapshot to its end.
type Snapshot struct {
	Version string
	Created time.Time // when the version was made
	Skipped int       // items that the model cannot generate
	// Unusable counts the items of Skipped that have codes. Examples names the first of them, with reasons.
	Unusable int
	Examples []string

	index  *beam.Index    // nil: no item can be generated
	table  *history.Table // its slots are the items of index
	heads  []compute.Linear
	tokens [][]int32    // of the levels' codes
	tree   compute.Tree // the index on a device that can search, or nil
	digest func() string
	at     *history.Version // nil: not part of a history

	mu      sync.Mutex
	sets    map[attribute]*beam.Set // items by attribute, made on first use
	ordered map[column]*ordered     // items by the value of an attribute, made on first use
	ranges  ranges
}

type attribute struct{ name, value string }

// Packer packs the output projection of some tokens, as models do.
type Packer interface {
	Head(tokens []int32) (compute.Linear, error)
}

// NewSnapshot indexes the items that have codes. It skips and counts the others. was is the snapshot before, whose
// packed projections are reused where they fit, or nil.
func NewSnapshot(version string, items []*prompt.Item, b *prompt.Builder, m Packer, was *Snapshot) (*Snapshot, error) {
	table := history.NewTable(items)
	slots := make([]uint32, table.Slots())
	for i := range slots {
		slots[i] = uint32(i)
	}
	index, err := newIndexer(b).build(table, slots)
	if err != nil {
		return nil, err
	}
	s := &Snapshot{Version: version, Created: time.Now(), table: table}
	if err := s.complete(index, b, m, was); err != nil {
		return nil, err
	}
	s.Skipped = len(items) - s.Len()
	return s, nil
}

// complete sets the index, which may be nil, and all that depends on it.
func (s *Snapshot) complete(index *beam.Index, b *prompt.Builder, m Packer, was *Snapshot) error {
	s.index, s.sets = index, map[attribute]*beam.Set{}
	s.digest = sync.OnceValue(func() string { return index.Digest().String() })
	if index == nil {
		s.digest = func() string { return "" }
		return nil
	}
	for l := range index.Depth() {
		size := index.Size(l)
		if was != nil && was.index != nil && was.index.Size(l) == size {
			s.tokens, s.heads = append(s.tokens, was.tokens[l]), append(s.heads, was.heads[l])
			continue
		}
		tokens := b.LevelTokens(l, size)
		head, err := m.Head(tokens)
		if err != nil {
			return fmt.Errorf("generate: level %d: %w", l, err)
		}
		s.tokens, s.heads = append(s.tokens, tokens), append(s.heads, head)
	}
	var err error
	s.tree, err = newTree(index, s.tokens, m)
	return err
}

// Len returns the number of items that can be generated.
func (s *Snapshot) Len() int {
	if s.index == nil {
		return 0
	}
	return s.index.Len()
}

// Digest identifies the codes of all items that can be generated.
func (s *Snapshot) Digest() string { return s.digest() }

// Attributes reports whether any item has an attribute. If none has, it returns all attributes, sorted. A nil
// snapshot has every attribute.
func (s *Snapshot) Attributes(name string) (has bool, all []string) {
	if s == nil || s.table == nil {
		return true, nil
	}
	return s.table.Named(name)
}

// Lacking returns those of the values of an attribute that no item has. A nil snapshot has every value.
func (s *Snapshot) Lacking(name string, values []string) (out []string) {
	if s == nil || s.table == nil {
		return nil
	}
	for i, slots := range s.table.Having(name, values) {
		if !slices.ContainsFunc(slots, s.index.Holds) {
			out = append(out, values[i])
		}
	}
	return out
}

// number returns an item's number in the index.
func (s *Snapshot) number(id string) (uint32, bool) { return s.table.Find(id, s.index.Holds) }

// filter returns the items that meet all conditions. The caller MUST NOT change the set.
func (s *Snapshot) filter(f filter.Filter) *beam.Set {
	var all *beam.Set
	meet := func(set *beam.Set) {
		if all == nil {
			all = set
		} else {
			all.Intersect(set)
		}
	}
	for name, c := range f {
		if c.Any != nil {
			meet(s.having(name, c.Any))
		}
		if c.Range != nil {
			set := s.between(name, c.Range)
			if alone := len(f) == 1 && c.Any == nil && len(c.Not) == 0; !alone {
				set = set.Clone()
			}
			meet(set)
		}
	}
	for name, c := range f {
		if len(c.Not) == 0 {
			continue
		}
		if all == nil {
			all = beam.NewSet(s.index)
			all.Fill()
		}
		all.Subtract(s.having(name, c.Not))
	}
	return all
}

// Limits of the kept sets, since clients may filter by any value. Sets of a request with many new values are not
// kept.
const (
	maxSets       = 1024
	maxSetBytes   = 256 << 20
	maxSetsAtOnce = 8
	maxNamed      = 1024 // bytes of an attribute's name and value
)

// having returns the items that have one of the values of an attribute. It uses kept sets and looks up the others.
func (s *Snapshot) having(name string, values []string) *beam.Set {
	any := beam.NewSet(s.index)
	var missing []string
	s.mu.Lock()
	for _, v := range values {
		if set, ok := s.sets[attribute{name, v}]; ok {
			any.Union(set)
		} else {
			missing = append(missing, v)
		}
	}
	s.mu.Unlock()
	if len(missing) == 0 {
		return any
	}
	keep := len(missing) <= maxSetsAtOnce
	for i, slots := range s.table.Having(name, missing) {
		set := any
		if keep {
			set = beam.NewSet(s.index)
		}
		for _, slot := range slots {
			if s.index.Holds(slot) {
				set.Add(slot)
			}
		}
		if keep {
			s.keep(attribute{name, missing[i]}, set)
			any.Union(set)
		}
	}
	return any
}

// keep keeps the set of a value, within the limits.
func (s *Snapshot) keep(a attribute, set *beam.Set) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(a.name)+len(a.value) <= maxNamed && len(s.sets) < maxSets && (len(s.sets)+1)*s.index.Len()/8 < maxSetBytes {
		s.sets[a] = set
	}
}

// maxWarmed bounds the sets that a snapshot makes before it is used.
const maxWarmed = 64

// warm makes the sets that another snapshot has, so that no request waits for them.
func (s *Snapshot) warm(was *Snapshot) {
	if was == nil || s.index == nil {
		return
	}
	was.mu.Lock()
	asked := make([]attribute, 0, min(len(was.sets), maxWarmed))
	for a := range was.sets {
		if len(asked) == maxWarmed {
			break
		}
		asked = append(asked, a)
	}
	was.mu.Unlock()
	for _, a := range asked {
		s.having(a.name, []string{a.value})
	}
	for _, of := range was.columns() {
		s.column(of)
	}
}

// Package placement decides which node holds which item's KV.
//
// A Map assigns every item to a micro-part and every micro-part to an owner and a second owner, which takes over when
// the owner is gone. There are about 64 micro-parts per node, so a change of membership moves few of them. Some items
// are everywhere: every node holds them. Builders make maps: Hash, Replicate, HotCold (BAT-4) and Similar (RCL-3).
//
// Everything here is pure: no goroutine, no lock, no I/O and no clock. The same input gives the same map.
// A Map does not change after it was built, so any number of goroutines may read it.
package placement

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
)

const (
	partsPerNode = 64
	maxParts     = everywhere
	maxNodes     = maxParts / partsPerNode
	maxName      = 255 // bytes of a member's name

	everywhere = math.MaxUint16 // in the table: every node holds the item
)

// Member is a node that may own items. Its index in the list of members is its number, which Place returns.
type Member struct {
	Name string // identifies the node across changes of membership; unique
	// Weight is the node's share of the items, relative to the other members. 0: the node owns nothing. A node that
	// left keeps its number and gets weight 0, so the numbers of the others do not change.
	Weight float64
}

// Members returns n members of equal weight, named by their number.
func Members(n int) []Member {
	out := make([]Member, max(n, 0))
	for i := range out {
		out[i] = Member{Name: strconv.Itoa(i), Weight: 1}
	}
	return out
}

// Config is common to all maps.
type Config struct {
	Epoch   uint64   // of the map; a change of membership adds one
	Members []Member // at least one with a weight above 0
	Items   int      // items of the catalog; items that appear later are placed by hash
	Parts   int      // micro-parts; 0: 64 per member with a weight
}

// Validate returns an error for the first invalid field.
func (c *Config) Validate() error {
	if len(c.Members) == 0 {
		return errors.New("placement: no members")
	}
	if len(c.Members) > maxNodes {
		return fmt.Errorf("placement: %d members, at most %d", len(c.Members), maxNodes)
	}
	names := make(map[string]bool, len(c.Members))
	for i, m := range c.Members {
		switch {
		case m.Name == "" || len(m.Name) > maxName:
			return fmt.Errorf("placement: member %d has a name of %d bytes, want 1 to %d", i, len(m.Name), maxName)
		case names[m.Name]:
			return fmt.Errorf("placement: two members are named %q", m.Name)
		case !(m.Weight >= 0 && m.Weight <= math.MaxFloat32):
			return fmt.Errorf("placement: member %q has weight %v", m.Name, m.Weight)
		}
		names[m.Name] = true
	}
	if c.live() == 0 {
		return errors.New("placement: no member has a weight above 0")
	}
	if c.Items < 0 || c.Items > math.MaxInt32 {
		return fmt.Errorf("placement: %d items, want 0 to 2³¹−1", c.Items)
	}
	if c.Parts < 0 || c.Parts > maxParts {
		return fmt.Errorf("placement: %d micro-parts, want 1 to %d, or 0 for the default", c.Parts, maxParts)
	}
	return nil
}

// live is the number of members that own items.
func (c *Config) live() int {
	n := 0
	for _, m := range c.Members {
		if m.Weight > 0 {
			n++
		}
	}
	return n
}

// Map says which node owns which item. It does not change after it was built.
type Map struct {
	Epoch uint64

	members []Member
	items   int
	full    bool     // every node holds every item
	table   []uint16 // item → micro-part, or everywhere; nil: all items by hash
	parts   []part
	ties    [][]link // micro-part → the micro-parts it is tied to most; nil: owners by rendezvous
}

// part is where a micro-part lies: numbers of members. Both are the same where only one member has a weight.
type part struct{ owner, second uint16 }

// newMap returns a map with owners by weighted rendezvous and without a table.
func newMap(c Config) (*Map, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.Parts == 0 {
		c.Parts = partsPerNode * c.live()
	}
	m := &Map{Epoch: c.Epoch, members: append([]Member(nil), c.Members...), items: c.Items, parts: make([]part, c.Parts)}
	m.rendezvous()
	return m, nil
}

// Hash places items by hash: items into micro-parts, and these on nodes by weighted rendezvous. A member more or less
// moves about 1/N of the items.
func Hash(c Config) (*Map, error) { return newMap(c) }

// Replicate places all items on all nodes.
func Replicate(c Config) (*Map, error) {
	m, err := newMap(c)
	if err == nil {
		m.full = true
	}
	return m, err
}

// Nodes returns the number of members, including those of weight 0.
func (m *Map) Nodes() int { return len(m.members) }

// Members returns the members. The caller must not change them.
func (m *Map) Members() []Member { return m.members }

// Items returns the number of items that the map was built for.
func (m *Map) Items() int { return m.items }

// Parts returns the number of micro-parts.
func (m *Map) Parts() int { return len(m.parts) }

// Part returns the micro-part of an item. An item that is everywhere, or that the table does not have, has one by hash.
func (m *Map) Part(item int32) int {
	if uint32(item) < uint32(len(m.table)) && m.table[item] != everywhere {
		return int(m.table[item])
	}
	return hashed(item, len(m.parts))
}

// Owners returns the members that own a micro-part: the owner and the second one.
func (m *Map) Owners(part int) (owner, second int) {
	return int(m.parts[part].owner), int(m.parts[part].second)
}

// Place returns the nodes of an item: its owner, the second owner (the same node if there is only one), and whether
// every node of weight above 0 holds it. The item is its ordinal in the catalog.
func (m *Map) Place(item int32) (owner, second int, all bool) {
	p := m.parts[m.Part(item)]
	return int(p.owner), int(p.second), m.everywhere(item)
}

func (m *Map) everywhere(item int32) bool {
	return m.full || uint32(item) < uint32(len(m.table)) && m.table[item] == everywhere
}

// Change returns the map of the next epoch for other members: the same micro-parts, as few of them moved as the
// weights ask for. A member that left has weight 0; new ones are added behind the others.
func (m *Map) Change(members []Member) (*Map, error) {
	c := Config{Epoch: m.Epoch + 1, Members: members, Items: m.items, Parts: len(m.parts)}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if len(members) < len(m.members) {
		return nil, fmt.Errorf("placement: %d members instead of %d: a member that left stays in the list with weight 0",
			len(members), len(m.members))
	}
	next := *m
	next.Epoch, next.members, next.parts = c.Epoch, append([]Member(nil), members...), slices.Clone(m.parts)
	if m.ties != nil {
		next.shuffle()
	} else {
		next.rendezvous()
	}
	return &next, nil
}

// Package place publishes which node owns which item (package placement), and follows it.
//
// One member leads the job. It makes the map of each model from the nodes that serve it, and writes it, fenced by its
// term, under placement/<model>. All members watch these keys and use the newest map. Without the coordinator the last
// map stays.
//
// The map says who computes and keeps an item before requests need it. It does not say where an item is: the nodes'
// feeds do. So a new map misleads nobody while it is being filled. Requests find items at their old owners until the
// new ones have them.
//
// Items that requests name most are held by all nodes (BAT-4). The leader asks the nodes for the uses of items, and
// writes the ids of the hot ones, likewise fenced, under hot/<model>. Members that do not know that key hold their own
// items alone.
//
// The value of a key is the map itself, as package placement encodes it. Items are placed by a hash of their id, so a
// map does not grow with the catalog: it takes about 16 KiB.
package place

import (
	"hash/fnv"
	"slices"
	"strings"
	"time"

	"grebe/placement"
)

// parts is the number of micro-parts of a map: 64 for each of 64 nodes. It never changes, so that a node more or less
// moves only its own share.
const parts = 4096

// Owner returns the node that owns an item.
func Owner(m *placement.Map, id string) string {
	h := fnv.New32a()
	h.Write([]byte(id))
	owner, _, _ := m.Place(int32(h.Sum32()))
	return m.Members()[owner].Name
}

// Has reports whether a node is a member of a map.
func Has(m *placement.Map, node string) bool {
	return slices.ContainsFunc(m.Members(), func(x placement.Member) bool { return x.Name == node })
}

// Share returns the share of the items that a node owns.
func Share(m *placement.Map, node string) float64 {
	n := 0
	for p := range m.Parts() {
		if owner, _ := m.Owners(p); m.Members()[owner].Name == node {
			n++
		}
	}
	return float64(n) / float64(m.Parts())
}

// LeaveAfter is how long a node must be away before its items go to others. A restart moves nothing.
const LeaveAfter = 30 * time.Second

// Planner decides when a model needs another map. It is pure: times are arguments.
type Planner struct {
	away map[string]time.Time // since when members of the map are away
}

// Node is a node that may own items.
type Node struct {
	ID     string
	Memory int64 // for KV, in bytes; 0: unknown
}

// Next returns the map that follows old, which may be nil, for the nodes that are there; or old itself if nothing
// changed. Nodes that come are added at once, nodes that left after LeaveAfter. Nodes own items in proportion to their
// memory. Without any node the last map stays.
func (p *Planner) Next(now time.Time, old *placement.Map, there []Node) (*placement.Map, error) {
	if len(there) == 0 {
		p.absent(now, old, nil)
		return old, nil
	}
	members, memory := make([]placement.Member, len(there)), make([]int64, len(there))
	for i, n := range there {
		members[i].Name, memory[i] = n.ID, n.Memory
		delete(p.away, n.ID)
	}
	placement.Weigh(members, memory)
	epoch := uint64(1)
	if old != nil {
		epoch = old.Epoch + 1
		members = append(members, p.absent(now, old, there)...)
		if old.Reweigh(members) {
			return old, nil
		}
	}
	slices.SortFunc(members, func(a, b placement.Member) int { return strings.Compare(a.Name, b.Name) })
	m, err := placement.Hash(placement.Config{Epoch: epoch, Members: members, Parts: parts})
	if err == nil {
		for id := range p.away {
			if !Has(m, id) {
				delete(p.away, id)
			}
		}
	}
	return m, err
}

// absent returns the members of a map that are away, but not for long enough to lose their items. Their weights are 0:
// they keep their share.
func (p *Planner) absent(now time.Time, old *placement.Map, there []Node) (out []placement.Member) {
	if old == nil {
		return nil
	}
	if p.away == nil {
		p.away = map[string]time.Time{}
	}
	for _, m := range old.Members() {
		if slices.ContainsFunc(there, func(n Node) bool { return n.ID == m.Name }) {
			continue
		}
		if _, ok := p.away[m.Name]; !ok {
			p.away[m.Name] = now
		}
		if now.Sub(p.away[m.Name]) < LeaveAfter {
			out = append(out, placement.Member{Name: m.Name})
		}
	}
	return out
}

// Key returns the key of a model's map.
func Key(model string) string { return Prefix + model }

// Prefix begins the keys of maps.
const Prefix = "placement/"

// hotPrefix begins the keys of hot items.
const hotPrefix = "hot/"

func hotKey(model string) string { return hotPrefix + model }

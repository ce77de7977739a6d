package sim

import (
	"fmt"
	"slices"

	"grebe/placement"
	"grebe/plan"
)

// place makes the first map and loads items.
func (f *fleet) place() error {
	s := f.scenario
	if s.Placement.Kind == "none" {
		return nil
	}
	f.freq = make([]uint32, f.source.Items())
	if f.places = f.options.Map; f.places == nil {
		m, err := f.newMap(1)
		if err != nil {
			return fmt.Errorf("sim: %w", err)
		}
		f.places = m
	}
	if s.Placement.Preload {
		f.preload()
	}
	return nil
}

// members returns the nodes as the map sees them. Nodes that are off own nothing.
func (f *fleet) members() []placement.Member {
	all := placement.Members(len(f.nodes))
	for i, n := range f.nodes {
		if !n.up || n.drains {
			all[i].Weight = 0
		}
	}
	return all
}

func (f *fleet) newMap(epoch uint64) (*placement.Map, error) {
	c := placement.Config{Epoch: epoch, Members: f.members(), Items: f.source.Items()}
	switch f.scenario.Placement.Kind {
	case "replicate":
		return placement.Replicate(c)
	default:
		return placement.Hash(c)
	}
}

// refresh makes the map again.
func (f *fleet) refresh() {}

// preload puts the items that the map gives a node into its memory, the hottest last, as many as fit.
func (f *fleet) preload() {
	order := f.byHeat()
	for _, n := range f.nodes {
		if n.up {
			n.preload(order)
		}
	}
}

// byHeat returns all items, the most popular first, as the source knows them.
func (f *fleet) byHeat() []int32 {
	if h, ok := f.source.(interface{ ByHeat() []int32 }); ok {
		return h.ByHeat()
	}
	all := make([]int32, f.source.Items())
	for i := range all {
		all[i] = int32(i)
	}
	return all
}

func (n *node) preload(order []int32) {
	var mine []int32
	var total int64
	for i := range n.items.mem {
		total += n.items.mem[i].total
	}
	for _, item := range order {
		owner, _, everywhere := n.f.places.Place(item)
		if !everywhere && owner != int(n.id) {
			continue
		}
		bytes := int64(n.f.lengths.of(item)) * n.items.token
		if total -= bytes; total < 0 {
			break
		}
		mine = append(mine, item)
	}
	for _, item := range slices.Backward(mine) {
		tokens := int(n.f.lengths.of(item))
		if bytes := int64(tokens) * n.items.token; n.items.reserve(bytes) {
			n.items.publish(n.items.entry(itemKey(item), plan.Item, tokens, bytes, item), bytes)
		}
	}
}

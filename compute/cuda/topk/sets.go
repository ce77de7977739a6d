package topk

import (
	"errors"
	"fmt"

	"grebe/compute/cuda/driver"
	"grebe/compute/cuda/kernels"
)

// Sets are the nodes of a tree that some requests may keep: those with one of the request's items below them. The host
// copies a bit per item (Items), Lift makes those of the nodes of all levels (kernels/lift.cu).
type Sets struct {
	memory
	tree *Tree
	base driver.Ptr
	at   []int // by level, the first word of its bits; that of the items at the end
	step int   // words of a request
	lift *driver.Function
	on   *driver.Module
}

// NewSets takes memory for the sets of so many requests. The caller MUST Close it, before the tree.
func NewSets(c *driver.Context, t *Tree, requests int) (*Sets, error) {
	s := &Sets{memory: memory{c: c}, tree: t}
	for l := range t.levels {
		s.at = append(s.at, s.step)
		s.step += words(t.levels[l].nodes)
	}
	s.at = append(s.at, s.step)
	if t.first == 0 { // the leaves' bits are the items'
		s.at[len(t.levels)] = s.at[len(t.levels)-1]
	} else {
		s.step += words(t.items)
	}
	var err error
	if s.on, err = kernels.Load(c, "lift.cu"); err != nil {
		return nil, err
	}
	if s.lift, err = s.on.Function("lift"); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if s.base = s.alloc(4 * s.step * requests); s.err != nil {
		return nil, errors.Join(fmt.Errorf("topk: memory of filters: %w", s.err), s.Close())
	}
	return s, nil
}

// words returns the words of so many bits, in whole cache lines.
func words(bits int) int { return (bits + 1023) / 1024 * 32 }

// Items returns where the bits of a request's items go, which are Tree.Items.
func (s *Sets) Items(request int) driver.Ptr {
	return s.base.At(4 * (request*s.step + s.at[len(s.tree.levels)]))
}

// Alive returns the bits of a level's nodes.
func (s *Sets) Alive(request, level int) driver.Ptr {
	return s.base.At(4 * (request*s.step + s.at[level]))
}

// Lift makes the nodes' bits of the first n requests. args is overwritten.
func (s *Sets) Lift(stream *driver.Stream, args *driver.Args, n int) error {
	depth := len(s.tree.levels)
	for l := depth - 1; l >= 0; l-- {
		starts := s.tree.first
		if l+1 < depth {
			starts = s.tree.levels[l+1].starts
		}
		if starts == 0 {
			continue
		}
		nodes := s.tree.levels[l].nodes
		args.Reset().Ptr(starts).Int(nodes).Ptr(s.Alive(0, l+1)).Ptr(s.Alive(0, l)).Int(s.step)
		launch := driver.Launch{Grid: [3]int{(nodes + 255) / 256, n}, Block: [3]int{256}}
		if err := s.lift.Launch(stream, launch, args); err != nil {
			return fmt.Errorf("topk: filters of level %d: %w", l, err)
		}
	}
	return nil
}

// Close frees the memory.
func (s *Sets) Close() error { return errors.Join(s.free(), s.on.Close()) }

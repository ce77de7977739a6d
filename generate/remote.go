package generate

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"grebe/beam"
	"grebe/compute"
	"grebe/engine"
)

// treed is a Packer whose device can run whole searches, if Trees is not nil.
type treed interface {
	Trees() compute.Trees
}

// newTree copies an index to the device for searches there. It returns nil if the device cannot search or has no
// memory for it; the host then runs the rounds.
func newTree(index *beam.Index, tokens [][]int32, m Packer) (compute.Tree, error) {
	t, ok := m.(treed)
	if !ok || t.Trees() == nil {
		return nil, nil
	}
	levels := make([]compute.TreeLevel, index.Depth())
	for l := range levels {
		starts, codes := index.Tree(l)
		levels[l] = compute.TreeLevel{Size: index.Size(l), Starts: starts, Codes: codes, Tokens: tokens[l]}
	}
	tree, err := t.Trees().Tree(levels, index.Leaves())
	if errors.Is(err, compute.ErrNoSearch) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("generate: copy the valid paths to the device: %w", err)
	}
	return tree, nil
}

// remote runs the whole search on the device. done is false if the device cannot.
func (r *run) remote(ctx context.Context, out *Result) (done bool, err error) {
	if r.snap.tree == nil || r.late || r.search.Done() {
		return false, nil
	}
	if !r.search.Remote(&r.there) || slices.Max(r.there.Widths) > compute.MaxBeams {
		return false, nil
	}
	t := &r.there
	r.found = engine.Search{Tree: r.snap.tree, Heads: r.snap.heads, Segment: r.layout.Answers, Position: r.layout.End,
		Limits: compute.Limits{Widths: t.Widths, TopK: t.TopK, Dead: t.Dead, Alive: t.Alive}, Leaves: r.found.Leaves}
	r.job = engine.Job{Plan: r.layout.Plan, Search: &r.found, Out: &r.result}
	if err := r.prefill(ctx, out); err != nil {
		if errors.Is(err, compute.ErrNoSearch) {
			r.release()
			return false, nil
		}
		return false, err
	}
	for _, w := range t.Widths[:len(t.Widths)-1] {
		out.Rows += w
		out.Computed += w
	}
	leaves := r.found.Leaves
	return true, r.search.Finish(len(leaves), func(i int) (uint32, float64) { return leaves[i].Node, leaves[i].Score })
}

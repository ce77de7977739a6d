package reuse

import (
	"context"
	"errors"
	"fmt"

	"grebe/blend"
	"grebe/engine"
	"grebe/kv"
	"grebe/kv/proto/rows"
	"grebe/plan"
	"grebe/prompt"
)

// Samples are prompts from which importance is learned.
type Samples struct {
	Prompts  int
	Prompt   func(i int) (user []int32, items [][]int32, err error) // tokens
	Vocab    int
	Alike    func(token int32) bool // tokens that identify items
	Order    plan.Order             // of blended prompts
	Layers   int                    // first layers of such prompts, which compute all tokens
	Progress func(done, all int)    // may be nil
}

// LearnImportance learns which tokens of items should be computed again. It computes whole prompts and the blocks of
// their items. In the layers after the first ones it compares how much attention each token receives, and how far its
// block differs.
func (c *Cache) LearnImportance(ctx context.Context, do Do, from *Samples) (*blend.Importance, error) {
	if err := c.movable(); err != nil {
		return nil, err
	}
	tally := blend.NewTally(from.Vocab, from.Alike)
	for i := range from.Prompts {
		user, items, err := from.Prompt(i)
		if err != nil {
			return nil, err
		}
		if len(items) == 0 {
			continue // nothing to learn
		}
		s := sample{cache: c, do: do, items: items, order: from.Order, layers: min(max(1, from.Layers), c.opt.Shape.Layers-1)}
		matters, err := s.learn(ctx, user)
		if err != nil {
			return nil, fmt.Errorf("reuse: learn from prompt %d: %w", i, err)
		}
		tally.Add(s.layout.Plan.Segments[s.layout.Items].Tokens, matters)
		if from.Progress != nil {
			from.Progress(i+1, from.Prompts)
		}
	}
	if tally.Prompts() == 0 {
		return nil, errors.New("reuse: no prompt says which tokens matter: blocks are never off, or what is computed is no " +
			"number")
	}
	return tally.Importance(), nil
}

// sample is a prompt to learn from.
type sample struct {
	cache   *Cache
	do      Do
	items   [][]int32
	order   plan.Order
	layers  int
	layout  prompt.Layout
	weights [][]float32 // by layer after the first ones: the attention that the items' tokens received
}

// learn returns the importance of each token of the items.
func (s *sample) learn(ctx context.Context, user []int32) (matters []float64, err error) {
	if s.layout, err = s.cache.prompt.Rank(s.order, user, s.items); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, batchTime)
	defer cancel()
	whole, err := s.whole(ctx)
	if err != nil {
		return nil, err
	}
	alone, err := s.alone(ctx)
	if err != nil {
		return nil, err
	}
	shape := &s.cache.opt.Shape
	var d rows.Distance
	start := s.layout.Plan.Segments[s.layout.Items].Start
	base := len(s.cache.preamble.tokens) + len(s.cache.leadIn.tokens)
	matters = make([]float64, len(s.layout.Plan.Segments[s.layout.Items].Tokens))
	for i, at := range s.layout.ItemAt {
		turn := rows.NewTurn(shape, start+at-base)
		for t := range s.items[i] {
			own, place := rows.Find(whole, at+t)
			other, there := rows.Find(alone[i], t)
			for l, received := range s.weights {
				matters[at+t] += float64(received[at+t]) * d.Of(shape, s.layers+l, own, place, other, there, turn)
			}
		}
	}
	return matters, ctx.Err()
}

// whole computes the prompt and returns the keys and values of its items.
func (s *sample) whole(ctx context.Context) ([]rows.Chunk, error) {
	p := s.layout.Plan
	n, first := p.Tokens(), 0
	for i := range s.layout.Items {
		first += len(p.Segments[i].Tokens)
	}
	items := len(p.Segments[s.layout.Items].Tokens)
	watch := func(layer int, received []float32) {
		if layer < s.layers {
			return
		}
		got := make([]float32, items)
		for i := range got { // from all rows after them, as in blend.ByAttention
			got[i] = received[first+i] / float32(n-first-i)
		}
		s.weights = append(s.weights, got)
	}
	job := &engine.Job{Plan: p, Segments: make([]engine.Segment, len(p.Segments)),
		Blend: &engine.Blend{Rule: &engine.Rule{Watch: watch}}}
	job.Segments[s.layout.Items].Keep = true
	r, err := s.do(ctx, job)
	if err != nil {
		return nil, err
	}
	return s.read(r.Kept[s.layout.Items])
}

// alone computes the items' blocks and returns their keys and values.
func (s *sample) alone(ctx context.Context) ([][]rows.Chunk, error) {
	l := s.cache.prompt.ItemsAlone(s.items)
	job := &engine.Job{Plan: l.Plan, Segments: make([]engine.Segment, len(l.Plan.Segments))}
	for i := range l.Plan.Segments {
		job.Segments[i].Keep = l.Plan.Segments[i].Kind == plan.Item
	}
	r, err := s.do(ctx, job)
	if err != nil {
		return nil, err
	}
	out := make([][]rows.Chunk, len(s.items))
	for i := range s.items {
		chunks, e := s.read(r.Kept[l.Items+i])
		if out[i] = chunks; err == nil {
			err = e // continue, so that all entries are released
		}
	}
	return out, err
}

// read copies an entry to the host and releases it.
func (s *sample) read(e *kv.Entry) ([]rows.Chunk, error) {
	if e == nil {
		return nil, fmt.Errorf("keep what a prompt of %d tokens computes: %w", s.layout.Plan.Tokens(), kv.ErrFull)
	}
	defer e.Release()
	return rows.Read(s.cache.opt.Pool.Memory(), &s.cache.opt.Shape, e)
}

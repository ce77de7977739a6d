// Package blend measures blended prompts: some of their tokens use KV that other prompts computed. It compares them
// with the same prompts computed in full: how much worse they rank, and how much faster they are. Both depend on the
// share of repaired tokens and on the rule that chooses them.
//
// The rules run on the same engine:
//
//   - attention: the tokens that receive much attention in the second layer. Grebe uses it until importance is
//     learned.
//   - rcllm: the tokens that receive much attention in the first layer, as RcLLM chooses them.
//   - learned: Grebe's rule with learned importance.
//   - cacheblend: the tokens whose KV in the second layer deviates most from the reused KV.
//   - both: Grebe's rule with CacheBlend's deviation added.
//   - epic: the first tokens of each block.
//   - none: no tokens.
//
// A prefix cache computes what full computation does: prompts of different users share the preamble only.
package blend

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"grebe/compute"
	"grebe/engine"
	"grebe/eval"
	"grebe/kv"
	"grebe/model"
	"grebe/plan"
	"grebe/pool"
	"grebe/prompt"
)

// Rules are the ways to choose what is computed again that are compared where nothing else is said.
var Rules = []string{"attention", "rcllm", "cacheblend", "epic"}

// system is a model with an engine, its prompts and the blocks of items.
type system struct {
	device compute.Device
	model  model.Model
	engine *engine.Engine
	pool   *pool.Pool
	store  *kv.Store
	prompt *prompt.Builder
	blocks map[string]*kv.Entry // by item
}

// newSystem takes over dev and m. Room is the bytes for blocks.
func newSystem(dev compute.Device, m model.Model, b *prompt.Builder, room int64, opt engine.Options) (*system, error) {
	s := &system{device: dev, model: m, prompt: b, blocks: map[string]*kv.Entry{}}
	var err error
	if s.pool, err = pool.Over(dev.Memory(), room, 64<<10); err != nil {
		return nil, err
	}
	s.store = kv.New(m.Shape(), s.pool)
	opt.Cache, opt.Now = s.store, time.Now
	s.engine, err = engine.New(m, dev, opt)
	return s, err
}

func (s *system) close() error {
	for _, e := range s.blocks {
		e.Release()
	}
	var errs []error
	if s.engine != nil {
		errs = append(errs, s.engine.Close())
	}
	if s.store != nil {
		s.store.Close()
	}
	if s.pool != nil {
		errs = append(errs, s.pool.Close())
	}
	return errors.Join(append(errs, s.model.Close(), s.device.Close())...)
}

// compute makes the blocks of items that have none, as an item-first ranking does: behind preamble and lead-in.
func (s *system) compute(ctx context.Context, ids []string, items [][]int32) error {
	const batch = 2048 // tokens
	var names []string
	var tokens [][]int32
	n := 0
	flush := func() error {
		if len(names) == 0 {
			return nil
		}
		l := s.prompt.ItemsAlone(tokens)
		segments := make([]engine.Segment, len(l.Plan.Segments))
		for i := range l.Plan.Segments {
			segments[i].Keep = l.Plan.Segments[i].Kind == plan.Item
		}
		r, err := s.engine.Do(ctx, &engine.Job{Plan: l.Plan, Segments: segments})
		if err != nil {
			return err
		}
		for i, name := range names {
			e := r.Kept[l.Items+i]
			if e == nil {
				return fmt.Errorf("no room for the block of item %s: %w", name, kv.ErrFull)
			}
			s.blocks[name] = e
		}
		names, tokens, n = names[:0], tokens[:0], 0
		return nil
	}
	for i, id := range ids {
		if s.blocks[id] != nil || slices.Contains(names, id) {
			continue
		}
		if n += len(items[i]); n > batch {
			if err := flush(); err != nil {
				return err
			}
		}
		names, tokens = append(names, id), append(tokens, items[i])
	}
	return flush()
}

// prompt is a question laid out.
type laid struct {
	layout      prompt.Layout
	items       []string
	identifiers []int32
	lengths     []int
}

// lay makes the prompt of a question and the blocks of its items.
func (s *system) lay(ctx context.Context, d *eval.Data, q *eval.Question) (*laid, error) {
	user, candidates := d.Whole(q)
	u := &prompt.User{ID: user.Id, Tokens: user.Tokens}
	if user.Text != nil {
		u.Text = *user.Text
	}
	tokens, err := s.prompt.UserTokens(u)
	if err != nil {
		return nil, err
	}
	p := &laid{items: q.Candidates}
	var items [][]int32
	for _, c := range candidates {
		it := &prompt.Item{ID: c.Id, Tokens: c.Tokens}
		if c.Text != nil {
			it.Text = *c.Text
		}
		t, err := s.prompt.ItemTokens(it)
		if err != nil {
			return nil, err
		}
		if c.Identifier == nil {
			return nil, fmt.Errorf("item %s has no identifier", c.Id)
		}
		items, p.identifiers, p.lengths = append(items, t), append(p.identifiers, *c.Identifier), append(p.lengths, len(t))
	}
	if err := s.compute(ctx, q.Candidates, items); err != nil {
		return nil, err
	}
	p.layout, err = s.prompt.Rank(plan.Causal, tokens, items)
	return p, err
}

// parts are the blocks of a prompt's items, where they stand.
func (s *system) parts(p *laid) []engine.Part {
	l := &p.layout
	start := l.Plan.Segments[l.Items].Start
	base := len(s.prompt.Preamble()) + len(s.prompt.LeadIn())
	var out []engine.Part
	for i, at := range l.ItemAt {
		if p.lengths[i] > 0 {
			out = append(out, engine.Part{
				Segment: l.Items, At: at, Tokens: p.lengths[i], Entry: s.blocks[p.items[i]], Turn: start + at - base,
				Source: plan.Block,
			})
		}
	}
	return out
}

// job asks for the identifiers of a prompt's items.
func (p *laid) job(b *engine.Blend) *engine.Job {
	return &engine.Job{Plan: p.layout.Plan, Want: []engine.Want{{Segment: p.layout.Answers, IDs: p.identifiers}}, Blend: b}
}

// ranked returns the candidates' numbers, best first.
func ranked(logits []float32) []int {
	out := make([]int, len(logits))
	for i := range out {
		out[i] = i
	}
	slices.SortStableFunc(out, func(a, b int) int {
		switch {
		case logits[a] > logits[b]:
			return -1
		case logits[a] < logits[b]:
			return 1
		}
		return 0
	})
	return out
}

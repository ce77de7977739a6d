package reuse

import (
	"grebe/engine"
	"grebe/plan"
	"grebe/prompt"
	"grebe/schedule"
)

// Unnamed begins a visit for a prompt that is already laid out and belongs to no user: a query and items. It reuses the
// known prefix of the query. If the items come first, it reuses items that an item-first ranking has at the same
// position, or fetches them from peers that have. Its owner MUST call EndUnnamed.
func (c *Cache) Unnamed(l *prompt.Layout) *Visit {
	v := c.visits.Get().(*Visit)
	v.Decision = schedule.Decision{Order: plan.UserFirst, Reuse: true}
	if l.User >= 0 {
		v.begin(c, l.Plan.Segments[l.User].Tokens, nil)
		return v
	}
	v.Decision.Order = plan.ItemFirst
	var items [][]int32
	if len(c.leadIn.tokens) == 0 && l.Answers != l.Items {
		for i := l.Items; i < l.Answers; i++ {
			items = append(items, l.Plan.Segments[i].Tokens)
		}
	}
	v.begin(c, nil, items)
	if len(items) > 0 {
		v.priceUnnamed(l)
	}
	return v
}

// priceUnnamed decides whether to fetch items that peers have, as Begin does for a ranking. A query has no name, and
// only what has one can be asked for.
func (v *Visit) priceUnnamed(l *prompt.Layout) {
	c := v.cache
	p := c.peer()
	if p == nil {
		return
	}
	asked := p.Items(v.items, v.tiers)
	if asked == 0 {
		return
	}
	v.uses = resize(v.uses, len(v.items))
	clear(v.uses)
	v.in = schedule.Request{
		Preamble: int32(len(c.preamble.tokens)), SharedCached: c.has(&c.preamble), Orders: schedule.Of(plan.ItemFirst),
		PerItem:  true,
		Question: int32(len(l.Plan.Segments[l.Answers].Tokens)), Items: v.lengths, ItemTier: v.tiers, ItemFrequency: v.uses,
	}
	v.in.Queue, _ = c.opt.Load.Backlog()
	costs := c.Costs()
	v.pricePeers(p, &costs, asked)
	v.Decision.Item = schedule.Decide(&v.in, &costs, schedule.Predicted).Item
}

// EndUnnamed publishes what the job computed (nil if it failed) and releases its entries.
func (v *Visit) EndUnnamed(l *prompt.Layout, r *engine.Result) { v.finish(l, r) }

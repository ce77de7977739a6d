package reuse

import (
	"grebe/engine"
	"grebe/plan"
	"grebe/prompt"
	"grebe/schedule"
)

// Unnamed begins a visit for a prompt that is already laid out and belongs to no user: a query and items. It reuses the
// known prefix of the query. If the items come first, it reuses items that an item-first ranking has at the same
// position. Its owner MUST call EndUnnamed.
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
	return v
}

// EndUnnamed publishes what the job computed (nil if it failed) and releases its entries.
func (v *Visit) EndUnnamed(l *prompt.Layout, r *engine.Result) { v.finish(l, r) }

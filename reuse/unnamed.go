package reuse

import (
	"grebe/engine"
	"grebe/plan"
	"grebe/prompt"
	"grebe/schedule"
)

// Unnamed begins a prompt that is laid out already and belongs to nobody: a query and items. What is known
// of the query's first tokens is reused; where the items come first, those that an item-first ranking has
// at the same place. Its owner MUST call EndUnnamed.
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

// EndUnnamed publishes what the job computed, which is nil when it failed, and gives back what it used.
func (v *Visit) EndUnnamed(l *prompt.Layout, r *engine.Result) { v.finish(l, r) }

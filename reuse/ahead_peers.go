package reuse

import (
	"context"
	"time"

	"grebe/plan"
)

// fetchAheadTime bounds a fetch that no request waits for.
const fetchAheadTime = time.Second

// fetchAhead fetches items that other nodes have, where that is predicted to be faster than computing them. It returns
// the items that are left. There is room for all of them: see AheadRoom.
func (c *Cache) fetchAhead(ctx context.Context, items [][]int32) (rest [][]int32) {
	p := c.peer()
	if p == nil {
		return items
	}
	keys, tiers, tokens := make([]plan.Key, len(items)), make([]plan.Tier, len(items)), 0
	for i := range items {
		keys[i] = c.ItemKey(items[i])
	}
	n := p.Items(keys, tiers)
	var far [][]int32
	for i, t := range tiers {
		if t == plan.Peer {
			far, tokens = append(far, items[i]), tokens+len(items[i])
		}
	}
	trip, mib, late := p.Cost()
	model := c.opt.Load.Model()
	if n == 0 || trip+float64(tokens)*c.perToken(mib*late) >= model.Predict(tokens, tokens, 1) {
		return items
	}
	wants := make([]Want, 0, n)
	for i := range far {
		key := c.ItemKey(far[i])
		if a, first := c.opt.Store.Expect(c.owner, plan.Item, key, nil, len(far[i])); first {
			wants = append(wants, Want{Key: key, Bytes: int64(len(far[i])) * c.bytesPerToken, Arrival: a})
		}
	}
	func() {
		defer func() { // also if Fetch panics: requests wait for these arrivals
			for i := range wants {
				wants[i].Arrival.End(wants[i].Came)
			}
		}()
		within, cancel := context.WithTimeout(ctx, fetchAheadTime)
		defer cancel()
		p.Fetch(within, wants)
	}()
	c.opt.Store.Status(keys, tiers)
	for i, t := range tiers {
		if t == plan.Missing {
			rest = append(rest, items[i])
		}
	}
	return rest
}

package reuse

import (
	"grebe/internal/record"
	"grebe/schedule"
)

// recordDecision writes what a prefix order was chosen from, and the choice.
func (c *Cache) recordDecision(v *Visit, costs *schedule.Costs, policy schedule.Policy) {
	r, in, m := c.opt.Record, &v.in, &costs.Model
	r.In("costs", m.Fixed, m.Row, m.Square, m.Key, m.Request, transfers(costs), costs.Keep, costs.Discount, costs.RoomReturns)
	r.In("decide", policy, [32]byte(v.user), v.named, in.Preamble, in.LeadIn, in.SharedCached, in.Question, in.PerItem, int(in.Orders), in.User, in.UserCached[:],
		in.Items, record.Names(in.ItemTier), in.ItemFrequency, in.Frequency, in.Coldest, in.Returns, in.ReturnsKnown, in.UserRoom, in.Queue, in.Slack)
	d := &v.Decision
	r.Did("order", d.Order, d.Reason, d.Reuse, d.User.Ms, d.User.Value, d.Item.Ms, d.Item.Value, int(d.User.Load), int(d.Item.Load))
}

// transfers are the costs of moving KV, two numbers for each tier.
func transfers(c *schedule.Costs) []float64 {
	var out []float64
	for _, t := range c.Transfer {
		out = append(out, t.Entry, t.Token)
	}
	return out
}

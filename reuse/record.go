package reuse

import (
	"time"

	"grebe/internal/record"
	"grebe/schedule"
)

// recordOpen records the segments that all prompts begin with, and the bytes of a token's KV.
func (c *Cache) recordOpen() {
	if r := c.opt.Record; r.On() {
		r.In("prompt", [32]byte(c.preamble.key), len(c.preamble.tokens), [32]byte(c.leadIn.key), len(c.leadIn.tokens),
			c.bytesPerToken)
	}
}

// recordDecision records the input of a choice of prefix order, and the choice.
func (c *Cache) recordDecision(v *Visit, costs *schedule.Costs, policy schedule.Policy) {
	r, in, m := c.opt.Record, &v.in, &costs.Model
	r.Lock()
	defer r.Unlock()
	r.In("costs", m.Fixed, m.Row, m.Square, m.Key, m.Request, transfers(costs), costs.Keep, costs.Discount,
		costs.RoomReturns)
	c.recorded++
	v.number = c.recorded
	r.In("decide", append(append([]any{policy, [32]byte(v.user), v.named}, request(in)...), v.number)...)
	d := &v.Decision
	r.Did("order", d.Order, d.Reason, d.Reuse, d.User.Ms, d.User.Value, d.Item.Ms, d.Item.Value, int(d.User.Load),
		int(d.Item.Load))
}

// request lists the input of Decide.
func request(in *schedule.Request) []any {
	return []any{in.Preamble, in.LeadIn, in.SharedCached, in.Question, in.PerItem, int(in.Orders), in.User,
		in.UserCached[:],
		in.Items, record.Names(in.ItemTier), in.ItemFrequency, in.Frequency, in.Coldest, in.Returns, in.ReturnsKnown,
		in.UserRoom,
		in.Queue, in.Slack}
}

// recordBlend records the input of a choice between a blended prompt and a prefix order, and the choice.
func (v *Visit) recordBlend(in *schedule.Request, b *schedule.Blending, m *schedule.PrefillModel, ms float64,
	pays bool) {
	r, chosen := v.cache.opt.Record, v.Decision.Chosen()
	r.Lock()
	defer r.Unlock()
	r.In("blending", append([]any{m.Fixed, m.Row, m.Square, m.Key, m.Request,
		b.Guess.Entry, b.Guess.Token, b.Pace.Token, b.Now - b.Pace.Last, b.Layers, b.First, b.Budget,
		chosen.Ms, chosen.Value}, request(in)...)...)
	r.Did("pays", ms, pays)
}

// recordInvest records the input of a choice between prototypes and exact computation of a user, and the choice.
func (v *Blended) recordInvest(m *schedule.PrefillModel, p *schedule.Prototypes, exact, near float64, invests bool) {
	r, in := v.cache.opt.Record, &v.in
	r.Lock()
	defer r.Unlock()
	r.In("investing", m.Fixed, m.Row, m.Square, m.Key, m.Request, in.Preamble, in.User, in.Frequency, in.Returns,
		p.Matched, p.Cached, p.Layers, p.Budget)
	r.Did("invests", exact, near, invests)
}

// recordPatience records how long a request may wait for reads, 0 for no limit, and the input of that decision: the
// time to its deadline if it has one, the milliseconds of waiting work, and those to compute everything.
func (c *Cache) recordPatience(left time.Duration, deadline bool, queue, compute float64, wait time.Duration) {
	r := c.opt.Record
	r.Lock()
	defer r.Unlock()
	r.In("reading", left, deadline, queue, compute)
	r.Did("within", wait)
}

// recordFetch records how long a request may wait for peers, and the input of that decision.
func (c *Cache) recordFetch(left time.Duration, deadline bool, queue, alone, with float64, wait time.Duration) {
	r := c.opt.Record
	r.Lock()
	defer r.Unlock()
	r.In("fetching", left, deadline, queue, alone, with)
	r.Did("fetches", wait)
}

// transfers returns the costs of moving KV, two numbers per tier.
func transfers(c *schedule.Costs) []float64 {
	var out []float64
	for _, t := range c.Transfer {
		out = append(out, t.Entry, t.Token)
	}
	return out
}

package reuse

import (
	"time"

	"grebe/plan"
	"grebe/schedule"
)

// Sizes is what any node can say about a request before it looks at its own cache. Routers compare nodes by it.
type Sizes struct {
	Prompt schedule.Request // without what depends on a node: what is cached, and the queue
	User   plan.Key         // of the user's entry
	Tokens []int32          // of the user
	Items  []plan.Key       // of the candidates' entries
}

// Sizes describes a request.
func (c *Cache) Sizes(r *Request) *Sizes {
	s := &Sizes{User: c.UserKey(r.UserID, r.User), Tokens: r.User, Items: make([]plan.Key, len(r.Items))}
	lengths := make([]int32, len(r.Items))
	for i, tokens := range r.Items {
		s.Items[i], lengths[i] = c.ItemKey(tokens), int32(len(tokens))
	}
	s.Prompt = schedule.Request{
		Preamble: int32(len(c.preamble.tokens)), LeadIn: int32(len(c.leadIn.tokens)), Question: c.question,
		PerItem: r.Pointwise,
		Orders:  c.opt.Orders, User: int32(len(r.User)), Items: lengths, SharedCached: true,
		Slack: float64(r.Slack) / float64(time.Millisecond),
	}
	return s
}

// Costs returns the times by which the cache decides, as measured at the moment. A round trip to peers is left out: one
// request asks for many entries.
func (c *Cache) Costs() schedule.Costs {
	costs := c.costs
	costs.Model = c.opt.Load.Model()
	costs.Transfer[plan.Host] = costs.Transfer[plan.Host].Times(c.loads.host.factor())
	costs.Transfer[plan.Disk] = costs.Transfer[plan.Disk].Times(c.loads.disk.factor())
	if p := c.peer(); p != nil {
		// how late some fetches were is for this node to know: others would not send it requests that show better
		_, mib, _ := p.Cost()
		costs.Transfer[plan.Peer].Token = c.perToken(mib)
	}
	return costs
}

// Backlog returns the predicted time until the queue is empty.
func (c *Cache) Backlog() time.Duration {
	ms, _ := c.opt.Load.Backlog()
	return time.Duration(ms * float64(time.Millisecond))
}

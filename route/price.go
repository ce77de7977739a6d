package route

import (
	"slices"

	"grebe/plan"
	"grebe/schedule"
)

// priced is the prediction for a request on a node.
type priced struct {
	ms    float64 // until it is answered
	own   float64 // work that it adds to the node's queue
	reuse int     // tokens that are not computed
}

// price predicts a request on a node, through the decision that the node will make.
func (r *Router) price(node int, q *Request) priced {
	n := &r.config.Nodes[node]
	in := q.Prompt
	in.ItemTier = r.tiersOn(node)
	r.cached(node, &in.UserCached)
	in.Queue = r.work[node]
	d := schedule.Decide(&in, &n.Costs, r.config.Orders)
	o := d.Chosen()
	p := priced{ms: o.Ms, own: o.Ms - max(in.Queue, o.Transfer), reuse: q.tokens(d.Order) - o.Rows}
	if q.Blend != BlendNever {
		if b, pays := r.blended(node, q, in, o); pays || q.Blend == BlendAlways {
			p = b
		}
	}
	staging, rows := n.Staging*float64(p.reuse), r.rows(node, q, &in)
	// Rows are read before the request is queued, while others compute: links and engines are busy at the same time, and
	// the backlog is that of the busier ones. Rows take their part of all links behind it, and are not there before one
	// link has read them.
	p.ms += max(rows/float64(n.Engines), rows-in.Queue) + staging + n.RTT
	p.own = max(p.own+staging, rows) / float64(n.Engines)
	return p
}

// blended predicts a blended prompt. It reuses what the node has itself.
func (r *Router) blended(node int, q *Request, in schedule.Request, o *schedule.Option) (p priced, pays bool) {
	in.UserCached[plan.Peer] = 0
	in.UserCached[plan.Device] = max(in.UserCached[plan.Device], min(q.Prototypes, in.User))
	user, items := int32(0), 0
	for _, n := range in.UserCached {
		user = max(user, n)
	}
	for i, t := range in.ItemTier {
		if t == plan.Peer {
			in.ItemTier[i] = plan.Missing
		} else if t != plan.Missing {
			items += int(in.Items[i])
		}
	}
	b := &r.config.Blend
	p.own, pays = b.Pays(&in, &r.config.Nodes[node].Costs.Model, o)
	p.ms, p.reuse = in.Queue+p.own, int(user)+int(float64(items)*(1-b.Budget))
	return p, pays
}

// rows returns the milliseconds to fetch the embedding rows that a node does not hold, over the link of one engine.
func (r *Router) rows(node int, q *Request, in *schedule.Request) float64 {
	if len(q.Shards) == 0 {
		return 0
	}
	missing := float64(r.missing(node, q.Shards)) / float64(len(q.Shards))
	return r.rowMs() * missing * (float64(q.UserRows)*uncached(in) + float64(q.ItemRows))
}

// rowMs returns the milliseconds to fetch a row at any node: the lower median of what nodes report. Nodes that report
// nothing count alike. With a node's own time, one that measured badly once would get no request that needs rows,
// fetch none and never measure again. A node whose store is really slow is found by its answers.
func (r *Router) rowMs() float64 {
	if len(r.rowCosts) == 0 {
		return 0
	}
	return r.rowCosts[(len(r.rowCosts)-1)/2]
}

// replaceRowMs replaces a node's report of what a row costs; 0: none.
func (r *Router) replaceRowMs(old, fresh float64) {
	if old > 0 {
		i, _ := slices.BinarySearch(r.rowCosts, old)
		r.rowCosts = slices.Delete(r.rowCosts, i, i+1)
	}
	if fresh > 0 {
		i, _ := slices.BinarySearch(r.rowCosts, fresh)
		r.rowCosts = slices.Insert(r.rowCosts, i, fresh)
	}
}

// uncached returns the share of the user's tokens whose KV a node does not find.
func uncached(in *schedule.Request) float64 {
	cached := int32(0)
	for _, n := range in.UserCached {
		cached += n
	}
	return 1 - float64(min(cached, in.User))/float64(max(in.User, 1))
}

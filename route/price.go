package route

import (
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
	p := priced{reuse: q.tokens(d.Order) - o.Rows}
	after := n.Staging * float64(p.reuse)
	if len(q.Shards) > 0 {
		after += n.EMBMiss * float64(r.missing(node, q.Shards))
	}
	p.ms = o.Ms + after + n.RTT
	p.own = (o.Ms - max(in.Queue, o.Transfer) + after) / float64(n.Engines)
	return p
}

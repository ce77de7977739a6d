package route

import (
	"grebe/plan"
	"grebe/schedule"
)

// Request is what a router knows about a request. A caller can fill and reuse one without allocation. The router keeps
// no reference to it.
type Request struct {
	// Prompt has the sizes of the prompt and what is known of the user's returns. The router sets the fields that
	// depend on a node: UserCached, ItemTier and Queue.
	Prompt schedule.Request

	User   uint64   // hash of the key of the user's KV: see residency.Hash
	Tokens []int32  // the user's tokens; nil: histories only grow, so a copy with fewer tokens is a prefix
	Items  []int32  // ordinals of the candidates in the catalog, for the placement map; nil: the map is not used
	Keys   []uint64 // hashes of the keys of the candidates' KV; nil: feeds are not used for items
	Shards []uint32 // embedding shards that the request reads, the hottest first
	// UserRows and ItemRows are the embedding rows that the user's tokens and the candidates read. Tokens whose KV is
	// found read none. Shards stand for all of them.
	UserRows, ItemRows int

	Blend Blend
	// Prototypes is the number of the user's tokens whose KV every node takes from prototypes in a blended prompt.
	Prototypes int32
}

// Blend says whether a request is answered with a blended prompt: see schedule.Blending.
type Blend uint8

const (
	BlendNever  Blend = iota
	BlendFaster       // where it is predicted to be faster
	BlendAlways
)

// Choice is a router's decision.
type Choice struct {
	Node int // -1: no node is there
	// Ms is the predicted milliseconds until the node has answered, without Error.
	Ms     float64
	Error  float64 // what the node's smoothed error adds when nodes are compared
	Reuse  int     // tokens of the prompt that are predicted not to be computed
	User   int32   // of these, the user's that the node has itself
	Shards int     // of Request.Shards, those that the node holds
	Priced int     // nodes that were priced
}

// tokens returns the length of the prompt in an order.
func (q *Request) tokens(o plan.Order) int {
	p := &q.Prompt
	n := int(p.Preamble) + int(p.User)
	if o == plan.ItemFirst {
		n += int(p.LeadIn)
	}
	for _, t := range p.Items {
		n += int(t)
	}
	questions := 1
	if p.PerItem {
		questions = len(p.Items)
	}
	return n + questions*int(p.Question)
}

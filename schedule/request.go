package schedule

import (
	"fmt"
	"math"

	"grebe/plan"
)

// Tiers is a set of tiers.
type Tiers uint8

// Has reports whether a tier is in the set.
func (s Tiers) Has(t plan.Tier) bool { return s>>t&1 == 1 }

func (s *Tiers) add(t plan.Tier) { *s |= 1 << t }

// Request is the input of Decide. It is flat, so that a server can fill and reuse one without allocation. Decide keeps
// no reference to it.
type Request struct {
	Preamble     int32 // tokens at the start of every prompt, which all other tokens attend to
	LeadIn       int32 // tokens before the items in item-first order
	SharedCached bool  // preamble and lead-in are cached
	Question     int32 // instruction tokens, always computed
	PerItem      bool  // each candidate has its own question (pointwise)
	// Orders are the prefix orders that a policy may choose from; empty: both.
	Orders Orders

	User int32 // the user's tokens (τ_u)
	// UserCached is how many of them are cached, per tier. Together they are a prefix: its beginning is in the nearest
	// tier and its end in the farthest, because eviction starts at the end.
	UserCached [plan.NumTiers]int32

	Items    []int32     // tokens of each candidate (their sum is τ_i)
	ItemTier []plan.Tier // tier of each candidate's KV; nil: none is cached
	// ItemFrequency is the expected number of later requests with each candidate within the window. It is read only for
	// missing ones; nil: unknown, taken as 0.
	ItemFrequency []float32

	Frequency float64 // f_u: requests of this user within the window, without this one
	Coldest   float64 // min f_p over cached user pages
	// Returns is how often this user is expected to find its KV if it is kept now. If ReturnsKnown, it comes from
	// observation and replaces Frequency beyond Coldest.
	Returns      float64
	ReturnsKnown bool
	UserRoom     bool // keeping this user evicts nothing: there is free room, or it is already kept; Coldest is ignored

	Queue float64 // milliseconds of work that runs before this request; transfers run during it
	Slack float64 // milliseconds to the deadline; 0: none
}

// Costs are the costs of a machine, the same for all requests.
type Costs struct {
	Model    PrefillModel
	Transfer [plan.NumTiers]Transfer // time to bring cached KV to where it is used; Missing is ignored
	Keep     plan.Tier               // tier in which a computed user's KV is kept
	// Discount is the expected share of a user's estimated returns that will find its KV, in [0, 1]. Users leave,
	// histories change and entries are evicted. A server that counts hits before eviction knows better than the default
	// of 0.75.
	Discount float64
	// RoomReturns is the number of returns expected beyond a user's frequency while the user cache has free room.
	// Nothing is evicted then, and kept KV outlives the window. Default 2.
	RoomReturns float64
}

// Transfer is the time to move KV, in milliseconds. The transfers of one request are added up.
type Transfer struct {
	Entry float64 // per entry: a seek, a round trip
	Token float64 // per token
}

// DefaultCosts returns the defaults for a model, with free transfers.
func DefaultCosts(m PrefillModel) Costs {
	return Costs{Model: m, Keep: plan.Host, Discount: .75, RoomReturns: 2}
}

// Validate returns an error for the first invalid value.
func (c *Costs) Validate() error {
	if err := c.Model.Validate(); err != nil {
		return err
	}
	for t, cost := range c.Transfer {
		if !(cost.Entry >= 0) || !(cost.Token >= 0) || math.IsInf(cost.Entry+cost.Token, 1) {
			return fmt.Errorf("schedule: transfer from %s costs %+v", plan.Tier(t), cost)
		}
	}
	switch {
	case c.Keep == plan.Missing || c.Keep >= plan.NumTiers:
		return fmt.Errorf("schedule: users cannot be kept in tier %d", c.Keep)
	case !(c.Discount >= 0 && c.Discount <= 1):
		return fmt.Errorf("schedule: discount %v is not in [0, 1]", c.Discount)
	case !(c.RoomReturns >= 0) || math.IsInf(c.RoomReturns, 1):
		return fmt.Errorf("schedule: returns with room %v", c.RoomReturns)
	}
	return nil
}

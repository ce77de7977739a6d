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

// Request is what Decide needs to know of a request. It is flat so that a server can fill and reuse
// one without allocation; Decide keeps nothing of it.
type Request struct {
	Preamble     int32 // tokens that begin every plan and that all see
	LeadIn       int32 // tokens before the items when they come first
	SharedCached bool  // preamble and lead-in are cached
	Question     int32 // instruction tokens, always computed
	PerItem      bool  // the question is asked of each candidate apart (pointwise)
	// Orders are the prefix orders that a policy may choose among; empty: both.
	Orders Orders

	User int32 // the user's tokens (τ_u)
	// UserCached is how many of them are cached, per tier: a prefix, whose beginning lies in the
	// nearest tier and whose end in the farthest, as eviction from the end leaves it.
	UserCached [plan.NumTiers]int32

	Items    []int32     // tokens of each candidate (their sum is τ_i)
	ItemTier []plan.Tier // where the KV of each candidate lies; nil: nowhere
	// ItemFrequency is the expected number of later requests with each candidate within the window,
	// read for missing ones only; nil: unknown, taken as 0.
	ItemFrequency []float32

	Frequency float64 // f_u: requests of this user within the window, this one not counted
	Coldest   float64 // min f_p over cached user pages
	// Returns is how often this user is expected to find what is kept now, if that is known by
	// observation: then it counts instead of Frequency beyond Coldest.
	Returns      float64
	ReturnsKnown bool
	UserRoom     bool // keeping this user displaces nobody: the user cache has free room or holds it; Coldest does not count

	Queue float64 // milliseconds of work that will run before this request; transfers hide behind it
	Slack float64 // milliseconds to the deadline; 0: none
}

// Costs is what a machine takes, the same for all requests.
type Costs struct {
	Model    PrefillModel
	Transfer [plan.NumTiers]Transfer // to bring cached KV to where it is computed with; Missing is not used
	Keep     plan.Tier               // where a computed user's KV is kept
	// Discount is the expected share of a user's estimated returns that will find what was kept, in
	// [0, 1]: users leave, histories change, entries are evicted. A server that counts how many kept
	// entries are hit before they are evicted knows better than the default of 0.75.
	Discount float64
	// RoomReturns is how many returns are expected beyond a user's frequency while the user cache has
	// free room: what is kept then displaces nobody and outlives the window. Default 2.
	RoomReturns float64
}

// Transfer is the time to move KV, in milliseconds. Transfers of one request are added up.
type Transfer struct {
	Entry float64 // per entry: a seek, a round trip
	Token float64 // per token
}

// DefaultCosts has a model, the defaults, and transfers that cost nothing.
func DefaultCosts(m PrefillModel) Costs {
	return Costs{Model: m, Keep: plan.Host, Discount: .75, RoomReturns: 2}
}

// Validate reports the first value that makes no sense.
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

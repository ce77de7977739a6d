package schedule

import (
	"fmt"

	"grebe/plan"
)

// Policy is a rule that chooses the prefix order.
type Policy uint8

const (
	Predicted Policy = iota // least predicted milliseconds, less later savings; the default
	BAT                     // the paper's rule (BAT-5)
	Longer                  // the longer side first, regardless of the cache
	User                    // always user-first (UP)
	Item                    // always item-first (IP)
	None                    // user-first, nothing cached, everything computed (RE)
)

var policyNames = [...]string{"predicted", "bat", "longer", "user", "item", "none"}

func (p Policy) String() string { return policyNames[p] }

// ParsePolicy parses a policy's name as in configurations and requests.
func ParsePolicy(s string) (Policy, error) {
	for i, n := range policyNames {
		if n == s {
			return Policy(i), nil
		}
	}
	return 0, fmt.Errorf("schedule: no policy %q, have %q", s, policyNames)
}

// Orders is a set of prefix orders. The empty set means both.
type Orders uint8

// Of returns the set of these orders.
func Of(orders ...plan.Order) (s Orders) {
	for _, o := range orders {
		s |= 1 << o
	}
	return s
}

// Only returns the single order that the set allows, and whether there is only one.
func (s Orders) Only() (plan.Order, bool) {
	switch s {
	case 1 << plan.UserFirst:
		return plan.UserFirst, true
	case 1 << plan.ItemFirst:
		return plan.ItemFirst, true
	}
	return 0, false
}

// Reason is a one-word reason for the choice of an order, for logs and metrics.
type Reason uint8

const (
	Fixed     Reason = iota // the policy leaves no choice
	UserLong                // longer: τ_u ≥ τ_i
	UserShort               // longer, bat: τ_u < τ_i
	UserHot                 // bat: f_u > min f_p
	UserCold                // bat: long, but f_u ≤ min f_p
	Cheaper                 // predicted: costs least now
	Invest                  // predicted: costs more now, but less than the expected savings
	Deadline                // predicted: the other order would miss the deadline
	Only                    // the configuration allows no other order
	NumReasons
)

var reasonNames = [NumReasons]string{"fixed", "user-long", "user-short", "user-hot", "user-cold", "cheaper", "invest",
	"deadline", "only"}

func (r Reason) String() string { return reasonNames[r] }

// Decision is the prefix order of a request, with the prices of both orders.
type Decision struct {
	Order  plan.Order
	Reason Reason
	Reuse  bool // use the cache (all policies but None)
	User   Option
	Item   Option
}

// Chosen returns the option of the chosen order.
func (d *Decision) Chosen() *Option {
	if d.Order == plan.UserFirst {
		return &d.User
	}
	return &d.Item
}

// Decide chooses the prefix order of a request.
//
// All policies but Predicted load everything cached that their order can use; None loads nothing. BAT is the rule as
// printed: user-first iff τ_u ≥ τ_i and f_u > min f_p. The paper leaves open the case that nothing would be
// displaced (Request.UserRoom). The minimum is -∞ then.
//
// Predicted takes the order with the least milliseconds after subtracting the expected savings of later requests
// (Option.Value). Values are at least 0, so the chosen order never costs more than the other one by more than its
// expected savings. The value does not count if it would cost the request its deadline. On a tie the items come first.
//
// Predicted, BAT and Longer choose among Request.Orders. Policies that name an order use it.
func Decide(in *Request, c *Costs, policy Policy) Decision {
	how := loadAll
	switch policy {
	case Predicted:
		how = loadWhatPays
	case None:
		how = loadNothing
	}
	s := in.sumItems()
	d := Decision{Reuse: policy != None, User: c.userFirst(in, &s, how), Item: c.itemFirst(in, &s, how)}
	if how != loadNothing {
		c.value(in, &s, &d.User, &d.Item)
	}
	long := int(in.User) >= s.total
	if only, ok := in.Orders.Only(); ok && policy <= Longer {
		d.Order, d.Reason = only, Only
		return d
	}
	switch policy {
	case Predicted:
		d.predicted(in)
	case BAT:
		d.Order, d.Reason = bat(long, in)
	case Longer:
		d.Order, d.Reason = plan.ItemFirst, UserShort
		if long {
			d.Order, d.Reason = plan.UserFirst, UserLong
		}
	case Item:
		d.Order = plan.ItemFirst
	}
	return d
}

func bat(long bool, in *Request) (plan.Order, Reason) {
	switch {
	case !long:
		return plan.ItemFirst, UserShort
	case in.UserRoom || in.Frequency > in.Coldest:
		return plan.UserFirst, UserHot
	}
	return plan.ItemFirst, UserCold
}

func (d *Decision) predicted(in *Request) {
	d.Order = plan.ItemFirst
	other := &d.User
	if d.User.net() < d.Item.net() {
		d.Order, other = plan.UserFirst, &d.Item
	}
	chosen := d.Chosen()
	switch {
	case chosen.Ms <= other.Ms:
		d.Reason = Cheaper
	case in.Slack > 0 && chosen.Ms > in.Slack && other.Ms <= in.Slack:
		d.Order, d.Reason = 1-d.Order, Deadline
	default:
		d.Reason = Invest
	}
}

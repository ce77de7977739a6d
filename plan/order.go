package plan

// Order says which side of a ranking prompt comes first, and so can be reused (BAT-1).
type Order uint8

const (
	UserFirst Order = iota
	ItemFirst
	// Causal is an ordinary prompt: user, items and instruction one after the other, each token seeing all
	// before it. Items are one segment.
	Causal
	// CausalItems is one with the items before the user, behind the lead-in.
	CausalItems
)

var orders = [...]string{"user", "item", "causal", "causal items"}

func (o Order) String() string { return orders[o] }

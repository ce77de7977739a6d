package plan

// Order says which side of a ranking prompt comes first, and so can be reused (BAT-1).
type Order uint8

const (
	UserFirst Order = iota
	ItemFirst
	// Causal is an ordinary prompt: user, items and instruction in this order, with causal attention. All items
	// are one segment.
	Causal
	// CausalItems is Causal with the items before the user and after the lead-in.
	CausalItems
)

var orders = [...]string{"user", "item", "causal", "causal items"}

func (o Order) String() string { return orders[o] }

package plan

// Source says where the KV of a segment comes from. If a prompt blends KV of other prompts, it says so for each run of
// tokens.
//
// KV from another node is Cached at tier Peer: its use does not depend on where it was.
type Source uint8

const (
	Computed Source = iota // the request computes it
	// Cached is KV of the same tokens at the same positions after the same context. It is exact.
	Cached
	// Block and Prototype are re-rotated to the positions at which they are used. They approximate what the request
	// would compute. So they have a budget: the share of their tokens that is computed anyway (blend.Budget).
	Block     // an item's block, computed without the user
	Prototype // the KV of a similar token of another user
	NumSources
)

// Rotated reports whether the KV is re-rotated and thus has a budget.
func (s Source) Rotated() bool { return s == Block || s == Prototype }

// Name returns a source's name in answers: the tier of cached KV, "prototype", or "" if it is computed.
func (s Source) Name(at Tier) string {
	switch s {
	case Computed:
		return ""
	case Prototype:
		return "prototype"
	}
	return at.String()
}

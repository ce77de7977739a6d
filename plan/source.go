package plan

// Source says where KV comes from: that of a segment, or of a run of its tokens where a prompt blends KV of other prompts.
//
// KV of another node is Cached at the tier Peer: how it is used does not depend on where it was.
type Source uint8

const (
	Computed Source = iota // the request computes it
	// Cached is the KV of the same tokens at the same positions behind the same context. It is exact.
	Cached
	// Block and Prototype are re-rotated to the positions where they are used. They are near what the request would compute, not
	// equal to it, and so have a budget: the share of their tokens that is computed all the same (blend.Budget).
	Block     // an item's block, which was computed without the user
	Prototype // the KV of a similar token of another user
	NumSources
)

// Rotated reports whether KV is re-rotated, and so has a budget.
func (s Source) Rotated() bool { return s == Block || s == Prototype }

// Name is what answers call a source: the tier where the KV was found; prototype; nothing for what is computed.
func (s Source) Name(at Tier) string {
	switch s {
	case Computed:
		return ""
	case Prototype:
		return "prototype"
	}
	return at.String()
}

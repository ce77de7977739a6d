package plan

// Source says where a token's KV comes from when a prompt blends KV of other prompts. A budget says how many of the
// tokens with another source than Computed are computed all the same.
type Source uint8

const (
	Computed  Source = iota // the token is computed
	Block                   // an item's block, which was computed without the user and re-rotated to its position
	Prototype               // the KV of a similar token of another user, re-rotated
	NumSources
)

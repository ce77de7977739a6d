package plan

// Key identifies cached KV. It is a digest of everything that the KV depends on.
type Key [32]byte

// Tier is the place of cached KV, from the nearest to the farthest.
type Tier uint8

const (
	Missing Tier = iota // not cached: to be computed
	Device              // memory that the host cannot see
	Host
	Disk
	Peer
	NumTiers
)

var tiers = [NumTiers]string{"missing", "device", "host", "disk", "peer"}

func (t Tier) String() string { return tiers[t] }

// Package offer moves KV from nodes to members with the role kv, which hold KV and compute nothing: memory that grows
// apart from the nodes that compute (BAT-3).
//
// A node offers the blocks that it holds: their keys, not their bytes. Each block has one owner among the kv members,
// by rendezvous. The owner fetches it with a GET, as nodes fetch from each other, into memory that it has reserved. So
// a kv member is never sent more than it asks for, and all checks of blocks are those of a GET. It fetches one batch at
// a time and rests as long as that took: requests of users have at least half of the time.
//
// What a kv member fetched shows in its feed. From then on nodes find it there and fetch it when that is faster than
// computing.
//
// Deletions: an offer says up to which record of the catalog its node has removed the KV of deleted users. A kv member
// that has seen a later deletion fetches no user of that offer. A deletion that comes during the fetch marks its
// arrival.
package offer

import (
	"encoding/binary"

	"grebe/placement"
	"grebe/plan"
)

// Most is the most blocks of an offer.
const Most = 512

// Block is KV that a node holds.
type Block struct {
	Key    plan.Key
	Tokens int
	Digest uint64 // of a user's tokens; 0: it is an item's
}

func (b *Block) kind() plan.Kind {
	if b.Digest != 0 {
		return plan.User
	}
	return plan.Item
}

// Offer is what a node offers to a kv member.
type Offer struct {
	Node   string // that holds the blocks
	Shown  uint64 // record of the catalog up to which deleted users are removed there
	Blocks []Block
}

// parts is the number of groups of keys that have one owner. It does not depend on the number of members, so a member
// more or less moves only what it gets or had.
const parts = 1024

// Owners says which kv member owns which block.
type Owners struct{ places *placement.Map }

// NewOwners returns the owners among members, of which there is at least one.
func NewOwners(members []placement.Member) (Owners, error) {
	m, err := placement.Hash(placement.Config{Members: members, Parts: parts})
	return Owners{m}, err
}

// Of returns the owner of a key.
func (o Owners) Of(key *plan.Key) string {
	owner, _, _ := o.places.Place(int32(binary.LittleEndian.Uint32(key[:])))
	return o.places.Members()[owner].Name
}

package feed

import (
	"encoding/binary"
	"fmt"

	clusterv1 "grebe/api/grebe/cluster/v1"
	"grebe/plan"
	"grebe/residency"
)

// userBit marks users' entries in the column of tiers.
const userBit = 0x80

// appendEntry adds an entry to columns.
func appendEntry(dst *clusterv1.Entries, digest uint64, e *residency.Entry) {
	tier := byte(e.Tier)
	if e.Tier == plan.Peer {
		tier = byte(plan.Missing)
	}
	if e.Kind == plan.User && tier != byte(plan.Missing) {
		tier |= userBit
		dst.Tokens = append(dst.Tokens, uint32(e.Tokens))
		dst.Digests = append(dst.Digests, e.Digest)
	}
	dst.Keys = append(dst.Keys, digest)
	dst.Tiers = append(dst.Tiers, tier)
}

// entries returns events in columns.
func (s *Secret) entries(events []residency.Event) *clusterv1.Entries {
	dst := &clusterv1.Entries{Keys: make([]uint64, 0, len(events)), Tiers: make([]byte, 0, len(events))}
	for i := range events {
		appendEntry(dst, s.Digest(&events[i].Key), &events[i].Entry)
	}
	return dst
}

// appendEvents appends entries to dst. Their numbers begin with first. The first eight bytes of their keys are digests.
func appendEvents(dst []residency.Event, e *clusterv1.Entries, first uint64, most int) ([]residency.Event, error) {
	keys, tiers, tokens, digests := e.GetKeys(), e.GetTiers(), e.GetTokens(), e.GetDigests()
	if len(tiers) != len(keys) || len(keys) > most || len(digests) != len(tokens) {
		return dst, fmt.Errorf("%w: %d keys, %d tiers, %d and %d of users", ErrMalformed, len(keys), len(tiers), len(tokens),
			len(digests))
	}
	users := 0
	for i, tier := range tiers {
		event := residency.Event{Seq: first + uint64(i)}
		binary.LittleEndian.PutUint64(event.Key[:], keys[i])
		event.Kind, event.Tier = plan.Item, plan.Tier(tier&^userBit)
		if tier&userBit != 0 {
			if users == len(tokens) || tokens[users] > 1<<31-1 {
				return dst, fmt.Errorf("%w: %d users' entries, tokens of %d", ErrMalformed, users+1, len(tokens))
			}
			event.Kind, event.Tokens, event.Digest = plan.User, int32(tokens[users]), digests[users]
			users++
		}
		if event.Tier > plan.Disk {
			return dst, fmt.Errorf("%w: tier %d", ErrMalformed, event.Tier)
		}
		dst = append(dst, event)
	}
	if users != len(tokens) {
		return dst, fmt.Errorf("%w: %d users' entries, tokens of %d", ErrMalformed, users, len(tokens))
	}
	return dst, nil
}

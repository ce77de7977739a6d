package feed

import (
	"grebe/plan"
	"grebe/residency"
)

const (
	bucketBits = 12
	buckets    = 1 << bucketBits
)

// bucketOf returns the bucket of a place in the order of residency.Mix.
func bucketOf(at uint64) int { return int(at >> (64 - bucketBits)) }

// bucketRange returns the places of a bucket.
func bucketRange(b int) residency.Range {
	from := uint64(b) << (64 - bucketBits)
	return residency.Range{From: from, To: from + (1<<(64-bucketBits) - 1)}
}

// sums has a sum per bucket, over the entries of users and over all others.
type sums struct{ users, others []uint64 }

// add adds an entry.
func (s *sums) add(at uint64, e *residency.Entry) {
	switch {
	case e.Tier == plan.Missing || e.Tier == plan.Peer:
	case e.Kind == plan.User:
		s.users[bucketOf(at)] += userTerm(at, e)
	default:
		s.others[bucketOf(at)] += otherTerm(at, e)
	}
}

// userTerm returns what a user's entry adds to the sum of its bucket.
func userTerm(at uint64, e *residency.Entry) uint64 {
	return residency.Mix(at ^ residency.Mix(e.Digest^residency.Mix(uint64(e.Tier)|uint64(uint32(e.Tokens))<<8)))
}

// otherTerm returns what another entry adds. The index has no more of it than the tier.
func otherTerm(at uint64, e *residency.Entry) uint64 {
	return residency.Mix(at ^ residency.Mix(uint64(e.Tier)))
}

// bitset has a bit per bucket.
type bitset [buckets / 8]byte

func (b *bitset) has(i int) bool { return b[i/8]>>(i%8)&1 == 1 }
func (b *bitset) clear(i int)    { b[i/8] &^= 1 << (i % 8) }
func (b *bitset) fill() {
	for i := range b {
		b[i] = 0xff
	}
}

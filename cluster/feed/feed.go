// Package feed brings what nodes hold to the routers' indexes.
//
// A node publishes each change of its entries with a number, and a heartbeat every 100 ms. A follower of the node
// subscribes from the last event that it has. If the node no longer keeps the events after that one, it sends a
// snapshot first. The messages are those of package clusterv1.
//
// A follower shows a node's part of the index only while it can prove that the part was complete at most three
// heartbeats ago. To prove it, the follower notes when it sent an Ask. A heartbeat says how long ago the node received
// that Ask, so the node made the heartbeat at least that long after the follower's note. No clocks are compared, and
// messages that were held up on their way are recognised as old. With a gap, a new boot or without recent proof the
// part is unknown.
//
// Every 60 s a node adds up the entries that it holds, by bucket of keys. A follower compares the sums with its index
// and asks for the buckets that differ. That repairs differences without a gap, as from a change that the node did not
// publish.
//
// The package is pure: no goroutine, no lock, no I/O and no clock. Times are arguments, durations since any epoch of
// the caller's. Package feed/wire has the gRPC server and client. Nothing here is safe for concurrent use.
package feed

import (
	"errors"
	"time"

	"grebe/cluster/protocol"
	"grebe/plan"
	"grebe/residency"
)

// Versions of the protocol that this package speaks.
var protocolMin, protocolMax = uint32(protocol.Min), uint32(protocol.Max)

const (
	// Beat is the time between two heartbeats of a node.
	Beat = 100 * time.Millisecond
	// Limit is the age of the last proof beyond which a node's part is unknown: three heartbeats.
	Limit = 3 * Beat
	// AuditEvery is the time between two rounds of sums.
	AuditEvery = 60 * time.Second

	pingEvery = 10 * time.Second // at least, between two Asks of a follower
	goneAfter = 3 * pingEvery    // without an Ask, after which a follower is cut off

	maxPiece    = 512     // entries in a message
	maxRepair   = 64      // buckets in an Ask
	mostEntries = 1 << 16 // of a bucket, so that a repair is bounded
	mostShards  = 128     // bytes of a heartbeat's shards that are read
)

// Errors that end a subscription. The follower may connect again and start over.
var (
	ErrSlow      = errors.New("feed: the follower is slower than the feed")
	ErrSilent    = errors.New("feed: the other side is silent")
	ErrProtocol  = errors.New("feed: no common version of the protocol")
	ErrNode      = errors.New("feed: this is another node")
	ErrSecret    = errors.New("feed: the node has another secret")
	ErrMalformed = errors.New("feed: malformed message")
)

// Books is what a node holds. *kv.Store is one.
type Books interface {
	// Position returns the boot and the number of the last event.
	Position() (boot, seq uint64)
	// Since appends events after number seq to dst, at most most of them: see residency.Feed.
	Since(dst []residency.Event, boot, seq uint64, most int) ([]residency.Event, bool)
	// Scan passes all entries to yield in pieces, until yield returns false. The books may change between pieces: see
	// residency.Core. Yield MUST NOT keep a piece.
	Scan(yield func(piece []residency.Event) bool)
}

// Load is what a node's heartbeat reports besides its feed.
type Load struct {
	Backlog  time.Duration // predicted time until the queue is empty
	Alpha    float64       // share of memory that embeddings have
	Shards   []byte        // a bit per embedding shard that the node holds, the lowest first
	RowMs    float64       // measured milliseconds to fetch an embedding row that it does not hold; 0: not measured
	Draining bool
}

// Secret is the key of digests. All processes of a cluster have the same one. Without it nobody can find two keys with
// the same digest, or recognise keys in a feed.
type Secret [16]byte

// Digest returns the digest of a key, under which routers find it in their index.
func (s *Secret) Digest(key *plan.Key) uint64 { return sipHash(s, key) }

// check returns a digest by which two processes can tell that they have the same secret.
func (s *Secret) check() uint64 { return s.Digest(new(plan.Key)) }

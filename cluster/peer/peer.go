// Package peer moves blocks of KV between nodes, over framed TCP with or without TLS. FORMAT.md describes the bytes.
//
// A Server answers GETs from a Holder, which is the node's store of KV. It sends the holder's memory as it is, without
// a copy, and holds a reference meanwhile. Its reads and the bytes under way are bounded; beyond the bounds it answers
// Busy.
//
// A Client fetches blocks into memory that its caller provides. It verifies every block before it reports a hit. A
// fetch ends with its context's deadline, the budget, whatever the peer does. If a second peer is named, it is asked
// too when the first one is late.
//
// Invariants of a Fetch
//   - Each connection serves one GET at a time. The goroutine that runs the GET is the only one that reads from the
//     connection, and so the only one that writes into the caller's memory. Fetch returns after its goroutines have
//     ended. So nothing is written after Fetch returned.
//   - Answers that nobody waits for are read and dropped within bounds before the connection is used again, or it is
//     closed.
//   - A block is a hit only if the checksum over its frame, its key and its payload is right.
//
// Lock order: job.mu, then leg.mu, then peer.mu.
package peer

import (
	"errors"
	"fmt"
	"time"

	"grebe/plan"
)

const (
	// MaxWants is the most keys of one GET.
	MaxWants = 1024
	// MaxMeta is the most bytes of metadata of a block. It is that of a record on disk.
	MaxMeta = 64 << 10
	// MaxPayload is the most bytes of a block.
	MaxPayload = 1 << 30
	// MaxBudget is the longest time that a GET may take. Longer budgets are cut.
	MaxBudget = 10 * time.Second
	// SlowAfter is the time without a byte after which a peer with work under way counts as slow.
	SlowAfter = 20 * time.Millisecond
)

// Errors that callers branch on.
var (
	ErrClosed  = errors.New("closed")
	ErrUnknown = errors.New("no such peer")
	ErrVersion = errors.New("no common protocol version")
)

// Space says what KV belongs to. Nodes exchange KV only within one space: blocks of another numerics class differ in
// their last bits. Each name has at most 255 bytes.
type Space struct {
	Model    string
	Numerics string // the CPU's level or the GPU's kind
	Format   string // of the KV in memory, and its version
}

func (s *Space) validate() error {
	for _, name := range []string{s.Model, s.Numerics, s.Format} {
		if len(name) > maxName {
			return fmt.Errorf("peer: a name of %d bytes, at most %d", len(name), maxName)
		}
	}
	return nil
}

// Want is a block that is asked for.
type Want struct {
	Key    plan.Key
	Tokens uint32 // leading tokens that are wanted
	// Digest is that of a user's first Tokens tokens, as package residency computes it; 0 for entries whose key is a
	// digest of their tokens. A user's key says nothing about the tokens, so a holder compares the digest. An entry with
	// fewer tokens than are wanted may be sent too. Its metadata has the tokens, and the caller compares them.
	Digest uint64
	Status Status // set by Fetch
}

// Status is the answer for a key.
type Status uint8

const (
	Late       Status = iota // no answer came within the budget, or the connection broke
	Hit                      // the block is in the memory that place returned
	Miss                     // the peer does not have it
	Busy                     // the peer has too much to do, or the budget was over there
	WrongEpoch               // the peer has another placement map
	Damaged                  // a checksum was wrong
	Declined                 // place returned an error
	numStatuses
)

var statuses = [numStatuses]string{"late", "hit", "miss", "busy", "wrong epoch", "damaged", "declined"}

func (s Status) String() string {
	if s >= numStatuses {
		return fmt.Sprintf("status %d", uint8(s))
	}
	return statuses[s]
}

// Get is a request for blocks.
type Get struct {
	Epoch uint64 // of the placement map by which the peer was chosen
	Space Space
	Wants []Want // at most MaxWants
	// Second is a node that may have the blocks too. It is asked when the first one is late, busy or gone. Empty: none.
	Second string
}

// Place returns the memory for the block of wants[i]: pieces of n bytes in total. Meta is valid during the call only.
// Place is never called concurrently for one Fetch. It may be called again for the same want; then the pieces that it
// returned before are not written any more. After an error the block is dropped.
type Place func(i int, meta []byte, n int64) ([][]byte, error)

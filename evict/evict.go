// Package evict decides what leaves a cache. One [Policy] serves a paged KV cache, a radix tree that
// evicts leaves only and slab sets with a policy per set (SEEDS.md LRU-1, LRU-3, LRU-4). The package is pure:
// time, predictions and sizes are arguments, the caller serialises calls, the same calls give the same victims.
//
// The cache owns slots: small integers below [Config].Slots that it gives to its entries and takes
// back. A policy keeps arrays indexed by slot, so a hit looks up no map and allocates nothing. Keys
// name an entry's content across evictions; a policy remembers those of some evicted entries, at most
// as many as fill the cache. Per request a policy does O(log k) amortised work, k entries being cached.
//
// One request is either Hit, or Miss followed by as many Victim as room needs and then Insert (no
// Insert when the entry is not admitted). Within a prefix tree a request touches the leaf first
// and the root last: then a parent is never older than its children, as leaf-only eviction needs.
//
// Policies by name (see [New]):
//
//	lru       least recently used
//	sieve     SIEVE: one queue, a visited bit, a moving hand
//	laru      LARU as published: 1-consistent, at most 2k misses in a phase of k distinct entries
//	blind     the farthest predicted return, whatever predictions are worth
//	filtered  the farthest predicted return among the four least recently used
//	default   [Floor]: predictions within a budget measured against a shadow of LRU
//	laru-cost LARU, where what a hit saves per byte weighs too
//
// Predictions come in two ways. Synchronous: Access.Return, made when an entry is requested, and Config.Refresh while a
// victim is chosen. Asynchronous: requests carry none, and Predict brings them later, made off the path; until then the
// entry's last ones hold or, for a new entry, it is as for LRU.
//
// [Tracker] turns accesses into features and training samples, [Train] and [TrainReturns] grow trees on them, [Model]
// predicts when an entry returns: in assembly where the processor has AVX-512, with the bits that Go gives.
package evict

import (
	"errors"
	"fmt"
	"math"
)

// Slot is the cache's small integer for a cached entry.
type Slot = int32

// Never is the predicted return of what is not expected back.
const Never int64 = math.MaxInt64

// Access is one request for one entry.
type Access struct {
	Key    uint64  // names the content; the same content has the same key after an eviction
	Bytes  int64   // size, positive and at most the capacity; 1 for caches that count entries
	Now    int64   // time of the request, ≥ 0, in a unit of the cache's choice; never decreases
	Return int64   // predicted time of the next request, absolute, same unit; ≤ Now when unknown
	Cost   float64 // what a hit saves, such as milliseconds; for laru-cost; ≤ 0: as much as the mean per byte
}

// Policy chooses victims. Not safe for concurrent use.
type Policy interface {
	// Hit records a request for the entry in a slot. The entry's size must not have changed.
	Hit(Slot, Access)
	// Miss records a request for what is not cached, before room is made for it.
	Miss(Access)
	// Victim takes one entry out of the policy, and the cache MUST evict it: the slot is free again.
	// Entries that evictable refuses stay (pinned, or not a leaf; nil allows all). False when none may go.
	Victim(evictable func(Slot) bool) (Slot, bool)
	// Insert tells that a free slot now holds the entry that was missed.
	Insert(Slot, Access)
	// Remove forgets an entry that left for another reason than room. The slot is free again.
	Remove(Slot)
	// Predict brings a prediction for a cached entry after its request.
	Predict(Slot, int64)
	// Resize changes the capacity in bytes, above 0. Where more is cached the cache takes victims until it fits.
	Resize(bytes int64)
}

// Config sizes a policy.
type Config struct {
	Slots int   // slots are 0 … Slots−1
	Bytes int64 // capacity of the cache in the unit of Access.Bytes; Slots when entries count 1
	// Refresh, if set, renews predictions while a victim is chosen: it overwrites returns[i] of slots[i], at most
	// 64 of them. Asked for are candidates whose predicted return has passed, by default also those whose
	// age has doubled since the last prediction.
	Refresh func(slots []Slot, returns []int64)
}

// Validate says what is wrong with c.
func (c Config) Validate() error {
	if c.Slots <= 0 || c.Slots > math.MaxInt32/4 {
		return fmt.Errorf("evict: %d slots: want between 1 and %d", c.Slots, math.MaxInt32/4)
	}
	if c.Bytes <= 0 {
		return fmt.Errorf("evict: capacity of %d bytes: want more than 0", c.Bytes)
	}
	return nil
}

// ErrUnknown is returned for a policy that does not exist.
var ErrUnknown = errors.New("unknown eviction policy")

// Names lists the policies that New makes.
func Names() []string {
	return []string{"default", "laru", "laru-cost", "lru", "sieve", "filtered", "blind"}
}

// Predicts reports whether a policy makes use of predictions.
func Predicts(name string) bool { return name != "lru" && name != "sieve" }

// New makes a policy by name; "" is the default.
func New(name string, c Config) (Policy, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	switch name {
	case "", "default":
		return NewFloor(c, FloorConfig{}), nil
	case "laru":
		return newLARU(c), nil
	case "laru-cost":
		return newLARUCost(c), nil
	case "lru":
		return newLRU(c), nil
	case "sieve":
		return newSieve(c), nil
	case "filtered":
		return newFiltered(c), nil
	case "blind":
		return newBlind(c), nil
	}
	return nil, fmt.Errorf("evict: policy %q: %w", name, ErrUnknown)
}

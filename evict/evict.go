// Package evict chooses which entries leave a cache. One [Policy] serves a paged KV cache, a radix tree that evicts
// only leaves, and slab sets with a policy per set (LRU-1, LRU-3 and LRU-4 in docs/explain/papers.md). The package is
// pure: time, predictions and sizes are arguments. The caller serialises calls. The same calls give the same victims.
//
// The cache owns slots: integers below [Config].Slots that it assigns to its entries and takes back. A policy keeps
// arrays indexed by slot, so a hit needs no map lookup and no allocation. A key names an entry's content across
// evictions. A policy remembers the keys of some evicted entries, at most as many as fill the cache. With k cached
// entries, a request costs O(log k) amortised.
//
// A request is either Hit, or Miss, then Victim as often as room is needed, then Insert. Insert is left out if the
// entry is not admitted. Within a prefix tree a request touches the leaf first and the root last. So a parent is never
// older than its children, as leaf-only eviction needs.
//
// Policies by name (see [New]):
//
//	lru       least recently used
//	sieve     SIEVE: one queue, a visited bit, a moving hand
//	laru      LARU as published: 1-consistent, at most 2k misses in a phase of k distinct entries
//	default   [Floor]: predictions within a budget measured against a shadow of LRU
//
// [Register] adds policies, as benchmarks do. [Predicted] is the common part of those that follow predictions.
//
// Predictions come in two ways. Synchronous predictions are made when an entry is requested (Access.Return) and while a
// victim is chosen (Config.Refresh). Asynchronous predictions are made off the request path and arrive later, by
// Predict. Until then the entry's previous prediction applies; a new entry is treated as LRU treats it.
//
// [Tracker] turns accesses into features and training samples. [Train] and [TrainReturns] grow trees on them. [Model]
// predicts when an entry returns. On processors with AVX-512 it uses assembly, which gives the same bits as the Go
// code.
package evict

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
)

// Slot is the integer by which the cache identifies a cached entry.
type Slot = int32

// Never is the predicted return of an entry that is not expected back.
const Never int64 = math.MaxInt64

// Access is one request for one entry.
type Access struct {
	Key    uint64  // names the content; the same content has the same key after an eviction
	Bytes  int64   // size, positive and at most the capacity; 1 for caches that count entries
	Now    int64   // time of the request, ≥ 0, in a unit of the cache's choice; never decreases
	Return int64   // predicted time of the next request, absolute, same unit; ≤ Now when unknown
	Cost   float64 // what a hit saves, such as milliseconds; for policies that weigh costs; ≤ 0: unknown
}

// Policy chooses victims. Not safe for concurrent use.
type Policy interface {
	// Hit records a request for the entry in a slot. The entry's size must not have changed.
	Hit(Slot, Access)
	// Miss records a request for an entry that is not cached, before room is made for it.
	Miss(Access)
	// Victim removes one entry from the policy. The cache MUST evict it; its slot is free again. Entries that evictable
	// refuses stay (pinned, or not a leaf); nil allows all. It returns false if no entry may be evicted.
	Victim(evictable func(Slot) bool) (Slot, bool)
	// Insert records that a free slot now holds the missed entry.
	Insert(Slot, Access)
	// Remove forgets an entry that the cache dropped for a reason other than room. Its slot is free again.
	Remove(Slot)
	// Predict sets the predicted return of a cached entry after its request.
	Predict(Slot, int64)
	// Resize changes the capacity in bytes, above 0. If more is cached, the cache takes victims until it fits.
	Resize(bytes int64)
}

// Warmer is a Policy that can read what Hit of a slot will read. A cache that hits many entries calls Warm for all of
// them first: the reads do not depend on each other, so they wait for memory together.
type Warmer interface{ Warm(Slot) }

// Config sizes a policy.
type Config struct {
	Slots int   // slots are 0 … Slots−1
	Bytes int64 // capacity of the cache in the unit of Access.Bytes; Slots when entries count 1
	// Refresh, if set, renews predictions while a victim is chosen. It overwrites returns[i] for slots[i], at most 64
	// of them. Policies ask for candidates whose predicted return has passed. The default policy also asks for those
	// whose age has doubled since their last prediction, and for a few random ones.
	Refresh func(slots []Slot, returns []int64)
}

// Validate returns an error if c is not usable.
func (c Config) Validate() error {
	if c.Slots <= 0 || c.Slots > math.MaxInt32/4 {
		return fmt.Errorf("evict: %d slots: want between 1 and %d", c.Slots, math.MaxInt32/4)
	}
	if c.Bytes <= 0 {
		return fmt.Errorf("evict: capacity of %d bytes: want more than 0", c.Bytes)
	}
	return nil
}

// ErrUnknown is returned for an unknown policy name.
var ErrUnknown = errors.New("unknown eviction policy")

// makers has the policies that other packages registered, by name.
var makers = map[string]func(Config) (Policy, error){}

// Register adds a policy that New makes by name. It is called from init functions only and panics if the name is taken.
func Register(name string, make func(Config) (Policy, error)) {
	if slices.Contains(Names(), name) {
		panic("evict: policy " + name + " registered twice")
	}
	makers[name] = make
}

// Names lists the policies that New makes.
func Names() []string {
	return append([]string{"default", "laru", "lru", "sieve"}, slices.Sorted(maps.Keys(makers))...)
}

// Predicts reports whether a policy uses predictions.
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
	case "lru":
		return newLRU(c), nil
	case "sieve":
		return newSieve(c), nil
	}
	if make := makers[name]; make != nil {
		return make(c)
	}
	return nil, fmt.Errorf("evict: policy %q: %w", name, ErrUnknown)
}

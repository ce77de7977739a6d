// Package residency decides which tier holds which entry of KV. It chooses the entry that a full level of memory
// evicts and the place that the entry goes to. It decides when an entry returns to the device's memory and which
// entry is written to disk next.
//
// The package is pure. It holds no KV, takes no lock, starts no goroutine and reads no clock. Its owner calls it
// from one goroutine at a time, carries out each decision and reports the result. Package kv is one owner, a
// simulator is another.
//
// A Core has one or two levels of memory. The top level is where the device computes. The second one, if there is
// one, is host memory. A level's books list the entries that it holds. An entry is on the books of exactly one
// level, or of none while it is copied. The owner asks before it copies an entry and reports the end of the copy:
//
//	Expect  a request wants an entry that is not held
//	Need    a level is full: which entry leaves, and does it go to host memory or is it dropped
//	Use     a request wants an entry: use it in place, wait for its copy, or copy it to the top level first
//	Moved   a copy ended: where is the entry now
//	Publish there is a new entry, or a longer one for a known user
//	Dirty   which entry is written to disk next; Written reports the result of the write
//	Stored  an entry is on disk; Lost: the disk dropped it
//
// Lookup and Status return the tier of an entry. Hotness estimates how often users and items are requested.
//
// A policy of package evict chooses the victim among the entries that no request is reading. Only the owner knows
// which entries are being read, so Need takes a callback.
package residency

import (
	"fmt"

	"grebe/evict"
	"grebe/plan"
)

// Config describes the levels of a Core and its policy.
type Config struct {
	Levels []LevelConfig // one or two; the first one is where the device computes
	Policy string        // the name of a policy of package evict
	Below  bool          // there is a disk below memory
	// predict when entries are used again with models that learn online, if the policy uses predictions
	Predict bool
	Oracle  Oracle // predicts in place of those models; nil: there is none
	Chunk   int    // tokens of a chunk, the unit in which prompts share histories: see evict.NextPrompt
}

// Trace is called with each change of the books. Recording and replay use it.
type Trace[V any] func(op Op, h *Held[V], at plan.Tier)

// Op is a change of the books.
type Op uint8

const (
	DidPut    Op = iota // the entry was put on a level
	DidTake             // the entry left a level, but not to make room
	DidLeave            // the entry left a level to make room
	DidHit              // the entry was used
	DidDrop             // the entry left memory
	DidForget           // a run of a known prefix was removed
	DidWrite            // the write of the entry to disk began
)

func (o Op) String() string {
	return [...]string{"put", "take", "leave", "hit", "drop", "forget", "write"}[o]
}

// LevelConfig describes one level of memory.
type LevelConfig struct {
	Tier  plan.Tier
	Slots int   // most entries on the books
	Bytes int64 // size of the memory
}

// Held is an entry in memory, or one that is about to be published there. What every use reads comes first: it fills
// one line of the processor's cache.
type Held[V any] struct {
	Key    plan.Key
	Tokens int   // number of tokens whose KV this is
	Bytes  int64 // size in memory

	level *level[V]  // nil while it is copied and before it is published
	slot  evict.Slot // of the level

	Kind  plan.Kind
	Named bool      // a user's entry, which a longer one may replace
	Run   bool      // a run of a known prefix: it has no key and never moves to another level
	tier  plan.Tier // tier of its level; while it is copied, the tier it came from

	used    bool  // used since it came to its level
	clean   bool  // the disk has it too
	writing bool  // a write to disk is under way
	dirty   bool  // listed among its level's dirty entries
	tries   uint8 // writes that failed

	Value   V      // for the package that calls this one
	Owner   uint32 // which cache the key belongs to, where several share a store
	Digest  uint64 // of a user's tokens
	request request
}

// Level returns the index of the entry's level, or -1 while it is on none.
func (h *Held[V]) Level() int {
	if h.level == nil {
		return -1
	}
	return h.level.index
}

// Clean reports whether the disk has the entry too.
func (h *Held[V]) Clean() bool { return h.clean }

// Fetched marks an entry that was read from disk. It MUST be called before Publish.
func (h *Held[V]) Fetched() { h.clean = true }

// Core keeps the books of one store. It is not safe for concurrent use.
type Core[V any] struct {
	config Config
	levels []*level[V]
	held   byKey[V]
	below  map[plan.Key]Entry // entries on disk
	owned  map[uint32]int     // number of keys per owner, in held, below or both
	ever   [kinds]bool        // whether there has ever been an entry of that kind
	feed   *Feed              // nil: nobody reads one
	teach  *teacher[V]        // nil: nothing is predicted
	trace  Trace[V]           // nil: not traced
}

// SetTrace has f called with each change. It MUST be called while the books are empty.
func (c *Core[V]) SetTrace(f Trace[V]) {
	c.trace = f
	for _, l := range c.levels {
		l.trace = f
	}
}

// SetHotness reports to h which users the top level holds. It MUST be called while memory is empty.
func (c *Core[V]) SetHotness(h *Hotness) { c.top().hot = h }

// Hotness returns the value of SetHotness, or nil.
func (c *Core[V]) Hotness() *Hotness { return c.top().hot }

func (c *Core[V]) did(op Op, h *Held[V], at plan.Tier) {
	if c.trace != nil {
		c.trace(op, h, at)
	}
}

// New returns empty books.
func New[V any](c Config) (*Core[V], error) {
	if len(c.Levels) < 1 || len(c.Levels) > 2 {
		return nil, fmt.Errorf("residency: %d levels of memory: want one or two", len(c.Levels))
	}
	core := &Core[V]{config: c, held: newByKey[V](), below: map[plan.Key]Entry{}, owned: map[uint32]int{}}
	c.Predict = c.Predict && c.Oracle == nil && evict.Predicts(c.Policy)
	for i, lc := range c.Levels {
		l, err := newLevel[V](i, lc, &c)
		if err != nil {
			return nil, err
		}
		core.levels = append(core.levels, l)
	}
	if c.Predict {
		core.teach = newTeacher(core.levels)
	}
	return core, nil
}

// top is where the device computes, bottom the lowest level of memory.
func (c *Core[V]) top() *level[V]    { return c.levels[0] }
func (c *Core[V]) bottom() *level[V] { return c.levels[len(c.levels)-1] }

// Get returns the entry under a key, or nil. It does not count as a use.
func (c *Core[V]) Get(key plan.Key) *Held[V] { return c.held.get(&key) }

// All calls f with each entry that has a key, in no order.
func (c *Core[V]) All(f func(*Held[V])) {
	for h := range c.held.all() {
		f(h)
	}
}

// Len returns how many entries have a key.
func (c *Core[V]) Len() int { return c.held.count }

// Full reports whether the books of a level have no free place.
func (c *Core[V]) Full(level int) bool { return len(c.levels[level].free) == 0 }

// Places returns the number of free places on the books of a level.
func (c *Core[V]) Places(level int) int { return len(c.levels[level].free) }

// Publication is the result of Publish.
type Publication uint8

const (
	Kept    Publication = iota // the books had an entry with the same content: it was used, and the new one is not needed
	Placed                     // it is on the books
	NoPlace                    // the level has no free place; an older entry may have been removed all the same
)

// Publish puts an entry on the books of a level. A user's entry replaces the older one under its key, which Publish
// returns, unless same says that both have the same memory. If the older entry is not a user's, it stays. If write
// is true, the owner has to write the entry to disk now, and the write counts as begun.
func (c *Core[V]) Publish(h *Held[V], level int, same bool) (p Publication, old *Held[V], write bool) {
	if was := c.held.get(&h.Key); was != nil {
		if !was.Named || same {
			if was.level != nil {
				was.level.hit(was)
			}
			return Kept, nil, false
		}
		h.request = was.request // the request that made the older entry
		c.remove(was)
		old = was
	}
	if h.Named && h.request.prompt.Tokens() == 0 {
		h.request.prompt = c.asked(h.Tokens, 0, &evict.Prompt{})
	}
	fresh := !h.clean
	p = NoPlace
	if to := c.levels[level]; len(to.free) > 0 {
		p = Placed
		c.hold(h)
		to.put(h)
	}
	if write = fresh && c.config.Below && !h.Named; write {
		c.begin(h)
	}
	if p == Placed || old != nil {
		c.changed(h.Key)
	}
	return p, old, write
}

// Expect reports a miss: the entry is not held and is about to be published on a level. The policy then records the
// miss before Need asks it for room, in the order that package evict requires. An owner that makes room before it
// knows the entry leaves Expect out, and Publish records the miss. The next entry that is published on the level MUST
// be this one, or none if there is no room for it.
func (c *Core[V]) Expect(h *Held[V], level int) { c.levels[level].miss(h) }

// Delete removes the entry under a key from the books and returns it, or nil if there is none.
func (c *Core[V]) Delete(key plan.Key) *Held[V] {
	h := c.held.get(&key)
	if h != nil {
		c.remove(h)
		c.changed(key)
	}
	return h
}

func (c *Core[V]) remove(h *Held[V]) {
	if h.level != nil {
		h.level.take(h, false)
	}
	c.release(h)
}

// Where says how a request gets an entry.
type Where uint8

const (
	Nowhere Where = iota // memory does not have it
	Here                 // use it in place
	Coming               // it is being copied: ask again when the copy ended
	Up                   // it was taken off the books: copy it to the top level, then call Moved
)

// Use says how a request gets the entry under a key, and counts the use. InPlace reports whether the device can read
// the entry from its level. An entry is used in place once; its second use copies it to the top level.
func (c *Core[V]) Use(key plan.Key, inPlace func(*Held[V]) bool) (*Held[V], Where) {
	h := c.held.get(&key)
	switch {
	case h == nil:
		return nil, Nowhere
	case h.level == nil && inPlace(h):
		return h, Here
	case h.level == nil:
		return h, Coming
	}
	h.level.hit(h)
	if h.level == c.top() || !h.used && inPlace(h) {
		h.used = true
		return h, Here
	}
	h.level.take(h, false)
	return h, Up
}

// Warm reads what Use of these keys will read, before any of them is used. The reads do not depend on each other, so
// they wait for memory together. Status of the same keys comes before.
func (c *Core[V]) Warm(keys []plan.Key) {
	for i := range keys {
		if h := c.held.get(&keys[i]); h != nil && h.level != nil {
			h.level.warm(h)
		}
	}
}

// Read counts a use of the entry under a key that stays where it is, as when a peer asks for it. It returns nil if
// memory does not have it.
func (c *Core[V]) Read(key plan.Key) *Held[V] {
	h := c.held.get(&key)
	if h != nil && h.level != nil {
		h.level.hit(h)
	}
	return h
}

// Asked notes a request of tokens tokens for a user's entry, which has the first known of them.
func (c *Core[V]) Asked(h *Held[V], tokens, known int) {
	h.request.prompt = c.asked(tokens, known, &h.request.prompt)
}

// Exit says where an evicted entry goes.
type Exit uint8

const (
	Lower  Exit = iota // copy it to host memory, then call Moved
	Drop               // drop it from memory
	Forget             // it was a run of a known prefix: remove it
)

// Need chooses the entry that leaves a full level, among those that may allows, and takes it off the books. It
// returns nil when no entry can leave.
func (c *Core[V]) Need(level int, may func(*Held[V]) bool) (*Held[V], Exit) {
	l := c.levels[level]
	l.may = may
	slot, ok := l.policy.Victim(l.evictable)
	l.may = nil
	if !ok {
		return nil, Drop
	}
	h := l.bySlot[slot]
	l.take(h, true)
	switch {
	case h.Run:
		l.counts[h.Kind].Evicted++
		c.did(DidForget, h, l.tier)
		return h, Forget
	case l == c.top() && len(c.levels) > 1:
		l.counts[h.Kind].Lowered++
		return h, Lower
	}
	l.counts[h.Kind].Evicted++
	c.drop(h, l)
	return h, Drop
}

// Landing says where an entry is after its copy.
type Landing uint8

const (
	There Landing = iota // on the level that it was copied to
	Back                 // back in host memory, where it came from
	Out                  // on no level: the owner drops it
	Gone                 // it was deleted or replaced during the copy
)

// Moved reports that the copy of an entry to a level ended, and whether it succeeded.
func (c *Core[V]) Moved(h *Held[V], level int, copied bool) Landing {
	to := c.levels[level]
	switch {
	case c.held.get(&h.Key) != h:
		return Gone
	case copied && len(to.free) > 0:
		to.put(h)
		c.changed(h.Key)
		return There
	case to == c.top() && len(c.bottom().free) > 0:
		c.bottom().put(h)
		return Back
	}
	c.bottom().counts[h.Kind].Evicted++
	c.drop(h, c.bottom())
	return Out
}

// drop removes an entry that is on no level from memory.
func (c *Core[V]) drop(h *Held[V], l *level[V]) {
	c.did(DidDrop, h, l.tier)
	c.release(h)
	c.changed(h.Key)
}

// Resize sets the size of a level in bytes.
func (c *Core[V]) Resize(level int, bytes int64) { c.levels[level].resize(bytes) }

// Counts returns how many entries of a kind a level holds, and how many left it.
func (c *Core[V]) Counts(level int, kind plan.Kind) *Counts { return &c.levels[level].counts[kind] }

// Package residency decides what is held where: which entry leaves a level of memory that is full and where it
// goes, when one comes up again, and what is written to the disk below. It is pure. It holds no bytes, takes no
// lock, starts nothing and reads no clock; its owner calls it in turn, does what it says and tells how that ended.
// Package kv is such an owner; a simulator is another.
//
// A Core has one level of memory where the device computes and maybe one of the host's below it. An entry is on
// the books of one level, or of none while it is moved. The owner asks before it moves anything and tells when the
// copy ended:
//
//	Need    a level has no room: who leaves it, and does it go to the host's memory or away
//	Use     an entry is wanted: take it where it is, wait for its copy, or bring it up first
//	Moved   a copy ended: where the entry is now
//	Publish a new entry, or a longer one of a user
//	Dirty   which entry is written below next; Written tells how that ended
//	Stored  an entry is on disk; Lost: it is not any more, since the disk dropped it
//
// Lookup and Status say which tier has an entry, Hotness how often users and items are asked for.
//
// Who leaves is chosen by a policy of package evict among the entries that nobody reads. Only the owner knows who is read: Need asks
// it through a callback.
package residency

import (
	"fmt"

	"grebe/evict"
	"grebe/plan"
)

// Config says what a Core decides on.
type Config struct {
	Levels  []LevelConfig // one or two, the one where the device computes first
	Policy  string        // of package evict
	Below   bool          // there is a disk below memory
	Predict bool          // returns of entries are predicted, for policies that use that
	Chunk   int           // tokens by which histories are shared: see evict.NextPrompt
}

// Trace is told each change of the books, for records and replays.
type Trace[V any] func(op Op, h *Held[V], at plan.Tier)

// Op is a change of the books.
type Op uint8

const (
	DidPut    Op = iota // onto a level
	DidTake             // off a level, for another reason than room
	DidLeave            // off a level, to make room
	DidHit              // a use
	DidDrop             // out of memory
	DidForget           // a run of a known prefix is no more
	DidWrite            // its write below began
)

func (o Op) String() string {
	return [...]string{"put", "take", "leave", "hit", "drop", "forget", "write"}[o]
}

// LevelConfig is a pool of memory.
type LevelConfig struct {
	Tier  plan.Tier
	Slots int   // entries that it has room for on the books
	Bytes int64 // of memory
}

// Held is an entry that memory holds, or is about to.
type Held[V any] struct {
	Key    plan.Key
	Kind   plan.Kind
	Tokens int    // whose KV it is
	Bytes  int64  // that it takes
	Named  bool   // a user's: a longer one may replace it
	Run    bool   // a run of a known prefix: it is under no key, and never leaves for another level
	Owner  uint32 // whose keys it is among, where several share a store
	Digest uint64 // of a user's tokens
	Value  V      // the owner's

	request request
	level   *level[V] // nil while it is moved, and before it is published
	tier    plan.Tier // of its level; while it is moved, where it was
	slot    evict.Slot
	clean   bool  // written below
	writing bool  // it is on its way below
	dirty   bool  // among its level's dirty entries
	used    bool  // since it came to its level
	tries   uint8 // writes that failed
}

// Level returns the index of the level that the entry is on the books of, -1 while it is on none.
func (h *Held[V]) Level() int {
	if h.level == nil {
		return -1
	}
	return h.level.index
}

// Clean reports whether the entry is below memory too.
func (h *Held[V]) Clean() bool { return h.clean }

// Fetched marks an entry that came from below memory. It MUST be called before Publish.
func (h *Held[V]) Fetched() { h.clean = true }

// Core is the books of one store. Not safe for concurrent use.
type Core[V any] struct {
	config Config
	levels []*level[V]
	held   map[plan.Key]*Held[V]
	below  map[plan.Key]Entry // what the disk has
	owned  map[uint32]int     // keys of each owner, in held, below or both
	ever   [kinds]bool        // there is or was an entry of that kind
	feed   *Feed              // nil: nobody follows
	teach  *teacher[V]        // nil: nothing is predicted
	trace  Trace[V]           // nil: nobody is told
}

// SetTrace has f told of each change. It MUST be called while the books are empty.
func (c *Core[V]) SetTrace(f Trace[V]) {
	c.trace = f
	for _, l := range c.levels {
		l.trace = f
	}
}

// SetHotness has h know which users are cached where the device computes. It MUST be called while memory is empty.
func (c *Core[V]) SetHotness(h *Hotness) { c.top().hot = h }

// Hotness returns how hot users and items are; nil when none was set.
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
	core := &Core[V]{config: c, held: map[plan.Key]*Held[V]{}, below: map[plan.Key]Entry{}, owned: map[uint32]int{}}
	c.Predict = c.Predict && evict.Predicts(c.Policy)
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

// Get returns the entry under a key, nil when there is none. It is no use of it.
func (c *Core[V]) Get(key plan.Key) *Held[V] { return c.held[key] }

// All calls f with each entry that has a key, in no order.
func (c *Core[V]) All(f func(*Held[V])) {
	for _, h := range c.held {
		f(h)
	}
}

// Len returns how many entries have a key.
func (c *Core[V]) Len() int { return len(c.held) }

// Full reports whether a level has no place on its books.
func (c *Core[V]) Full(level int) bool { return len(c.levels[level].free) == 0 }

// Places returns how many places the books of a level have free.
func (c *Core[V]) Places(level int) int { return len(c.levels[level].free) }

// Publication says what became of an entry that was published.
type Publication uint8

const (
	Kept    Publication = iota // one with the same content was there: that one was used, the new one is not needed
	Placed                     // it is on the books
	NoPlace                    // the level has none, though one may have been taken for an entry that it replaced
)

// Publish puts an entry onto the books of a level. An entry of a user replaces the older one under its key, which is returned; any other
// stays, and same says that the old one has the same memory. Write says that it is to be written below at once: the write is begun.
func (c *Core[V]) Publish(h *Held[V], level int, same bool) (p Publication, old *Held[V], write bool) {
	if was := c.held[h.Key]; was != nil {
		if !was.Named || same {
			if was.level != nil {
				was.level.hit(was)
			}
			return Kept, nil, false
		}
		h.request = was.request // that which made it
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

// Delete takes the entry under a key off the books; nil when there is none.
func (c *Core[V]) Delete(key plan.Key) *Held[V] {
	h := c.held[key]
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

// Where says how an entry that is wanted is had.
type Where uint8

const (
	Nowhere Where = iota // it is not held
	Here                 // take it where it is
	Coming               // its copy is under way: ask again when that ended
	Up                   // it is off the books: copy it to where the device computes, and tell by Moved
)

// Use says how the entry under a key is had, and counts the use. InPlace says whether the device can use it where it is: it may so
// once, and is brought up when it is used again.
func (c *Core[V]) Use(key plan.Key, inPlace func(*Held[V]) bool) (*Held[V], Where) {
	h := c.held[key]
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

// Asked notes a request of so many tokens for a user's entry, of which it has the first known ones.
func (c *Core[V]) Asked(h *Held[V], tokens, known int) {
	h.request.prompt = c.asked(tokens, known, &h.request.prompt)
}

// Exit says where an entry goes that leaves a level.
type Exit uint8

const (
	Lower  Exit = iota // copy it to the host's memory, and tell by Moved
	Drop               // out of memory
	Forget             // it is a run of a known prefix, and is no more
)

// Need chooses who leaves a level that has no room, among those that may; nil when nobody does.
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

// Landing says where an entry is whose copy ended.
type Landing uint8

const (
	There Landing = iota // on the books of the level that it was copied to
	Back                 // on those of the host's, where it was
	Out                  // nowhere: drop it
	Gone                 // it was deleted or replaced meanwhile
)

// Moved tells that the copy of an entry to a level ended.
func (c *Core[V]) Moved(h *Held[V], level int, copied bool) Landing {
	to := c.levels[level]
	switch {
	case c.held[h.Key] != h:
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

// drop takes an entry that is on no level's books out of memory.
func (c *Core[V]) drop(h *Held[V], l *level[V]) {
	c.did(DidDrop, h, l.tier)
	c.release(h)
	c.changed(h.Key)
}

// Resize tells how many bytes a level has.
func (c *Core[V]) Resize(level int, bytes int64) { c.levels[level].resize(bytes) }

// Counts returns what a level holds of a kind, and what left it.
func (c *Core[V]) Counts(level int, kind plan.Kind) *Counts { return &c.levels[level].counts[kind] }

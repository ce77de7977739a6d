package allocator

import (
	"encoding/binary"
	"errors"
	"fmt"

	"grebe/alloc"
	"grebe/bench/rivals"
	"grebe/plan"
	"grebe/pool"
	"grebe/residency"
	"grebe/workload/regime"
)

// users keeps users' KV on pages of the pool. The books of package residency say who leaves; it does what they say, as
// package kv does: pages are taken first, then the longer entry replaces the one that was there.
type users struct {
	pool  *pool.Pool
	cost  *Cost
	books *residency.Core[history]
	ghost *alloc.Ghost
	all   bool     // users who came once count for the ghost too
	spare []*entry // that left, to be used again
	stays *entry   // that must not leave
}

// history is a user's KV. Its events are the entry's tokens.
type history struct {
	user uint64
	hits int
	runs []pool.Run
}

type entry = residency.Held[history]

func newUsers(p *pool.Pool, cost *Cost, n *node) (*users, error) {
	c := residency.Config{
		Levels: []residency.LevelConfig{{Tier: plan.Device, Slots: int(cost.Pool / piece), Bytes: cost.Pool}},
		Policy: rivals.Blind, // by the predictions of the node
		Oracle: n,
	}
	if n.spec.LRU {
		c.Policy = "lru"
	}
	books, err := residency.New[history](c)
	if err != nil {
		return nil, err
	}
	return &users{pool: p, cost: cost, books: books, ghost: alloc.NewGhost(4096 * cost.GPUs), all: n.spec.LRU}, nil
}

func keyOf(user uint64) (k plan.Key) {
	binary.LittleEndian.PutUint64(k[:], user)
	return k
}

func userOf(k plan.Key) uint64 { return residency.Hash(k) }

// get returns how many events of the user are cached.
func (c *users) get(r *regime.Request) int {
	h, _ := c.books.Use(keyOf(r.User), func(*entry) bool { return true })
	if h == nil {
		return 0
	}
	h.Value.hits++
	return h.Tokens
}

// put keeps a user's events, if there is room.
func (c *users) put(r *regime.Request) {
	h := &entry{}
	if n := len(c.spare); n > 0 {
		h, c.spare = c.spare[n-1], c.spare[:n-1]
	}
	runs := h.Value.runs[:0]
	*h = entry{
		Key: keyOf(r.User), Kind: plan.User, Named: true, Tokens: r.Events, Bytes: int64(r.Events) * c.cost.KVBytes,
		Value: history{user: r.User},
	}
	was := c.books.Get(h.Key)
	if was != nil {
		h.Value.hits, runs = was.Value.hits, append(runs, was.Value.runs...)
	}
	had := len(runs)
	var ok bool
	if h.Value.runs, ok = c.extend(runs, h.Bytes, was); ok {
		ok = was != nil || !c.books.Full(0) || c.evict(nil)
	}
	if !ok {
		c.pool.FreeRuns(h.Value.runs[had:])
		c.spare = append(c.spare, h)
		return
	}
	if _, old, _ := c.books.Publish(h, 0, false); old != nil {
		c.spare = append(c.spare, old) // its pages are the longer one's
	}
}

// extend takes pages until there is room for so many bytes. The entry that has the first ones stays.
func (c *users) extend(runs []pool.Run, bytes int64, stays *entry) ([]pool.Run, bool) {
	for int64(len(runs))*piece < bytes {
		r, err := c.pool.Alloc(piece)
		if errors.Is(err, pool.ErrFull) {
			if c.evict(stays) {
				continue
			}
			return runs, false
		}
		if err != nil {
			panic(fmt.Sprintf("allocator: %v", err)) // Alloc has no other errors
		}
		runs = append(runs, r)
	}
	return runs, true
}

// trim evicts until KV owns no more than it may, and tells the books how much that is.
func (c *users) trim() {
	c.books.Resize(0, c.pool.Stats().Total)
	for c.pool.Over() > 0 && c.evict(nil) {
	}
}

// evict makes one entry go, but not the one that stays.
func (c *users) evict(stays *entry) bool {
	c.stays = stays
	h, _ := c.books.Need(0, func(h *entry) bool { return h != c.stays })
	if h == nil {
		return false
	}
	if h.Value.hits > 0 || c.all { // the others came once, and are in nobody's way
		c.ghost.Evicted(h.Value.user, int64(len(h.Value.runs))*piece)
	}
	c.pool.FreeRuns(h.Value.runs)
	c.spare = append(c.spare, h)
	return true
}

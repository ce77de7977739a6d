package reuse

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"grebe/kv"
	"grebe/plan"
)

// Shared has the caches of several checkpoints of one model keep their entries in one store, each under keys that
// its own weights are part of: none finds what another one keeps. What the store tells goes to all of them.
type Shared struct {
	mu     sync.RWMutex
	caches []*Cache
}

// Share returns what the caches over a store have in common. It MUST be called once, before the store is used.
func Share(store *kv.Store) *Shared {
	s := &Shared{}
	store.OnDrop(func(key plan.Key) { s.each(func(c *Cache, _ bool) { c.dropped(key) }) })
	store.OnForget(func(key plan.Key) { s.each(func(c *Cache, _ bool) { c.forgotten(key) }) })
	store.OnMove(func(key plan.Key, to plan.Tier) { s.each(func(c *Cache, _ bool) { c.moved(key, to) }) })
	store.OnStore(func(key plan.Key, kind plan.Kind, tokens int) {
		s.each(func(c *Cache, alone bool) {
			if _, known := c.opt.Index.Lookup(key); known || alone {
				c.stored(key, kind, tokens)
			}
		})
	})
	return s
}

// each calls f with every cache, and whether it is the only one.
func (s *Shared) each(f func(c *Cache, alone bool)) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, c := range s.caches {
		f(c, len(s.caches) == 1)
	}
}

// join adds a cache. The first one's is what lies below memory.
func (s *Shared) join(c *Cache) {
	s.mu.Lock()
	s.caches = append(s.caches, c)
	first := len(s.caches) == 1
	s.mu.Unlock()
	if first {
		c.opt.Store.RangeBelow(c.stored)
	}
}

// clearAtOnce is how many entries are deleted between looks at the context. On a slow disk each may take milliseconds.
const clearAtOnce = 64

// Clear removes all that the cache keeps from every tier, or as much as it can before ctx ends, and has the store tell it
// nothing any more. The cache MUST NOT be in use, nor be used after.
func (c *Cache) Clear(ctx context.Context) error {
	settled := c.Settle()
	keys := c.opt.Index.Keys()
	var failed error
	for len(keys) > 0 && ctx.Err() == nil {
		n := min(clearAtOnce, len(keys))
		if err := c.opt.Store.Delete(keys[:n]...); err != nil && failed == nil {
			failed = err // the others fail alike
		}
		keys = keys[n:]
	}
	if len(keys) > 0 {
		failed = errors.Join(failed, fmt.Errorf("reuse: %d entries are not deleted: %w", len(keys), ctx.Err()))
	}
	c.opt.Store.Forget(c.userSpace)
	c.leave()
	return errors.Join(settled, failed)
}

// Leave has the store tell the cache nothing any more. What it keeps stays, for another cache of the same weights.
func (c *Cache) Leave() error {
	err := c.Settle()
	c.leave()
	return err
}

// userKeys returns the keys of some users in all caches: in those too that are being cleared.
func (s *Shared) userKeys(ids []string) []plan.Key {
	var keys []plan.Key
	s.each(func(c *Cache, _ bool) {
		for _, id := range ids {
			if key := c.UserKey(id, nil); len(s.caches) == 1 || !slices.Contains(keys, key) {
				keys = append(keys, key)
			}
		}
	})
	return keys
}

func (c *Cache) leave() {
	s := c.opt.Shared
	s.mu.Lock()
	defer s.mu.Unlock()
	s.caches = slices.DeleteFunc(s.caches, func(o *Cache) bool { return o == c })
}

package reuse

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"grebe/kv"
	"grebe/plan"
)

// Shared lets several caches keep their entries in one store: those of several checkpoints of one model, and of several
// models on one checkpoint. Their keys include the weights, so that none finds KV of other weights. Reports of the
// store go to all of them. Requests to any of them use what others are computing.
type Shared struct {
	now      func() time.Duration // clock of frequencies
	underway underway
	mu       sync.RWMutex
	caches   []*Cache
}

// Share returns the Shared of the caches over a store. It MUST be called once, before the store is used.
func Share(store *kv.Store) *Shared {
	start := time.Now()
	s := &Shared{now: func() time.Duration { return time.Since(start) }}
	store.OnDrop(func(key plan.Key, kind plan.Kind) { s.each(func(c *Cache) { c.dropped(key, kind) }) })
	store.OnForget(func(key plan.Key) { s.each(func(c *Cache) { c.forgotten(key) }) })
	return s
}

// each calls f with every cache.
func (s *Shared) each(f func(c *Cache)) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, c := range s.caches {
		f(c)
	}
}

// join adds a cache.
func (s *Shared) join(c *Cache) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.caches = append(s.caches, c)
}

// SharesStore reports whether two caches keep their entries in one store.
func (c *Cache) SharesStore(o *Cache) bool { return c.opt.Store == o.opt.Store }

// clearAtOnce is the number of entries deleted between checks of the context. On a slow disk each may take
// milliseconds.
const clearAtOnce = 64

// Clear removes the cache's entries from every tier, or as many as it can before ctx ends, and disconnects the cache
// from the store's reports. The cache MUST NOT be in use, and MUST NOT be used afterwards.
func (c *Cache) Clear(ctx context.Context) error {
	settled := c.Settle()
	keys := c.opt.Store.Keys(c.owner)
	var failed error
	for len(keys) > 0 && ctx.Err() == nil {
		n := min(clearAtOnce, len(keys))
		if err := c.opt.Store.Delete(keys[:n]...); err != nil && failed == nil {
			failed = err // the others would fail too
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

// Leave disconnects the cache from the store's reports. Its entries stay, for another cache of the same weights.
func (c *Cache) Leave() error {
	err := c.Settle()
	c.leave()
	return err
}

// userKeys returns the keys of some users in all caches, including those that are being cleared.
func (s *Shared) userKeys(ids []string) []plan.Key {
	var keys []plan.Key
	s.each(func(c *Cache) {
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

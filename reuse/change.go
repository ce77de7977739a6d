package reuse

import (
	"context"
	"slices"
	"sync"

	"grebe/plan"
	"grebe/prompt"
)

// mostChanged is the most changed items that wait to be computed again. Others are computed by the first request that
// needs them.
const mostChanged = 4096

// refreshTokens is the number of tokens of changed items computed at once. It is small, because a request that arrives
// meanwhile waits for them.
const refreshTokens = 128

// Change is the effect of an item's change on a cache.
type Change struct {
	Drop    [][]int32 // former tokens of the item, whose KV is useless
	Want    []int32   // current tokens, if they are new
	Deleted bool      // the item is deleted: its KV must leave the disk too
}

// Changed returns the effect of an item's change from former forms to the current one. nil means that it is deleted.
func (c *Cache) Changed(was []*prompt.Item, is *prompt.Item) (ch Change) {
	var tokens []int32
	ch.Deleted = is == nil
	if is != nil {
		tokens, _ = c.prompt.ItemTokens(is) // an item without tokens for this model is not ranked by it
	}
	same := false
	for _, it := range was {
		old, _ := c.prompt.ItemTokens(it)
		if slices.Equal(old, tokens) {
			same = true
		} else if len(old) > 0 {
			ch.Drop = append(ch.Drop, old)
		}
	}
	if len(tokens) > 0 && !same {
		ch.Want = tokens
	}
	return ch
}

// Apply drops useless KV from every tier. It erases the KV of deleted items from the disk and waits for that. KV of
// changed items is only forgotten: it contains nothing that must be erased, and erasing would delay acknowledged writes
// of others by several syncs. Refresh computes the new forms of items that were cached. It computes added items only if
// items were ever cached, because a model that ranks with users first needs none.
func (c *Cache) Apply(changes []Change) error {
	var keys, useless, deleted []plan.Key
	for i := range changes {
		from := len(keys)
		for _, tokens := range changes[i].Drop {
			keys = append(keys, c.ItemKey(tokens))
		}
		if changes[i].Deleted {
			deleted = append(deleted, keys[from:]...)
		} else {
			useless = append(useless, keys[from:]...)
		}
	}
	tiers := make([]plan.Tier, len(keys))
	c.opt.Store.Status(keys, tiers)
	rest := keys
	for i := range changes {
		n := len(changes[i].Drop)
		cached := n == 0 && c.opt.Store.Ever(plan.Item)
		for k, key := range rest[:n] {
			cached = c.changed.remove(key) || tiers[len(keys)-len(rest)+k] != plan.Missing || cached
		}
		rest = rest[n:]
		if w := changes[i].Want; w != nil && cached {
			c.changed.add(c.ItemKey(w), w)
		}
	}
	c.opt.Store.Drop(useless...)
	return c.opt.Store.Delete(deleted...)
}

// changed lists the changed items to compute again, oldest first.
type changed struct {
	some chan struct{} // holds a token if there may be items

	mu    sync.Mutex
	items map[plan.Key]*changedItem
	order []*changedItem // not yet taken; includes some that are gone
}

type changedItem struct {
	key    plan.Key
	tokens []int32
	gone   bool // no longer listed
}

// add lists an item, unless the list is full.
func (l *changed) add(key plan.Key, tokens []int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.items) >= mostChanged || l.items[key] != nil {
		return
	}
	if len(l.order) >= 2*mostChanged {
		l.order = slices.DeleteFunc(l.order, func(it *changedItem) bool { return it.gone })
	}
	it := &changedItem{key: key, tokens: tokens}
	l.items[key] = it
	l.order = append(l.order, it)
	select {
	case l.some <- struct{}{}:
	default:
	}
}

// remove removes an item from the list and reports whether it was listed.
func (l *changed) remove(key plan.Key) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	it := l.items[key]
	if it == nil {
		return false
	}
	it.gone = true
	delete(l.items, key)
	return true
}

// take returns items of at most most tokens together, but at least one if there is any. They stay listed until they
// are removed.
func (l *changed) take(most int) (taken []*changedItem) {
	l.mu.Lock()
	defer l.mu.Unlock()
	tokens := 0
	for len(l.order) > 0 {
		it := l.order[0]
		if !it.gone {
			if tokens += len(it.tokens); tokens > most && len(taken) > 0 {
				break
			}
			taken = append(taken, it)
		}
		l.order[0] = nil
		l.order = l.order[1:]
	}
	return taken
}

// listed returns the tokens of taken items that have not changed again.
func (l *changed) listed(taken []*changedItem) (items [][]int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, it := range taken {
		if !it.gone {
			items = append(items, it.tokens)
		}
	}
	return items
}

// Refresh computes the KV of changed and added items that Apply listed, in idle time, until ctx ends. It reports
// failures and continues.
func (c *Cache) Refresh(ctx context.Context, do Do, failed func(error)) {
	defer c.opt.Spare.join(c.opt.Load)()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.changed.some:
		}
		for {
			taken := c.changed.take(refreshTokens)
			if len(taken) == 0 {
				break
			}
			err := c.opt.Spare.use(ctx, func() error {
				_, _, err := c.Precompute(ctx, do, c.changed.listed(taken), nil)
				return err
			})
			for _, it := range taken {
				c.changed.remove(it.key)
			}
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				failed(err)
			}
		}
	}
}

package reuse

import (
	"context"
	"slices"
	"sync"

	"grebe/plan"
	"grebe/prompt"
)

// mostChanged is how many changed items may wait to be computed again. Further ones are computed by the first
// request that needs them.
const mostChanged = 4096

// refreshTokens is how many tokens of changed items are computed at once: few, since a request that comes
// meanwhile waits for them.
const refreshTokens = 128

// Change is what a change of an item means to a cache.
type Change struct {
	Drop    [][]int32 // tokens that the item had: their KV is of no use any more
	Want    []int32   // tokens that it has now, if they are new
	Deleted bool      // the item is gone: its KV must leave the disk too
}

// Changed returns what a change of an item means: forms that it had, and the one that it has now; nil for none.
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

// Apply drops what changes made useless from every tier. It erases the KV of deleted items from the disk and waits for
// that. KV of changed items is only forgotten: it holds nothing that must be gone, and to erase it would cost
// acknowledged writes of others the time of several syncs. Refresh computes the new forms of items that were cached. It
// computes added items where others were ever cached: a model that ranks with users first needs none.
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

// changed lists the items that changed and are to be computed again, oldest first.
type changed struct {
	some chan struct{} // holds one when there may be items

	mu    sync.Mutex
	items map[plan.Key]*changedItem
	order []*changedItem // those not taken yet; also some that are gone
}

type changedItem struct {
	key    plan.Key
	tokens []int32
	gone   bool // it is not listed any more
}

// add lists an item, unless there are too many.
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

// remove takes an item out of the list and reports whether it was there.
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

// take returns items of so many tokens together, at least one; none when there are none. They stay listed until
// they are removed.
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

// listed returns the tokens of taken items that did not change again.
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

// Refresh computes the KV of items that changed or were added, as Apply lists them, in the time that requests
// leave, until ctx ends. It reports failures and goes on.
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

package reuse

import (
	"context"
	"slices"
	"time"

	"grebe/prompt"
)

// changes is how many changed items may wait to be computed; further ones wait for a request that
// needs them.
const changes = 4096

// Change is what a change of an item means to a cache: Drop is what is cached of it that is of no use any more, Want the
// tokens that it has now, if they are new.
type Change struct {
	Drop [][]int32
	Want []int32
}

// Changed returns what a change of an item means: forms that it had, and the one that it has now; nil for none.
func (c *Cache) Changed(was []*prompt.Item, is *prompt.Item) (ch Change) {
	var tokens []int32
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

// Apply drops what changes made useless from every tier, at once, and has what is new computed in the background.
func (c *Cache) Apply(changes []Change) error {
	var drop [][]int32
	for i := range changes {
		drop = append(drop, changes[i].Drop...)
	}
	err := c.DropItem(drop...)
	for i := range changes {
		if w := changes[i].Want; w != nil {
			select {
			case c.changed <- w:
			default:
			}
		}
	}
	return err
}

// refreshPause is how long changes of items are collected before they are computed.
const refreshPause = 100 * time.Millisecond

// Refresh computes the KV of items that changed, when no request waits, until ctx ends. It reports
// failures and goes on.
func (c *Cache) Refresh(ctx context.Context, do Do, failed func(error)) {
	var batch [][]int32
	for {
		select {
		case <-ctx.Done():
			return
		case it := <-c.changed:
			batch = append(batch[:0], it)
		}
		if !c.collect(ctx, &batch) {
			return
		}
		if _, _, err := c.Precompute(ctx, do, batch, nil); err != nil && ctx.Err() == nil {
			failed(err)
		}
	}
}

// collect adds changes to the batch until there are no more for a while and no request waits; false
// when ctx ended.
func (c *Cache) collect(ctx context.Context, batch *[][]int32) bool {
	for len(*batch) < changes {
		select {
		case <-ctx.Done():
			return false
		case it := <-c.changed:
			*batch = append(*batch, it)
		case <-time.After(refreshPause):
			if _, waiting := c.opt.Load.Backlog(); waiting == 0 {
				return true
			}
		}
	}
	return true
}

package reuse

import (
	"context"
	"errors"
	"slices"
	"time"

	"grebe/prompt"
)

// changes is how many changed items may wait to be computed; further ones wait for a request that
// needs them.
const changes = 4096

// ItemChanged drops what is cached of an item's old form from every tier, and has the new one
// computed in the background. Either may be nil.
func (c *Cache) ItemChanged(was, is *prompt.Item) error {
	var old, tokens []int32
	var errs []error
	if is != nil {
		tokens, _ = c.prompt.ItemTokens(is) // an item without tokens for this model is not ranked by it
	}
	if was != nil {
		old, _ = c.prompt.ItemTokens(was)
	}
	if slices.Equal(old, tokens) {
		return nil
	}
	if len(old) > 0 {
		errs = append(errs, c.DropItem(old))
	}
	if len(tokens) > 0 {
		select {
		case c.changed <- tokens:
		default:
		}
	}
	return errors.Join(errs...)
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

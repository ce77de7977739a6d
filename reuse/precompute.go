package reuse

import (
	"context"
	"errors"
	"fmt"
	"time"

	"grebe/engine"
	"grebe/plan"
	"grebe/schedule"
)

// Do runs a job. The Do of a dispatch.Dispatcher is one.
type Do func(ctx context.Context, j *engine.Job) (*engine.Result, error)

// batchTokens is the number of tokens of items that Precompute computes at once: enough for the device's full speed,
// and few enough to let a request in between.
const batchTokens = 1024

// batchTime is the deadline of such a batch. It is far away, because nobody waits for it. Without a deadline it would
// get that of a request, and a slow machine would shed it.
const batchTime = 10 * time.Minute

// Precompute computes and keeps the KV of items that are not cached in any tier. It returns how many it computed, and
// how many it skipped because they do not fit the model; no prompt has those either. progress, if not nil, is called
// after every step with the items looked at and the tokens computed.
func (c *Cache) Precompute(ctx context.Context, do Do, items [][]int32,
	progress func(items, tokens int)) (computed, tooLong int, err error) {
	keys := make([]plan.Key, 1)
	tiers := make([]plan.Tier, 1)
	var batch [][]int32
	tokens, looked := 0, 0
	flush := func() error {
		n, err := c.computeFitting(ctx, do, batch)
		if err != nil {
			return fmt.Errorf("reuse: compute the KV of %d items: %w", len(batch), err)
		}
		computed += n
		tooLong += len(batch) - n
		if progress != nil {
			progress(looked, tokens)
		}
		batch, tokens, looked = batch[:0], 0, 0
		return ctx.Err()
	}
	for _, it := range items {
		looked++
		keys[0] = c.ItemKey(it)
		if c.opt.Store.Status(keys, tiers); tiers[0] != plan.Missing {
			continue
		}
		if tokens+len(it) > batchTokens && len(batch) > 0 {
			looked--
			if err := flush(); err != nil {
				return computed, tooLong, err
			}
			looked++
		}
		batch = append(batch, it)
		tokens += len(it)
	}
	err = flush()
	return computed, tooLong, err
}

// computeFitting computes the items of a batch that fit the model, and returns their number.
func (c *Cache) computeFitting(ctx context.Context, do Do, items [][]int32) (int, error) {
	if len(items) == 0 {
		return 0, nil
	}
	err := c.compute(ctx, do, items)
	if err == nil {
		return len(items), nil
	}
	if !errors.Is(err, plan.ErrTooLong) && !errors.Is(err, engine.ErrTooLarge) {
		return 0, err
	}
	if len(items) == 1 {
		return 0, nil
	}
	fit := 0
	for i := range items { // one by one, because only some are too long
		n, err := c.computeFitting(ctx, do, items[i:i+1])
		if err != nil {
			return fit, err
		}
		fit += n
	}
	return fit, nil
}

// compute runs a batch of items through the model and writes them to every tier.
func (c *Cache) compute(ctx context.Context, do Do, items [][]int32) error {
	v := c.visits.Get().(*Visit)
	v.begin(c, nil, items)
	v.Decision = schedule.Decision{Order: plan.ItemFirst, Reuse: true}
	l := c.prompt.ItemsAlone(items)
	job := &engine.Job{Plan: l.Plan}
	v.Attach(ctx, &l, job)
	within, cancel := context.WithTimeout(ctx, batchTime)
	defer cancel()
	r, err := do(within, job)
	v.finish(&l, r)
	return errors.Join(err, c.opt.Store.Written(ctx))
}

// Bytes returns the size of the KV of a number of tokens.
func (c *Cache) Bytes(tokens int) int64 { return int64(tokens) * c.bytesPerToken }

// Heat returns how often an item is expected to be used, and whether any tier has it.
func (c *Cache) Heat(item []int32) (uses float64, cached bool) {
	keys, tiers, out := [1]plan.Key{c.ItemKey(item)}, [1]plan.Tier{plan.Missing}, [1]float32{}
	c.opt.Store.Uses(keys[:], tiers[:], c.opt.Now(), out[:])
	c.opt.Store.Status(keys[:], tiers[:])
	return float64(out[0]), tiers[0] != plan.Missing
}

package reuse

import (
	"context"
	"fmt"
	"slices"

	"grebe/plan"
	"grebe/prompt"
	"grebe/schedule"
)

// Listed are the items of a catalog that a cache may compute before requests need them.
type Listed struct {
	IDs  []string
	Heat []schedule.Heat // of each
	// Item returns an item as it is now; false: it was deleted.
	Item func(id string) (*prompt.Item, bool)
	// Disk returns the room on disk; nil: there is no disk.
	Disk func() schedule.Space
}

// Ahead is one pass over listed items. It belongs to one goroutine.
type Ahead struct {
	cache *Cache
	list  Listed
	core  *schedule.Ahead
	taken []taken // items of the current step
}

// taken is an item and the tokens that it had when the step began.
type taken struct {
	id     string
	tokens []int32
}

// AheadDid is the result of a step.
type AheadDid struct {
	Computed int // items
	Fetched  int // items that came from other nodes
	TooLong  int // items that the model, or the memory, has no room for
	Failed   int // items that an error left out; the pass does not come back to them
	Tokens   int // of the computed ones
	Left     int // items that are left
	Step     schedule.AheadStep
}

// Ahead begins a pass over items, hottest first. It computes them only while there is room without evicting KV of
// requests.
func (c *Cache) Ahead(list Listed) *Ahead {
	return &Ahead{cache: c, list: list, core: schedule.NewAhead(list.Heat)}
}

// Idle does a small piece of work in idle time, see Spare. It returns the error of the work, or that of ctx if it
// ended before.
func (c *Cache) Idle(ctx context.Context, work func() error) error {
	defer c.opt.Spare.join(c.opt.Load)()
	return c.opt.Spare.use(ctx, work)
}

// OthersIdle waits until the engines of the machine's other models have no work.
func (c *Cache) OthersIdle(ctx context.Context) error {
	for c.opt.Spare.busyBut(c.opt.Load) {
		if err := sleep(ctx, spareLook); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// Step computes the next few items. Call it from Idle. It skips deleted items, and drops items that are deleted or
// changed while they are computed.
func (a *Ahead) Step(ctx context.Context, do Do) (did AheadDid, err error) {
	c := a.cache
	looked := map[int][]int32{}
	items, step := a.core.Step(refreshTokens, c.AheadRoom(a.list.Disk), func(item int) int {
		tokens := a.missing(a.list.IDs[item])
		looked[item] = tokens
		return len(tokens)
	})
	did.Left, did.Step, did.TooLong = a.core.Left(), step, a.core.TooLarge()
	if len(items) == 0 {
		return did, nil
	}
	a.taken = a.taken[:0]
	batch := make([][]int32, len(items))
	for i, item := range items {
		batch[i] = looked[int(item)]
		did.Tokens += len(batch[i])
		a.taken = append(a.taken, taken{a.list.IDs[item], batch[i]})
	}
	var tooLong int
	rest := c.fetchAhead(ctx, batch)
	did.Fetched = len(batch) - len(rest)
	for i := range batch {
		did.Tokens -= len(batch[i])
	}
	for i := range rest {
		did.Tokens += len(rest[i])
	}
	did.Computed, tooLong, err = c.Precompute(ctx, do, rest, nil)
	did.TooLong += tooLong
	if err != nil {
		did.Failed, did.Tokens = len(rest)-did.Computed-tooLong, 0
	}
	if stale := a.stale(); len(stale) > 0 { // also after an error: some may have been computed
		if failed := c.DropItem(stale...); failed != nil && err == nil {
			err = fmt.Errorf("reuse: drop items that were deleted while they were computed: %w", failed)
		}
	}
	if step == schedule.AheadDisk {
		keys := make([]plan.Key, len(batch))
		for i := range batch {
			keys[i] = c.ItemKey(batch[i])
		}
		c.opt.Store.Unload(keys...)
	}
	return did, err
}

// missing returns an item's tokens if they are cached nowhere.
func (a *Ahead) missing(id string) []int32 {
	it, ok := a.list.Item(id)
	if !ok {
		return nil
	}
	tokens, err := a.cache.prompt.ItemTokens(it)
	if err != nil || len(tokens) == 0 { // the model does not rank it
		return nil
	}
	keys, tiers := [1]plan.Key{a.cache.ItemKey(tokens)}, [1]plan.Tier{}
	if a.cache.opt.Store.Status(keys[:], tiers[:]); tiers[0] != plan.Missing {
		return nil
	}
	return tokens
}

// stale returns the tokens of items that were deleted or changed during the step. A change that comes later finds the
// entries and drops them itself.
func (a *Ahead) stale() (tokens [][]int32) {
	for _, was := range a.taken {
		var now []int32
		if it, ok := a.list.Item(was.id); ok {
			now, _ = a.cache.prompt.ItemTokens(it)
		}
		if !slices.Equal(now, was.tokens) {
			tokens = append(tokens, was.tokens)
		}
	}
	return tokens
}

// AheadRoom returns the room for items that no request has named. disk returns the room on disk, or is nil.
func (c *Cache) AheadRoom(disk func() schedule.Space) *schedule.AheadRoom {
	books := c.opt.Pool.Stats()
	r := &schedule.AheadRoom{Memory: schedule.Space{Used: books.Used, Total: books.Total}, Token: c.bytesPerToken}
	if disk != nil {
		r.Disk = disk()
	}
	return r
}

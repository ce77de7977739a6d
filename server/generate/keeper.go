package generate

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"grebe/catalog"
	"grebe/prompt"
)

// settle is how long a change waits for others before snapshots are made of both.
const settle = 200 * time.Millisecond

// Target is a model whose snapshots a Keeper makes.
type Target struct {
	Name      string // for the log
	Generator *Generator
	Model     Packer
}

// Keeper makes new snapshots as the catalog's items change. It follows the changes one by one, so that
// a snapshot has the items of exactly the version that it names.
type Keeper struct {
	targets []Target
	log     *slog.Logger
	changed chan struct{} // has an element when snapshots are to be made

	mu      sync.Mutex
	version uint64
	items   []*prompt.Item // that have codes, in the order in which they were last changed; nil: gone
	at      map[string]int // where they are
	bare    int            // items without codes
}

// NewKeeper makes the first snapshots and follows the catalog from then on, which nobody may change
// before it returns. Run makes the later snapshots.
func NewKeeper(c *catalog.Catalog, log *slog.Logger, targets ...Target) (*Keeper, error) {
	k := &Keeper{targets: targets, log: log, changed: make(chan struct{}, 1), at: map[string]int{}}
	for _, it := range c.Items() {
		k.put(it)
	}
	k.version = c.Stats().Version
	for i := range targets {
		if err := k.renew(&targets[i]); err != nil {
			return nil, fmt.Errorf("model %s: %w", targets[i].Name, err)
		}
	}
	c.Subscribe(k.hear)
	return k, nil
}

// Run makes snapshots until ctx ends. What cannot be made is logged, and the one before stays in use.
func (k *Keeper) Run(ctx context.Context) {
	pause := settle
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.changed:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		start := time.Now()
		for i := range k.targets {
			t := &k.targets[i]
			if err := k.renew(t); err != nil {
				k.log.Error("the items that are generated stay as they were", "model", t.Name, "error", err)
				continue
			}
			s := t.Generator.Snapshot()
			k.log.Debug("items that are generated", "model", t.Name, "version", s.Version, "items", s.Len(), "took", time.Since(start))
		}
		// Under a stream of changes at most half of the time goes into snapshots.
		pause = max(settle, time.Since(start))
	}
}

// hear takes in a change of the catalog.
func (k *Keeper) hear(c catalog.Change) {
	if c.OldItem == nil && c.NewItem == nil {
		return // of a user
	}
	k.mu.Lock()
	k.drop(c.OldItem)
	if c.NewItem != nil {
		k.put(c.NewItem)
	}
	k.version = c.Version
	k.mu.Unlock()
	if !hasCodes(c.OldItem) && !hasCodes(c.NewItem) {
		return
	}
	select {
	case k.changed <- struct{}{}:
	default: // it is known already
	}
}

func hasCodes(it *prompt.Item) bool { return it != nil && len(it.Codes) > 0 }

func (k *Keeper) put(it *prompt.Item) {
	if !hasCodes(it) {
		k.bare++
		return
	}
	k.at[it.ID] = len(k.items)
	k.items = append(k.items, it)
}

func (k *Keeper) drop(it *prompt.Item) {
	switch {
	case it == nil:
		return
	case !hasCodes(it):
		k.bare--
		return
	}
	k.items[k.at[it.ID]] = nil
	delete(k.at, it.ID)
	if len(k.items) < 2*len(k.at)+64 {
		return
	}
	k.items = k.list()
	for i, it := range k.items {
		k.at[it.ID] = i
	}
}

// list returns the items without gaps.
func (k *Keeper) list() []*prompt.Item {
	out := make([]*prompt.Item, 0, len(k.at))
	for _, it := range k.items {
		if it != nil {
			out = append(out, it)
		}
	}
	return out
}

// renew makes a snapshot of the items as they are and has the model use it.
func (k *Keeper) renew(t *Target) error {
	k.mu.Lock()
	items, version, bare := k.list(), k.version, k.bare
	k.mu.Unlock()
	s, err := NewSnapshot(strconv.FormatUint(version, 10), items, t.Generator.Prompt, t.Model, t.Generator.Snapshot())
	if err != nil {
		return err
	}
	s.Skipped += bare
	t.Generator.Use(s)
	return nil
}
